"""Ditto, the server's half: FedAvg's. The personal networks are the clients' affair.

Li, Hu, Beirami, Smith: "Ditto: Fair and Robust Federated Learning Through Personalization", 2021.
"""

from strategies.fedavg import FedAvg
from strategies.rounds.state import Traits


class Ditto(FedAvg):
    """FedAvg, as far as the server can see."""

    title = "Ditto"
    idea = "FedAvg, and beside it every client's own network, which is drawn to the one for everybody"
    paper = "Li et al. 2021"
    traits = Traits()


METHOD = Ditto
