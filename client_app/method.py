"""What the client's half of a method is: three questions, asked in every exchange."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module

import torch
from torch import Tensor, nn

from bayes_core.families import Family
from bayes_core.likelihoods import likelihood_of
from fedbayes.protocol.codec import Wire
from fedbayes.protocol.settings import Settings
from fedbayes.protocol.streams import stream

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Trained:
    """The result of one client round."""

    state: dict[str, Tensor]  # kept on this client's disk
    upload: Tensor | None  # sent to the server
    report: dict[str, float] = field(default_factory=dict)  # numbers that go with it
    base: str = "w"  # which of the server's distributions the upload started from


class ClientMethod(ABC):
    """One method on one client. `received` are the server's distributions by name."""

    family: Family

    def __init__(
        self, settings: Settings, network: nn.Module, x: Tensor, y: Tensor, site: str, device: torch.device
    ) -> None:
        self.settings = settings
        self.network = network
        self.x, self.y = x, y  # this client's training data
        self.likelihood = likelihood_of(y)
        self.site = site
        self.device = device

    @abstractmethod
    def start(self, received: Tensors) -> dict[str, Tensor]:
        """The state of a client without a past."""

    @abstractmethod
    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        """One client round."""

    @abstractmethod
    def models(self, state: Tensors, received: Tensors) -> dict[str, Tensor]:
        """The models to measure: `pm`, the personal one, and `gm`, the server's; a method may lack one."""

    @property
    def wire(self) -> Wire:
        return Wire(self.family, self.settings.wire, self.settings.rho_init)

    def model_of(self, trained: Trained) -> Tensor:
        """What a round has made: the personal model, or what is sent where a method has none."""
        models = self.models(trained.state, {} if trained.upload is None else {"w": trained.upload})
        return models["pm"] if "pm" in models else models["gm"]

    def stream(self, server_round: int, purpose: str) -> torch.Generator:
        """This client's random numbers for one purpose in one round."""
        return stream(self.settings.seed, self.site, server_round, purpose, device=self.device)


def with_buffers(state: dict[str, Tensor], buffers: Tensors) -> dict[str, Tensor]:
    """The state with a network's buffers in it."""
    return state | {f"buffer.{name}": buffer for name, buffer in buffers.items()}


def buffers_in(state: Tensors) -> dict[str, Tensor]:
    """The network's buffers in a state."""
    prefix = "buffer."
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def load(method: str) -> type[ClientMethod]:
    """The method in client_app/methods/<method>.py: what the module calls METHOD."""
    found: type[ClientMethod] = import_module(f"client_app.methods.{method}").METHOD
    return found
