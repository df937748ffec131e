"""fedbayes.run, load and compare: whole runs from Python."""

import builtins
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from harness import SMALL, Outcome
from torch import nn

import fedbayes
from fedbayes.launch.engine.embedded import Embedded
from fedbayes.protocol import objects

Federate = Callable[..., Outcome]
ROOT = Path(__file__).parents[2]
WORDS: dict[str, Any] = {key.replace("-", "_"): value for key, value in SMALL.items()}
CENTRES = 4 * np.array([(0, 0), (1, 0), (0, 1)])


def examples(client: int, n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Three kinds of points that can be told apart, the same for all clients but for some noise."""
    y = np.arange(n) % 3
    return np.random.default_rng(client).normal(size=(n, 2)) + CENTRES[y], y


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_a_run_from_python_is_the_run_of_the_command(
    federate: Federate, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = fedbayes.run(method="pfedbayes", dataset="digits", clients=4, run_name="a", **WORDS)
    out, err = capsys.readouterr()
    assert out == "" and "round 4/4  PM " in err
    assert result.folder == work / "runs" / "a" and result.report() == result.folder / "report.html"
    assert sorted(path.name for path in work.rglob("*") if path.parent == work) == ["runs"]
    assert not psutil.Process().children()

    rounds, clients = result.rounds, result.clients
    rows = Outcome(result.folder).rows
    assert list(rounds.columns) == list(rows[0]) and len(rounds) == 5
    assert rounds.pm_accuracy.iloc[-1] == float(rows[-1]["pm_accuracy"]) and np.isnan(rounds.pm_accuracy[3])
    assert set(clients.site) == {"0", "1", "2", "3"}
    assert repr(result).startswith("<a: finished, 4 rounds, personal accuracy 0.")

    from sklearn.datasets import load_digits

    images = load_digits().images[:5].astype(np.uint8)
    assert result.personal(3).predict(images).probabilities.shape == (5, 10)
    assert result.global_model().predict(images).probabilities.shape == (5, 10)
    with pytest.raises(fedbayes.Error, match='no model of a site "9"'):
        result.personal(9)

    longer = fedbayes.run(resume="a", rounds=6, progress=False)
    assert longer.folder == result.folder and len(result.rounds) == 7
    assert Outcome(result.folder).metrics[5:] == federate("here", rounds=6).metrics[5:]
    with pytest.raises(fedbayes.Error, match="The run a is finished"):
        fedbayes.run(resume="a")
    with pytest.raises(fedbayes.Error, match="There is a run a already"):
        fedbayes.run(run_name="a")


def test_own_data_and_a_closure_as_objects(federate: Federate, work: Path) -> None:
    width = 5

    def net(inputs: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs[0], width), nn.Tanh(), nn.Linear(width, classes))

    data = [examples(client) for client in range(3)]
    words = WORDS | {"local_steps": 30, "lr_personal": 0.01, "zeta": 0.1, "progress": False}
    result = fedbayes.run(dataset=data, model=net, run_name="own", **words)
    assert result.rounds.pm_accuracy.iloc[-1] > 0.8 > result.rounds.pm_accuracy[0]
    assert (result.settings["dataset"], result.settings["model"]) == (
        fedbayes.door.given.dataset_setting(data)[0],
        "object:net",
    )
    x, y = examples(7)
    assert (result.personal(1).predict(x).labels.numpy() == y).mean() > 0.8

    # Another network of the same name since then; the result knows its own.
    objects.keep("object:net", lambda inputs, classes: nn.Linear(2, 3))
    assert (result.personal(1).predict(x).labels.numpy() == y).mean() > 0.8
    objects.keep("object:net", lambda inputs, classes: nn.Linear(2, 3))
    with pytest.raises(fedbayes.Error, match="has other parameters than the one that was trained"):
        fedbayes.load("own").personal(1)
    assert fedbayes.load("own", model=net).global_model().classes == ("0", "1", "2")

    with pytest.raises(
        fedbayes.Error, match=r"was started with other data \(object:data_\w+\); give the same"
    ):
        fedbayes.run(resume="own", dataset=data[::-1], model=net, rounds=6)
    longer = fedbayes.run(resume="own", dataset=data, model=net, rounds=6, progress=False)
    assert len(longer.rounds) == 7
    here = federate(
        "here", clients=3, rounds=6, dataset=result.settings["dataset"], model="object:net",
        local_steps=30, lr_personal=0.01, zeta=0.1,
    )  # fmt: skip
    assert here.metrics[6] == Outcome(result.folder).metrics[6]


def test_elsewhere_objects_are_missing_in_a_sentence(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = [examples(client) for client in range(2)]
    result = fedbayes.run(
        dataset=data, model=lambda: nn.Linear(2, 3), run_name="own", progress=False, **WORDS
    )
    assert len(result.rounds) == 5
    monkeypatch.setattr(objects, "_given", {})  # as in another process
    for resume in (lambda: fedbayes.run(resume="own", rounds=6), lambda: fedbayes.load("own").personal(0)):
        with pytest.raises(
            fedbayes.Error, match=r"object:\w+ was given as a Python object, which is not here"
        ):
            resume()
    command = [sys.executable, "-m", "fedbayes.cli", "run", "--resume", "own", "rounds=6"]
    done = subprocess.run(
        command, cwd=work, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "was given as a Python object, which is not here; give the same again, in Python" in done.stderr


def test_one_pair_of_arrays_is_dealt_by_the_layout(work: Path) -> None:
    x, y = examples(0, 400)
    names = np.array(["ash", "elm", "oak"])[y]
    result = fedbayes.run(
        dataset=(x, names), clients=4, layout="iid", size="20+10", model="mlp", rounds=2, local_steps=3,
        progress=False,
    )  # fmt: skip
    assert result.config["classes"] == ["ash", "elm", "oak"]
    assert set(result.clients.n_test.dropna()) == {10}
    assert result.name.startswith("pfedbayes-object-pool_")


def test_it_is_seen_what_fails(work: Path) -> None:
    def net() -> nn.Module:
        class Bad(nn.Linear):
            def forward(self, x: Any) -> Any:
                if len(x) > 5:
                    raise RuntimeError("five is enough")
                return super().forward(x)

        return Bad(2, 3)

    with pytest.raises(
        fedbayes.Error,
        match="Round 1: all 2 clients failed alike: RuntimeError: five is enough; no round is saved yet",
    ) as raised:
        fedbayes.run(dataset=[examples(0)] * 2, model=net, run_name="bad", progress=False, **WORDS)
    assert f'0 of 4 rounds are saved; go on with fedbayes.run(resume="{work}/runs/bad").' in str(raised.value)
    assert fedbayes.load("bad").config["state"] == "failed"
    assert not psutil.Process().children()


def test_ctrl_c_stops_saves_and_is_raised(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Embedded.lines

    def interrupted(self: Embedded) -> Any:
        for line in lines(self):
            yield line
            if '"round": 2' in line:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Embedded, "lines", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"of 300 rounds are saved; go on with fedbayes.run\(resume="):
        fedbayes.run(clients=4, run_name="a", progress=False, **WORDS | {"rounds": 300})
    assert fedbayes.load("a").config["state"] == "stopped"
    assert not psutil.Process().children()


def test_from_another_thread_and_with_other_threads(federate: Federate, work: Path) -> None:
    """Signals are the main thread's; and where there are threads, the run is a new Python."""
    found: list[fedbayes.Result] = []
    thread = threading.Thread(
        target=lambda: found.append(fedbayes.run(clients=4, run_name="a", progress=False, **WORDS))
    )
    thread.start()
    thread.join()
    assert Outcome(found[0].folder).metrics == federate("here").metrics
    assert not psutil.Process().children()


SCRIPT = """
import fedbayes
from torch import nn

def net(inputs, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

result = fedbayes.run(dataset="digits", model=net, clients=3, rounds=2, local_steps=2, out_dir="here", progress=False)
print(result.settings["model"], len(result.rounds))
"""


def test_a_plain_script_leaves_nothing_else(work: Path, tmp_path: Path) -> None:
    (work / "script.py").write_text(SCRIPT)
    places = {name: tmp_path / name.lower() for name in ("TMPDIR", "HOME", "XDG_CACHE_HOME")}
    for place in places.values():
        place.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    environment |= {"PYTHONPATH": str(ROOT), **{name: str(place) for name, place in places.items()}}
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=work, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "object:net 3\n" and done.stderr == ""
    assert sorted(path.name for path in work.iterdir()) == ["here", "script.py"]
    assert not any([*place.iterdir()] for place in places.values())
    assert len([*(work / "here").iterdir()]) == 2, "the run and its clients' states; its own kernels are gone"
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # ended meanwhile, or somebody else's
            assert process.pid == os.getpid() or process.cwd() != str(work)


def test_without_pandas_and_matplotlib(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = fedbayes.run(clients=4, run_name="a", progress=False, **WORDS)
    other = fedbayes.run(clients=4, run_name="b", progress=False, zeta=1.0, **WORDS)
    compared = fedbayes.compare([result, "b"])
    assert list(compared.zeta) == [10.0, 1.0] and list(compared.names) == ["a", "b"]
    assert compared.pm_accuracy_mean[1] == pytest.approx(other.rounds.pm_accuracy.iloc[-1])
    axes = result.plot()
    assert [line.get_label() for line in axes.lines] == ["personal", "global"]
    assert axes.get_ylabel() == "accuracy" and result.plot("nll", ax=axes) is axes
    with pytest.raises(fedbayes.Error, match='The run a has no "speed"; it has accuracy, nll'):
        result.plot("speed")
    with pytest.raises(fedbayes.Error, match="two runs or more, not 1"):
        fedbayes.compare([result])

    real = builtins.__import__

    def lacking(name: str, *arguments: Any) -> Any:
        if name.split(".")[0] in ("pandas", "matplotlib"):
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", lacking)
    rows = result.rounds
    assert rows[3]["pm_accuracy"] is None and rows[4]["round"] == 4 and isinstance(rows[4]["gm_nll"], float)
    assert {row["site"] for row in result.clients} == {"0", "1", "2", "3"}
    assert fedbayes.compare(["a", "b"])[1]["zeta"] == 1.0
    with pytest.raises(fedbayes.Error, match="plot\\(\\) needs matplotlib; install it"):
        result.plot()
