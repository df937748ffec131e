"""`local`, the server's half: no federation. The common start is sent, and nothing is learned from anyone."""

from collections.abc import Sequence

from strategies.fedavg import FedAvg
from strategies.records import Upload


class Local(FedAvg):
    """Clients train alone; their uploads are only counted."""

    def aggregate(self, uploads: Sequence[Upload]) -> None:
        pass


METHOD = Local
