"""Loggers: a run in the stores of MLflow and W&B, with settings, figures and files; and where these are away."""

import json
import struct
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedbayes.cli import command
from fedbayes.loggers import worker
from fedbayes.loggers.worker import Loggers
from server_app.stored import read_rows

START = {"event": "start", "uuid": "0123-abc", "round": 1, "rounds": 2, "sites": 3}
EVENTS = [
    {"event": "evaluated", "round": 0, "rounds": 2, "pm_accuracy": 0.25, "gm_accuracy": 0.125},
    {
        "event": "round",
        "time": 1.0,
        "round": 1,
        "rounds": 2,
        "clients_ok": 3,
        "clients_failed": 0,
        "seconds": 0.5,
    },
    {"event": "evaluated", "round": 2, "rounds": 2, "pm_accuracy": 0.75, "gm_accuracy": 0.5},
]
SETTINGS = {"method": "pfedbayes", "rounds": 2, "zeta": "auto", "target": ""}
Log = Callable[..., list[str]]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    """log("mlflow", [events], **settings): a run's events through a logger; gives what was said."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("<p>a report")
    (folder / "rounds.csv").write_text("round\n0\n")

    def run(
        name: str, events: Sequence[dict[str, Any]] = (START, *EVENTS, {"event": "finished"}), **settings: Any
    ) -> list[str]:
        said: list[str] = []
        loggers = Loggers([name], "first", SETTINGS | settings, folder, said.append)
        for event in events:
            loggers.show(event)
        loggers.close()
        return said

    return run


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    module = pytest.importorskip("mlflow", reason="mlflow is not installed: pip install '.[mlflow]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_ENABLE_ASYNC_LOGGING", "false")
    module.set_tracking_uri(None)
    return module


def runs_of(mlflow: Any) -> list[Any]:
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("fedbayes")
    return list(client.search_runs([experiment.experiment_id]))


def test_mlflow_has_settings_figures_and_files(mlflow: Any, log: Log) -> None:
    (said,) = log("mlflow")
    (run,) = runs_of(mlflow)
    assert said.startswith(f"mlflow: run {run.info.run_id} at sqlite:///")
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert run.data.params == {
        "method": "pfedbayes",
        "rounds": "2",
        "zeta": "auto",
        "target": "",
        "sites": "3",
    }
    client = mlflow.MlflowClient()
    history = client.get_metric_history(run.info.run_id, "accuracy/personal")
    assert [(one.step, one.value) for one in history] == [(0, 0.25), (2, 0.75)]
    assert run.data.metrics["round/seconds"] == 0.5
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {"report.html", "rounds.csv"}


def test_a_real_run_in_mlflow(mlflow: Any, tmp_path: Path) -> None:
    """The command itself, two rounds, with a database as the store."""
    words = ["run", "--log", "mlflow", "dataset=digits", "size=4+4", "rounds=2", "local-steps=1", "eval-every=1",
             "run-name=logged", "--clients", "2"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "fedbayes.cli", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = runs_of(mlflow)
    assert f"mlflow: run {run.info.run_id} at sqlite:///" in done.stdout
    assert (run.info.run_name, run.info.status, run.data.params["rounds"]) == ("logged", "FINISHED", "2")
    client = mlflow.MlflowClient()
    history = client.get_metric_history(run.info.run_id, "accuracy/personal")
    rows = read_rows(tmp_path / "runs" / "logged" / "rounds.csv")
    assert [one.step for one in history] == [0, 1, 2]
    assert [one.value for one in history] == pytest.approx(
        [float(row["pm_accuracy"]) for row in rows], abs=1e-6
    )
    assert "report.html" in {file.path for file in client.list_artifacts(run.info.run_id)}


def test_a_resumed_run_goes_on_in_the_same_one(mlflow: Any, log: Log) -> None:
    log("mlflow", [START, *EVENTS[:1]])
    (run,) = runs_of(mlflow)
    assert run.info.status == "KILLED"
    further = {"event": "evaluated", "round": 4, "rounds": 4, "pm_accuracy": 0.875}
    log("mlflow", [START | {"round": 3}, further, {"event": "error"}], rounds=4)
    (run,) = runs_of(mlflow)
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "accuracy/personal")
    assert [(one.step, one.value) for one in history] == [(0, 0.25), (4, 0.875)]
    assert run.info.status == "FAILED"
    assert (run.data.params["rounds"], run.data.tags["now.rounds"]) == ("2", "4")


def test_a_server_that_is_away_is_said_once_and_counted(
    mlflow: Any, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    first, last = log("mlflow")
    assert first.startswith("mlflow cannot log, and the run goes on without it: ")
    assert last == "mlflow: 5 of 5 records could not be logged."


def test_wandb_offline_has_settings_figures_and_files(
    log: Log, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: pip install '.[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    (said,) = log("wandb")
    assert said.startswith("wandb: run 0123-abc in ") and said.endswith("`wandb sync`")
    assert not [child for child in psutil.Process().children() if "wandb" in child.name()]
    (file,) = tmp_path.glob("wandb/offline-run-*/run-0123-abc.wandb")
    history: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    for record in records(file.read_bytes()):
        if record.HasField("history"):
            items = {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            history.append(items)
        if record.HasField("run"):
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    assert [(one["round"], one.get("accuracy/personal")) for one in history] == [
        (0, 0.25),
        (1, None),
        (2, 0.75),
    ]
    assert {"method": "pfedbayes", "rounds": 2, "sites": 3}.items() <= config.items()
    assert (file.parent / "files" / "rounds.csv").exists() and (
        file.parent / "files" / "report.html"
    ).exists()


def test_a_run_of_the_callers_own_at_wandb_goes_on(
    log: Log, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install '.[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    own = wandb.init(project="own", reinit="create_new", settings=wandb.Settings(silent=True, console="off"))
    try:
        log("wandb")
        own.log({"x": 1.0})
        assert [child for child in psutil.Process().children() if "wandb" in child.name()]
    finally:
        own.finish()
        wandb.teardown()


def records(data: bytes) -> Iterator[Any]:
    """What a .wandb file holds: blocks of 32 kB, as LevelDB's log has them, behind 7 bytes of its own."""
    from wandb.proto import wandb_internal_pb2

    at, whole = 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # all of a record, or its last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


@pytest.fixture
def broken() -> Iterator[list[str]]:
    """A logger that fails where it is told to."""
    fails: list[str] = []

    class Logger:
        def start(self, about: worker.About) -> str:
            return self._do("start") or "somewhere"

        def log(self, figures: Any, step: int) -> None:
            self._do("log")

        def finish(self, state: str, files: Any) -> None:
            self._do("finish")

        def _do(self, what: str) -> str:
            if what in fails:
                raise SystemExit(f"no {what}\nhere")
            return ""

    module = types.ModuleType("fedbayes.loggers.broken_")
    module.Logger = Logger  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    yield fails
    del sys.modules[module.__name__]


def test_what_fails_is_counted_and_said_once(broken: list[str], log: Log) -> None:
    assert log("broken") == ["broken: somewhere"]
    broken.append("log")
    assert log("broken") == [
        "broken: somewhere",
        "broken cannot log, and the run goes on without it: no log here",
        "broken: 3 of 5 records could not be logged.",
    ]
    broken.append("start")
    said = log("broken")
    assert said[0].endswith("no start here") and said[1] == "broken: 5 of 5 records could not be logged."
    assert log("broken", [{"event": "error"}]) == [], "a run that never began leaves nothing"


def test_a_logger_that_hangs_is_left_behind(
    broken: list[str], log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    free = threading.Event()
    monkeypatch.setattr(worker, "CLOSING", 0.05)
    monkeypatch.setattr(sys.modules["fedbayes.loggers.broken_"].Logger, "log", lambda *_: free.wait())
    assert log("broken")[-1].endswith("records could not be logged.")
    free.set()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "mlflow",
            "--log mlflow needs the package mlflow; install it with `pip install mlflow-skinny sqlalchemy alembic`.",
        ),
        ("wandb", "--log wandb needs the package wandb; install it with `pip install wandb`."),
        ("excel", '--log takes mlflow, wandb, tensorboard, not "excel".'),
    ],
)
def test_without_the_package_it_is_a_sentence(
    name: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit) as ended:
        command.main(["run", "--log", name])
    assert (ended.value.code, capsys.readouterr().err) == (2, f"fedbayes: {sentence}\n")


def test_the_command_passes_loggers_on(here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fedbayes.launch import ready, simulate

    plans: list[Any] = []
    monkeypatch.setattr(simulate, "simulate", lambda plan, *_: plans.append(plan) or 0)
    monkeypatch.setattr(ready, "check_data", lambda _settings, _clients: None)
    monkeypatch.setattr("fedbayes.loggers._is_installed", lambda package: True)
    with pytest.raises(SystemExit):
        command.main(["run", "--log", "mlflow", "--log", "wandb", "--log", "mlflow"])
    assert plans[0].log == ("mlflow", "wandb") and plans[0].local == plans[0].folder
