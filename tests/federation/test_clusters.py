"""cFedBayes in a whole federation: digits, half of the clients with their images upside down."""

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord
from harness import SMALL, Outcome
from inprocess import InProcessGrid
from torch import Tensor

from bayes_core import extrapolate, mean, symmetric_kl_matrix
from bayes_core.families import Gaussian
from bayes_core.flat import shapes_of
from bayes_core.server.clustering import choose_k_with_evidence
from bayes_core.server.moves import compare_learned, layers_of
from fedbayes.protocol.codec import decode
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import Settings, defaults

Federate = Callable[..., Outcome]
# 200 images for each client: enough that ten steps tell the groups apart by a wide margin
ROTATED = {
    "method": "cfedbayes", "layout": "rotated", "size": "20+4", "clients": 6,
    "local_steps": 10, "batch_size": 40, "rounds": 2, "eval_every": 1, "eval_samples": 1,
}  # fmt: skip
SITES = ["0", "1", "2", "3", "4", "5"]
GROUPS = [0, 0, 0, 1, 1, 1]


class Killed(BaseException):
    """Ends the process, as far as a test can: nobody catches it."""


def evidence(run: Outcome) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.folder / "clusters.json").read_text())
    return found


def column(run: Outcome, name: str) -> list[str]:
    return [row[name] for row in run.rows]


def choices(run: Outcome) -> dict[str, dict[str, str]]:
    """Round → site → the cluster in clients.csv, of those that trained."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for row in run.clients:
        if row["cluster"]:
            found[row["round"]][row["site"]] = row["cluster"]
    return dict(found)


def story(run: Outcome) -> list[object]:
    """What two runs of one seed must share."""
    clusters = [column(run, name) for name in ("clusters", "cluster_changes", "adjusted_rand")]
    return [run.metrics, *clusters, choices(run), evidence(run)]


def training(message: Message) -> int | None:
    """The round that this message trains; None for others."""
    return int(message.content["exchange"]["round"]) if message.metadata.message_type == "train" else None  # type: ignore


def tensors_in(content: Any) -> dict[str, Tensor]:
    return {
        name: decode({row: array.numpy() for row, array in record.items()}, list(record))
        for name, record in content.array_records.items()
    }


# ---------------------------------------------------------------------- finding clusters


@pytest.mark.parametrize("clusters", [0, 2])
def test_the_groups_are_found_and_kept(federate: Federate, clusters: int) -> None:
    run = federate(**ROTATED, clusters=clusters)
    assert column(run, "round") == ["0", "1", "2"]
    assert column(run, "adjusted_rand") == ["1.0"] * 3
    assert column(run, "clusters") == ["2"] * 3
    assert column(run, "cluster_changes") == ["0"] * 3
    assert column(run, "clients_ok") == ["6"] * 3, "round 0 trains everybody"
    assert choices(run) == {number: dict(zip(SITES, "000111", strict=True)) for number in "012"}
    how = "chosen" if clusters == 0 else "asked for"
    (said,) = run.said("clusters")
    assert said.startswith(f"2 clusters ({how}) of 3, 3 clients.")
    assert ("as much in common as those of one" in said) == (clusters == 0), (
        "why two, where it is for us to say"
    )
    assert sorted(run.tensors) == ["u0", "u1"]
    assert all(row["pm_accuracy"] and row["gm_accuracy"] for row in run.rows), "row 0 is measured too"


def test_the_evidence_is_kept(federate: Federate) -> None:
    uploads: dict[int, Tensor] = {}
    starts: list[Tensor] = []

    def interfere(number: int, message: Message, reply: Message) -> Message:
        if training(message) == 0:
            uploads[number] = tensors_in(reply.content)["w"]
            starts.append(tensors_in(message.content)["w"])
        return reply

    found = evidence(federate(**ROTATED, interfere=interfere))
    assert found["sites"] == SITES and found["labels"] == GROUPS
    assert (found["k"], found["asked"], found["suggested"]) == (2, 0, 2)
    psi = symmetric_kl_matrix(torch.stack([uploads[number] for number in range(6)]), Gaussian())
    assert found["psi"] == psi.tolist()
    same = torch.tensor(GROUPS)[:, None] == torch.tensor(GROUPS)
    assert psi[~same].min() > psi[same & ~torch.eye(6, dtype=torch.bool)].max()
    eigenvalues = found["eigenvalues"]
    assert len(eigenvalues) == 6 and eigenvalues == sorted(eigenvalues)
    assert found["gap"] == pytest.approx(eigenvalues[2] - eigenvalues[1])
    assert found["gap"] > 2 * found["rest"] > 0
    assert found["sure"] and found["odd"] == [] and "in common" in found["why"]
    w = starts[0]
    both = [Gaussian().kl(uploads[number], w) + Gaussian().kl(w, uploads[number]) for number in range(6)]
    assert found["start"] == pytest.approx([float(pair) / 2 for pair in both], rel=1e-4)
    network = build("dnn", (1, 8, 8), 10, 1)
    stack = [uploads[number] for number in range(6)]
    learned = compare_learned(stack, w, Gaussian(), layers_of(shapes_of(network).values()))
    choice = choose_k_with_evidence(*learned)
    assert found["why"] == choice.kinds.why and eigenvalues == pytest.approx(choice.eigenvalues, abs=1e-12), (
        "chosen by what was learned, without the background"
    )


def test_one_kind_of_client_is_one_cluster(federate: Federate) -> None:
    run = federate(**ROTATED | {"layout": "iid", "rounds": 1})
    assert column(run, "clusters") == ["1", "1"]
    assert column(run, "adjusted_rand") == ["", ""], "there are no groups to compare with"
    assert choices(run) == {number: dict.fromkeys(SITES, "0") for number in "01"}
    assert evidence(run)["k"] == evidence(run)["suggested"] == 1


def test_more_clusters_than_groups(federate: Federate) -> None:
    run = federate(**ROTATED, clusters=5)
    assert run.state == "finished" and column(run, "clusters") == ["5"] * 3
    assert (evidence(run)["k"], evidence(run)["suggested"]) == (5, 2)
    assert sorted(run.tensors) == ["u0", "u1", "u2", "u3", "u4"]
    assert 0 < float(run.rows[0]["adjusted_rand"]) < 1
    labels = evidence(run)["labels"]
    assert set(labels[:3]).isdisjoint(labels[3:]), "what is cut is a group, not across groups"


def test_more_clusters_than_clients(federate: Federate) -> None:
    run = federate(**ROTATED | {"clients": 3, "rounds": 1}, clusters=9)
    assert column(run, "clusters") == ["3", "3"] and evidence(run)["labels"] == [0, 1, 2]


@pytest.mark.parametrize("lambda_init", [0.5, 0.8])
def test_sparse_and_clustered(federate: Federate, lambda_init: float) -> None:
    run = federate(**ROTATED | {"local_steps": 20}, family="spike-slab", lambda_init=lambda_init)
    assert column(run, "adjusted_rand") == ["1.0"] * 3 and column(run, "clusters") == ["2"] * 3
    assert all(0 < float(row["pm_nonzero"]) < 1 and 0 < float(row["gm_nonzero"]) < 1 for row in run.rows)
    assert run.tensors["u0"].shape[0] == run.tensors["u1"].shape[0] == 3
    # each message down holds two distributions of three rows, each upload one
    assert int(run.rows[1]["bytes_down"]) == 2 * int(run.rows[1]["bytes_up"])


def test_with_lambda_one_sparse_and_clustered_is_clustered(federate: Federate) -> None:
    dense = federate("dense", **ROTATED)
    always = federate("always", **ROTATED, family="spike-slab", lambda_init=1)
    assert column(always, "pm_nll") == column(dense, "pm_nll")
    assert column(always, "adjusted_rand") == ["1.0"] * 3
    for name in ("u0", "u1"):
        assert torch.equal(always.tensors[name][:2], dense.tensors[name])


# ---------------------------------------------------------------------- the server's arithmetic


@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_each_prior_is_the_mean_of_those_who_chose_it(federate: Federate, beta: float) -> None:
    sent: dict[int, dict[str, Tensor]] = {}
    uploads: dict[int, dict[int, tuple[int | None, Tensor]]] = defaultdict(dict)

    def interfere(number: int, message: Message, reply: Message) -> Message:
        exchange = message.content.get("exchange")
        if exchange:
            sent[exchange["round"]] = tensors_in(message.content)  # type: ignore
        if (server_round := training(message)) is not None:
            uploads[server_round][number] = (
                reply.content["report"].get("cluster"),  # type: ignore
                tensors_in(reply.content)["w"],
            )
        return reply

    federate(**ROTATED, beta=beta, interfere=interfere)
    assert sorted(sent) == [0, 1, 2, 3] and list(sent[0]) == ["w"]
    assert {choice for choice, _ in uploads[0].values()} == {None}, "in round 0 there is nothing to choose"
    for server_round in (0, 1, 2):
        for k, members in ((0, (0, 1, 2)), (1, (3, 4, 5))):
            target = mean([uploads[server_round][number][1] for number in members])
            if server_round:
                assert {uploads[server_round][number][0] for number in members} == {k}
                target = extrapolate(sent[server_round][f"u{k}"], target, beta)
            assert torch.equal(sent[server_round + 1][f"u{k}"], target)


def test_an_empty_cluster_keeps_its_prior(federate: Federate) -> None:
    sent: dict[int, dict[str, Tensor]] = {}

    def interfere(number: int, message: Message, reply: Message) -> Message:
        server_round = training(message)
        if server_round is not None:
            sent[server_round] = tensors_in(message.content)
        if server_round and number >= 3:  # the second group defects
            reply.content["report"] = MetricRecord({"loss": 1.0, "cluster": 0})
        return reply

    run = federate(**ROTATED | {"rounds": 3}, interfere=interfere)
    assert torch.equal(sent[1]["u1"], sent[2]["u1"]) and torch.equal(sent[1]["u1"], sent[3]["u1"])
    assert torch.equal(sent[1]["u1"], run.tensors["u1"])
    assert not torch.equal(sent[1]["u0"], sent[2]["u0"])
    assert run.said("warning") == ["Cluster 1 has no clients any more; it stays as it is."], "said once"
    assert column(run, "clusters") == ["2"] * 4
    assert column(run, "cluster_changes") == ["0", "3", "0", "0"]
    assert column(run, "adjusted_rand") == ["1.0", "0.0", "0.0", "0.0"]


def test_sampled_clients(federate: Federate) -> None:
    run = federate(**ROTATED | {"rounds": 4}, clients_per_round=3)
    assert column(run, "clients_ok") == ["6", "3", "3", "3", "3"], "round 0 asks everybody"
    assert column(run, "adjusted_rand") == ["1.0"] * 5 and column(run, "cluster_changes") == ["0"] * 5
    found = choices(run)
    assert [len(found[number]) for number in "01234"] == [6, 3, 3, 3, 3]
    assert all(found["0"][site] == cluster for chosen in found.values() for site, cluster in chosen.items())
    assert len({tuple(chosen) for chosen in found.values()}) > 2, "another sample each round"


def test_a_cluster_that_is_not_sampled_waits(federate: Federate) -> None:
    sent: dict[int, dict[str, Tensor]] = {}

    def interfere(number: int, message: Message, reply: Message) -> Message:
        exchange = message.content.get("exchange")
        if exchange:
            sent[exchange["round"]] = tensors_in(message.content)  # type: ignore
        return reply

    run = federate(**ROTATED | {"rounds": 3}, clients_per_round=1, interfere=interfere)
    for number in (1, 2, 3):
        (cluster,) = choices(run)[str(number)].values()
        moved = {name for name in ("u0", "u1") if not torch.equal(sent[number][name], sent[number + 1][name])}
        assert moved == {f"u{cluster}"}
    assert run.said("warning") == []


# ---------------------------------------------------------------------- order, crashes, bad clients, late clients


def test_one_seed_is_one_result_in_any_order(federate: Federate) -> None:
    first, shuffled, other = (
        federate("a", **ROTATED),
        federate("b", **ROTATED, shuffle=5),
        federate("c", **ROTATED, seed=2),
    )
    assert story(first) == story(shuffled) != story(other)
    assert all(torch.equal(first.tensors[name], shuffled.tensors[name]) for name in ("u0", "u1"))


def test_killed_at_any_moment(federate: Federate) -> None:
    def killer(server_round: int, client: int) -> Callable[..., Message]:
        def interfere(number: int, message: Message, reply: Message) -> Message:
            exchange = message.content.get("exchange")
            if exchange and exchange["round"] == server_round and number == client:
                raise Killed
            return reply

        return interfere

    calm = federate("calm", **ROTATED)
    for server_round, client in [(0, 0), (0, 3), (0, 5), (1, 0), (1, 4), (2, 2), (3, 1)]:  # 3 closes the run
        name = f"killed-{server_round}-{client}"
        with pytest.raises(Killed):
            federate(name, **ROTATED, interfere=killer(server_round, client))
        resumed = federate(name, **ROTATED, resume=True)
        assert story(resumed) == story(calm), name
        assert len(resumed.said("clusters")) == (server_round == 0), "clusters are sought once"
        assert all(torch.equal(resumed.tensors[key], calm.tensors[key]) for key in ("u0", "u1")), name


@pytest.mark.parametrize("server_round", [1, 2])
def test_killed_with_an_empty_cluster(federate: Federate, server_round: int) -> None:
    """Who belongs where, and what was warned of, is remembered."""

    def defect(number: int, message: Message, reply: Message) -> Message:
        if training(message) and number >= 3:
            reply.content["report"] = MetricRecord({"loss": 1.0, "cluster": 0})
        return reply

    def killed(number: int, message: Message, reply: Message) -> Message:
        if training(message) == server_round and number == 2:
            raise Killed
        return defect(number, message, reply)

    calm = federate("calm", **ROTATED, interfere=defect)
    with pytest.raises(Killed):
        federate("killed", **ROTATED, interfere=killed)
    resumed = federate("killed", **ROTATED, interfere=defect, resume=True)
    assert story(resumed) == story(calm)
    assert column(resumed, "cluster_changes") == ["0", "3", "0"]
    assert len(resumed.said("warning")) == (server_round == 1), (
        "in round 1, which is repeated, and only there"
    )


CLAIMS = {
    "7": MetricRecord({"loss": 1.0, "cluster": 7}),
    "-1": MetricRecord({"loss": 1.0, "cluster": -1}),
    "0.5": MetricRecord({"loss": 1.0, "cluster": 0.5}),
    "nan": MetricRecord({"loss": 1.0, "cluster": float("nan")}),
    "[0]": MetricRecord({"cluster": [0]}),
    "'first'": ConfigRecord({"cluster": "first"}),
    "None": MetricRecord({"loss": 1.0}),
}


UNREADABLE = {
    "nan": "cluster None instead of 0 … 1",  # it says nothing
    "[0]": "an unreadable reply (cluster.constrained-int: Input should be a valid integer)",
    "'first'": 'a record "report" of another type than ours',
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_client_that_claims_an_impossible_cluster_is_dropped(federate: Federate, claim: str) -> None:
    def interfere(number: int, message: Message, reply: Message) -> Message:
        if training(message) and number == 4:
            reply.content["report"] = CLAIMS[claim]
        return reply

    run = federate(**ROTATED | {"rounds": 1, "local_steps": 5}, clusters=2, interfere=interfere)
    words = UNREADABLE.get(claim, f"cluster {claim} instead of 0 … 1")
    assert run.state == "finished"
    assert run.said("warning")[0] == f"Site 4 dropped from this round: {words}."
    assert (run.rows[1]["clients_ok"], run.rows[1]["clients_failed"]) == ("5", "1")
    row = next(row for row in run.clients if row["round"] == "1" and row["site"] == "4")
    assert row["status"] == f"failed: {words}" and row["cluster"] == ""
    assert all(run.tensors[name].isfinite().all() for name in ("u0", "u1"))


@pytest.fixture
def grid(tmp_path: Path) -> Callable[..., InProcessGrid]:
    def build(name: str, clients: int, offline: set[int], **settings: Any) -> InProcessGrid:
        """The clients that `federate(name, …)` would make, some of them not there yet."""
        words = {key.replace("_", "-"): value for key, value in settings.items()}
        config = defaults() | SMALL | {"out-dir": str(tmp_path), "run-name": name} | words
        made = InProcessGrid(Settings.parse(config).as_config(), clients)
        made.offline = offline
        return made

    return build


@pytest.mark.parametrize(
    ("family", "late", "arrives"), [("gaussian", 5, 1), ("gaussian", 0, 2), ("spike-slab", 5, 1)]
)
def test_a_client_that_missed_round_0_finds_its_group(
    federate: Federate, grid: Callable[..., InProcessGrid], family: str, late: int, arrives: int
) -> None:
    settings = ROTATED | {"clusters": 2, "rounds": 3, "family": family, "lambda_init": 0.8}
    federation = grid("run", offline={late}, **settings)

    def interfere(number: int, message: Message, reply: Message) -> Message:
        if training(message) == arrives - 1:
            federation.offline = set()
        return reply

    federation.interfere = interfere
    run = federate(grid=federation, **{key: value for key, value in settings.items() if key != "clients"})
    found = choices(run)
    assert column(run, "clients_ok") == ["5" if number < arrives else "6" for number in range(4)]
    assert column(run, "adjusted_rand") == ["1.0"] * 4 and column(run, "cluster_changes") == ["0"] * 4
    mate = str(3 if late >= 3 else 1)
    for number in range(4):
        assert found[str(number)].get(str(late)) == (found["0"][mate] if number >= arrives else None)
    assert evidence(run)["sites"] == [site for site in SITES if site != str(late)]


def test_a_resumed_run_does_without_a_client_that_has_gone(
    federate: Federate, grid: Callable[..., InProcessGrid]
) -> None:
    federate("run", **ROTATED)
    settings = ROTATED | {"rounds": 3, "resume": True}
    federation = grid("run", offline={5}, **settings)
    run = federate(grid=federation, **{key: value for key, value in settings.items() if key != "clients"})
    assert run.state == "finished" and column(run, "clients_ok") == ["6", "6", "6", "5"]
    assert column(run, "adjusted_rand") == ["1.0"] * 4
