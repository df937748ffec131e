"""What is done to images: every one comes out as a window of itself, padded and perhaps mirrored."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from bayes_core.inference.augment import FlipCrop
from bayes_core.inference.plain import MeanLoss
from bayes_core.likelihoods import categorical
from bayes_core.networks import dnn


def images(n: int = 60) -> Tensor:
    return torch.rand(n, 2, 6, 5, generator=torch.Generator().manual_seed(1))


def flip_crop(seed: int = 3) -> FlipCrop:
    return FlipCrop(torch.Generator().manual_seed(seed), -1.0)


def test_every_image_is_a_window_of_itself_and_all_kinds_of_windows_occur() -> None:
    x = images()
    before = x.clone()
    changed = flip_crop()(x)
    assert torch.equal(x, before) and changed.shape == x.shape
    found = []
    for image, new in zip(pad(x, (4, 4, 4, 4), value=-1.0), changed, strict=True):
        windows = {
            (top, left, mirrored): image[:, top : top + 6, left : left + 5].flip([2] if mirrored else [])
            for top in range(9)
            for left in range(9)
            for mirrored in (False, True)
        }
        (where,) = [place for place, window in windows.items() if torch.equal(window, new)]
        found.append(where)
    assert {top for top, _, _ in found} == {left for _, left, _ in found} == set(range(9))
    assert 15 < sum(mirrored for _, _, mirrored in found) < 45


def test_the_stream_decides() -> None:
    one, again, other = (flip_crop(seed)(images()) for seed in (3, 3, 4))
    assert torch.equal(one, again) and not torch.equal(one, other)


def test_a_batch_that_is_met_again_is_changed_the_same_way() -> None:
    """So that differences of gradients are those of the weights."""
    x, network = images(), dnn((2, 6, 5), 3)
    f = MeanLoss(network, x, torch.arange(60) % 3, categorical, {}, flip_crop())
    theta = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
    batch, other = torch.arange(20), torch.arange(20)
    first = f.gradient(theta, batch)
    assert torch.equal(first, f.gradient(theta, batch))
    assert not torch.equal(first, f.gradient(theta, other))
