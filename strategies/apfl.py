"""APFL, the server's half: FedAvg's, with each client's α beside its figures.

Deng, Kamani, Mahdavi: "Adaptive Personalized Federated Learning", 2020.
"""

from typing import Any

from fedbayes.protocol.columns import Column
from strategies.fedavg import FedAvg
from strategies.rounds.state import Came, State, Traits

MIXTURE = "mixture"


class APFL(FedAvg):
    """FedAvg, as far as the server can see."""

    title = "APFL"
    idea = "every client mixes the weights of a network of its own with those of the one for everybody"
    paper = "Deng et al. 2020"
    traits = Traits()
    columns = (Column(MIXTURE, "share of the own network (α)", "client"),)

    def describe(self, state: State, came: Came) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        told = {one.site: one.report[MIXTURE] for one in came.uploads if MIXTURE in one.report}
        return {}, {site: {MIXTURE: round(float(alpha), 6)} for site, alpha in told.items()}


METHOD = APFL
