"""The client's half of a method: three questions, asked in every exchange, and what it makes of a stored state.

A method object belongs to one site of one run and keeps nothing between exchanges: what lasts is its state, plain
tensors by name, which the site keeps on its own disk.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from bayes_core.families import Family
from bayes_core.flat import buffers_in, buffers_of, named_statistics, statistics_of
from bayes_core.inference.augment import Augment, FlipCrop
from bayes_core.inference.plain import settled
from bayes_core.inference.recipe import steps_for
from bayes_core.likelihoods import balanced, balanced_labels, likelihood_of
from bayes_core.parts import hold, plain_in
from bayes_core.predict.predictor import Predictor, WeightsPredictor
from fedbayes.protocol.codec import Wire
from fedbayes.protocol.messages import BODY, STATISTICS
from fedbayes.protocol.settings import Options, Settings, SettingsError, with_rates
from fedbayes.protocol.streams import stream
from fedbayes.protocol.user_code import find_half

if TYPE_CHECKING:
    from bayes_core.inference.private import Mechanism

Tensors = Mapping[str, Tensor]


class Received(dict[str, Tensor]):
    """What the server sends, by name; beside it, the buffers (batch norm's statistics) that go with each of them."""

    def __init__(self, tensors: Tensors, statistics: Mapping[str, Tensors] = MappingProxyType({})) -> None:
        super().__init__(tensors)
        self.statistics = dict(statistics)

    @classmethod
    def of(cls, tensors: Tensors, network: nn.Module) -> "Received":
        """From a message, in which they lie side by side."""
        flat = {name: tensor for name, tensor in tensors.items() if name.endswith(STATISTICS)}
        shapes = statistics_of(network) if flat else {}
        named = {name.removesuffix(STATISTICS): named_statistics(v, shapes) for name, v in flat.items()}
        return cls({name: tensor for name, tensor in tensors.items() if name not in flat}, named)

    def only(self, name: str) -> "Received":
        """One of several distributions, as the only one: `w`."""
        statistics = {"w": self.statistics[name]} if name in self.statistics else {}
        return Received(_alone(self, name), statistics)


def statistics_in(received: Tensors, name: str = "w") -> Tensors:
    """The buffers that go with a received distribution; none where they are not shared."""
    return received.statistics.get(name, {}) if isinstance(received, Received) else {}


def only(received: Tensors, name: str) -> Tensors:
    """One of several received distributions, as the only one: `w`."""
    return received.only(name) if isinstance(received, Received) else _alone(received, name)


def _alone(received: Tensors, name: str) -> dict[str, Tensor]:
    """Plain weights beside several distributions are those of each."""
    return {"w": received[name]} | ({BODY: received[BODY]} if BODY in received else {})


PLAIN_SGD_LACKS = ("optimizer", "adam-beta2", "lr-global")
PERSONAL = ("model", "q", "theta")  # what a personal model made of weights is called in a file


@dataclass(frozen=True)
class Trained:
    """The result of one client round."""

    state: dict[str, Tensor]  # kept on this client's disk
    uploads: Tensors = field(default_factory=dict)  # sent to the server, by name
    report: dict[str, float] = field(default_factory=dict)  # numbers that go with them
    # Which of the received distributions an upload is a change of; one that is not named stands for itself.
    bases: Mapping[str, str] = field(default_factory=partial(dict, w="w"))
    buffers: Tensors | None = (
        None  # that go with the uploads, where they are shared; None: those in the state
    )


class ClientMethod(ABC):
    """One method on one client. `received` are the tensors that the server sends, by name."""

    reads: ClassVar[type[Options]] = Options  # the settings that it reads beside those of all methods
    # Its steps are SGD's, at rates of its own: of those of all methods, PLAIN_SGD_LACKS are not for it.
    plain_sgd: ClassVar[bool] = False
    augments: ClassVar[bool] = True  # it trains on batches that can be augmented
    # Nothing of its data leaves but by `mechanism`, where there is one. Said by each class for itself: what a subclass
    # does in other ways may see data.
    private_examples: ClassVar[bool] = False
    options: Any
    family: Family

    def __init__(
        self, settings: Settings, network: nn.Module, x: Tensor, y: Tensor, site: str, device: torch.device
    ) -> None:
        self.settings = settings
        self.options = self.reads.parse(settings.as_config())
        self.network = network
        self.x, self.y = x, y  # this client's training data
        self.check(settings)
        if len(x):
            settings.require_images(tuple(x.shape[1:]))
        weighted = settings.class_weights == "balanced" and not y.is_floating_point()
        balance = balanced_labels if y.ndim == 2 else balanced
        self.likelihood = balance(y) if weighted and len(y) else likelihood_of(y)
        self.mechanism = self._private(network) if settings.dp_example_noise else None
        self.site = site
        self.device = device
        # stream(round, purpose): this client's random numbers for one purpose in one round
        self.stream: Callable[..., torch.Generator] = partial(stream, settings.seed, site, device=device)
        # augmentation(round, purpose): what is done to the batches of this purpose; None where nothing is
        self.augmentation = None if settings.augment == "none" else self._flip_crop

    @classmethod
    def check(cls, settings: Settings) -> None:
        """SettingsError where this half cannot do what is asked for."""
        if settings.augment != "none" and not cls.augments:
            raise SettingsError(
                f"augment={settings.augment} changes batches, which method={settings.method} does not take."
            )

        if settings.dp_example_noise:
            from client_app.examples import require_private

            require_private(settings, vars(cls).get("private_examples", False))

    def _private(self, network: nn.Module) -> "Mechanism":
        """How single examples are hidden from whoever sees uploads (`dp-example-noise`)."""
        from client_app.examples import mechanism_of, require_private_network

        require_private_network(network, self.settings)
        return mechanism_of(self.settings)

    def _flip_crop(self, server_round: int, purpose: str = "train") -> Augment:
        """From a stream of its own, so that nothing else moves."""
        return FlipCrop(self.stream(server_round, f"augment {purpose}"), float(self.x.min()))

    def in_round(self, server_round: int) -> Self:
        """The same with the learning rates of that round (`lr-end`)."""
        if self.settings.lr_end == 1:
            return self
        share = self.settings.rate_share(server_round, len(self.x))
        late = copy(self)
        late.settings, late.options = with_rates(self.settings, share), with_rates(self.options, share)
        return late

    @abstractmethod
    def start(self, received: Tensors) -> dict[str, Tensor]:
        """The state of a client without a past."""

    @abstractmethod
    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        """One client round."""

    @abstractmethod
    def models(self, state: Tensors, received: Tensors) -> dict[str, Predictor]:
        """The models to measure: `pm`, the personal one, and `gm`, the server's; a method may lack one."""

    @classmethod
    def restore(cls, network: nn.Module, family: Family, tensors: Tensors) -> Predictor | None:
        """The personal model in a client's file: in its state, or as its predictor's `tensors()`; None without one."""
        v = next((tensors[name] for name in PERSONAL if name in tensors), None)
        if v is None:
            return None
        plain = plain_in(tensors)
        network = hold(network, plain) if plain else network
        return WeightsPredictor(network, family, v, buffers_in(tensors), plain)

    @property
    def rho_origin(self) -> float:
        """Where ρ starts, for codecs that send its distance from there."""
        return 0.0

    @property
    def codec(self) -> Wire:
        return Wire(self.family, self.settings.wire, self.rho_origin)

    def personal_steps(self, asked: int | Literal["auto"]) -> int:
        """Of the setting of this name, where it may be auto."""
        return steps_for(len(self.x), self.settings.batch_size) if asked == "auto" else asked

    def weights(self, v: Tensor, state: Tensors, received: Tensors | None = None) -> WeightsPredictor:
        """A distribution over weights as something that predicts, with the buffers in the state.

        For a model of the server's, with those that were `received` with `w`, where they are shared.
        """
        shared = {} if received is None else statistics_in(received)
        return WeightsPredictor(self.network, self.family, v, {**buffers_in(state), **shared})

    def made(self, v: Tensor, state: Tensors, received: Tensors | None = None) -> WeightsPredictor:
        """Likewise of weights that were made from what was received, so that no buffers in the state are theirs.

        Batch norm has the statistics of this client's training data under them, but those that were `received`.
        """
        shared = {} if received is None else statistics_in(received)
        if shared:
            return self.weights(v, state, received)
        buffers = settled(self.network, self.family.centre(v), buffers_in(state), self.x)
        return WeightsPredictor(self.network, self.family, v, buffers)

    def first_buffers(self, v: Tensor, received: Tensors) -> dict[str, Tensor]:
        """Of a client without a past: where buffers are shared, those of its own training data under `v`."""
        buffers = {**buffers_of(self.network), **statistics_in(received)}
        if not statistics_in(received):
            return buffers
        return settled(self.network_for(received), self.family.centre(v), buffers, self.x)

    def network_for(self, received: Tensors) -> nn.Module:
        """The network that the server's weights are for: the clients' own, unless a method makes another of it."""
        return self.network

    def model_of(self, trained: Trained, received: Tensors) -> Predictor:
        """What a round has made: the personal model, or what is sent where a method has none."""
        sent = {
            trained.bases[name]: upload for name, upload in trained.uploads.items() if name in trained.bases
        }
        after = Received({**received, **sent}, getattr(received, "statistics", {}))
        models = self.models(trained.state, after)
        return models["pm"] if "pm" in models else models["gm"]


def load(method: str) -> type[ClientMethod]:
    """What client_app/methods/<method>.py calls METHOD; of `package.module`, what its module `client` does."""
    found: type[ClientMethod] = find_half("client_app.methods", method, "client")
    return found
