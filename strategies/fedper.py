"""FedPer, the server's half: FedAvg's, of the bodies. The heads never leave the clients.

Arivazhagan, Aggarwal, Singh, Choudhary: "Federated Learning with Personalization Layers", 2019.
"""

from typing import ClassVar

from torch import Tensor, nn

from bayes_core.flat import Split, flatten
from fedbayes.protocol.settings import HeadName, Options
from strategies.fedavg import FedAvg
from strategies.rounds.method import StepOptions
from strategies.rounds.roster import StrategyError
from strategies.rounds.state import Traits


class BodyOptions(StepOptions):
    head: HeadName


class FedPer(FedAvg):
    """The mean of the clients' bodies."""

    title = "FedPer"
    idea = "clients share all layers of their networks but the last ones, which are each client's own"
    paper = "Arivazhagan et al. 2019"
    traits = Traits(global_model=False, shared_part=True)
    reads: ClassVar[type[Options]] = BodyOptions
    options: BodyOptions

    def weights_of(self, network: nn.Module) -> Tensor:
        try:
            return Split.at_head(network, self.options.head).shared(flatten(network))
        except ValueError as error:
            raise StrategyError(str(error)) from None


METHOD = FedPer
