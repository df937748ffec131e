"""Minibatches: counted by hand."""

import pytest
import torch

from bayes_core.inference.update import minibatches


def batches(n: int, b: int, count: int, seed: int = 0) -> list[list[int]]:
    return [batch.tolist() for batch in minibatches(n, b, count, torch.Generator().manual_seed(seed))]


@pytest.mark.parametrize(("n", "b", "count"), [(10, 3, 7), (12, 4, 6), (5, 5, 3), (7, 1, 2), (250, 100, 20)])
def test_every_example_is_seen_equally_often(n: int, b: int, count: int) -> None:
    got = batches(n, b, count)
    assert [len(batch) for batch in got] == [b] * count
    seen = [index for batch in got for index in batch]
    times = [seen.count(index) for index in range(n)]
    assert set(times) <= {count * b // n, count * b // n + 1}
    assert set(seen) <= set(range(n))


def test_a_pass_takes_each_example_once_and_the_next_is_shuffled_anew() -> None:
    got = batches(12, 4, 6)
    first, second = ([index for batch in half for index in batch] for half in (got[:3], got[3:]))
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second and first != list(range(12))


def test_the_generator_decides() -> None:
    assert batches(20, 6, 4, seed=1) == batches(20, 6, 4, seed=1) != batches(20, 6, 4, seed=2)
