"""FedAvg with fine-tuning, the server's half: FedAvg's. The personal models are made at the clients."""

from strategies.fedavg import FedAvg
from strategies.rounds.state import Traits


class FineTune(FedAvg):
    """FedAvg, as far as the server can see."""

    title = "FedAvg + fine-tuning"
    idea = "one network for everybody, which each client trains a little further on its own data"
    traits = Traits()


METHOD = FineTune
