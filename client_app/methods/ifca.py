"""IFCA, the client's half: of the K models, a client trains the one under which its training data are likeliest."""

from dataclasses import replace

from bayes_core.flat import buffers_in
from bayes_core.predict.predictive import outputs
from bayes_core.predict.predictor import Predictor
from client_app.method import Tensors, Trained, only, statistics_in
from client_app.methods.fedavg import FedAvg
from fedbayes.protocol.messages import CLUSTER


class IFCA(FedAvg):
    """FedAvg within a cluster of one's own choice; there is no personal model, and the global one is the cluster's."""

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        losses = self.losses(state, received)
        best = losses.index(min(losses))
        trained = super().train(state, only(received, f"u{best}"), server_round)
        report = trained.report | {CLUSTER: best, "fit": losses[best]}
        return replace(trained, report=report, bases={"w": f"u{best}"})

    def models(self, state: Tensors, received: Tensors) -> dict[str, Predictor]:
        losses = self.losses(state, received)
        return super().models(state, only(received, f"u{losses.index(min(losses))}"))

    def losses(self, state: Tensors, received: Tensors) -> list[float]:
        """The mean −log p of all training data under each model; what is no number is never the least."""
        found = []
        for name in (f"u{k}" for k in range(len(received))):
            buffers = {**buffers_in(state), **statistics_in(received, name)}
            said = outputs(self.network, received[name][0], self.x, buffers)
            found.append(float(self.likelihood(said, self.y)) / len(self.y))
        return [loss if loss == loss else float("inf") for loss in found]


METHOD = IFCA
