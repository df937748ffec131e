"""FedAvg, the server's half: the mean of the clients' weights."""

from torch import Tensor

from bayes_core import Point
from strategies.rounds.loop import PersonalStrategy


class FedAvg(PersonalStrategy):
    """One weight vector for all clients."""

    family = Point()

    def initial(self, weights: Tensor) -> dict[str, Tensor]:
        return {"w": weights[None].clone()}


METHOD = FedAvg
