"""FedAvg's own."""

from strategies.fedavg import FedAvg

METHOD = FedAvg
