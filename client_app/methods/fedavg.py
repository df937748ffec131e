"""FedAvg, the client's half: `local-steps` plain steps from the server's weights; only buffers are kept."""

from torch import Tensor

from bayes_core import Point
from bayes_core.flat import buffers_of
from bayes_core.inference.optimisers import OptimizerState
from bayes_core.inference.plain import Proximal, Weights, train_weights
from client_app.method import ClientMethod, Tensors, Trained, buffers_in, with_buffers


class FedAvg(ClientMethod):
    """One weight vector for everybody; there is no personal model."""

    family = Point()
    proximal = 0.0

    def start(self, received: Tensors) -> dict[str, Tensor]:
        return with_buffers({}, buffers_of(self.network))

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        v = received["w"]
        weights = Weights(v, OptimizerState.blank(v, self.settings.optimizer), buffers_in(state))
        trained, loss = self.steps(weights, server_round)
        return Trained(with_buffers({}, trained.buffers), trained.v, {"loss": loss})

    def steps(self, weights: Weights, server_round: int) -> tuple[Weights, float]:
        return train_weights(
            self.network,
            weights,
            self.x,
            self.y,
            steps=self.settings.local_steps,
            batch_size=self.settings.batch_size,
            optimizer=self.settings.optimizer,
            lr=self.settings.lr_global,
            adam_beta2=self.settings.adam_beta2,
            generator=self.stream(server_round, "train"),
            terms=[Proximal(None, self.proximal)],
            likelihood=self.likelihood,
        )

    def models(self, state: Tensors, received: Tensors) -> dict[str, Tensor]:
        return {"gm": received["w"]}


METHOD = FedAvg
