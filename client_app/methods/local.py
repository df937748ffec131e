"""`local`, the client's half: training alone, from the common start, on one's own data."""

import torch
from torch import Tensor

from bayes_core.inference.optimisers import OptimizerState
from bayes_core.inference.plain import Weights
from client_app.method import Tensors, Trained, buffers_in, with_buffers
from client_app.methods.fedavg import FedAvg


class Local(FedAvg):
    """A network of one's own; there is no global model."""

    def start(self, received: Tensors) -> dict[str, Tensor]:
        return self._stored(Weights.start(received["w"], self.network, self.settings.optimizer))

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        optimizer = OptimizerState(state["moments"], int(state["steps"]))
        trained, loss = self.steps(Weights(state["theta"], optimizer, buffers_in(state)), server_round)
        return Trained(self._stored(trained), None, {"loss": loss})

    def models(self, state: Tensors, received: Tensors) -> dict[str, Tensor]:
        return {"pm": state["theta"]}

    @staticmethod
    def _stored(weights: Weights) -> dict[str, Tensor]:
        steps = torch.tensor(weights.optimizer.steps)
        return with_buffers(
            {"theta": weights.v, "moments": weights.optimizer.moments, "steps": steps}, weights.buffers
        )


METHOD = Local
