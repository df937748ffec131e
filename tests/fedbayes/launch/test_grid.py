"""A grid over settings: which points it has, what they are called, and what is refused."""

import pytest

from fedbayes.errors import CommandError
from fedbayes.launch.grid import LONGEST, Point, parse_grid, points
from fedbayes.protocol.settings import NAME


def spanned(**words: str) -> list[tuple[str, dict[str, str]]]:
    named = {key.replace("_", "-"): value for key, value in words.items()}
    return [(point.method, dict(point.values)) for point in points(*parse_grid(named))]


def test_all_combinations_in_the_order_of_the_command_line() -> None:
    assert spanned(zeta="1,10", rounds="5", beta="0.5, 1") == [
        ("pfedbayes", {"zeta": "1", "beta": "0.5"}),
        ("pfedbayes", {"zeta": "1", "beta": "1"}),
        ("pfedbayes", {"zeta": "10", "beta": "0.5"}),
        ("pfedbayes", {"zeta": "10", "beta": "1"}),
    ]


def test_a_point_has_all_that_was_given_for_its_run() -> None:
    first, second = points(*parse_grid({"method": "fedprox", "proximal": "0,0.1", "rounds": "5"}))
    assert first.words == {"method": "fedprox", "rounds": "5", "proximal": "0"}
    assert second.words == {"method": "fedprox", "rounds": "5", "proximal": "0.1"}
    assert second.in_words == "method=fedprox proximal=0.1" and second.name == "fedprox_proximal-0.1"


def test_a_method_has_only_points_in_what_it_uses() -> None:
    """Otherwise FedAvg would be run once for each ζ, which it has not."""
    found = points(
        *parse_grid({"method": "pfedbayes,fedavg", "zeta": "1,10", "lr-global": "0.1,0.2", "mc-samples": "2"})
    )
    assert [(one.method, *one.values.values()) for one in found] == [
        ("pfedbayes", "1", "0.1"), ("pfedbayes", "1", "0.2"), ("pfedbayes", "10", "0.1"), ("pfedbayes", "10", "0.2"),
        ("fedavg", "0.1"), ("fedavg", "0.2"),
    ]  # fmt: skip
    assert "mc-samples" in found[0].words and "mc-samples" not in found[-1].words
    assert len({one.name for one in found}) == 6


def test_commas_that_belong_to_a_value_stay() -> None:
    grid, rest = parse_grid({"classes": "cat,dog", "dataset": "a.npz,b.npz", "zeta": "1,2"})
    assert grid == {"zeta": ["1", "2"]} and rest == {"classes": "cat,dog", "dataset": "a.npz,b.npz"}


def test_names_are_those_of_runs_and_differ() -> None:
    long = {f"key-{i}": "1.000000001" for i in range(20)}
    names = [
        Point("fedavg", values, {}).name
        for values in (
            {"model": "a.b:c"},
            {"model": "a.b-c"},
            {"model": "a.b/c"},
            long,
            long | {"key-19": "2"},
        )
    ]
    assert len(set(names)) == 5
    assert all(NAME.fullmatch(name) and len(name) <= LONGEST + 9 for name in names)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"zeta": "1"}, "takes at least one setting with several values"),
        ({}, "takes at least one setting with several values"),
        ({"seed": "1,2"}, "on the same data and takes one value of seed, not 1,2"),
        ({"layout": "iid,labels"}, "takes one value of layout"),
        ({"validation-fraction": "0.1,0.2"}, "takes one value of validation-fraction"),
        ({"zeta": "1,,2"}, 'zeta has an empty value in "1,,2"'),
        ({"zeta": "1,2,1"}, "zeta has the value 1 twice"),
        ({"method": "fedavg,nope"}, 'There is no method "nope"; there are'),
    ],
)
def test_what_is_no_grid(words: dict[str, str], sentence: str) -> None:
    with pytest.raises(CommandError, match=sentence):
        points(*parse_grid(words))
