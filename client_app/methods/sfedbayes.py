"""sFedBayes, the client's half: pFedBayes with spike-and-slab distributions; λ steps in its logit."""

from dataclasses import replace
from typing import ClassVar

from bayes_core import Recipe, SpikeSlab
from bayes_core.families import Family
from client_app.methods.pfedbayes import PFedBayes, UpdateOptions
from fedbayes.protocol.settings import LambdaInit, Options, Positive, Rate


class SparseOptions(UpdateOptions):
    lr_lambda: Rate
    lambda_init: LambdaInit
    temperature: Positive


class SFedBayes(PFedBayes):
    """A sparse distribution over the weights for this client."""

    reads: ClassVar[type[Options]] = SparseOptions
    private_examples = True
    options: SparseOptions

    def make_family(self) -> Family:
        return SpikeSlab(self.options.temperature, gated=self.options.lambda_init < 1)

    def recipe(self, server_round: int) -> Recipe:
        return replace(super().recipe(server_round), lr_lambda=self.options.lr_lambda)


METHOD = SFedBayes
