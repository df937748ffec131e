"""The paper's networks: sizes computed by hand, initialisation by seed."""

import copy
import sys
from itertools import pairwise

import pytest
import torch
from torch import nn

from bayes_core.flat import fingerprint, flatten, shapes_of
from bayes_core.networks import in_bfloat16
from fedbayes.protocol.models import build
from fedbayes.protocol.user_code import UserCodeError


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


def test_vgg_computes_what_the_papers_order_of_layers_does() -> None:
    network, x = build("vgg", (3, 32, 32), 10).double(), torch.randn(6, 3, 32, 32, dtype=torch.float64)
    layers = [layer for layer in network.children() if not isinstance(layer, (nn.ReLU, nn.MaxPool2d))]
    textbook = nn.Sequential(
        *(part for layer in layers[:5] for part in (layer, nn.ReLU(), nn.MaxPool2d(2))), *layers[5:]
    )
    ours, theirs = network(x), textbook(x)
    torch.testing.assert_close(ours, theirs)
    by_ours, by_theirs = (
        torch.autograd.grad(y.square().sum(), list(network.parameters())) for y in (ours, theirs)
    )
    torch.testing.assert_close(by_ours, by_theirs)


def test_vgg_passes_images_on_at_the_size_that_they_come_in() -> None:
    """With PyTorch's own start they leave the last block a hundred times smaller."""
    network, x = build("vgg", (3, 32, 32), 10, seed=1), torch.rand(64, 3, 32, 32) * 2 - 1
    came = float(x.square().mean().sqrt())
    with torch.no_grad():
        for layer in network.children():
            x = layer(x)
            if isinstance(layer, nn.ReLU):
                assert 0.2 < float(x.square().mean().sqrt()) / came < 5


def test_vgg_takes_larger_images() -> None:
    assert build("vgg", (1, 64, 70), 4)(torch.zeros(1, 1, 64, 70)).shape == (1, 4)


def test_vgg_says_that_an_image_is_too_small() -> None:
    with pytest.raises(ValueError, match="at least 32×32 pixels, not 28×28"):
        build("vgg", (1, 28, 28), 10)


def test_a_network_that_no_memory_holds_is_refused_in_a_sentence() -> None:
    with pytest.raises(
        UserCodeError, match=r"model=dnn cannot be made for inputs of shape \(1000000000000,\)"
    ):
        build("dnn", (10**12,), 10)


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


OWN = """
import torch
from torch import nn

calls = []

def net(inputs, classes):
    calls.append((inputs, classes))
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

def changing(inputs, classes):
    calls.append(0)
    return nn.Linear(64, len(calls))

def raising(inputs, classes):
    raise RuntimeError("no such\\n  luck")

def positional(inputs):
    return nn.Linear(1, 1)

def a_tensor(inputs, classes):
    return torch.zeros(3)

def empty(inputs, classes):
    return nn.Flatten()

def lazy(inputs, classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))

def wrong_outputs(inputs, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes + 1))

def wrong_inputs(inputs, classes):
    return nn.Linear(65, classes)

constant = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's module `my_models`, in a folder where Python looks."""
    (tmp_path / "my_models.py").write_text(OWN)
    (tmp_path / "my_broken.py").write_text("import no_such_package")
    (tmp_path / "my_crash.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("my_models", "my_broken", "my_crash"):
        sys.modules.pop(name, None)


def test_a_user_s_own_network(own) -> None:
    network = build("my_models:net", (1, 8, 8), 7, seed=1)
    assert len(flatten(network)) == 64 * 7 + 7
    assert sys.modules["my_models"].calls[0] == ((1, 8, 8), 7), "passed by name"
    assert torch.equal(flatten(network), flatten(build("my_models:net", (1, 8, 8), 7, seed=1)))
    assert not torch.equal(flatten(network), flatten(build("my_models:net", (1, 8, 8), 7, seed=2)))


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            "my_modles:net",
            'my_modles:net cannot be imported: there is no module "my_modles" on this machine; start from the '
            "folder that holds it, or name that folder in PYTHONPATH.",
        ),
        (
            "my_broken:net",
            'my_broken:net cannot be imported: there is no module "no_such_package", which my_broken imports on '
            "this machine; start from the folder that holds it, or name that folder in PYTHONPATH.",
        ),
        ("my_crash:net", "my_crash:net cannot be imported: ZeroDivisionError: division by zero."),
        ("my_models:nets", 'my_models:nets cannot be used: my_models has no "nets".'),
        ("my_models:constant", "my_models:constant is int, not a function."),
        (
            "my_models:raising",
            "model=my_models:raising called with inputs=(1, 8, 8), classes=10 failed with RuntimeError: no such "
            "luck.",
        ),
        (
            "my_models:positional",
            "model=my_models:positional called with inputs=(1, 8, 8), classes=10 failed with TypeError: "
            "positional() got an unexpected keyword argument 'classes'.",
        ),
        ("my_models:a_tensor", "model=my_models:a_tensor returned Tensor; it takes a torch.nn.Module."),
        (
            "my_models:changing",
            "model=my_models:changing made two networks of different shapes in two calls; all sites need the "
            "same one.",
        ),
        (
            "my_models:empty",
            "model=my_models:empty has no parameters, or some that are no floating-point numbers.",
        ),
        (
            "my_models:lazy",
            "model=my_models:lazy has lazy layers, whose shapes are not known yet; give their sizes.",
        ),
        (
            "my_models:wrong_outputs",
            "model=my_models:wrong_outputs gives (2, 11) for two examples, not (2, 10).",
        ),
    ],
)
def test_a_network_that_cannot_be_used_is_one_sentence(own, model: str, sentence: str) -> None:
    with pytest.raises(UserCodeError) as caught:
        build(model, (1, 8, 8), 10)
    assert str(caught.value) == sentence


def test_a_network_for_other_inputs(own) -> None:
    with pytest.raises(
        UserCodeError, match=r"wrong_inputs failed on two examples of \(1, 8, 8\): RuntimeError: mat1"
    ):
        build("my_models:wrong_inputs", (1, 8, 8), 10)
    with pytest.raises(UserCodeError, match="vgg takes images, not inputs of shape"):
        build("vgg", (64,), 10)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_bfloat16_is_for_passes_in_training_alone(batch_norm: bool) -> None:
    def made() -> nn.Module:
        torch.manual_seed(0)
        middle = nn.BatchNorm1d(8) if batch_norm else nn.Identity()
        return nn.Sequential(nn.Linear(6, 8), middle, nn.Linear(8, 3))

    plain, reduced, x = made(), in_bfloat16(made()), torch.randn(16, 6)
    assert shapes_of(plain) == shapes_of(reduced) and fingerprint(plain) == fingerprint(reduced)
    near, far = plain.train()(x), reduced.train()(x)
    assert far.dtype == torch.float32 and 0 < (near - far).abs().max() < 0.05
    (gradient,) = torch.autograd.grad(copy.deepcopy(reduced)(x).sum(), [reduced[2].bias], allow_unused=True)
    assert gradient is None  # a copy has parameters of its own
    (gradient,) = torch.autograd.grad(reduced(x).sum(), [reduced[0].weight])
    assert gradient.dtype == torch.float32
    reduced.load_state_dict(plain.state_dict())
    assert torch.equal(plain.eval()(x), reduced.eval()(x))
