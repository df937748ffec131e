"""The compiled step against the plain one, and what happens where it cannot be had."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from recipes import recipe_of
from torch import Tensor, nn
from torch.nn.functional import softplus

from bayes_core.families import Family, Gaussian, Point, SpikeSlab
from bayes_core.fast import fused
from bayes_core.fast.compiled import NotCompiled
from bayes_core.flat import flatten
from bayes_core.inference.optimisers import Optimiser, OptimizerState
from bayes_core.inference.recipe import Recipe
from bayes_core.inference.update import ClientState, PlainSteps, Steps, Updated, client_update

STEPS: dict[str, type[Steps]] = {"in C": fused.FusedSteps, "plain": PlainSteps}
FAMILIES = {"gaussian": Gaussian(), "spike-slab": SpikeSlab(0.3), "gates off": SpikeSlab(gated=False)}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Odd(nn.Module):
    """Parameters of awkward sizes; one is never used, and the gradient of one is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.unused, self.two = nn.Linear(7, 19), nn.Linear(3, 5), nn.Parameter(torch.randn(19, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.one(x)) @ self.two.T.contiguous().T


def two_rounds(family: Family, recipe: Recipe) -> Updated:
    torch.manual_seed(0)
    network = Odd()
    x, y = torch.randn(23, 7), torch.randint(0, 3, (23,))
    w = family.init(flatten(network), -1.0, 1.0 if len(family.rows) == 3 and not family.gated else 0.6)
    personal = ClientState.start(family.unconstrain(w), network, recipe.optimizer)
    for round_ in range(2):
        updated = client_update(network, family, personal, w, x, y, recipe, seeded(round_), gates=seeded(9))
        personal, w = updated.personal, updated.w
    return updated


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("mc_samples", [1, 3])
@pytest.mark.parametrize("personal_steps", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_rounds_are_those_of_plain_pytorch(family: str, personal_steps: int, mc_samples: int) -> None:
    recipe = recipe_of(4, personal_steps, 11, mc_samples, 2.0, "adam", 0.01, 0.02, 0.05, compile=False)
    plain = two_rounds(FAMILIES[family], recipe)
    compiled = two_rounds(FAMILIES[family], replace(recipe, compile=True))
    assert compiled.loss == pytest.approx(plain.loss, rel=1e-5)
    torch.testing.assert_close(compiled.w, plain.w, rtol=0, atol=5e-5)
    for got, expected in ((compiled.personal.q_optimizer, plain.personal.q_optimizer),
                          (compiled.personal.w_optimizer, plain.personal.w_optimizer)):  # fmt: skip
        assert got.steps == expected.steps
        torch.testing.assert_close(got.moments, expected.moments, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(compiled.personal.q, plain.personal.q, rtol=0, atol=5e-5)
    assert (plain.w[0] - flatten(Odd())).abs().max() > 0.05  # it did move


@pytest.mark.usefixtures("compiler")
def test_softplus_is_exact_to_a_few_units_of_the_last_place() -> None:
    rho = torch.linspace(-25, 25, 100_003)
    q = torch.stack([torch.zeros_like(rho), rho])
    optimisers = [Optimiser(q, OptimizerState.blank(q, "adam"), "adam", 0.1) for _ in range(2)]
    sigma = fused.FusedSteps(Gaussian(), *optimisers, zeta=1.0).sigma
    expected = softplus(rho.double(), threshold=100)
    assert (sigma / expected - 1).abs().max() < 3e-7


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("by", STEPS)
@pytest.mark.parametrize("family", FAMILIES)
def test_without_data_q_at_w_stays_exactly_there(family: str, by: str) -> None:
    v = torch.randn(3, 1001, generator=seeded(0))[: len(FAMILIES[family].rows)] - 1
    optimisers = [Optimiser(v.clone(), OptimizerState.blank(v, "adam"), "adam", 0.1) for _ in range(2)]
    steps = STEPS[by](FAMILIES[family], *optimisers, zeta=7.0)
    for _ in range(3):
        steps.draw(seeded(1), seeded(2))
        steps.add([torch.zeros(1001), torch.zeros(1001)])
        steps.step_q()
        steps.step_w()
    assert all(torch.equal(optimiser.parameters, v) for optimiser in optimisers)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("PATH", "", "no C compiler"),
        ("CC", shutil.which("false"), "cannot build it"),
        ("CC", "/no/cc", "/no/cc"),
    ],
)
def test_without_a_compiler_plain_pytorch_and_one_warning(
    fresh: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    value: str,
    words: str,
) -> None:
    monkeypatch.setenv(name, value)
    recipe = recipe_of(2, batch_size=11, compile=False)
    expected = two_rounds(Gaussian(), recipe)
    quiet = two_rounds(Gaussian(), replace(recipe, compile=None))
    assert not caplog.messages
    loud = two_rounds(Gaussian(), replace(recipe, compile=True))
    assert len(caplog.messages) == 1 and words in caplog.messages[0] and "\n" not in caplog.messages[0]
    assert torch.equal(quiet.w, expected.w) and torch.equal(loud.w, expected.w)
    assert not fresh.exists() or not list(fresh.iterdir()), "a failed build leaves nothing behind"


def test_what_it_is_not_made_for_is_said(fresh: Path) -> None:
    v = torch.zeros(2, 4)
    for optimizer, dtype, words in (("sgd", v.dtype, "adam, not sgd"), ("adam", torch.float64, "float32")):
        optimisers = [
            Optimiser(v.to(dtype), OptimizerState.blank(v, optimizer), optimizer, 0.1) for _ in range(2)
        ]
        with pytest.raises(NotCompiled, match=words):
            fused.FusedSteps(Gaussian(), *optimisers, zeta=1.0)


def test_points_are_left_to_plain_pytorch() -> None:
    v = torch.zeros(1, 4)
    optimisers = [Optimiser(v, OptimizerState.blank(v, "adam"), "adam", 0.1) for _ in range(2)]
    with pytest.raises(NotCompiled, match="with uncertainty, not point"):
        fused.FusedSteps(Point(), *optimisers, zeta=1.0)
