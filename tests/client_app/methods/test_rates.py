"""`lr-end`: over the last quarter of a run the learning rates fall to a share of themselves."""

import pytest
import torch
from pydantic import BaseModel
from quadratic import client_of
from torch import nn

from client_app.method import load
from fedbayes.launch.methods import methods
from fedbayes.protocol.settings import FALLS, Settings, SettingsError, defaults

# What adapts a model to a client, again when it is measured, and not what a run learns from round to round.
STAY = {"perfedavg.lr-adapt", "pfedme.lr-personal"}


def settings(**words: object) -> Settings:
    return Settings.parse(defaults() | {key.replace("_", "-"): value for key, value in words.items()})


def test_rates_fall_in_a_line_over_the_last_quarter() -> None:
    run = settings(rounds=8, lr_end=0.2)
    assert [run.rate_share(number, 100) for number in range(10)] == pytest.approx(
        [1, 1, 1, 1, 1, 1, 1, 0.6, 0.2, 0.2]
    )
    assert {settings(rounds=8).rate_share(number, 100) for number in range(10)} == {1}


def test_few_examples_keep_their_rates() -> None:
    run = settings(rounds=8, lr_end="auto")
    found = [run.rate_share(8, n) for n in (0, 50, 250, 500, 1000, 4500)]
    assert found == pytest.approx([1, 1, 1, 0.5, 0.25, 0.25])
    assert run.rate_share(6, 4500) == 1


def test_only_a_share_above_0_is_taken() -> None:
    for wrong in (0, -1, 1.5, "x"):
        with pytest.raises(SettingsError, match='"lr-end" takes auto or a number above 0 and at most 1'):
            settings(lr_end=wrong)


def rates_of(model: type[BaseModel]) -> dict[str, bool]:
    """Every learning rate among these settings, and whether it falls."""
    named = {str(field.alias): FALLS in field.metadata for field in model.model_fields.values()}
    return {name: falls for name, falls in named.items() if name.split(".")[-1].startswith("lr")}


@pytest.mark.parametrize("name", methods())
def test_every_methods_rates_fall(name: str) -> None:
    rates = rates_of(load(name).reads) | rates_of(Settings)
    rates.pop("lr-end")
    assert {rate for rate, falls in rates.items() if not falls} <= STAY
    assert rates["lr-global"]


@pytest.mark.parametrize(
    ("method", "falling", "staying"),
    [
        ("sfedbayes", {"lr_personal": 0.0002, "lr_lambda": 0.02}, {"temperature": 0.5}),
        ("perfedavg", {"lr": 0.02}, {"lr_adapt": 0.1}),
        ("pfedme", {"lr": 0.01}, {"lr_personal": 0.05}),
    ],
)
def test_the_method_of_a_late_round_has_smaller_rates(
    method: str, falling: dict[str, float], staying: dict[str, float]
) -> None:
    own = {"perfedavg__lr": 0.1, "perfedavg__lr_adapt": 0.1} if method == "perfedavg" else {}
    rate = {} if load(method).plain_sgd else {"lr_global": 0.01}
    one = client_of(
        nn.Linear(2, 2),
        torch.zeros(4, 2),
        torch.zeros(4).long(),
        method,
        rounds=10,
        lr_end=0.2,
        **own,
        **rate,
    )
    assert one.in_round(5).settings == one.settings and one.in_round(5).options == one.options
    last = one.in_round(10)
    assert {key: getattr(last.options, key) for key in falling} == pytest.approx(falling)
    assert {key: getattr(last.options, key) for key in staying} == pytest.approx(staying)
    assert last.settings.lr_global == pytest.approx(0.2 * one.settings.lr_global)
    assert one.settings.lr_global == rate.get("lr_global", 0.001), "the method itself stays as it was"
