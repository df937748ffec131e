"""A run ends when its models have not become better on validation data, and never by test data."""

from collections.abc import Callable

import pytest
from harness import Outcome

from fedbayes.launch.plan import plan_resume
from fedbayes.protocol.settings import SettingsError
from server_app.stored import read_config
from strategies.rounds.early import EarlyStop

Federate = Callable[..., Outcome]
WORDS = {"validation_fraction": 0.3, "eval_every": 1, "size": "8+4"}


def test_the_best_is_waited_for() -> None:
    one = EarlyStop(2)
    for number, value in enumerate([1.0, 0.5, 0.6, 0.4, 0.45, 0.41]):
        assert not one.over
        one.see(number, {"pm_val_nll": value, "gm_val_nll": 0.0})
        one.see(number, {"pm_val_nll": value})  # measured twice, counted once
    assert one.over and (one.best, one.at, one.waited) == (0.4, 3, 2)
    assert one.sentence.startswith(
        "Stopped early: the NLL on validation data was best after round 3 (0.4000)"
    )
    again = EarlyStop(2)
    again.remember(one.memory(), again=False)
    assert again.over
    again.remember(one.memory(), again=True)
    assert not again.over and again.best == 0.4
    assert not EarlyStop(0).over


def test_a_run_stops_reports_it_and_goes_on_when_asked(federate: Federate) -> None:
    # A rate at which nothing good can happen: the first state stays the best.
    words = WORDS | {"patience": 2, "lr_personal": 3.0, "lr_global": 3.0}
    run = federate("run", report=True, rounds=8, **words)
    last = int(run.rows[-1]["round"])
    assert run.state == "finished" and last < 8 and run.rows[-1]["pm_accuracy"]
    assert run.said("note")[0].startswith("Stopped early")
    assert next(one["rounds"] for one in run.events if one["event"] == "finished") == last
    assert "Stopped early" in (run.folder / "report.html").read_text()
    assert plan_resume(str(run.folder), {}, None).finished
    more = federate("run", rounds=20, resume=True, **words)
    assert last < int(more.rows[-1]["round"]) < 20
    assert "stopped_early" in (read_config(more.folder) or {})


def test_without_patience_figures_and_rounds_are_as_ever(federate: Federate) -> None:
    run, other = federate("a", **WORDS), federate("b", patience=50, **WORDS)
    assert run.metrics == other.metrics and len(run.rows) == 5


def test_it_takes_validation_data(federate: Federate) -> None:
    with pytest.raises(
        SettingsError, match="patience=2 ends a run by its validation data and takes a validation-f"
    ):
        federate(patience=2)
