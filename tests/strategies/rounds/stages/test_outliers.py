"""The scalars by hand, and what the bound forgives and does not."""

import json
import math

import pytest
import torch

from bayes_core import Gaussian, Point, SpikeSlab
from bayes_core.families import Family
from bayes_core.server.blocks import BLOCK
from strategies.rounds.replies import BadReply
from strategies.rounds.stages.outliers import FACTOR, LARGE, ROUNDS, SMALL, Outliers, scalars_of

SIZE = BLOCK + 10  # more than one block
BASE = Gaussian().init(torch.zeros(SIZE))
SIGMA = math.log1p(math.exp(-2.5))


def moved(by: float, base: torch.Tensor = BASE) -> torch.Tensor:
    v = base.clone()
    v[0, ::2] += by
    v[0, 1::2] -= by
    return v


def close(outliers: Outliers, moves: list[float]) -> list[float]:
    """A round of these moves; those that were dropped."""
    dropped = []
    for move in moves:
        try:
            outliers.judge(moved(move), BASE)
        except BadReply:
            dropped.append(move)
    outliers.close(0)
    return dropped


def test_scalars_by_hand() -> None:
    got = scalars_of(moved(0.3), BASE, Gaussian())
    assert got["move"] == pytest.approx(0.3, rel=1e-5)
    assert got["divergence"] == pytest.approx(0.3 / SIGMA / math.sqrt(2), rel=1e-4), "KL = ½(Δμ/σ)²"
    assert scalars_of(BASE, BASE, Gaussian()) == {"move": 0.0, "divergence": 0.0}
    assert scalars_of(BASE[:1] + 2, BASE[:1], Point()) == {"move": 2.0}


@pytest.mark.parametrize("family", [Gaussian(), SpikeSlab()])
def test_the_divergence_is_the_familys_kl(family: Family) -> None:
    torch.manual_seed(0)
    base = family.init(torch.randn(SIZE))
    upload = base + 0.05 * torch.randn_like(base)
    expected = math.sqrt(family.kl(upload, base).item() / SIZE)
    assert scalars_of(upload, base, family)["divergence"] == pytest.approx(expected, rel=1e-4)


def test_gates_that_all_close_are_absurd_and_gates_that_merely_move_are_not() -> None:
    family = SpikeSlab()
    base = family.init(torch.zeros(SIZE), -2.5, 0.5)
    honest = base.clone()
    honest[2, ::2], honest[2, 1::2] = 0.8, 0.2
    closed = base.clone()
    closed[2] = 0
    assert scalars_of(honest, base, family)["gate move"] == pytest.approx(0.3, rel=1e-4)
    assert scalars_of(honest, base, family)["gate shift"] == pytest.approx(0, abs=1e-5)
    assert scalars_of(closed, base, family)["gate shift"] == pytest.approx(0.5)
    outliers = Outliers(family)
    for _ in range(2):  # in the first round as in later ones
        outliers.judge(honest, base)
        with pytest.raises(BadReply, match=r"opened or closed its gates by a mean of 0\.5 a weight"):
            outliers.judge(closed, base)
        outliers.judge(honest, base)
        outliers.close(3)


def test_a_run_that_began_before_gates_were_watched_goes_on() -> None:
    outliers = Outliers(SpikeSlab(), [{"move": 0.1, "divergence": 0.1}])
    base = SpikeSlab().init(torch.zeros(SIZE), -2.5, 0.5)
    outliers.judge(base, base)
    assert outliers.bound("gate shift", base) == LARGE["gate shift"]


def test_the_first_round_has_a_generous_bound() -> None:
    assert close(Outliers(Gaussian()), [0.01, 0.5]) == []
    assert close(Outliers(Gaussian()), [1.1 * LARGE["move"]]) == [1.1 * LARGE["move"]]
    large = BASE.clone()
    large[0] = 3  # a network with larger weights than ours
    Outliers(Point()).judge(large[:1] + 20, large[:1])


def test_later_rounds_are_held_against_earlier_ones() -> None:
    outliers = Outliers(Gaussian())
    assert close(outliers, [0.01, 0.02, 0.03]) == []
    assert close(outliers, [0.02, 0.9 * FACTOR * 0.02, 1.1 * FACTOR * 0.02]) == [1.1 * FACTOR * 0.02]


@pytest.mark.parametrize("family", [Gaussian(), Point()])
def test_the_verdict_says_what_it_saw(family: Family) -> None:
    outliers, rows = Outliers(family), len(family.rows)
    outliers.judge(moved(0.01)[:rows], BASE[:rows])
    outliers.close(0)
    with pytest.raises(BadReply, match=r"moved its weights by 0\.5 a weight, and 0\.1 is the bound"):
        outliers.judge(moved(0.5)[:rows], BASE[:rows])


def test_a_wild_variance_is_seen_too() -> None:
    outliers = Outliers(Gaussian())
    close(outliers, [0.001] * 3)
    wild = BASE.clone()
    wild[1] = 1.0  # σ of 1.3 instead of 0.08; μ did not move
    with pytest.raises(BadReply, match="went away from the server's distribution"):
        outliers.judge(wild, BASE)


def test_a_few_bad_ones_do_not_raise_the_bound_and_quiet_rounds_do_not_lower_it_at_once() -> None:
    outliers = Outliers(Gaussian())
    close(outliers, [0.02] * 3)
    for _ in range(ROUNDS - 1):
        assert close(outliers, [0.01, 0.01, 0.01, 0.9, 0.9]) == [0.9, 0.9]
    assert close(outliers, [0.15]) == [], "10 × 0.02 is remembered"
    close(outliers, [0.01] * 3)
    assert len(outliers.medians) == ROUNDS


def test_where_the_bound_was_wrong_it_is_right_a_round_later() -> None:
    outliers = Outliers(Gaussian())
    close(outliers, [0.01] * 4)
    assert close(outliers, [0.3] * 4) == [0.3] * 4
    assert close(outliers, [0.3] * 4) == []


def test_after_rounds_in_which_nothing_moved_a_small_move_is_no_outlier() -> None:
    outliers = Outliers(Gaussian())
    close(outliers, [0.0] * 4)
    assert close(outliers, [0.9 * SMALL["move"], 1.1 * SMALL["move"]]) == [1.1 * SMALL["move"]]


def test_what_is_remembered_is_json() -> None:
    outliers = Outliers(Gaussian())
    close(outliers, [0.01, 0.02, 0.04])
    again = Outliers(Gaussian(), json.loads(json.dumps(outliers.memory())))
    moves = [0.15, 0.19, 0.21, 0.3]
    assert close(again, moves) == close(outliers, moves) == [0.21, 0.3]
    assert again.medians == outliers.medians
