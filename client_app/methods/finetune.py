"""FedAvg with fine-tuning, the client's half: the personal model is the server's after a few more steps here.

They are the steps of a FedAvg round, `finetune.adapt-steps` of them, on the training data alone and the same in every
evaluation of the same weights. Nothing of them is sent or kept; a run's last exchange saves the model.
"""

from typing import ClassVar

from pydantic import Field

from bayes_core.predict.predictor import Predictor
from client_app.method import Tensors
from client_app.methods.fedavg import FedAvg
from fedbayes.protocol.settings import Count, Options


class TuningOptions(Options):
    adapt_steps: Count = Field(alias="finetune.adapt-steps")


class FineTune(FedAvg):
    """FedAvg, whose weights every client trains further for itself."""

    reads: ClassVar[type[Options]] = TuningOptions
    private_examples = True
    options: TuningOptions

    def models(self, state: Tensors, received: Tensors) -> dict[str, Predictor]:
        tuned, _ = self.steps(self.begin(state, received), 0, count=self.options.adapt_steps, purpose="adapt")
        return {"pm": self.made(tuned.v, state), **super().models(state, received)}


METHOD = FineTune
