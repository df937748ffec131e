"""What a run's folder holds for those who come later: the settings, and the server's distributions."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayes_core.flat import fingerprint, named_statistics, statistics_of
from bayes_core.predict.predictor import WeightsPredictor
from client_app.card import Card
from client_app.method import ClientMethod, Received, load
from client_app.site import find_device
from fedbayes.errors import CommandError, ModelError
from fedbayes.launch.plan import run_config
from fedbayes.model.inputs import NewExamples, read_examples
from fedbayes.model.personal import PersonalModel
from fedbayes.protocol.agreement import TOKENS, Agreement
from fedbayes.protocol.messages import BODY
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import Settings, defaults
from fedbayes.protocol.user_code import UserCodeError
from server_app.stored import load_checkpoint
from strategies import ServerMethod, StrategyError
from strategies import load as load_server
from strategies.rounds.method import sent_to
from strategies.rounds.state import State

FIXED = ("method", "family", "model", "bayesian", "lambda-init", "noise")  # what the weights mean

WITHOUT_PROMISE = (
    "The global model has no conformal sets or intervals: each site measures its own, and keeps them with its personal "
    "model."
)


@dataclass(frozen=True)
class Finished:
    """A run with at least one round in its checkpoint."""

    settings: Settings
    uuid: str
    inputs: tuple[int, ...]
    fingerprint: str  # of the network
    agreement: Agreement
    state: State  # of the server: w, or the clusters' u0, u1, …

    @classmethod
    def open(cls, folder: Path, words: Mapping[str, Any] | None = None) -> "Finished":
        """`words` change settings of the run, but not those that say what its weights mean."""
        config = run_config(folder)
        for key in FIXED:
            if key in (words or {}) and str((words or {})[key]) != str(config["settings"].get(key)):
                raise CommandError(f"The run {folder.name} has {key}={config['settings'][key]}, which stays.")
        checkpoint = load_checkpoint(folder)
        if checkpoint is None:
            raise CommandError(f"The run {folder.name} has no checkpoint: no round of it is complete.")
        settings = Settings.parse(defaults() | config["settings"] | dict(words or {}) | {"resume": False})
        _, tensors, memory = checkpoint
        try:
            uuid, inputs = str(config["uuid"]), tuple(config["model"]["inputs"])
            marked = str(config["model"]["fingerprint"])
            agreement = Agreement.of_dict(config["agreement"])
        except (KeyError, TypeError) as error:
            raise ModelError(
                f"{folder / 'config.json'} does not say what the run was trained on ({error})."
            ) from None
        return cls(settings, uuid, inputs, marked, agreement, State.of(tensors, memory.get("method", {})))

    def server(self) -> ServerMethod:
        """The server's half of the run's method."""
        try:
            found = load_server(self.settings.method)
        except StrategyError as error:
            raise ModelError(str(error)) from None
        return found(found.reads.parse(self.settings.as_config()), seed=self.settings.seed)

    def _require(self, there: bool) -> None:
        if not there:
            used = self.server()
            raise ModelError(
                f"The run {self.settings.run_name} used {used.title}: {used.idea}; it has no global model."
            )

    def received(self, site: str) -> Received:
        """What the server would send to a new site; ModelError where that is of no use to it."""
        device, server = find_device(self.settings.device), self.server()
        self._require(server.traits.global_model or server.traits.shared_part)
        try:
            sent = sent_to(server, self.state, site)
        except (LookupError, TypeError, AttributeError) as error:  # it comes from a file
            raise ModelError(
                f"The checkpoint of {self.settings.run_name} does not hold what {server.title} keeps ({error!r})."
            ) from None
        moved = {name: tensor.to(device) for name, tensor in sent.items()}
        return Received.of(moved, self.network(self.agreement))

    @property
    def tensors(self) -> dict[str, Tensor]:
        return dict(self.state.sent)

    def method(self, x: Tensor, y: Tensor, site: str, agreement: Agreement | None = None) -> ClientMethod:
        """The client's half of the run's method, with someone's training data, scaled by their agreement."""
        device = find_device(self.settings.device)
        network = self.network(agreement or self.agreement).to(device)
        return load(self.settings.method)(self.settings, network, x.to(device), y.to(device), site, device)

    def network(self, agreement: Agreement) -> nn.Module:
        """As the run's sites have it; ModelError where this machine's version of the model is another one."""
        settings, noise = self.settings, agreement.scaled_noise(self.settings.noise_level)
        try:
            network = build(
                settings.model, self.inputs, len(agreement.classes), settings.seed, noise, agreement.many
            )
        except UserCodeError as error:
            raise ModelError(f"The run {settings.run_name} cannot be used here: {error}") from None
        if fingerprint(network) != self.fingerprint:
            raise ModelError(
                f"The model {settings.model} here has other parameters than the one of the run {settings.run_name}."
            )
        return network

    def read(self, source: str) -> NewExamples:
        """A site's examples, in their own units."""
        return read_examples(source, self.agreement, self.inputs, self.settings.image_size)

    def model(self, name: str = "w") -> PersonalModel:
        """One of the server's distributions, to be used as a personal model is."""
        method = self.method(
            torch.empty(
                0, *self.inputs, dtype=torch.int64 if self.agreement.form == TOKENS else torch.float32
            ),
            torch.empty(
                (0, len(self.agreement.classes)) if self.agreement.many else 0,
                dtype=torch.int64 if self.agreement.classes else torch.float32,
            ),
            "",
        )
        if name not in self.tensors:
            known = ", ".join(sorted(self.tensors))
            raise ModelError(
                f'The run {self.settings.run_name} has no distribution "{name}"; it has {known}.'
            )
        card = Card.of(method, self.settings.run_name, "", self.agreement)
        shapes = statistics_of(method.network)
        buffers = dict(method.network.named_buffers())
        if name in self.state.statistics:
            buffers |= named_statistics(self.state.statistics[name], shapes)
        v = method.family.unconstrain(self.tensors[name])
        buffers = {key: buffer.cpu() for key, buffer in buffers.items()}
        network = method.network_for(self.tensors).cpu()
        note = WITHOUT_PROMISE if self.settings.conformal else ""
        return PersonalModel(card, WeightsPredictor(network, method.family, v, buffers), note=note)

    def global_model(self, which: str = "") -> PersonalModel:
        """The model that all clients share; of several, one by its number or name. ModelError without one."""
        self._require(self.server().traits.global_model)
        if self.settings.as_config().get("plain-weights") == "personal":
            raise ModelError(
                f"The run {self.settings.run_name} has no global model to be used alone: with plain-weights=personal "
                "every client has a body of its own under it."
            )
        plain, run = {*self.server().plain, BODY}, self.settings.run_name
        names = {name.removeprefix("u"): name for name in self.tensors if name not in plain}
        if len(names) == 1 and not which:
            return self.model(*names.values())
        if which not in names:
            several = (
                ", ".join(f"{run}/global-{name}" for name in names) if len(names) > 1 else f"{run}/global"
            )
            raise ModelError(f'The run {run} has no global model "{which}"; there is {several}.')
        return self.model(names[which])
