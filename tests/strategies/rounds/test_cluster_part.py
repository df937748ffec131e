"""The part that clustered methods share, by hand: members, moves, empty clusters, truth."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from fedbayes.protocol.agreement import Claim
from strategies.rounds.clusters import Clusters, chosen_cluster
from strategies.rounds.replies import BadReply
from strategies.rounds.roster import Site
from strategies.rounds.state import Came, Upload


class Told(list[str]):
    def __call__(self, event: str, **said: Any) -> None:
        assert event == "warning"
        self.append(said["message"])


def sites(groups: Mapping[str, int | None]) -> dict[str, Site]:
    claim = Claim((2,), ("x", "y"), True)
    return {
        name: Site(name, number, 5, 5, (2,), ("x", "y"), claim, "f", group, 4, None)
        for number, (name, group) in enumerate(groups.items())
    }


def test_who_moves_is_counted() -> None:
    before = Clusters({"a": 0, "b": 0, "c": 1})
    after = before.after({"a": 1, "b": 0}, 2, Told())
    assert after.members == {"a": 1, "b": 0, "c": 1} and after.changes == 1
    assert before.members == {"a": 0, "b": 0, "c": 1}, "what was is not changed"
    assert after.after({"a": 0, "b": 1, "c": 0}, 2, Told()).changes == 3
    assert after.after({}, 2, Told()).changes == 0, "changes are those of one round"


def test_a_newcomer_has_not_moved() -> None:
    after = Clusters({"a": 0}).after({"new": 1}, 2, Told())
    assert after.members == {"a": 0, "new": 1} and after.changes == 0


def test_an_empty_cluster_is_told_once_and_may_fill_again() -> None:
    told = Told()
    clusters = Clusters({"a": 0, "b": 1})
    clusters = clusters.after({"b": 0}, 3, told)
    assert clusters.empty == (1, 2)
    assert told == [f"Cluster {k} has no clients any more; it stays as it is." for k in (1, 2)]
    clusters = clusters.after({"a": 0}, 3, told)
    assert clusters.empty == (1, 2) and len(told) == 2
    clusters = clusters.after({"a": 2}, 3, told)
    assert clusters.empty == (1,) and len(told) == 2
    clusters = clusters.after({"a": 1}, 3, told)
    assert clusters.empty == (2,) and len(told) == 3, "emptied anew, told anew"


def test_a_site_that_was_not_sampled_fills_its_cluster() -> None:
    told = Told()
    assert Clusters({"a": 0, "b": 1}).after({"a": 0}, 2, told).empty == () and not told


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({"a": 5, "b": 5, "c": 7, "d": 7}, 1.0),  # the names of groups do not matter
        # 6 pairs; together in both: none; in each 2. Expected 2·2/6 = 2/3: (0 − 2/3) / (2 − 2/3) = −0.5.
        ({"a": 0, "b": 1, "c": 0, "d": 1}, -0.5),
        # Together in both: c and d; by truth 3 (b, c, d), by clusters 2. Expected 1: (1 − 1) / (2.5 − 1) = 0.
        ({"a": 0, "b": 1, "c": 1, "d": 1}, 0.0),
        ({"a": 5, "b": 5, "c": 7, "d": None}, 1.0),  # whose group is not known is left out
    ],
)
def test_the_adjusted_rand_index(groups: dict[str, int | None], expected: float) -> None:
    clusters = Clusters({"a": 0, "b": 0, "c": 1, "d": 1}, changes=3)
    assert clusters.columns(2, sites(groups)) == {
        "clusters": 2,
        "cluster_changes": 3,
        "adjusted_rand": pytest.approx(expected, abs=1e-6),
    }


def test_without_known_groups_there_is_no_index() -> None:
    clusters = Clusters({"a": 0, "gone": 1})
    assert clusters.columns(4, sites({"a": None})) == {"clusters": 4, "cluster_changes": 0}
    assert clusters.columns(4, {}) == {"clusters": 4, "cluster_changes": 0}


def test_columns_of_the_sites_that_answered() -> None:
    came = Came(1, uploads=[Upload("b", 1, {}), Upload("a", 1, {})])
    clusters = Clusters({"a": 0, "b": 2, "silent": 1})
    assert clusters.of_sites(came) == {"b": {"cluster": 2}, "a": {"cluster": 0}}


def test_facts_are_json_and_come_back() -> None:
    clusters = Clusters({"a": 0, "b": 2}, (1,), 4)
    facts = json.loads(json.dumps(clusters.facts()))
    assert facts == {"members": {"a": 0, "b": 2}, "empty": [1], "changes": 4}
    assert Clusters.of(facts) == clusters


def test_facts_of_earlier_versions_know_no_changes() -> None:
    assert Clusters.of({"members": {"a": 1}, "empty": [0]}) == Clusters({"a": 1}, (0,), 0)


@pytest.mark.parametrize("said", [None, -1, 3, 0.5, "0", [0]])
def test_what_is_no_cluster_is_refused(said: object) -> None:
    assert [chosen_cluster({"cluster": k}, 3) for k in (0, 1, 2)] == [0, 1, 2]
    with pytest.raises(BadReply, match="instead of 0 … 2"):
        chosen_cluster({"cluster": said} if said is not None else {}, 3)
