"""A method from a package of its own, in two files (elsewhere/ensemble): run, resumed, reported, predicted with."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import SMALL, Outcome
from inprocess import sites

from client_app.data import load
from client_app.site import forget
from fedbayes.errors import CommandError, ModelError
from fedbayes.launch.methods import checked
from fedbayes.launch.plan import plan_run
from fedbayes.model.adapt import adapt
from fedbayes.model.export import export
from fedbayes.model.finished import Finished
from fedbayes.model.personal import PersonalModel
from fedbayes.model.predict import predict_file
from fedbayes.protocol.settings import Settings, SettingsError, defaults
from server_app.report import write_report
from strategies import StrategyError

Federate = Callable[..., Outcome]
HERE = Path(__file__).parent / "elsewhere"
METHOD = "elsewhere.ensemble"


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(HERE.parent))
    forget()
    yield
    forget()


def test_it_runs_with_its_own_settings_columns_and_uploads(federate: Federate) -> None:
    run = federate(method=METHOD)
    last = run.rows[-1]
    assert float(last["pm_accuracy"]) > 0.2 and float(last["drift"]) > 0
    assert list(last)[-1] == "drift", "own columns come last"
    assert {row["examples"] for row in run.clients if row["status"] == "ok" and row["round"] == "4"} == {"20"}
    assert not last["pm_point_accuracy"], "a mixture has no mean network"
    assert set(run.tensors) == {"start0", "start1", "kept/velocity"}
    assert not torch.equal(run.tensors["start0"], run.tensors["start1"])
    other = federate("b", method=METHOD, **{"ensemble.momentum": 0.9, "ensemble.mix": 0.1})
    assert other.rows[-1]["drift"] != last["drift"]


def test_it_resumes_after_a_crash_to_the_digit(federate: Federate) -> None:
    whole = federate("whole", method=METHOD, **{"ensemble.momentum": 0.5})

    def die(number: int, message: object, reply: object) -> object:
        if int(message.content["exchange"]["round"] if "exchange" in message.content else 0) == 3:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        federate("torn", method=METHOD, interfere=die, **{"ensemble.momentum": 0.5})
    again = federate("torn", method=METHOD, resume=True, **{"ensemble.momentum": 0.5})
    assert again.metrics == whole.metrics
    assert [row["drift"] for row in again.rows] == [row["drift"] for row in whole.rows]
    for name, tensor in whole.tensors.items():
        assert torch.equal(tensor, again.tensors[name])


def test_it_is_reported(federate: Federate) -> None:
    run = federate(method=METHOD)
    page = write_report(run.folder).read_text()
    assert "Ensemble" in page and "two networks, and a mixture of both" in page
    assert "distance of the two networks" in page


def test_the_model_that_was_measured_is_the_one_that_predicts(federate: Federate, tmp_path: Path) -> None:
    run = federate(method=METHOD)
    folder = run.folder.parent / "state" / "run" / "0"
    data = load(Settings.parse(defaults() | SMALL | {"method": METHOD}), 0, 4)
    model = PersonalModel.load(folder, trust_code=True)
    found = model.predictor.predict(data.x_test, 1, torch.Generator())
    accuracy = (found.labels == data.y_test).double().mean().item()
    row = next(row for row in run.clients if row["round"] == "4" and row["site"] == "0")
    assert accuracy == pytest.approx(float(row["pm_accuracy"]), abs=1e-6)
    np.savez(tmp_path / "new.npz", x=((data.x_test + 1) * 8).numpy().astype(np.uint8))
    table, said = predict_file(model, str(tmp_path / "new.npz"))
    assert len(table.splitlines()) == 1 + len(data.x_test) and "answered" in said
    with pytest.raises(ModelError, match="no distributions over a network's weights"):
        export(model, tmp_path / "out")


def test_a_new_site_adapts(federate: Federate) -> None:
    run = federate(method=METHOD)
    finished = Finished.open(run.folder, {"rounds": 2})
    data = load(finished.settings, 1, 4)
    *_, last = adapt(finished, ((data.x_train + 1) * 8).to(torch.uint8), data.y_train, "new-1")
    again = PersonalModel.of(last.card, last.file())
    x = ((data.x_test + 1) * 8).to(torch.uint8)
    torch.testing.assert_close(again.predict(x).probabilities, last.personal().predict(x).probabilities)


def test_it_runs_at_real_sites_and_for_numbers(federate: Federate, tmp_path: Path) -> None:
    run = federate(grid=sites(tmp_path / "disks"), method=METHOD)
    assert float(run.rows[-1]["pm_accuracy"]) > 0.2
    numbers = federate(
        "numbers", grid=sites(tmp_path / "more"), method=METHOD, dataset="diabetes", model="mlp", layout="iid"
    )
    assert float(numbers.rows[-1]["pm_rmse"]) > 0


def test_wrong_settings_are_sentences(
    federate: Federate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=r'"ensemble\.momentum" takes a number from 0'):
        federate(method=METHOD, **{"ensemble.momentum": 1.5})
    with pytest.raises(
        StrategyError, match=r'site 0: The setting "ensemble\.mix" takes a number from 0 to 1'
    ):
        federate(method=METHOD, **{"ensemble.mix": 7})
    with pytest.raises(SettingsError, match=r'no setting "ensemble\.speed"'):
        plan_run({"method": METHOD, "ensemble.speed": 1}, 4)
    with pytest.raises(SettingsError, match=r'does not use the setting "zeta"; .*pfedbayes'):
        plan_run({"method": METHOD, "zeta": "3"}, 4)
    with pytest.raises(CommandError, match="modules server and client"):
        plan_run({"method": "elsewhere.nobody"}, 4)
    settings = checked(Settings.parse(defaults() | {"method": METHOD, "ensemble.mix": "0.25"}))
    assert settings.as_config()["ensemble.mix"] == 0.25 and settings.as_config()["ensemble.momentum"] == 0.0


def test_the_command_takes_it_from_the_folder_where_it_is_started(federate: Federate, tmp_path: Path) -> None:
    """With processes of its own, and the figures of this one; test_simulation has it with Flower's."""
    words = [
        f"{key}={value}"
        for key, value in (SMALL | {"rounds": 2, "method": METHOD, "run-name": "far"}).items()
    ]
    done = subprocess.run(
        [sys.executable, "-m", "fedbayes.cli", "run", *words, "ensemble.mix=0.2", f"out-dir={tmp_path}", "--clients=2"],
        cwd=HERE.parent, env={**os.environ, "PYTHONPATH": str(HERE.parents[2])}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    far = Outcome(tmp_path / "far")
    assert float(far.rows[-1]["drift"]) > 0 and far.rows[-1]["pm_accuracy"]
    assert (
        far.metrics == federate("here", clients=2, rounds=2, method=METHOD, **{"ensemble.mix": 0.2}).metrics
    )


def test_a_package_that_is_nowhere(federate: Federate) -> None:
    with pytest.raises(StrategyError, match='no module "nowhere"'):
        federate(method="nowhere.to.be.found")


def test_a_method_that_holds_uploads_does_not_see_those_that_are_left_out(federate: Federate) -> None:
    run = federate(method=METHOD, aggregation_confidence=0.25)
    for number in ("1", "2", "3", "4"):
        rows = [row for row in run.clients if row["round"] == number]
        assert sorted(row["status"] for row in rows) == ["left out", "ok", "ok", "ok"]
        assert [row["examples"] for row in rows if row["status"] == "left out"] == [""]
        assert all(row["uncertainty"] for row in rows)
    assert [row["clients_ok"] for row in run.rows[1:]] == ["4"] * 4
