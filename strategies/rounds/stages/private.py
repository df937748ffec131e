"""Client-level differential privacy at the server (`dp-noise`): every release of w is noised, and ε is accounted for.

A client's change is clipped again here, whatever it clipped itself; the sum is divided by a fixed number, not by how
many answered; and Gaussian noise is added once, when the step asks for the result. What follows (β, the sparsity shift,
a hyper-prior) is post-processing. The claim is about the sequence of global distributions of one run, under taking one
client out, towards everybody but the coordinator. A client taken out counts as one whose change is 0: that it is in the
federation, and whether it is asked and answers, is no secret, and the size of the noise tells how many are. Figures of
evaluations are outside of the claim.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayes_core.families import Family
from bayes_core.families.gaussian import RHO_LIMIT
from bayes_core.privacy import Normal, clip_jointly, epsilon_of, system_normal
from bayes_core.server.aggregate import Mean, Sum
from fedbayes.protocol.settings import Settings, SettingsError
from fedbayes.protocol.streams import seed_of
from strategies.rounds.roster import StrategyError
from strategies.rounds.stages import Arrival
from strategies.rounds.state import State

if TYPE_CHECKING:
    from strategies.rounds.method import ServerMethod

NORMAL: Normal = system_normal


class Private:
    """Clips uploads, makes noised sums of them, and keeps the ledger."""

    name = "private"
    left_out = ()

    def __init__(self, settings: Settings, family: Family) -> None:
        self.noise, self.delta, self.budget = settings.dp_noise, settings.dp_delta, settings.dp_epsilon
        self.scales = settings.dp_scales
        self.family = family
        self.declared = settings.clients_per_round
        self.planned = 0  # S: as declared, else as many as the first round asks
        self.spent = 0.0  # m² = Σ 1/z² of all releases
        self._open = False  # an exchange that has released nothing yet

    def require(self, state: State, begun: bool, method: "ServerMethod") -> None:
        """Of the run that begins: nothing leaves without noise, and nothing has left (`begun`: it has)."""
        if state.statistics:
            raise StrategyError(
                "dp-noise: the statistics of this network's batch norm would leave clients without noise; take "
                "buffers=local."
            )
        for name, part in method.expects(state, "", {}).items():
            if part.base is None:
                raise StrategyError(
                    f'dp-noise clips changes of what is sent, and the upload "{name}" of this method is none; take '
                    "another method."
                )
        if begun:
            self.spent = math.inf

    def sample(self, online: Sequence[str], share: int, *words: int | str) -> list[str]:
        """`share` of the sites (0 = all): those with the lowest numbers, each drawn from these words and its own name.

        So whether one is there decides about one other at most. A permutation of the list would ask quite others.
        """
        if share == 0 or share >= len(online):
            return list(online)
        return sorted(sorted(online, key=lambda site: seed_of(*words, site))[:share])

    def open(self, number: int, expected: int) -> None:
        if number > 0 and not self.planned:
            self.planned = self.declared or max(expected, 1)
        self._open = number > 0

    def arrive(self, arrival: Arrival) -> list[Arrival]:
        """With its change clipped: a site may not have done so."""
        bases = {name: arrival.expected[name].base for name in arrival.tensors}
        moved = {name: arrival.tensors[name] - base for name, base in bases.items() if base is not None}
        for name, change in zip(moved, clip_jointly(list(moved.values()), self.scales), strict=True):
            arrival.tensors[name] = change  # from here on in units of the scales
        return [arrival]

    def close(self, used: int) -> list[Arrival]:
        return []

    def sum_for(self, base: Tensor) -> "PrivateMean":
        """In place of the method's own sum."""
        return PrivateMean(base, self)

    def release(self) -> None:
        """A noised sum is being let out: the sums of one exchange are one release."""
        if self._open:
            self.spent += self.noise**-2
            self._open = False

    @property
    def epsilon(self) -> float:
        """Of everything that was released so far."""
        return epsilon_of(math.sqrt(self.spent), self.delta)

    @property
    def over(self) -> bool:
        """Whether one more round would pass the budget."""
        return 0 < self.budget < epsilon_of(math.sqrt(self.spent + self.noise**-2), self.delta)

    @property
    def sentence(self) -> str:
        return (
            f"The privacy budget is spent: ε = {self.epsilon:.3g} at δ = {self.delta:g}, and one more round would pass "
            f"dp-epsilon={self.budget:g}."
        )

    def columns(self) -> dict[str, float]:
        """What rounds.csv says of it."""
        return {"epsilon": round(self.epsilon, 6)}

    def memory(self) -> dict[str, float]:
        return {"spent": self.spent, "planned": self.planned}

    def remember(self, memory: Mapping[str, Any] | None) -> None:
        if memory:
            self.spent, self.planned = float(memory["spent"]), int(memory["planned"])


class PrivateMean:
    """w + (Σ clipped changes + z·N(0, I)) · scales / S: an `Aggregate` whose result is drawn once."""

    def __init__(self, base: Tensor, stage: Private) -> None:
        self.base, self.stage = base, stage
        self.total = Sum(base.numel())
        self.drawn: Tensor | None = None

    def add(self, upload: Tensor, weight: float = 1.0) -> None:
        """A clipped change in units of the scales. Every client counts once, whatever its weight."""
        self.total.add(0, upload.reshape(-1), 1.0)

    def result(self) -> Tensor:
        if self.drawn is None:
            self.stage.release()
            rows, size = self.base.shape
            noise = torch.from_numpy(NORMAL(rows * size)) * self.stage.noise
            mean = (self.total.value() + noise).view(rows, size) / self.stage.planned
            scales = torch.tensor(self.stage.scales[:rows], dtype=torch.float64)
            self.drawn = self.within((self.base.double() + mean * scales[:, None]).to(self.base.dtype))
        return self.drawn

    def within(self, v: Tensor) -> Tensor:
        """Noise may carry ρ and λ out of their family."""
        if len(v) > 1:
            v[1].clamp_(-RHO_LIMIT, RHO_LIMIT)
        return self.stage.family.after_extrapolation(v)


def private_among(stages: Sequence[object]) -> Private | None:
    """The one that makes a run private, if it is there."""
    return next((stage for stage in stages if isinstance(stage, Private)), None)


def stage(settings: Settings, method: "ServerMethod") -> Private | None:
    if not settings.dp_noise:
        return None
    if words := impossible(settings, method):
        raise SettingsError(f"dp-noise={settings.dp_noise:g}: {words}")
    return Private(settings, method.family)


def impossible(settings: Settings, method: "ServerMethod") -> str | None:
    """Why such a run cannot be private, or None."""
    name = f"method={settings.method}"
    options = method.options
    if not method.traits.uploads:
        return f"with {name} nothing leaves a client; leave it out."
    if method.traits.single_uploads or method.openings or method.traits.clusters:
        return f"{name} lets out what single uploads tell, not only their sum; take another method."
    if getattr(options, "weighting", "uniform") != "uniform":
        return "every client counts the same in a private sum; leave weighting=examples out."
    if settings.aggregation_confidence != "off":
        return "what a client says of its certainty is not private; leave aggregation-confidence out."
    if method.aggregate_by is not Mean:
        return f"only aggregation=mean is a private sum, not {getattr(options, 'aggregation', 'another')}."
    return None
