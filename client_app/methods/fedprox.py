"""FedProx, the client's half: FedAvg with (μ/2)·‖θ − θᵗ‖² in the loss; μ is the setting `proximal`."""

from client_app.method import Tensors, Trained
from client_app.methods.fedavg import FedAvg


class FedProx(FedAvg):
    """FedAvg that stays near the server's weights."""

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        self.proximal = self.settings.proximal
        return super().train(state, received, server_round)


METHOD = FedProx
