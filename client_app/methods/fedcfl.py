"""FedCFL, the client's half: FedAvg from the model of one's own cluster; the server says which that is."""

from client_app.methods.fesem import FeSEM


class FedCFL(FeSEM):
    """As far as a client can see, a cluster is a centre."""


METHOD = FedCFL
