"""pFedBayes, the server's half: w ← (1−β)·w + β·mean of the clients' localized global distributions.

`aggregation = "moments"` takes the minimiser of Σ KL(q_i ‖ w), the paper's own lemma, instead of the mean.
"""

from typing import Any

from torch import Tensor

from bayes_core import build_family
from bayes_core.server.aggregate import Mean, Moments
from bayes_core.server.sparsity import shift
from strategies.rounds.loop import PersonalStrategy


class PFedBayes(PersonalStrategy):
    """One prior for all clients."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        settings = self.settings
        self.family = build_family(self.family_name(), settings.temperature, settings.lambda_init)
        self.aggregate_by = Moments if settings.aggregation == "moments" else Mean

    def family_name(self) -> str:
        return "gaussian"

    def initial(self, weights: Tensor) -> dict[str, Tensor]:
        return {"w": self.family.init(weights, self.settings.rho_init, self.settings.lambda_init)}

    def towards(self, v: Tensor, target: Tensor) -> Tensor:
        v, share = super().towards(v, target), self.settings.sparsity_target
        sparse = self.family.gated
        return shift(v, share) if share and sparse else v


METHOD = PFedBayes
