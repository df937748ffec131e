"""pFedMe, the server's half: FedAvg's, w ← (1−β)·w + β·mean of the clients' w_i.

T. Dinh, Tran, Nguyen: "Personalized Federated Learning with Moreau Envelopes", 2020. In the paper all clients train and
some of them are aggregated: `train-all=true`.
"""

from strategies.fedavg import FedAvg
from strategies.rounds.state import Traits


class PFedMe(FedAvg):
    """FedAvg, as far as the server can see."""

    title = "pFedMe"
    idea = "every client has a network of its own that is held near the one for everybody"
    paper = "T. Dinh et al. 2020"
    traits = Traits()


METHOD = PFedMe
