"""The paper's networks: sizes computed by hand, initialisation by seed."""

from itertools import pairwise

import pytest
import torch

from bayes_core.flat import flatten
from bayes_core.networks import build


def test_dnn_has_the_papers_size() -> None:
    network = build("dnn", (1, 28, 28), 10)
    assert len(flatten(network)) == 784 * 100 + 100 + 100 * 10 + 10 == 79510
    assert network(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_vgg_has_the_papers_size() -> None:
    network = build("vgg", (3, 32, 32), 10)
    channels = (3, 16, 32, 64, 128, 128)
    convolutions = sum(9 * i * o + o for i, o in pairwise(channels))
    assert len(flatten(network)) == convolutions + 128 * 10 + 10 == 246_314
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_vgg_takes_larger_images() -> None:
    assert build("vgg", (1, 64, 70), 4)(torch.zeros(1, 1, 64, 70)).shape == (1, 4)


def test_vgg_says_that_an_image_is_too_small() -> None:
    with pytest.raises(ValueError, match="at least 32×32 pixels, not 28×28"):
        build("vgg", (1, 28, 28), 10)


def test_the_seed_decides_the_start_and_nothing_else() -> None:
    torch.manual_seed(3)
    expected = torch.rand(5)
    torch.manual_seed(3)
    first = flatten(build("dnn", (1, 8, 8), 10, seed=1))
    assert torch.equal(torch.rand(5), expected)  # the global stream goes on undisturbed
    assert torch.equal(first, flatten(build("dnn", (1, 8, 8), 10, seed=1)))
    assert not torch.equal(first, flatten(build("dnn", (1, 8, 8), 10, seed=2)))


def test_the_start_is_pytorchs_own() -> None:
    # nn.Linear draws from U(−1/√inputs, 1/√inputs), whose standard deviation is 1/√(3·inputs)
    weight = build("dnn", (1, 28, 28), 10).get_parameter("1.weight")
    assert weight.abs().max().item() == pytest.approx(1 / 28, rel=1e-3)
    assert weight.std().item() == pytest.approx(1 / (28 * 3**0.5), rel=0.02)
