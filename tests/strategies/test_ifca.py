"""IFCA with both real halves: two linear regressions are told apart, and what happens where a start is unlucky."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from by_hand import OneRound
from two_kinds import CLIENTS, D, TwoKinds

from fedbayes.protocol.settings import Settings, SettingsError, defaults
from strategies.fesem import FeSEM
from strategies.ifca import IFCA
from strategies.rounds.replies import BadReply
from strategies.rounds.state import State

WORDS: dict[str, Any] = {"method": "ifca", "local-steps": 5, "lr-global": 0.2}


@pytest.fixture
def federation(one_round: OneRound) -> Any:
    def make(seed: int, **options: Any) -> TwoKinds:
        return TwoKinds(one_round, IFCA(seed=seed, **options), seed, WORDS)

    return make


def test_both_kinds_are_recovered_or_all_end_in_one_cluster(federation: Any) -> None:
    """The paper's method: most random starts separate the kinds, some do not; there is nothing in between."""
    found = Counter()
    for seed in range(10, 20):
        one = federation(seed, restarts=0)
        one.run(15)
        if len(set(one.members.values())) == 2:
            assert one.split_by_kind and one.error < 1e-2
            found["recovered"] += 1
        else:
            assert one.state.facts["empty"] in ([0], [1])
            found["collapsed"] += 1
    assert found["recovered"] >= 6 and found["collapsed"] >= 1


def test_restarts_recover_what_collapsed(federation: Any) -> None:
    for seed in range(10, 20):
        one = federation(seed)
        while not one.state.facts["settled"]:
            one.run(3)
        one.run(10)
        assert one.split_by_kind and one.error < 1e-2
        assert one.state.kept == {}, "starts that are not needed any more are not kept"


def test_equal_starts_collapse_and_the_best_of_them_goes_on(federation: Any) -> None:
    one = federation(0)
    told: list[str] = []
    one.server.tell = lambda event, **said: told.append(f"{event}: {said['message']}")
    same = {number: one.fresh(number) for number in range(6)}
    one.state = one.server.init(lambda *words: same[words[1]])
    assert (
        told.pop() == "clusters: 2 clusters (the usual number: none was given), each with a start of its own."
    )
    tries = []
    for number in range(1, 6):
        one.run(3)
        assert (one.server.describe(one.state, one.came)[0])["restarts"] == number
        assert torch.equal(one.state.sent["u0"][0], same[number]), "the next start"
        assert told[-1].startswith(
            f"clusters: Round {3 * number}: a cluster is left without clients (training "
        )
        assert told[-1].endswith(f"restart {number} of at most 5 from other seeds.")
        tries.append({name: v.clone() for name, v in one.state.kept.items() if name.startswith("best.")})
    one.run(3)
    losses = one.state.facts["tries"]
    best = losses.index(min(losses))
    assert told[-1] == (
        f"clusters: 6 starts left a cluster without clients; the one of the lowest training loss goes on "
        f"({min(losses):.4g})."
    )
    assert len(losses) == 6 and one.state.facts["settled"] and one.state.kept == {}
    if best < 5:
        assert all(torch.equal(one.state.sent[name], tries[best][f"best.{name}"]) for name in ("u0", "u1"))
    one.run(20)
    assert len(told) == 6 and one.server.describe(one.state, one.came)[0]["restarts"] == 5
    assert set(one.members.values()) == {0}
    both = (one.truth[0] + one.truth[1]) / 2
    assert float((one.state.sent["u0"][0] - both).norm()) < 0.2, "one model for all: the mean of the two"


def test_a_start_is_judged_when_everybody_could_have_chosen(federation: Any) -> None:
    """Of sampled clients, one round tells little: as many uploads as three rounds of all clients are awaited."""
    one = federation(0)
    same = one.fresh("same")
    one.state = one.server.init(lambda *words: same)
    names = list(one.clients)
    for turn in range(6):
        one.run(1, names[:10] if turn % 2 else names[10:])
        assert (len(one.state.facts["tries"]), one.state.facts["uploads"]) == ((0, 10 * (turn + 1)), (1, 0))[
            turn == 5
        ]


@pytest.mark.parametrize(("rounds", "tries"), [(5, 1), (6, 2), (11, 2), (12, 3)])
def test_no_restart_in_the_second_half_of_a_run(federation: Any, rounds: int, tries: int) -> None:
    """Its models would have no time to learn: the best start so far goes on."""
    one = federation(0, rounds=rounds)
    same = one.fresh("same")
    one.state = one.server.init(lambda *words: same)
    one.run(rounds)
    facts = one.state.facts
    assert (len(facts["tries"]), facts["restarts"], facts["settled"]) == (tries, tries - 1, True)


def test_more_clusters_than_clients_is_no_reason_to_restart(federation: Any) -> None:
    one = federation(0, clusters=CLIENTS + 1)
    one.run(4)
    assert one.state.facts["tries"] == [] and len(one.state.sent) == CLIENTS + 1


def test_who_chooses_what(federation: Any) -> None:
    """The choice is by the loss on all training data, and the loss is what a reader computes."""
    one = federation(3, restarts=0)
    for number, (site, client) in enumerate(one.clients.items()):
        received = dict(one.state.sent)
        losses = client.losses(client.start(received), received)
        for k, loss in enumerate(losses):
            errors = client.y - client.x @ one.state.sent[f"u{k}"][0]
            assert loss == pytest.approx(
                float(errors.square().mean() / 2) + math.log(2 * math.pi) / 2, rel=1e-5
            )
        report = client.train(client.start(received), received, 1).report
        assert report["cluster"] == losses.index(min(losses)) and report["fit"] == min(losses), (number, site)


def test_a_model_that_is_not_finite_is_never_chosen(federation: Any) -> None:
    client = federation(0).clients["site-00"]
    received = {"u0": torch.full((1, D), torch.nan), "u1": torch.full((1, D), 1e3)}
    assert client.losses({}, received)[0] == math.inf
    assert client.train({}, received, 1).report["cluster"] == 1


def test_what_a_client_says_is_checked(federation: Any) -> None:
    one = federation(0)
    for report, words in (
        ({"cluster": 2, "fit": 1.0}, "instead of 0 … 1"),
        ({"cluster": 0, "fit": math.nan}, "the training loss nan instead of a number"),
        ({"cluster": 0}, "the training loss None instead of a number"),
    ):
        with pytest.raises(BadReply, match=words):
            one.server.expects(one.state, "a", report)


def test_an_empty_cluster_stays_and_is_told(one_round: OneRound) -> None:
    method = IFCA(restarts=0, clusters=3)
    said: list[str] = []
    state: State = method.init(lambda *words: torch.full((3,), float(words[-1])))
    method.tell = lambda event, **told: said.append(told["message"])
    uploads = {site: torch.full((1, 3), 5.0) for site in "ab"}
    reports = {"a": {"cluster": 0, "fit": 1.0}, "b": {"cluster": 1, "fit": 1.0}}
    state, _ = one_round(method, state, uploads, reports)
    assert [float(state.sent[f"u{k}"][0, 0]) for k in range(3)] == [5.0, 5.0, 2.0]
    assert said == [], "what never had clients has not lost them"
    reports["b"]["cluster"] = 0
    state, came = one_round(method, state, uploads, reports, number=2)
    assert said == ["Cluster 1 has no clients any more; it stays as it is."]
    assert method.describe(state, came) == (
        {"clusters": 3, "cluster_changes": 1, "restarts": 0},
        {"a": {"cluster": 0}, "b": {"cluster": 0}},
    )


def test_one_cluster_is_refused() -> None:
    for method in (IFCA, FeSEM):
        with pytest.raises(
            SettingsError, match="takes clusters = a whole number of at least 2, or 0 for 2, not 1"
        ):
            method.check(Settings.parse(defaults() | {"method": method.title.lower(), "clusters": 1}))
