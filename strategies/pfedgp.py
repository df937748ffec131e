"""pFedGP, the server's half: FedAvg's, of the networks below their last layer.

Achituve, Shamsian, Navon, Chechik, Fetaya: "Personalized Federated Learning with Gaussian Processes", 2021, the variant
with all of a client's data. The Gaussian processes are the clients'; there is no global one.
"""

from typing import ClassVar

from torch import Tensor, nn

from bayes_core.flat import Split, flatten
from fedbayes.protocol.settings import HeadName, Options, Settings, SettingsError
from strategies.fedavg import FedAvg
from strategies.rounds.method import StepOptions
from strategies.rounds.state import Traits


class EmbeddingOptions(StepOptions):
    head: HeadName


class PFedGP(FedAvg):
    """The mean of the clients' embeddings."""

    title = "pFedGP"
    idea = "clients share what turns an example into an embedding, and classify it by Gaussian processes of their own"
    paper = "Achituve et al. 2021"
    traits = Traits(global_model=False, shared_part=True, numbers=False)
    reads: ClassVar[type[Options]] = EmbeddingOptions
    options: EmbeddingOptions

    @classmethod
    def check(cls, settings: Settings) -> None:
        super().check(settings)
        if settings.class_weights != "none":
            raise SettingsError(
                "method=pfedgp has no loss that classes could weigh in; leave class-weights out."
            )

    def weights_of(self, network: nn.Module) -> Tensor:
        return Split.at_head(network, self.options.head).shared(flatten(network))


METHOD = PFedGP
