"""FeSEM, the client's half: FedAvg from one's own centre; the server says which that is."""

from bayes_core.predict.predictor import Predictor
from client_app.method import Tensors, Trained
from client_app.methods.fedavg import FedAvg
from client_app.methods.ifca import IFCA


class FeSEM(IFCA):
    """Who has no centre yet gets them all, and takes the one that fits its training data."""

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        method = FedAvg if "w" in received else IFCA
        return method.train(self, state, received, server_round)

    def models(self, state: Tensors, received: Tensors) -> dict[str, Predictor]:
        method = FedAvg if "w" in received else IFCA
        return method.models(self, state, received)


METHOD = FeSEM
