"""FedAvg, the server's half: the mean of the clients' weights.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: "Communication-Efficient Learning of Deep Networks from Decentralized
Data", 2017.
"""

from bayes_core import Point
from strategies.rounds.method import ServerMethod
from strategies.rounds.state import Fresh, State, Traits


class FedAvg(ServerMethod):
    """One weight vector for all clients."""

    title = "FedAvg"
    idea = "one network for everybody, the mean of the clients' weights"
    paper = "McMahan et al. 2017"
    traits = Traits(personal_model=False)
    family = Point()

    def init(self, fresh: Fresh) -> State:
        return State({"w": fresh()[None].clone()})


METHOD = FedAvg
