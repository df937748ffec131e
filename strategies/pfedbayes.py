"""pFedBayes, the server's half: w ← (1−β)·w + β·mean of the clients' localized global distributions.

`aggregation = "moments"` takes the minimiser of Σ KL(q_i ‖ w), the paper's own lemma, instead of the mean.
"""

from collections.abc import Sequence

from torch import Tensor

from bayes_core import Gaussian, mean, moments
from strategies.base import PersonalStrategy


class PFedBayes(PersonalStrategy):
    """One Gaussian prior for all clients."""

    family = Gaussian()

    def initial(self, weights: Tensor) -> dict[str, Tensor]:
        return {"w": self.family.init(weights, self.settings.rho_init)}

    def combine(self, uploads: Sequence[Tensor], weights: Sequence[float] | None) -> Tensor:
        return (moments if self.settings.aggregation == "moments" else mean)(uploads, weights)


METHOD = PFedBayes
