"""FedAvg, the client's half: `local-steps` plain steps from the server's weights; only buffers are kept."""

from collections.abc import Sequence

from torch import Tensor

from bayes_core import Point
from bayes_core.flat import buffers_in, buffers_of, with_buffers
from bayes_core.inference.optimisers import OptimizerState
from bayes_core.inference.plain import Term, Weights, train_weights
from bayes_core.predict.predictor import Predictor
from client_app.method import ClientMethod, Tensors, Trained, statistics_in


class FedAvg(ClientMethod):
    """One weight vector for everybody; there is no personal model."""

    family = Point()

    def start(self, received: Tensors) -> dict[str, Tensor]:
        return with_buffers({}, buffers_of(self.network))

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        v = received["w"]
        buffers = {**buffers_in(state), **statistics_in(received)}
        weights = Weights(v, OptimizerState.blank(v, self.settings.optimizer), buffers)
        trained, loss = self.steps(weights, server_round, self.terms(v))
        return Trained(with_buffers({}, trained.buffers), {"w": trained.v}, {"loss": loss})

    def terms(self, w: Tensor) -> Sequence[Term]:
        """What the loss has beside the likelihood."""
        return ()

    def steps(self, weights: Weights, server_round: int, terms: Sequence[Term] = ()) -> tuple[Weights, float]:
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
            likelihood=self.likelihood,
            terms=terms,
        )

    def models(self, state: Tensors, received: Tensors) -> dict[str, Predictor]:
        return {"gm": self.weights(received["w"], state, received)}


METHOD = FedAvg
