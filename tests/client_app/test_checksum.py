"""What a checksum finds: each flipped bit, cuts, swaps and names; and those of earlier versions."""

import pytest
import torch
from torch import Tensor

from client_app.checksum import WIDTH, checksum, crc, fits


def state() -> dict[str, Tensor]:
    """Several rows of words, and bytes that fill no word."""
    generator = torch.Generator().manual_seed(0)
    return {
        "q": torch.randn(2, 5 * WIDTH + 3, generator=generator),
        "bytes": torch.arange(13, dtype=torch.uint8),
        "count": torch.tensor(3),
    }


def test_every_flipped_bit_is_found() -> None:
    tensors = state()
    before = checksum(tensors)
    for name, tensor in tensors.items():
        found = tensor.reshape(-1).view(torch.uint8).numpy()
        for byte in {0, 1, 7, len(found) // 2, len(found) - 1} & set(range(len(found))):
            for bit in range(8):
                found[byte] ^= 1 << bit
                assert checksum(tensors) != before, (name, byte, bit)
                found[byte] ^= 1 << bit
    assert checksum(tensors) == before


def test_two_changes_of_one_column_do_not_hide_each_other() -> None:
    """Signs, a word's highest bit, in rows of words that are added to the same sums."""
    tensors = state()
    before, q = checksum(tensors), tensors["q"].view(-1)
    for apart in (1, 2, 3, 4):
        for place in (1, 2 * WIDTH * apart + 1):
            q[place] *= -1
        assert checksum(tensors) != before
        for place in (1, 2 * WIDTH * apart + 1):
            q[place] *= -1


def test_cuts_swaps_zeros_and_names_are_found() -> None:
    tensors = state()
    q = tensors["q"].reshape(-1)
    swapped = q.clone()
    swapped[: 2 * WIDTH], swapped[2 * WIDTH : 4 * WIDTH] = q[2 * WIDTH : 4 * WIDTH], q[: 2 * WIDTH]
    others = [
        tensors | {"q": q[:-1]},
        tensors | {"q": torch.cat([q, torch.zeros(2)])},
        tensors | {"q": torch.cat([torch.zeros(2), q])},
        tensors | {"q": swapped},
        tensors | {"q": q[[1, 0, *range(2, len(q))]]},
        {"q": q, "bytes": tensors["bytes"]},
        {"q": q, "bytes": tensors["bytes"], "number": tensors["count"]},
        {},
    ]
    found = {checksum(one) for one in [tensors, *others]}
    assert len(found) == 1 + len(others)


def test_earlier_checksums_still_count() -> None:
    tensors = state()
    assert crc({"q": torch.arange(4.0)}) == "e326a453"
    assert fits(tensors, crc(tensors)) and fits(tensors, checksum(tensors))
    tensors["count"] += 1
    assert not fits(tensors, crc(state())) and not fits(tensors, checksum(state())) and not fits(tensors, "")


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.bool])
def test_what_is_not_in_one_piece_counts_as_if_it_were(kind: torch.dtype) -> None:
    turned = torch.randn(30, 40).to(kind).T
    assert checksum({"q": turned}) == checksum({"q": turned.contiguous()})
