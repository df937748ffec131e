"""Per-FedAvg, the server's half: FedAvg's. What the clients' steps look for is the clients' affair.

Fallah, Mokhtari, Ozdaglar: "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
Approach", 2020.
"""

from strategies.fedavg import FedAvg
from strategies.rounds.state import Traits


class PerFedAvg(FedAvg):
    """FedAvg, as far as the server can see."""

    title = "Per-FedAvg"
    idea = "one network for everybody that is good after a step on each client's own data"
    paper = "Fallah et al. 2020"
    traits = Traits()


METHOD = PerFedAvg
