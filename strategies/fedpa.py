"""FedPA, the server's half: w ← w − β·mean Δ_i, each Δ_i = Σ̂_i⁻¹(w − μ̂_i) from samples of a client's posterior.

Al-Shedivat, Gillenwater, Xing, Rostamizadeh: "Federated Learning via Posterior Averaging: A New Perspective and
Practical Algorithms", 2021. Clients upload w − Δ_i, so that the step is FedAvg's, with β as the server's learning rate.
The rounds before `fedpa.sampling-from` are FedAvg's, with β = 1. Different from the authors' code: no server momentum.
"""

import math
from dataclasses import replace
from typing import Any, ClassVar

from bayes_core import extrapolate
from fedbayes.protocol.columns import Column
from fedbayes.protocol.settings import Options, Settings, SettingsError, takes
from strategies.fedavg import FedAvg
from strategies.rounds.method import StepOptions
from strategies.rounds.state import Came, State

LONGEST = 10  # times as far as w − μ̂ may an upload go: beyond, it may be taken for an absurd one (stages/outliers.py)


class PosteriorOptions(StepOptions):
    sampling_from: int = takes("the number of a round, from 1 on", alias="fedpa.sampling-from", ge=1)
    samples: int = takes("a whole number of at least 2", alias="fedpa.samples", ge=2)
    shrinkage: float = takes("a number of at least 0", alias="fedpa.shrinkage", ge=0, allow_inf_nan=False)


class FedPA(FedAvg):
    """FedAvg whose clients send what their posteriors ask for."""

    title = "FedPA"
    idea = "one network for everybody, from the mean and the covariance of each client's posterior"
    paper = "Al-Shedivat et al. 2021"
    columns = (Column("correction", "what covariances change in the clients' updates"),)
    reads: ClassVar[type[Options]] = PosteriorOptions
    options: PosteriorOptions

    @classmethod
    def check(cls, settings: Settings) -> None:
        super().check(settings)
        options = PosteriorOptions.parse(settings.as_config())
        if 1 + (options.samples - 1) * options.shrinkage >= LONGEST:
            raise SettingsError(
                f"fedpa.samples={options.samples} with fedpa.shrinkage={options.shrinkage:g} can lengthen an update "
                f"{LONGEST} times and more, which is dropped as absurd; (samples − 1)·shrinkage takes less than "
                f"{LONGEST - 1}."
            )

    def step(self, state: State, came: Came) -> State:
        beta = self.options.beta if came.number >= self.options.sampling_from else 1.0
        w = extrapolate(state.sent["w"], came.sums["w"].result(), beta)
        return replace(state, sent={**state.sent, "w": w})

    def describe(self, state: State, came: Came) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """The mean of the clients' corrections (posterior_delta.py): near 0 it is FedAvg of averaged weights."""
        said = [one.report.get("correction") for one in came.uploads]
        found = [one for one in said if isinstance(one, float) and math.isfinite(one)]
        return ({"correction": round(math.fsum(found) / len(found), 6)} if found else {}), {}


METHOD = FedPA
