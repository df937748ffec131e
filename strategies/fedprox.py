"""FedProx, the server's half: FedAvg's. The proximal term is the client's.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous Networks", 2020.
"""

from strategies.fedavg import FedAvg


class FedProx(FedAvg):
    """FedAvg, as far as the server can see."""

    title = "FedProx"
    idea = "FedAvg whose clients stay near the server's weights"
    paper = "Li et al. 2020"


METHOD = FedProx
