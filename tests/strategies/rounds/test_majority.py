"""Who is left out when sites differ, by hand."""

from dataclasses import replace

from fedbayes.protocol.agreement import Claim, MeanVariance
from strategies.rounds.majority import majority_of, majority_of_claims

HONEST = Claim((64,), ("0", "1"), declared=False)


def means(count: int) -> MeanVariance:
    return MeanVariance(9, (0.0,) * count, (1.0,) * count)


def test_a_kind_that_most_have() -> None:
    kinds = {"a": 1, "b": 1, "c": 2}
    assert majority_of(kinds, 1) == {"a", "b"}
    assert majority_of(kinds, 3) == set(), "not enough for the run"
    assert majority_of({"a": 1, "b": 2}, 1) == set() == majority_of({}, 1)


def test_claims_that_fit_together() -> None:
    others = {
        "shape": replace(HONEST, shape=(65,)),
        "task": replace(HONEST, classes=()),
        "columns": replace(HONEST, features=("age",)),
        "white": replace(HONEST, brightest=16),
        "declared": replace(HONEST, classes=("7",), declared=True),
        "means": replace(HONEST, inputs=means(5)),
    }
    for odd in others.values():
        claims = {"a": HONEST, "b": replace(HONEST, classes=("2",)), "c": odd, "d": HONEST}
        assert majority_of_claims(claims, 1) == {"a", "b", "d"}


def test_means_of_different_numbers_do_not_fit() -> None:
    claims = {"a": replace(HONEST, inputs=means(64)), "b": replace(HONEST, inputs=means(64))}
    claims["c"] = replace(HONEST, inputs=means(1))
    assert majority_of_claims(claims, 1) == {"a", "b"}
