"""`local`, the server's half: no federation. The common start is sent, and nothing comes back but measures."""

from strategies.fedavg import FedAvg


class Local(FedAvg):
    """Clients train alone; their weights stay at home."""

    wants_uploads = False


METHOD = Local
