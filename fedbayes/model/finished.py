"""What a run's folder holds for those who come later: the settings, and the server's distributions."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayes_core.flat import fingerprint
from bayes_core.predict.predictor import WeightsPredictor
from client_app.card import Card
from client_app.method import ClientMethod, load
from fedbayes.errors import CommandError, ModelError
from fedbayes.launch.plan import run_config
from fedbayes.model.inputs import NewExamples, read_examples
from fedbayes.model.personal import PersonalModel
from fedbayes.protocol.agreement import Agreement
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import Settings, defaults
from server_app.stored import load_checkpoint
from strategies import StrategyError
from strategies import load as load_server
from strategies.rounds.state import State

FIXED = ("method", "family", "model", "lambda-init", "noise")  # what the weights mean


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

    def received(self, site: str) -> dict[str, Tensor]:
        """What the server would send to a site, be it a new one; ModelError where that is nothing."""
        try:
            found = load_server(self.settings.method)
        except StrategyError as error:
            raise ModelError(str(error)) from None
        if not found.traits.global_model:
            raise ModelError(
                f"The run {self.settings.run_name} used {found.title}: {found.idea}; it has no global model."
            )
        options = found.reads.parse(self.settings.as_config())
        return dict(found(options, seed=self.settings.seed).send(self.state, site))

    @property
    def tensors(self) -> dict[str, Tensor]:
        return dict(self.state.sent)

    def method(self, x: Tensor, y: Tensor, site: str, agreement: Agreement | None = None) -> ClientMethod:
        """The client's half of the run's method, with someone's training data, scaled by their agreement."""
        settings, agreement = self.settings, agreement or self.agreement
        noise = agreement.scaled_noise(settings.noise_level)
        network = build(settings.model, self.inputs, len(agreement.classes), settings.seed, noise)
        if fingerprint(network) != self.fingerprint:
            raise ModelError(
                f"The model {settings.model} here has other parameters than the one of the run {settings.run_name}."
            )
        return load(settings.method)(settings, network, x, y, site, torch.device("cpu"))

    def read(self, source: str) -> NewExamples:
        """A site's examples, in their own units."""
        return read_examples(source, self.agreement, self.inputs, self.settings.image_size)

    def model(self, name: str = "w") -> PersonalModel:
        """One of the server's distributions, to be used as a personal model is."""
        method = self.method(
            torch.empty(0, *self.inputs),
            torch.empty(0, dtype=torch.int64 if self.agreement.classes else torch.float32),
            "",
        )
        if name not in self.tensors:
            known = ", ".join(sorted(self.tensors))
            raise ModelError(
                f'The run {self.settings.run_name} has no distribution "{name}"; it has {known}.'
            )
        card = Card.of(method, self.settings.run_name, "", self.agreement)
        buffers = dict(method.network.named_buffers())
        v = method.family.unconstrain(self.tensors[name])
        return PersonalModel(card, WeightsPredictor(method.network, method.family, v, buffers))
