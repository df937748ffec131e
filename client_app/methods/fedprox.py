"""FedProx, the client's half: FedAvg with (μ/2)·‖θ − θᵗ‖² in the loss; μ is the setting `proximal`."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from bayes_core.inference.plain import Proximal, Term
from client_app.methods.fedavg import FedAvg
from fedbayes.protocol.settings import NonNegative, Options


class ProximalOptions(Options):
    proximal: NonNegative


class FedProx(FedAvg):
    """FedAvg that stays near the server's weights."""

    reads: ClassVar[type[Options]] = ProximalOptions
    private_examples = True
    options: ProximalOptions

    def terms(self, w: Tensor) -> Sequence[Term]:
        return [Proximal(w[0], self.options.proximal)] if self.options.proximal else []


METHOD = FedProx
