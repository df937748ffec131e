"""ζ, and how many steps, where nobody chose; ζ that rises."""

import pytest
import torch

from client_app.methods.pfedbayes import PFedBayes
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import Settings, SettingsError, defaults


@pytest.mark.parametrize(
    ("zeta", "n", "is_"),
    [("auto", 250, 2.5), ("auto", 40, 0.4), ("auto", 4500, 10.0), ("3", 250, 3.0), (0, 40, 0.0)],
)
def test_zeta_grows_with_the_examples_unless_it_is_given(zeta: object, n: int, is_: float) -> None:
    settings = Settings.parse(defaults() | {"zeta": zeta})
    network = build("dnn", (1, 4, 4), 2, seed=1)
    method = PFedBayes(
        settings, network, torch.zeros(n, 1, 4, 4), torch.zeros(n).long(), "0", torch.device("cpu")
    )
    assert method.recipe(1).zeta == is_


@pytest.mark.parametrize(
    ("asked", "n", "steps", "pace"),
    [("auto", 250, 1, 1), ("auto", 700, 3, 3), ("auto", 4500, 5, 5), (4, 250, 4, 1)],
)
def test_personal_steps_grow_with_the_examples_and_w_keeps_up(
    asked: object, n: int, steps: int, pace: int
) -> None:
    settings = Settings.parse(defaults() | {"personal-steps": asked, "lr-global": 0.002})
    network = build("dnn", (1, 4, 4), 2, seed=1)
    method = PFedBayes(
        settings, network, torch.zeros(n, 1, 4, 4), torch.zeros(n).long(), "0", torch.device("cpu")
    )
    recipe = method.recipe(1)
    assert recipe.personal_steps == steps and recipe.lr_global == pytest.approx(0.002 * pace**0.5)


def test_zeta_rises_by_one_factor_a_round_to_the_middle_of_the_run() -> None:
    settings = Settings.parse(defaults() | {"zeta": 16, "zeta-start": 1 / 16, "rounds": 8})
    network = build("dnn", (1, 4, 4), 2, seed=1)
    method = PFedBayes(
        settings, network, torch.zeros(40, 1, 4, 4), torch.zeros(40).long(), "0", torch.device("cpu")
    )
    assert [method.recipe(number).zeta for number in (0, 1, 2, 3, 4, 5, 8, 9)] == pytest.approx(
        [1, 2, 4, 8, 16, 16, 16, 16]
    )


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "auto"])
def test_zeta_starts_at_a_share_of_itself(wrong: object) -> None:
    with pytest.raises(SettingsError, match='"zeta-start" takes a number above 0 and at most 1'):
        PFedBayes.reads.parse(defaults() | {"zeta-start": wrong})
