"""What a run writes, and that one seed is one result."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from harness import Outcome
from inprocess import InProcessGrid
from safetensors import safe_open

from bayes_core import extrapolate
from fedbayes.protocol.settings import SettingsError
from server_app.stored import RunError, read_config
from strategies import StrategyError
from strategies.pfedbayes import PFedBayes

Federate = Callable[..., Outcome]


def test_rows_describe_the_models_after_each_round(federate: Federate) -> None:
    run = federate(rounds=5, eval_every=2)
    assert [row["round"] for row in run.rows] == ["0", "1", "2", "3", "4", "5"]
    measured = [row["round"] for row in run.rows if row["pm_accuracy"]]
    assert measured == ["0", "1", "2", "4", "5"], "round 1, every second round and the last"
    assert run.rows[0]["pm_point_accuracy"] == run.rows[0]["gm_point_accuracy"], "all start alike"
    assert float(run.rows[5]["pm_accuracy"]) > float(run.rows[0]["pm_accuracy"])
    assert [row["clients_ok"] for row in run.rows] == ["", "4", "4", "4", "4", "4"]
    assert run.state == "finished"


def test_bytes_are_those_of_the_distributions(federate: Federate) -> None:
    run = federate(rounds=1)
    parameters = 64 * 100 + 100 + 100 * 10 + 10
    header = 128  # of numpy's format, for each row
    assert run.rows[1]["bytes_up"] == run.rows[1]["bytes_down"] == str(4 * 2 * (4 * parameters + header))


def test_every_client_is_measured_and_pooled(federate: Federate) -> None:
    run = federate()
    last = [row for row in run.clients if row["round"] == "4"]
    assert [row["site"] for row in last] == ["0", "1", "2", "3"]
    assert {row["n_test"] for row in last} == {"20"} and {row["status"] for row in last} == {"ok"}
    pooled = sum(float(row["pm_accuracy"]) * 20 for row in last) / 80
    assert float(run.rows[-1]["pm_accuracy"]) == pytest.approx(pooled, abs=1e-6)


def test_one_seed_is_one_result_in_any_order(federate: Federate) -> None:
    first, again = federate("a"), federate("b")
    shuffled, other = federate("c", shuffle=3), federate("d", seed=2)
    assert first.metrics == again.metrics == shuffled.metrics
    assert torch.equal(first.tensors["w"], shuffled.tensors["w"])
    assert first.metrics != other.metrics


def test_evaluation_does_not_change_training(federate: Federate) -> None:
    often, seldom = federate("a", eval_every=1, eval_samples=2), federate("b", eval_every=4)
    assert torch.equal(often.tensors["w"], seldom.tensors["w"])


def test_sampled_clients_train_and_all_are_measured(federate: Federate) -> None:
    run = federate(clients_per_round=2, rounds=6, eval_every=1)
    assert [row["clients_ok"] for row in run.rows[1:]] == ["2"] * 6
    for number in range(7):
        rows = [row for row in run.clients if row["round"] == str(number)]
        assert len([row for row in rows if row["pm_accuracy"]]) == 4
        assert len([row for row in rows if row["status"] == "ok"]) == (2 if number else 0)
    trained = {row["site"] for row in run.clients if row["status"] == "ok"}
    assert len(trained) > 2, "another sample each round"


def test_train_all_trains_everyone_but_aggregates_the_sample(federate: Federate) -> None:
    sampled = federate("a", clients_per_round=2, eval_every=1, rounds=3)
    everyone = federate("b", clients_per_round=2, eval_every=1, rounds=3, train_all=True)
    assert everyone.rows[1]["bytes_up"] == sampled.rows[1]["bytes_up"]

    def latest_rounds(run: Outcome) -> set[str]:
        files = (run.folder.parent / "state" / run.folder.name).glob("*/personal.safetensors")
        return {str(safe_open(file, "pt").metadata()["round"]) for file in files}

    assert latest_rounds(everyone) == {"3"}, "all four trained in the last round"
    assert latest_rounds(sampled) != {"3"}


def test_beta_extrapolates(federate: Federate) -> None:
    start = federate("a", rounds=1, beta=0).tensors["w"]
    one = federate("b", rounds=1, beta=1).tensors["w"]
    beyond = federate("c", rounds=1, beta=1.5).tensors["w"]
    assert torch.equal(start, federate("d", rounds=3, beta=0).tensors["w"]), "β = 0 never moves"
    assert torch.allclose(beyond, extrapolate(start, one, 1.5), atol=1e-6)


def test_moments_widen_the_prior_where_clients_differ(federate: Federate) -> None:
    mean, moments = federate("a", rounds=1), federate("b", rounds=1, aggregation="moments")
    assert torch.allclose(mean.tensors["w"][0], moments.tensors["w"][0], atol=1e-6)
    assert (moments.tensors["w"][1] >= mean.tensors["w"][1] - 1e-6).all()
    assert (moments.tensors["w"][1] > mean.tensors["w"][1] + 1e-6).any()


@pytest.mark.parametrize(
    ("method", "has", "lacks"), [("fedavg", "gm", "pm"), ("fedprox", "gm", "pm"), ("local", "pm", "gm")]
)
def test_plain_methods_measure_the_model_they_have(
    federate: Federate, method: str, has: str, lacks: str
) -> None:
    run = federate(method=method)
    assert run.rows[-1][f"{has}_accuracy"] and not run.rows[-1][f"{lacks}_accuracy"]
    assert float(run.rows[-1][f"{has}_nll"]) < float(run.rows[0][f"{has}_nll"])


def test_local_learns_nothing_from_others(federate: Federate) -> None:
    run = federate(method="local", rounds=2)
    assert torch.equal(run.tensors["w"], federate("b", method="local", rounds=1).tensors["w"])


def test_fedprox_stays_nearer_to_the_start(federate: Federate) -> None:
    start = federate("a", method="fedavg", rounds=1, beta=0).tensors["w"]
    far = federate("b", method="fedavg", rounds=1, optimizer="sgd", lr_global=0.1, local_steps=20)
    near = federate(
        "c", method="fedprox", rounds=1, optimizer="sgd", lr_global=0.1, local_steps=20, proximal=5
    )
    assert (near.tensors["w"] - start).norm() < 0.9 * (far.tensors["w"] - start).norm()


def test_an_unknown_setting_or_method_ends_in_a_sentence(federate: Federate) -> None:
    with pytest.raises(SettingsError, match='There is no setting "zetta"; did you mean "zeta"'):
        federate(zetta=1)
    with pytest.raises(StrategyError, match='no method "nonsense"'):
        federate(method="nonsense")
    assert not federate.latest.folder.exists()  # type: ignore[attr-defined]


def test_a_methods_undeclared_column_does_not_end_the_run(
    federate: Federate, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = federate("before").metrics
    monkeypatch.setattr(PFedBayes, "describe", lambda *_: ({"mood": 1.0}, {}))
    run = federate("run")
    assert run.state == "finished" and run.metrics == before
    assert capsys.readouterr().out.count('rounds.csv has no column \\"mood\\"') == 1


def test_a_taken_name_is_refused(federate: Federate) -> None:
    before = federate().metrics
    with pytest.raises(RunError, match="holds a run already"):
        federate()
    assert federate.latest.metrics == before  # type: ignore[attr-defined]


def test_too_many_clients_per_round(federate: Federate) -> None:
    with pytest.raises(StrategyError, match="clients-per-round is 9, but only 4 clients"):
        federate(clients_per_round=9)
    assert not federate.latest.folder.exists()  # type: ignore[attr-defined]


def test_two_sites_of_one_name_stop_the_run(federate: Federate, tmp_path: Path) -> None:
    nodes = [
        {"partition-id": i, "num-partitions": 3, "site-id": name, "state-dir": str(tmp_path)}
        for i, name in enumerate("aba")
    ]
    with pytest.raises(StrategyError, match=r'Two nodes .* call themselves site "a"'):
        federate(grid=InProcessGrid({}, 3, node_configs=nodes), min_clients=2)


def named(tmp_path: Path, names: str, keys: dict[int, str] | None = None) -> InProcessGrid:
    """A grid of sites of these names, and for some of them the name that their key is registered for."""
    nodes = [
        {"partition-id": i, "num-partitions": 9, "site-id": name, "state-dir": str(tmp_path / f"{i}")}
        for i, name in enumerate(names)
    ]
    grid = InProcessGrid({}, len(names), node_configs=nodes)
    infos = [NodeInfo(node_id=node, name=(keys or {}).get(i, "")) for i, node in enumerate(grid.contexts)]
    grid.get_nodes = lambda: infos  # type: ignore[method-assign]
    return grid


def test_a_stolen_name_leaves_its_claimants_out_where_enough_others_are_there(
    federate: Federate, tmp_path: Path
) -> None:
    run = federate("run", grid=named(tmp_path, "abcda"), min_clients=3)
    assert run.state == "finished" and {row["site"] for row in run.clients} == set("bcd")
    assert [text for text in run.said("warning") if "Left out" in text] == [
        'Left out: Two nodes (1000 and 1028) call themselves site "a".'
    ]
    config = read_config(run.folder)
    assert config and config["left_out"] == ['Two nodes (1000 and 1028) call themselves site "a".'] * 2
    assert next(one for one in run.events if one["event"] == "finished")["left_out"] == 2


def test_of_claimants_the_one_whose_key_is_registered_for_the_name_stays(
    federate: Federate, tmp_path: Path
) -> None:
    run = federate("run", grid=named(tmp_path, "abcda", keys={4: "a"}), rounds=1)
    assert {row["site"] for row in run.clients} == set("abcd")
    assert next(one for one in run.events if one["event"] == "finished")["left_out"] == 1


def test_of_two_claimants_the_one_that_remains_joins(federate: Federate, tmp_path: Path) -> None:
    grid = named(tmp_path, "abcda")

    def interfere(number: int, message: Message, reply: Message) -> Message:
        exchange = message.content.config_records.get("exchange")
        if exchange and exchange["round"] == 2:
            grid.offline = {4}
        return reply

    grid.interfere = interfere
    run = federate("run", grid=grid)
    ok = {(row["round"], row["site"]) for row in run.clients if row["status"] == "ok"}
    assert ("2", "a") not in ok and {("3", "a"), ("4", "a")} < ok
    assert next(one for one in run.events if one["event"] == "finished")["left_out"] == 1


def test_a_site_with_another_model_is_named(federate: Federate) -> None:
    grid = InProcessGrid({}, 3)

    def other_model(number: int, message: object, reply: object) -> object:
        if number == 2 and "hello" in reply.content:  # type: ignore[attr-defined]
            reply.content["hello"]["fingerprint"] = "feedface"  # type: ignore[attr-defined]
        return reply

    grid.interfere = other_model  # type: ignore[assignment]
    with pytest.raises(StrategyError, match=r'Sites "0" and "2" have different models: .*feedface'):
        federate(grid=grid, min_clients=3)
    run = federate("without", grid=grid)
    assert "site 2, since most sites agree without: Sites" in run.said("warning")[0]
    assert {row["site"] for row in run.clients} == {"0", "1"} and run.state == "finished"


def test_data_errors_reach_the_user_in_words(federate: Federate) -> None:
    with pytest.raises(StrategyError, match=r"site 0: .*digits.* needs"):
        federate(size="500+500")
    assert not federate.latest.folder.exists()  # type: ignore[attr-defined]


def test_rates_fall_at_the_clients(federate: Federate) -> None:
    """A step of nearly no length in the last of four rounds; those before know nothing of it."""
    usual = federate("usual", method="fedavg", optimizer="sgd", lr_global=0.1, eval_every=1)
    falling = federate("falling", method="fedavg", optimizer="sgd", lr_global=0.1, eval_every=1, lr_end=1e-6)
    losses = [[float(row["gm_nll"]) for row in run.rows] for run in (usual, falling)]
    assert losses[0][:4] == losses[1][:4]
    assert losses[1][4] == pytest.approx(losses[1][3], abs=2e-6)
    assert losses[0][4] < losses[0][3] - 1e-3
