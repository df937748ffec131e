"""`local`, the client's half: training alone, from the common start, on one's own data."""

from torch import Tensor

from bayes_core.inference.plain import Weights
from bayes_core.predict.predictor import Predictor
from client_app.method import Tensors, Trained
from client_app.methods.fedavg import FedAvg


class Local(FedAvg):
    """A network of one's own; there is no global model."""

    def start(self, received: Tensors) -> dict[str, Tensor]:
        return Weights.start(received["w"], self.network, self.settings.optimizer).state_dict()

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        trained, loss = self.steps(Weights.load_state_dict(state), server_round)
        return Trained(trained.state_dict(), report={"loss": loss})

    def models(self, state: Tensors, received: Tensors) -> dict[str, Predictor]:
        return {"pm": self.weights(state["theta"], state)}


METHOD = Local
