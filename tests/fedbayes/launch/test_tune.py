"""Tuning with runs that are made up: what is run, judged, written down and gone on with."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedbayes.cli import command
from fedbayes.cli import tune as command_of_tune
from fedbayes.errors import CommandError
from fedbayes.launch import tune
from fedbayes.launch.plan import Plan
from fedbayes.launch.tune import Tuning, best, judged
from fedbayes.protocol.settings import Settings

WORDS = {"zeta": "1,10,100", "run-name": "try", "rounds": "4"}


class Runs:
    """Plays the runs: `nll` says what a point comes to, `trouble` who fails or is stopped, and how."""

    def __init__(self, nll: Callable[[Settings], Any], trouble: dict[str, int] | None = None) -> None:
        self.nll, self.trouble = nll, trouble or {}
        self.started: list[str] = []
        self.measured = 10

    def __call__(self, plan: Plan, *_: object) -> int:
        name = plan.settings.run_name
        self.started.append(name)
        plan.folder.mkdir(parents=True, exist_ok=True)
        status = self.trouble.get(name, 0)
        config = {
            "format": 1, "uuid": "u", "settings": plan.settings.as_config() | {"resume": False},
            "clients": plan.clients, "state": {0: "finished", 1: "failed", 130: "stopped"}[status],
            "message": "It diverged in round 2." if status == 1 else "",
        }  # fmt: skip
        (plan.folder / "config.json").write_text(json.dumps(config))
        value = self.nll(plan.settings)
        figures = {"pm_val_nll": value, "gm_val_nll": value, "gm_val_accuracy": 0.5, "pm_val_accuracy": 0.75}
        row = {"round": plan.settings.rounds, **figures}
        self._write(plan.folder / "rounds.csv", [{"round": 1, **dict.fromkeys(figures, 0.0)}, row])
        sites = [{"round": row["round"], "site": site, **figures} for site in range(self.measured)]
        self._write(plan.folder / "clients.csv", sites)
        if status == 0:
            import numpy as np
            from safetensors.numpy import save_file

            tags = {"format": "1", "round": str(plan.settings.rounds), "memory": "{}"}
            save_file({"w": np.zeros(1)}, plan.folder / "checkpoint.safetensors", tags)
        return status

    def _write(self, file: Path, rows: list[dict[str, Any]]) -> None:
        with file.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


@pytest.fixture
def run(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """run(runs, *words): the command with these runs; its status and what it printed."""
    monkeypatch.setattr(tune, "check_data", lambda _settings, _clients: None)

    def tuned(runs: Runs, *words: str) -> tuple[int, str]:
        monkeypatch.setattr(command_of_tune, "_start", runs)
        with pytest.raises(SystemExit) as ended:
            command.main(["tune", *words])
        said = capsys.readouterr()
        return int(str(ended.value.code)), said.out + said.err

    return tuned


def told(here: Path, name: str = "try") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((here / "runs" / f"{name}-tune" / "tune.json").read_text())
    return found


def by_zeta(settings: Settings) -> float:
    """Lowest in the middle."""
    return {"1": 0.5, "10": 0.3, "100": 0.4}[str(settings.as_config()["zeta"]).removesuffix(".0")]


def test_every_point_is_run_once_and_the_best_is_named(run: Callable[..., Any], here: Path) -> None:
    runs = Runs(by_zeta)
    status, said = run(runs, "zeta=1,10,100", "run-name=try", "rounds=4")
    assert status == 0
    assert runs.started == ["pfedbayes_zeta-1", "pfedbayes_zeta-10", "pfedbayes_zeta-100"]
    assert "Best:        fedbayes run rounds=4 method=pfedbayes zeta=10\n" in said
    assert "3 points, judged on 0.2 of the training data." in said
    found = told(here)
    assert found["validation_fraction"] == 0.2
    assert found["best"] == {
        "pfedbayes": {
            "values": {"zeta": "10"}, "objective": "pm_val_nll", "value": 0.3,
            "command": "fedbayes run rounds=4 method=pfedbayes zeta=10",
        }
    }  # fmt: skip
    with (here / "runs" / "try-tune" / "tune.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["zeta"], row["objective"], row["best"]) for row in rows] == [
        ("1", "0.5", ""), ("10", "0.3", "yes"), ("100", "0.4", ""),
    ]  # fmt: skip
    for row in rows:
        config = json.loads((here / "runs" / "try-tune" / row["run"] / "config.json").read_text())
        assert float(config["settings"]["validation-fraction"]) == 0.2
        assert str(config["settings"]["seed"]) == "1"


def test_the_users_own_fraction_and_folder_stay_in_the_winning_line(
    run: Callable[..., Any], here: Path
) -> None:
    words = ["validation-fraction=0.3", "zeta=1,10", "run-name=try", "out-dir=else where", "--clients", "10"]
    status, said = run(Runs(by_zeta), *words)
    line = "fedbayes run validation-fraction=0.3 'out-dir=else where' method=pfedbayes zeta=10 --clients 10"
    assert status == 0 and f"Best:        {line}\n" in said
    assert (here / "else where" / "try-tune" / "tune.json").exists()


def test_what_is_finished_is_not_run_again_and_what_was_stopped_goes_on(
    run: Callable[..., Any], here: Path
) -> None:
    runs = Runs(by_zeta, {"pfedbayes_zeta-10": 130})
    status, said = run(runs, "zeta=1,10,100", "run-name=try", "rounds=4")
    assert status == 130 and runs.started == ["pfedbayes_zeta-1", "pfedbayes_zeta-10"], "nothing after a stop"
    assert "Go on with:  fedbayes tune zeta=1,10,100 rounds=4 run-name=try\n" in said
    assert [point["state"] for point in told(here)["points"]] == ["finished", "stopped"]
    again = Runs(by_zeta)
    status, _ = run(again, "zeta=1,10,100", "run-name=try", "rounds=4")
    assert status == 0 and again.started == ["pfedbayes_zeta-10", "pfedbayes_zeta-100"]
    assert told(here)["best"]["pfedbayes"]["values"] == {"zeta": "10"}
    wider = Runs(lambda settings: 0.1 if str(settings.as_config()["zeta"]) == "3.0" else by_zeta(settings))
    status, _ = run(wider, "zeta=1,3,10,100", "run-name=try", "rounds=4")
    assert wider.started == ["pfedbayes_zeta-3"], "a wider grid has only its new points to run"
    assert told(here)["best"]["pfedbayes"]["values"] == {"zeta": "3"}


def test_a_tuning_without_a_name_tells_the_one_it_was_given(run: Callable[..., Any], here: Path) -> None:
    status, said = run(Runs(by_zeta, {"pfedbayes_zeta-1": 130}), "zeta=1,10")
    (folder,) = (here / "runs").iterdir()
    assert status == 130 and f"run-name={folder.name.removesuffix('-tune')}" in said


def test_a_point_that_fails_is_named_and_the_rest_goes_on(run: Callable[..., Any], here: Path) -> None:
    runs = Runs(by_zeta, {"pfedbayes_zeta-10": 1})
    status, said = run(runs, "zeta=1,10,100", "run-name=try")
    assert status == 0 and len(runs.started) == 3
    assert "method=pfedbayes zeta=10: failed (It diverged in round 2.)" in said
    assert told(here)["best"]["pfedbayes"]["values"] == {"zeta": "100"}, "the best of those that came through"


@pytest.mark.parametrize("value", ["", "nan", "inf"])
def test_a_point_that_diverged_is_named(run: Callable[..., Any], here: Path, value: str) -> None:
    runs = Runs(lambda settings: value if str(settings.as_config()["zeta"]) == "10.0" else by_zeta(settings))
    status, said = run(runs, "zeta=1,10,100", "run-name=try")
    assert status == 0 and "zeta=10: diverged (no client's validation NLL is a number)" in said
    assert [point["state"] for point in told(here)["points"]] == ["finished", "diverged", "finished"]


def test_a_point_without_all_clients_cannot_win(run: Callable[..., Any], here: Path) -> None:
    """The NLL of those that came through would be that of the easier clients."""
    runs = Runs(by_zeta)
    runs.measured = 9
    status, said = run(runs, "zeta=1,10", "run-name=try")
    assert status == 1 and said.count("failed (only 9 of 10 clients were measured)") == 2
    assert told(here)["best"] == {}


def test_each_method_has_its_winner(run: Callable[..., Any], here: Path) -> None:
    def nll(settings: Settings) -> float:
        rate = float(settings.as_config()["lr-global"])
        return {"fedavg": 1.0, "pfedbayes": 0.5}[settings.method] + abs(rate - 0.02)

    status, said = run(Runs(nll), "method=fedavg,pfedbayes", "lr-global=0.01,0.02,0.1", "run-name=try")
    found = told(here)
    assert status == 0 and len(found["points"]) == 6
    assert {name: (one["objective"], one["value"]) for name, one in found["best"].items()} == {
        "fedavg": ("gm_val_nll", 1.0), "pfedbayes": ("pm_val_nll", 0.5),
    }  # fmt: skip
    assert "the best of each method" in said and "more chances" not in said
    assert "fedbayes run method=fedavg lr-global=0.02" in said
    assert "fedbayes run method=pfedbayes lr-global=0.02" in said
    status, said = run(Runs(lambda _: 1.0), "method=fedavg,pfedbayes", "zeta=1,2", "run-name=unequal")
    assert "Not all methods had as many points: one with more has had more chances." in said


def test_of_equals_the_first_wins(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "check_data", lambda _settings, _clients: None)
    tuning = Tuning.of(WORDS, None)
    outcomes = list(tuning.run(Runs(lambda _: 0.25)))
    winner = best(outcomes, "pfedbayes")
    assert winner is outcomes[0] and best(outcomes, "fedavg") is None


def test_only_the_last_round_counts(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 1 has an NLL of 0: to choose a round would be to choose twice."""
    tuning = Tuning.of(WORDS, None)
    point, plan = next(iter(tuning.plans.items()))
    Runs(lambda _: 0.75)(plan)
    assert judged(point, plan, 0).objective == 0.75


def test_an_error_of_the_command_is_a_failed_point(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "check_data", lambda _settings, _clients: None)

    def busy(plan: Plan) -> int:
        raise CommandError("Run x is being run by process 1.")

    states = [(one.state, one.why) for one in Tuning.of(WORDS, None).run(busy)]
    assert states == [("failed", "Run x is being run by process 1.")] * 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["zeta=1,10", "validation-fraction=0"],
            "judges on validation data and takes a validation-fraction above 0",
        ),
        (["zeta=1,-1"], 'The setting "zeta" takes auto or a number of at least 0, not "-1".'),
        (["zetta=1,2"], 'There is no setting "zetta"; did you mean "zeta"?'),
        (["method=fedavg", "zeta=1,2"], 'method=fedavg does not use the setting "zeta"'),
        (["method=fedavg,local", "zeta=1,2"], 'method=fedavg does not use the setting "zeta"'),
        (["zeta=1"], "takes at least one setting with several values"),
        (["clients-per-round=5,11"], "clients-per-round=11, but there are only 10 clients"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_starts(
    run: Callable[..., Any], here: Path, words: list[str], sentence: str
) -> None:
    runs = Runs(by_zeta)
    status, said = run(runs, *words)
    assert status == 2 and sentence in said and said.count("\n") == 1
    assert not runs.started and not list(here.iterdir())


def test_other_runs_of_that_name_are_not_mixed_in(run: Callable[..., Any], here: Path) -> None:
    run(Runs(by_zeta), "zeta=1,10", "run-name=try")
    runs = Runs(by_zeta)
    status, said = run(runs, "zeta=1,10", "run-name=try", "local-steps=5")
    assert status == 2 and "holds other runs already; take another run-name." in said and not runs.started
