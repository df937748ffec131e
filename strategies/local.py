"""`local`, the server's half: no federation. The common start is sent, and nothing is learned from anyone."""

from collections.abc import Sequence

from strategies.base import Upload
from strategies.fedavg import FedAvg


class Local(FedAvg):
    """Clients train alone; their uploads are only counted."""

    def aggregate(self, uploads: Sequence[Upload]) -> None:
        pass


METHOD = Local
