"""IFCA, FeSEM and FedCFL in a whole federation: digits, half of the clients with their images upside down."""

import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from harness import Outcome
from inprocess import InProcessGrid, sites
from torch import nn

from client_app.site import forget
from fedbayes.cli.command import _status

Federate = Callable[..., Outcome]
ROTATED: dict[str, Any] = {
    "layout": "rotated", "size": "10+10", "clients": 6, "local_steps": 10, "batch_size": 40, "rounds": 4,
    "eval_every": 1, "lr_global": 0.01,
}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "ifca": {"rounds": 6},
    "fesem": {},
    # the splits are tested elsewhere: here two rounds are made to be enough
    "fedcfl": {"fedcfl.split-from": 2, "fedcfl.split-ratio": 0.9},
}
TRUTH = ["0", "0", "0", "1", "1", "1"]


class Killed(BaseException):
    """Ends the process, as far as a test can: nobody catches it."""


def words(method: str, **more: Any) -> dict[str, Any]:
    return ROTATED | {"method": method} | METHODS[method] | more


def latest(run: Outcome) -> dict[str, str]:
    """Each site's last cluster."""
    return {row["site"]: row["cluster"] for row in run.clients if row["cluster"]}


@pytest.mark.parametrize("method", METHODS)
def test_the_groups_are_found(federate: Federate, method: str) -> None:
    run = federate(report=True, **words(method))
    last = run.rows[-1]
    assert (last["adjusted_rand"], last["clusters"], last["cluster_changes"]) == ("1.0", "2", "0")
    assert list(latest(run).values()) in (TRUTH, ["1", "1", "1", "0", "0", "0"])
    assert not any(row["pm_accuracy"] for row in run.rows) and all(row["gm_accuracy"] for row in run.rows)
    assert {"u0", "u1"} <= set(run.tensors) and not run.said("warning") and run.said("clusters")
    plain = federate("plain", **ROTATED | {"method": "fedavg", "rounds": int(last["round"])})
    assert float(last["gm_nll"]) < float(plain.rows[-1]["gm_nll"]), (
        "a model for each group is better than one"
    )
    page = (run.folder / "report.html").read_text("utf-8")
    assert "clusters.json" not in page and "(that of each client&#39;s cluster)" in page


@pytest.mark.parametrize("method", METHODS)
def test_killed_in_any_round(federate: Federate, method: str) -> None:
    calm = federate("calm", **words(method))
    for server_round in range(1, int(calm.rows[-1]["round"]) + 2):  # the last one closes the run
        name = f"killed-{server_round}"

        def killer(number: int, message: Message, reply: Message, at: int = server_round) -> Message:
            exchange = message.content.get("exchange")
            if exchange and exchange["round"] == at and number == 3:
                raise Killed
            return reply

        with pytest.raises(Killed):
            federate(name, **words(method), interfere=killer)
        resumed = federate(name, **words(method), resume=True)
        assert resumed.metrics == calm.metrics and resumed.clients == calm.clients, name
        assert set(resumed.tensors) == set(calm.tensors)
        assert all(torch.equal(resumed.tensors[one], calm.tensors[one]) for one in calm.tensors), name


@pytest.mark.parametrize("method", METHODS)
def test_one_seed_is_one_result_in_any_order(federate: Federate, method: str) -> None:
    first, shuffled = federate("a", **words(method)), federate("b", **words(method), shuffle=5)
    assert first.metrics == shuffled.metrics and first.clients == shuffled.clients


@pytest.mark.parametrize("method", ["ifca", "fesem"])
def test_sampled_clients(federate: Federate, method: str) -> None:
    run = federate(**words(method, rounds=12), clients_per_round=3)
    assert {row["clients_ok"] for row in run.rows[1:]} == {"3"} and run.state == "finished"
    assert run.rows[-1]["gm_accuracy"] and not run.said("warning")


def test_restarts_are_counted_in_the_rows(federate: Federate) -> None:
    """On clients of one kind some cluster stays empty: all starts are tried, within the run's rounds."""
    run = federate(**words("ifca", layout="iid", rounds=8), **{"ifca.restarts": 1})
    assert [row["restarts"] for row in run.rows] == ["", "0", "0", "1", "1", "1", "1", "1", "1"]
    said = run.said("clusters")
    assert len(said) == 3 and "restart 1 of at most 1" in said[1] and said[2].startswith("2 starts left")
    assert set(run.tensors) == {"u0", "u1"}, "no start is kept for nothing"


@pytest.mark.parametrize("method", ["fesem", "fedcfl"])
def test_who_comes_late_finds_its_group(federate: Federate, tmp_path: Path, method: str) -> None:
    grid: InProcessGrid = sites(tmp_path / "disks", 6)
    grid.offline = {5}

    def arrive(number: int, message: Message, reply: Message) -> Message:
        exchange = message.content.get("exchange")
        if exchange and exchange["round"] == 3:
            grid.offline = set()
        return reply

    grid.interfere = arrive
    settings = words(method, rounds=5)
    del settings["clients"]
    run = federate(grid=grid, **settings)
    found = latest(run)
    assert found["site-5"] == found["site-4"] != found["site-0"]
    assert run.rows[-1]["adjusted_rand"] == "1.0"


@pytest.mark.parametrize("method", METHODS)
def test_the_models_in_ones_hands(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    """Those of clusters can be used and exported; there is none of a site, and nothing to adapt."""
    run = federate(method, **words(method))
    out = f"out-dir={run.folder.parent}"
    data = tmp_path / "new.npz"
    import numpy as np

    np.savez(data, x=np.zeros((3, 1, 8, 8), np.uint8), y=np.zeros(3, np.int64))
    assert _status(["predict", f"{method}/global-1", str(data), out]) == 0
    assert capsys.readouterr().out.count("\n") == 4
    assert _status(["export", f"{method}/global-0", "--out", str(tmp_path / "network"), out]) == 0
    assert (tmp_path / "network" / "network.safetensors").exists()
    capsys.readouterr()
    for command, sentence in (
        (["predict", f"{method}/global", str(data), out], f"there is {method}/global-0, {method}/global-1."),
        (
            ["predict", f"{method}/0", str(data), out],
            f"has no personal model: {method} has only the global one.",
        ),
        (["adapt", method, str(data), "--out", str(tmp_path / "a"), out], "has no personal models to adapt."),
    ):
        assert _status(command) == 2
        said = capsys.readouterr().err
        assert sentence in said and said.count("\n") == 1
    shutil.rmtree(tmp_path / "network")


@pytest.mark.parametrize("method", METHODS)
def test_batch_norm(federate: Federate, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Every cluster's model has statistics of its own, the mean of its members'."""

    def network(inputs: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, classes)
        )

    module = types.ModuleType("normed")
    module.network = network  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "normed", module)
    forget()
    more = {"clusters": 3} if method != "fedcfl" else {}
    run = federate(**words(method, model="normed:network", **more))
    forget()
    models = sorted(name for name in run.tensors if name.startswith("u") and "." not in name)
    assert sorted(f"{name}.statistics" for name in models) == sorted(
        name for name in run.tensors if name.startswith("u") and "." in name
    )
    used = {f"u{cluster}.statistics" for cluster in latest(run).values()}
    found = [run.tensors[name] for name in sorted(used)]
    assert len(found) > 1 and not any(torch.equal(found[0], other) for other in found[1:])
    assert run.state == "finished" and not run.said("warning")
