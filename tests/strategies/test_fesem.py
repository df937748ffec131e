"""FeSEM with both real halves: two linear regressions are told apart, and labels stay on the right clients."""

from typing import Any

import pytest
import torch
from by_hand import OneRound
from two_kinds import TwoKinds

from fedbayes.protocol.settings import Settings, SettingsError, defaults
from strategies.fesem import FeSEM, nearest
from strategies.rounds.replies import BadReply
from strategies.rounds.state import State

WORDS: dict[str, Any] = {"method": "fesem", "local-steps": 5, "lr-global": 0.2}
NEAR, FAR = torch.zeros(1, 3), torch.full((1, 3), 9.0)


@pytest.fixture
def federation(one_round: OneRound) -> Any:
    return lambda seed, **options: TwoKinds(one_round, FeSEM(seed=seed, **options), seed, WORDS)


def started(method: FeSEM) -> State:
    return method.init(lambda *words: torch.zeros(3))


def test_both_kinds_are_recovered_from_any_seed(federation: Any) -> None:
    for seed in range(8):
        one = federation(seed)
        one.run(1)
        assert one.split_by_kind, "k-means++ on the uploads of round 1"
        one.run(14)
        assert one.split_by_kind and one.error < 1e-2


def test_the_two_steps_by_hand(one_round: OneRound) -> None:
    method, said = FeSEM(clusters=2), []
    method.tell = lambda event, **told: said.append((event, told["message"]))
    state = started(method)
    assert list(method.send(state, "a")) == ["w"]
    first = {"a": NEAR + 1, "b": FAR, "c": NEAR - 1, "d": FAR + 1}
    state, came = one_round(method, state, first)
    assert said == [("clusters", "2 clusters (2 asked for) of 2, 2 clients.")]
    assert state.facts["members"] == {"a": 0, "b": 1, "c": 0, "d": 1}
    assert state.sent["u0"].tolist() == [[0.0] * 3] and state.sent["u1"].tolist() == [[9.5] * 3]
    assert method.send(state, "d")["w"] is state.sent["u1"]

    # b's upload is now nearer to the first centre; c is not there and keeps its label and its centre's model
    state, came = one_round(method, state, {"d": FAR + 3, "b": NEAR + 4, "a": NEAR + 2}, number=2)
    assert state.facts["members"] == {"a": 0, "b": 0, "c": 0, "d": 1} and state.facts["changes"] == 1
    assert state.sent["u0"].tolist() == [[3.0] * 3] and state.sent["u1"].tolist() == [[12.0] * 3]
    assert method.describe(state, came)[1] == {"a": {"cluster": 0}, "b": {"cluster": 0}, "d": {"cluster": 1}}

    state, _ = one_round(method, state, {"d": NEAR}, number=3)
    assert state.facts["empty"] == [1] and state.sent["u1"].tolist() == [[12.0] * 3], "an empty one stays"


def test_labels_do_not_depend_on_the_order_of_arrival(one_round: OneRound) -> None:
    method = FeSEM(clusters=2)
    first = {"a": NEAR + 1, "b": FAR, "c": NEAR - 1, "d": FAR + 1}
    one, _ = one_round(method, started(method), first)
    other, _ = one_round(method, started(method), dict(reversed(first.items())))
    assert one.facts == other.facts and all(
        torch.equal(one.sent[name], other.sent[name]) for name in one.sent
    )


def test_the_mean_counts_clients_by_their_examples_where_asked(one_round: OneRound) -> None:
    method = FeSEM(clusters=2, weighting="examples", beta=0.5)
    state, _ = one_round(
        method, started(method), {"a": NEAR + 1, "b": FAR, "c": NEAR + 4}, examples=(2, 1, 1)
    )
    assert state.sent["u0"].tolist() == [[1.0] * 3] and state.sent["u1"].tolist() == [[4.5] * 3]


def test_who_comes_later_chooses_by_its_training_data(federation: Any) -> None:
    one = federation(0)
    *there, late = one.clients
    one.run(5, there)
    assert set(one.server.send(one.state, late)) == {"u0", "u1"}
    one.run(1)
    assert one.members[late] == one.members[there[-2]], "of its own kind"
    one.run(5)
    assert one.split_by_kind
    with pytest.raises(BadReply, match="cluster None instead of 0 … 1"):
        one.server.expects(one.state, "stranger", {})


def test_fewer_clients_than_clusters(one_round: OneRound) -> None:
    method, said = FeSEM(clusters=3), []
    method.tell = lambda event, **told: said.append(told["message"])
    state, _ = one_round(method, started(method), {"a": NEAR, "b": FAR})
    assert said == ["2 clusters (3 asked for) of 1, 1 clients."] and len(state.sent) == 2


def test_the_nearest_is_by_all_weights() -> None:
    centres = [torch.tensor([0.0, 0.0]), torch.tensor([4.0, 0.0]), torch.tensor([0.0, 3.0])]
    uploads = torch.tensor([[1.9, 1.4], [2.1, 1.0], [0.0, 1.6]]).double()
    assert nearest(uploads, centres) == [0, 1, 2]


def test_fewer_sampled_clients_than_clusters_are_refused() -> None:
    settings = {"method": "fesem", "clusters": 3, "clients-per-round": 2}
    with pytest.raises(
        SettingsError, match="its 3 clusters among the uploads of round 1; clients-per-round takes at"
    ):
        FeSEM.check(Settings.parse(defaults() | settings))
    FeSEM.check(Settings.parse(defaults() | settings | {"clients-per-round": 3}))
