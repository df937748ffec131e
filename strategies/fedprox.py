"""FedProx, the server's half: FedAvg's. The proximal term is the client's."""

from strategies.fedavg import FedAvg

METHOD = FedAvg
