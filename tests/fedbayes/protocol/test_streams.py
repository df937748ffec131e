"""Seeds that must be the same on every machine, for ever."""

import torch

from fedbayes.protocol.streams import reseed, seed_of, stream


def test_seeds_are_pinned() -> None:
    """Changing these numbers changes every published result."""
    assert seed_of(1, "site-3", 7, "train") == 2314490222570607055


def test_different_words_give_different_seeds() -> None:
    words = [
        (1, "23"),
        (12, "3"),
        ("1", "23"),
        (1, 23),
        (123,),
        ("123",),
        (1, "23", ""),
        ("23", 1),
        (True, "23"),
    ]
    assert len({seed_of(*each) for each in words}) == len(words)


def test_seeds_fill_63_bits() -> None:
    seeds = [seed_of(i) for i in range(200)]
    assert len(set(seeds)) == 200
    assert all(0 <= seed < 2**63 for seed in seeds) and max(seeds) > 2**62


def test_a_stream_is_its_own() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    first, again, other = (torch.rand(4, generator=stream(1, name)) for name in ("a", "a", "b"))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.rand(3), expected)  # the global stream is not touched


def test_torch_s_own_generator_is_seeded_as_torch_would() -> None:
    reseed(torch.device("cpu"), 1, "site-3", 7, "network")
    drawn = torch.rand(5)
    torch.manual_seed(seed_of(1, "site-3", 7, "network"))
    assert torch.equal(torch.rand(5), drawn)
