"""Which stages a run has, as its settings ask for and its method allows; at the server and in the command."""

from collections.abc import Callable
from pathlib import Path

import pytest

import strategies
from fedbayes.launch.methods import checked
from fedbayes.launch.plan import plan_remote, plan_run
from fedbayes.protocol.settings import Settings, SettingsError, defaults
from strategies.rounds.stages import stages_of

RULES = ["off", "weight", "0.3"]
REFUSED = r"^aggregation-confidence weighs what clients send, and with method=local they send nothing\.$"


def settings(**words: object) -> Settings:
    return Settings.parse(defaults() | {key.replace("_", "-"): value for key, value in words.items()})


def at_the_server(one: Settings) -> list[str]:
    found = strategies.load(one.method)
    return [stage.name for stage in stages_of(one, found(found.reads.parse(one.as_config())))]


@pytest.mark.parametrize("method", ["pfedbayes", "fedavg"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_uploads_are_weighed_where_that_is_asked_for(method: str, rule: str, weighting: str) -> None:
    one = checked(settings(method=method, aggregation_confidence=rule, weighting=weighting))
    weighed = rule != "off" or weighting == "examples"
    assert at_the_server(one) == ["outliers", "weigh"][: 1 + weighed]


@pytest.mark.parametrize("refuse", [at_the_server, checked])
@pytest.mark.parametrize("rule", RULES[1:])
def test_where_nothing_is_sent_nothing_can_be_weighed(
    refuse: Callable[[Settings], object], rule: str
) -> None:
    one = settings(method="local", aggregation_confidence=rule)
    with pytest.raises(SettingsError, match=REFUSED):
        refuse(one)


def test_local_has_no_such_stage() -> None:
    assert at_the_server(checked(settings(method="local"))) == ["outliers"]


def test_the_command_refuses_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = {"method": "local", "aggregation-confidence": "0.3"}
    with pytest.raises(SettingsError, match=REFUSED):
        plan_run(words, 4)
    with pytest.raises(SettingsError, match=REFUSED):
        plan_remote("somewhere", None, words)
    assert not list(tmp_path.iterdir())
