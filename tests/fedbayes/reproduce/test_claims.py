"""What the paper says: which figures decide it, and what is still open."""

from collections.abc import Mapping

import pytest

from fedbayes.reproduce.cells import WHATS, cells
from fedbayes.reproduce.checks import Check, Claim, Figure, Lead, figures_in, papers_own, verdict
from fedbayes.reproduce.claims import claims

A, B, C = (Figure("table1", f"mnist/small/{name}", "pm") for name in "abc")


def held(check: Check, **figures: float) -> bool | None:
    return check.holds(lambda figure: figures.get(figure.method))


def test_the_best_is_above_all_others() -> None:
    best = Check("", (A,), (B, C))
    assert held(best, a=3, b=1, c=2) is True
    assert held(best, a=2, b=3) is False  # c cannot mend it
    assert held(best, a=3, b=2) is None and held(best, b=2, c=1) is None and held(best) is None
    assert held(best, a=2, b=2, c=1) is False


def test_one_of_several_is_enough_and_each_of_several_is_more() -> None:
    some, each = Check("", (A, B), (C,)), Check("", (A, B), (C,), every=True)
    assert held(some, a=1, b=3, c=2) is True and held(each, a=1, b=3, c=2) is False
    assert held(some, a=1, c=2) is None and held(each, a=1, c=2) is False


def test_leads_bounds_and_slack() -> None:
    assert held(Check("", (Lead(A, (B,)),), (Lead(C, (B,)),)), a=5, b=1, c=4) is True
    assert held(Check("", (50.0,), (A,)), a=35.6) is True
    assert held(Check("", (A,), (B,), slack=0.5), a=1, b=1.4) is True


@pytest.mark.parametrize(
    ("figures", "mark", "counts"),
    [
        ({}, "not run yet", "2 not run yet"),
        ({"a": 2.0, "b": 1.0}, "holds so far", "1 of 1, 1 not run yet"),
        ({"a": 2.0, "b": 1.0, "c": 1.0}, "holds", "2 of 2"),
        ({"a": 2.0, "b": 3.0, "c": 1.0}, "does not hold", "1 of 2"),
    ],
)
def test_a_verdict_in_words(figures: Mapping[str, float], mark: str, counts: str) -> None:
    claim = Claim("table1", "a is the best", (Check("one", (A,), (B,)), Check("two", (A,), (C,))))
    found = verdict(claim, lambda figure: figures.get(figure.method), lambda _: None)
    assert (found.mark, found.counts, found.in_paper) == (mark, counts, "–")
    assert found.against == (("one (b +1.00)",) if mark == "does not hold" else ())  # b is ahead there


def test_most_places_are_enough_where_most_are_claimed() -> None:
    checks = tuple(Check("", (A,), (other,)) for other in (B, B, C))
    found = verdict(
        Claim("table1", "", checks, most=True), lambda one: {"a": 2, "b": 1, "c": 3}[one.method], papers_own
    )
    assert found.mark == "holds"


@pytest.mark.parametrize("what", WHATS)
def test_every_claim_is_about_cells_that_exist(what: str) -> None:
    known = {(cell.what, cell.name) for table in WHATS for cell in cells(table)}
    for claim in claims(what):
        assert claim.checks
        for figure in figures_in(claim):
            assert (figure.what, figure.name) in known


def test_the_papers_own_figures_say_what_it_says() -> None:
    """Where they do not, its text goes further than its tables."""
    own = {
        claim.says: verdict(claim, papers_own, papers_own)
        for what in WHATS
        for claim in claims(what)
        if what != "figures"
    }
    assert own["pFedBayes has the best personal model"].in_paper == "12 of 12"
    assert own["BNFed's global model is the worst"].mark == "holds"
    short = {says: one.counts for says, one in own.items() if one.mark != "holds"}
    assert short == SHORT


SHORT = {
    "its global model is the best in most settings": "6 of 12",
    "with some λ of 0.3, 0.5 and 0.7 the personal model is better than pFedBayes'": "8 of 9",
    "rates of 0.001 and 0.001 are the best (PM)": "2 of 3",
}
