"""FedCFL with both real halves: when a cluster splits, and that the sites' names survive nested splits."""

from typing import Any

import pytest
import torch
from by_hand import OneRound
from torch import Tensor
from two_kinds import TwoKinds

from fedbayes.protocol.settings import Settings, SettingsError, defaults
from strategies.fedcfl import FedCFL, best_cut
from strategies.rounds.state import State

WORDS: dict[str, Any] = {"method": "fedcfl", "local-steps": 5, "lr-global": 0.2}
OPTIMA = {
    site: torch.tensor([[3.0 * a, 1.0 * b]])
    for site, (a, b) in zip("abcdefgh", 2 * [(1, 1), (1, -1), (-1, 1), (-1, -1)], strict=True)
}


def started(method: FedCFL) -> State:
    return method.init(lambda *words: torch.zeros(2))


def parts(state: State) -> set[str]:
    found: dict[int, str] = {}
    for site, cluster in sorted(state.facts["members"].items()):
        found[cluster] = found.get(cluster, "") + site
    return set(found.values())


def test_nested_splits_keep_every_site_with_its_kind(one_round: OneRound) -> None:
    """Eight quadratic clients, optima (±3, ±1), each of which one round takes to its optimum."""
    method, said = FedCFL(split_from=1), []
    method.tell = lambda event, **told: said.append((event, told["message"]))
    state, came = one_round(method, started(method), OPTIMA)
    assert parts(state) == {"abef", "cdgh"}
    assert [state.sent[name].tolist() for name in ("u0", "u1")] == [[[3.0, 0.0]], [[-3.0, 0.0]]]
    assert method.describe(state, came)[0] == {
        "clusters": 2, "cluster_changes": 0, "split_ratio": 0.0, "split_gap": pytest.approx(1.8)
    }  # fmt: skip
    state, came = one_round(method, state, OPTIMA, number=2)
    assert parts(state) == {"ae", "bf", "cg", "dh"}
    for site, optimum in OPTIMA.items():
        assert torch.equal(method.send(state, site)["w"], optimum), "the exact model, at the right site"
    assert [message for _, message in said] == [
        "Round 1: cluster 0 splits; 4 clients stay, 4 are cluster 1 (ratio 0.00, gap 1.80).",
        "Round 2: cluster 0 splits; 2 clients stay, 2 are cluster 2 (ratio 0.00, gap 2.00).",
        "Round 2: cluster 1 splits; 2 clients stay, 2 are cluster 3 (ratio 0.00, gap 2.00).",
    ]
    state, came = one_round(method, state, OPTIMA, number=3)
    assert parts(state) == {"ae", "bf", "cg", "dh"} and state.facts["changes"] == 0
    assert method.describe(state, came)[0] == {"clusters": 4, "cluster_changes": 0}, (
        "two clients do not split"
    )


@pytest.mark.parametrize(
    ("words", "splits"),
    [({}, True), ({"split_from": 2}, False), ({"split_ratio": 0.0}, False), ({"split_gap": 1.81}, False)],
)
def test_what_it_takes_to_split(one_round: OneRound, words: dict[str, Any], splits: bool) -> None:
    state, _ = one_round(FedCFL(**{"split_from": 1} | words), started(FedCFL()), OPTIMA)
    assert len(state.sent) == 1 + splits


def test_a_cluster_that_did_not_split_when_its_ratio_became_low_stays(one_round: OneRound) -> None:
    """Later on, clients of one kind part as well."""
    alike = {site: torch.tensor([[1.0, 0.0]]) for site in "abcdefgh"}
    apart = FedCFL(split_from=2, split_gap=2.0)  # no gap is as wide
    for rounds, splits in ((4, True), (5, False)):
        state, _ = one_round(apart, started(apart), OPTIMA)
        for number in range(2, 2 + rounds):
            state, _ = one_round(apart, state, OPTIMA, number=number)
            assert state.facts["low"] == {"0": number - 1}
            state, _ = one_round(apart, state, alike, number=number)  # not low: it does not count
        assert state.facts["low"] == {"0": rounds}
        state = State({"u0": torch.zeros(1, 2)}, facts=state.facts)
        state, _ = one_round(FedCFL(split_from=2), state, OPTIMA, number=20)
        assert len(state.sent) == 1 + splits


def test_the_cut_by_hand() -> None:
    """Updates at 0°, 10° and 90° from the model: the first two are together."""
    angles = torch.tensor([0.0, 90.0, 10.0]).deg2rad()
    updates = torch.stack([angles.cos(), angles.sin()], 1) * torch.tensor([[1.0], [2.0], [3.0]])
    model = torch.tensor([5.0, -7.0])
    cut = best_cut(model + updates, model)
    assert cut.labels == [0, 1, 0]
    cosine = torch.tensor([10.0, 80.0]).deg2rad().cos()
    assert cut.gap == pytest.approx(float(cosine[0] - cosine[1]), abs=1e-5), (
        "of the one at 10°; the one at 90° is alone"
    )
    assert cut.ratio == pytest.approx(float(updates.mean(0).norm() / 3), abs=1e-5)
    assert best_cut(torch.ones(3, 2), torch.ones(2)).ratio == 0, "nobody moves"


@pytest.fixture
def federation(one_round: OneRound) -> Any:
    return lambda seed, **options: TwoKinds(one_round, FedCFL(seed=seed, **options), seed, WORDS)


def test_two_linear_regressions_are_told_apart(federation: Any) -> None:
    for seed in range(8):
        one = federation(seed)
        one.run(4)
        assert len(one.state.sent) == 1, "not before split-from"
        one.run(16)
        assert len(one.state.sent) == 2 and one.split_by_kind and one.error < 1e-2


def test_who_was_not_there_at_a_split_chooses(federation: Any) -> None:
    one = federation(0, split_from=3)
    *there, late = one.clients
    one.run(2)
    one.run(4, there)
    assert late not in one.members and set(one.server.send(one.state, late)) == {"u0", "u1"}
    one.run(1)
    assert one.members[late] == one.members[there[-2]] and one.split_by_kind


def test_who_was_not_there_while_nothing_split_stays(one_round: OneRound) -> None:
    method = FedCFL(split_from=2)
    state, _ = one_round(method, started(method), OPTIMA)
    some: dict[str, Tensor] = {site: OPTIMA[site] for site in "abcd"}
    state, _ = one_round(FedCFL(split_from=9), state, some, number=2)
    assert set(state.facts["members"]) == set("abcdefgh")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            {"clients-per-round": 3},
            "method=fedcfl needs every site in every round; leave clients-per-round out",
        ),
        (
            {"aggregation-confidence": "0.3"},
            "compares the updates of all sites; aggregation-confidence=0.3 would",
        ),
    ],
)
def test_what_it_cannot_do_is_refused(words: dict[str, Any], sentence: str) -> None:
    FedCFL.check(Settings.parse(defaults() | {"method": "fedcfl", "aggregation-confidence": "weight"}))
    with pytest.raises(SettingsError, match=sentence):
        FedCFL.check(Settings.parse(defaults() | {"method": "fedcfl"} | words))
