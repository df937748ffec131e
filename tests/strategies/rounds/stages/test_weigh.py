"""Weights, and who is left out, from what clients say of their own uncertainty."""

import itertools
import math

import pytest

from strategies.rounds.replies import BadReply
from strategies.rounds.stages import Arrival
from strategies.rounds.stages.weigh import Weigh, check_uncertainty, share_of, weight_of
from strategies.rounds.state import Upload


def test_weights_are_one_over_the_perplexity() -> None:
    for classes in (1, 2, 5, 10):
        assert weight_of("weight", {"uncertainty": math.log(classes)}) == pytest.approx(1 / classes, rel=1e-5)
        assert weight_of("0.3", {"uncertainty": math.log(classes)}) == weight_of("off", {}) == 1.0
    assert weight_of("weight", {"uncertainty": 1e9}) > 0, "nobody's weight vanishes: all may be unsure"


def test_weights_add_up_alike_in_any_order() -> None:
    weights = [weight_of("weight", {"uncertainty": value}) for value in (0.1, 0.7, 1.3, 2.2)]
    assert len({sum(order) for order in itertools.permutations(weights)}) == 1


def test_the_rule_says_the_share() -> None:
    assert [share_of(rule) for rule in ("off", "weight", "0.3", ".25")] == [0, 0, 0.3, 0.25]


def arrival(number: int, uncertainty: float, n_train: int = 1) -> Arrival:
    return Arrival(Upload(f"{number:02}", n_train, {"uncertainty": uncertainty}), {})


def weigh(share: float, expected: int, number: int = 1) -> Weigh:
    stage = Weigh(str(share) if share else "off", by_examples=False)
    stage.open(number, expected)
    return stage


def left_out(share: float, uncertainties: list[float], expected: int | None = None) -> set[int]:
    """Who is left out, the same in every order of arrival; the others come out exactly once."""
    results = set()
    for order in itertools.islice(itertools.permutations(range(len(uncertainties))), 200):
        stage = weigh(share, expected or len(uncertainties))
        used = [one for number in order for one in stage.arrive(arrival(number, uncertainties[number]))]
        used += stage.close(len(uncertainties))
        out = {int(site) for site in stage.left_out}
        came = sorted(int(one.upload.site) for one in used)
        assert came == [n for n in range(len(uncertainties)) if n not in out]
        results.add(frozenset(out))
    assert len(results) == 1
    return set(results.pop())


@pytest.mark.parametrize(
    ("share", "out"), [(0.0, set()), (0.1, set()), (0.25, {2}), (0.5, {2, 3}), (0.99, {0, 2, 3})]
)
def test_the_least_certain_share_is_left_out(share: float, out: set[int]) -> None:
    assert left_out(share, [0.7, 0.0, 1.6, 1.4]) == out


def test_failures_equals_and_three_of_ten() -> None:
    assert left_out(0.3, [float(i) for i in range(10)]) == {7, 8, 9}
    assert left_out(0.3, [1.0] * 4) == {3}, "of equals, the last"
    assert left_out(0.5, [0.5, 0.1, 0.9], expected=8) == {2}, "five of eight did not answer: ⌊0.5·3⌋ = 1"


def test_no_more_than_may_be_left_out_are_kept() -> None:
    stage = weigh(0.3, 10)
    for number in range(10):
        stage.arrive(arrival(number, float(-number % 7)))
        assert len(stage.held) <= 3


def test_before_round_1_everybody_counts() -> None:
    stage = weigh(0.5, 4, number=0)
    came = [one for number in range(4) for one in stage.arrive(arrival(number, float(number)))]
    assert len(came) == 4 and not stage.close(4) and not stage.left_out


def test_examples_and_certainty_multiply() -> None:
    stage = Weigh("weight", by_examples=True)
    stage.open(1, 1)
    (one,) = stage.arrive(arrival(0, math.log(2), n_train=30))
    assert one.weight == pytest.approx(15, rel=1e-5)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -0.1, "0.2", [0.1]])
def test_what_is_no_entropy_is_refused(value: object) -> None:
    with pytest.raises(BadReply, match="instead of a number of at least 0"):
        check_uncertainty({"uncertainty": value})
    check_uncertainty({"uncertainty": 0.0})
