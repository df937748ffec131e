"""What a personal model says about itself in its file, so that it can be used without the run it comes from."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import nn

from bayes_core.families import Family, named
from bayes_core.flat import fingerprint
from client_app.method import ClientMethod
from fedbayes.protocol.agreement import Agreement
from fedbayes.protocol.models import build


@dataclass(frozen=True)
class Card:
    """The network, the family of the distribution over its weights, and where both come from."""

    run: str
    site: str
    method: str
    family: str  # point, gaussian or spike-slab; what a method's own predictor makes of it is the method's
    gated: bool  # spike-and-slab: whether λ is below 1 anywhere, and stored as its logit
    model: str
    fingerprint: str  # of the network's parameters
    inputs: tuple[int, ...]  # the shape of one example
    agreement: Agreement  # classes, columns and scale of inputs and targets
    image_size: int  # to which images in a folder are scaled; 0 = as they are
    eval_samples: int
    seed: int
    noise: float | None  # of numbers as targets, in their own units; None: learned

    @classmethod
    def of(cls, method: ClientMethod, run: str, site: str, agreement: Agreement) -> "Card":
        """Of the models that this client trains in this run."""
        settings, family = method.settings, method.family
        return cls(
            run=run,
            site=site,
            method=settings.method,
            family=family.name,
            gated=family.gated,
            model=settings.model,
            fingerprint=fingerprint(method.network),
            inputs=tuple(method.x.shape[1:]),
            agreement=agreement,
            image_size=settings.image_size,
            eval_samples=settings.eval_samples,
            seed=settings.seed,
            noise=settings.noise_level,
        )

    @classmethod
    def read(cls, text: str) -> "Card":
        """ValueError, KeyError or TypeError for what is no card."""
        said: Mapping[str, Any] = json.loads(text)
        known = {field.name: said[field.name] for field in fields(cls)}
        read = {
            "inputs": tuple(map(int, said["inputs"])),
            "agreement": Agreement.of_dict(said["agreement"]),
        }
        return cls(**known | read)

    def write(self) -> str:
        return json.dumps(asdict(self))

    @property
    def classes(self) -> tuple[str, ...]:
        return self.agreement.classes

    def distribution(self) -> Family:
        return named(self.family, self.gated)

    def network(self) -> nn.Module:
        """ValueError where this machine's version of the model is another one."""
        network = build(
            self.model,
            self.inputs,
            len(self.classes),
            self.seed,
            self.agreement.scaled_noise(self.noise),
            self.agreement.many,
        )
        if fingerprint(network) != self.fingerprint:
            raise ValueError(
                f"the model {self.model} here has other parameters than the one that was trained"
            )
        return network
