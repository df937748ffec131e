"""sFedBayes, the server's half: pFedBayes with spike-and-slab distributions (μ, ρ, λ).

λ is averaged as a probability (its mean is also the KL-optimal one) and clamped after extrapolation.
"""

from typing import ClassVar

from torch import Tensor

from bayes_core import SpikeSlab
from bayes_core.families import Family
from bayes_core.server.sparsity import shift
from fedbayes.protocol.settings import LambdaInit, Options, Share
from strategies.pfedbayes import PFedBayes, PriorOptions


class SparseOptions(PriorOptions):
    lambda_init: LambdaInit
    sparsity_target: Share


class SFedBayes(PFedBayes):
    """One sparse prior for all clients."""

    title = "sFedBayes"
    idea = "every client learns a sparse (spike-and-slab) distribution over its network's weights"
    reads: ClassVar[type[Options]] = SparseOptions
    options: SparseOptions

    def make_family(self) -> Family:
        return SpikeSlab(gated=self.options.lambda_init < 1)

    def prior(self, weights: Tensor) -> Tensor:
        return self.family.init(weights, self.options.rho_init, self.options.lambda_init)

    def prior_towards(self, v: Tensor, target: Tensor) -> Tensor:
        v, share = super().prior_towards(v, target), self.options.sparsity_target
        return shift(v, share) if share and self.family.gated else v


METHOD = SFedBayes
