"""The formulas as `torch.compile` sees them: whole, and with the same results. The kernels of a GPU need a GPU."""

import pytest
import torch
from recipes import recipe_of
from torch import Tensor, nn

from bayes_core import ClientState, Gaussian, SpikeSlab, client_update
from bayes_core.families import Family
from bayes_core.fast import traced as traced_room
from bayes_core.fast.compiled import NotCompiled
from bayes_core.flat import flatten
from bayes_core.inference import update

NETWORK = nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 3))
X, Y = torch.randn(40, 12, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 3


def trained(family: Family, **changes: object) -> tuple[Tensor, Tensor]:
    w = family.init(flatten(NETWORK).detach(), -2.5, 0.5)
    start = ClientState.start(family.unconstrain(w), NETWORK, "adam")
    recipe = recipe_of(local_steps=4, personal_steps=2, mc_samples=2, batch_size=16, compile=False, **changes)
    done = client_update(NETWORK, family, start, w, X, Y, recipe, torch.Generator().manual_seed(2))
    return done.personal.q, done.w


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("family", [Gaussian(), SpikeSlab(), SpikeSlab(gated=False)], ids=lambda f: f.name)
def test_each_formula_is_one_piece_and_gives_the_same(
    monkeypatch: pytest.MonkeyPatch, family: Family, backend: str
) -> None:
    plain = trained(family)
    seen = []

    def traced(formulas: update.Formulas) -> update.Formulas:
        seen.append(formulas)
        return traced_room.traced(formulas, backend)

    monkeypatch.setattr(update, "traced", traced)
    monkeypatch.setattr(update.PlainSteps.__init__, "__defaults__", (True,))
    for got, expected in zip(trained(family), plain, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert seen


def test_without_triton_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced_room, "has_triton", lambda: False)
    with pytest.raises(NotCompiled, match="triton"):
        traced_room.traced(update.Formulas(Gaussian(), 1.0))
