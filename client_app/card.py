"""What a personal model says about itself in its file, so that it can be used without the run it comes from."""

import json
import math
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from bayes_core.families import Family, named
from bayes_core.flat import fingerprint
from bayes_core.networks import NETWORKS, NoiseKind
from client_app.method import ClientMethod
from fedbayes.protocol.agreement import Agreement
from fedbayes.protocol.models import build
from fedbayes.protocol.objects import is_object

LARGEST = 10**8  # numbers in one example
SPARE = 10**6  # weights that a network may have beyond what its file accounts for


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
    noise: NoiseKind  # of numbers as targets, in their own units; None: learned, input: by the network

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
        """ValueError says what of it is no card: it comes from a file, which may come from anybody."""
        try:
            card: Card = _reader().validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))[:60]}: {first['msg'][:120]}") from None
        if not 1 <= len(card.inputs) <= 8 or min(card.inputs) < 1 or math.prod(card.inputs) > LARGEST:
            raise ValueError("inputs: no shape of an example")
        if not 1 <= card.eval_samples <= LARGEST or not 0 <= card.image_size <= 4096:
            raise ValueError("eval_samples or image_size: out of bounds")
        sizes = (0, card.inputs[0], card.inputs[-1])  # of a sequence (steps, features) the features
        if any(len(part) not in sizes for part in (card.agreement.mean, card.agreement.deviation)):
            raise ValueError("agreement: means of other inputs")
        return card

    def write(self) -> str:
        return json.dumps(asdict(self))

    @property
    def classes(self) -> tuple[str, ...]:
        return self.agreement.classes

    def distribution(self) -> Family:
        return named(self.family, self.gated)

    @property
    def code(self) -> list[str]:
        """What of it names a function or package of somebody's, which this machine would import and call."""
        named = [self.model] if self.model not in NETWORKS and not is_object(self.model) else []
        return [*named, self.method] if "." in self.method else named

    def require_fit(self, numbers: int) -> None:
        """ValueError where the network is far larger than a file with so many numbers: it is never built."""
        if self.model in NETWORKS:
            with torch.device("meta"):
                sketch = build(self.model, self.inputs, len(self.classes), self.seed)
            if (wanted := sum(p.numel() for p in sketch.parameters())) > 2 * numbers + SPARE:
                raise ValueError(f"its network has {wanted} weights, and the file {numbers} numbers")

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


@cache
def _reader() -> TypeAdapter[Any]:
    """Made when it is first needed: training writes cards and reads none."""
    return TypeAdapter(Card)
