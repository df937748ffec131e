"""Pruned weights by hand, and packing that loses nothing."""

import torch

from bayes_core.families import SpikeSlab
from bayes_core.predict.pruning import pack, prune, unpack


def test_weights_that_are_probably_off_are_gone() -> None:
    bound = torch.tensor([[2.0, -4.0, 6.0], [-2.0, -2.0, -2.0], [0.75, 0.25, 0.5]])
    family = SpikeSlab()
    got = prune(family, family.unconstrain(bound), 0.5)
    torch.testing.assert_close(got[:2], torch.tensor([1.5, 0.0]))
    assert torch.equal(prune(family, family.unconstrain(bound), 0.0) != 0, torch.tensor([True] * 3))
    torch.testing.assert_close(prune(family, family.unconstrain(bound), 0.0), torch.tensor([1.5, -1.0, 3.0]))


def test_packing_loses_nothing() -> None:
    random = torch.Generator().manual_seed(0)
    weights = {
        "a": torch.randn(7, 11, generator=random) * (torch.rand(7, 11, generator=random) < 0.2),
        "b": torch.zeros(3),
        "c": torch.randn(5, generator=random),
    }
    packed = pack(weights)
    assert len(packed["a.values"]) == int((weights["a"] != 0).sum()) and len(packed["a.mask"]) == 10
    got = unpack(packed, {name: weight.shape for name, weight in weights.items()})
    assert got.keys() == weights.keys() and all(torch.equal(got[name], weights[name]) for name in weights)


def test_a_buffer_called_mask_stays() -> None:
    tensors = pack({"head": torch.tensor([0.0, 2.0])}) | {"attention.mask": torch.ones(2)}
    got = unpack(tensors, {"head": (2,)})
    assert got.keys() == {"head", "attention.mask"} and got["head"].tolist() == [0, 2]
