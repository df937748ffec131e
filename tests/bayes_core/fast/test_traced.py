"""The formulas as `torch.compile` sees them: whole, and with the same results. The kernels of a GPU need a GPU."""

from collections.abc import Callable

import pytest
import torch
from recipes import recipe_of
from torch import Tensor, fx, nn

from bayes_core import ClientState, Gaussian, SpikeSlab, client_update
from bayes_core.families import Family
from bayes_core.fast import traced as traced_room
from bayes_core.fast.compiled import NotCompiled
from bayes_core.flat import flatten
from bayes_core.inference import update

Backend = str | Callable[..., Callable[..., object]]
NETWORK = nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 3))
X, Y = torch.randn(40, 12, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 3


def trained(
    family: Family, n: int = 40, network: nn.Module = NETWORK, **changes: object
) -> tuple[Tensor, Tensor]:
    w = family.init(flatten(network).detach(), -2.5, 0.5)
    start = ClientState.start(family.unconstrain(w), network, "adam")
    words = {
        "local_steps": 4,
        "personal_steps": 2,
        "mc_samples": 2,
        "batch_size": 16,
        "compile": False,
    } | changes
    generator = torch.Generator().manual_seed(2)
    done = client_update(network, family, start, w, X[:n], Y[:n], recipe_of(**words), generator)
    return done.personal.q, done.w


def compile_with(patch: pytest.MonkeyPatch, backend: Backend) -> None:
    """The formulas of all updates from now on."""
    torch._dynamo.reset()
    patch.setattr(update, "traced", lambda formulas: traced_room.traced(formulas, backend))
    patch.setattr(update.PlainSteps.__init__, "__defaults__", (True,))


class Counting:
    """Runs as it is what it is given to compile, and counts how often that is."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, graph: fx.GraphModule, _: object) -> Callable[..., object]:
        self.times += 1
        return graph.forward


def close(got: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("family", [Gaussian(), SpikeSlab(), SpikeSlab(gated=False)], ids=lambda f: f.name)
def test_each_formula_is_one_piece_and_gives_the_same(
    monkeypatch: pytest.MonkeyPatch, family: Family, backend: str
) -> None:
    plain = trained(family)
    seen = []
    compile_with(monkeypatch, backend)
    compiled = update.traced
    monkeypatch.setattr(update, "traced", lambda formulas: seen.append(formulas) or compiled(formulas))
    close(trained(family), plain)
    assert seen


def test_any_zeta_and_any_size_take_the_same_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with zeta-start, where ζ differs from round to round, and zeta=auto, from client to client."""
    family, counting = SpikeSlab(), Counting()
    cases = [
        {"zeta": 0.1 * number, "n": 20 + number, "lr_personal": 1e-3 * number} for number in range(1, 13)
    ]
    plain = [trained(family, **case) for case in cases]
    compile_with(monkeypatch, counting)
    for case, expected in zip(cases, plain, strict=True):
        close(trained(family, **case), expected)
        assert counting.times == len(traced_room.FORMULAS)


def test_networks_and_temperatures_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than PyTorch keeps kernels for: here of two, so that it takes no minute."""
    monkeypatch.setattr("torch._dynamo.config.recompile_limit", 2)
    cases: list[tuple[Family, nn.Module]] = [(SpikeSlab(one), NETWORK) for one in (0.1, 0.5, 0.9)]
    cases += [(Gaussian(), nn.Sequential(nn.Flatten(), nn.Linear(12, outputs))) for outputs in (3, 4, 5)]
    plain = [trained(family, network=network) for family, network in cases]
    compile_with(monkeypatch, "eager")
    for (family, network), expected in zip(cases, plain, strict=True):
        close(trained(family, network=network), expected)


def test_without_triton_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced_room, "has_triton", lambda: False)
    with pytest.raises(NotCompiled, match="triton"):
        traced_room.traced(update.Formulas(Gaussian(), torch.ones(())))
