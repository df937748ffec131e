"""What all sites agree on before the first round, so that a file at each of them means the same thing everywhere.

The classes and their order, the columns and their order, and the scale of inputs and targets. Each site claims what
it has; the server makes one agreement of all claims, and every message to a site carries it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bayes_core.networks import NoiseKind
from fedbayes.protocol.claims import AUTO, SEQUENCES, TOKENS, Claim, MeanVariance
from fedbayes.protocol.tables import Disagreement, Preparation, agree

__all__ = [
    "AUTO",
    "SEQUENCES",
    "TOKENS",
    "Agreement",
    "Claim",
    "Disagreement",
    "MeanVariance",
    "in_order",
    "listed",
]
MOST_TOLD = 6  # disagreements in one message


@dataclass(frozen=True)
class Agreement:
    """What holds at every site of a run; kept with its models."""

    classes: tuple[str, ...] = ()  # in the order of the network's outputs; empty for a regression
    features: tuple[str, ...] = ()  # in the order of the network's inputs, where they have names
    mean: tuple[float, ...] = ()  # of the inputs; empty where each site, or nobody, scales
    deviation: tuple[float, ...] = ()
    target_mean: float | None = None
    target_deviation: float | None = None
    brightest: int = 255
    preparation: Preparation | None = None  # how columns become inputs, where they are not all plain numbers
    target: str = ""  # the name of a table's target
    ignored: tuple[str, ...] = ()  # columns of a table that are no inputs
    many: bool = False  # an example may be of several classes at once, or of none
    form: str = AUTO  # tokens are whole numbers and stay such, sequences have their features last

    def write(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> "Agreement":
        return cls.of_dict(json.loads(text))

    @classmethod
    def of_dict(cls, said: Mapping[str, Any]) -> "Agreement":
        known: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in said.items()
        }
        if known.get("preparation"):
            known["preparation"] = Preparation.of_dict(known["preparation"])
        return cls(**known)

    @property
    def target_scale(self) -> tuple[float, float]:
        """Mean and deviation that were taken off the targets: 0 and 1 where they are as they came."""
        if self.target_mean is None or self.target_deviation is None:
            return 0.0, 1.0
        return self.target_mean, self.target_deviation

    def scaled_noise(self, noise: NoiseKind) -> NoiseKind:
        """A standard deviation in the target's own units as the network has it; learned and input stay."""
        return noise if noise is None or isinstance(noise, str) else noise / self.target_scale[1]

    def scaled_by(self, inputs: MeanVariance | None, target: MeanVariance | None) -> "Agreement":
        """The same with another scale, a site's own; inputs that are no measurements stay 0 or 1."""
        changes: dict[str, Any] = {}
        if inputs is not None:
            kept = self.preparation.scaled if self.preparation else (True,) * len(inputs.mean)
            changes["mean"] = tuple(
                value if one else 0.0 for value, one in zip(inputs.mean, kept, strict=True)
            )
            changes["deviation"] = tuple(
                value if one else 1.0 for value, one in zip(inputs.deviation, kept, strict=True)
            )
        if target is not None:
            changes |= {"target_mean": target.mean[0], "target_deviation": target.deviation[0]}
        return replace(self, **changes)

    def scaled(self, x: Tensor) -> Tensor:
        """Inputs as the network takes them."""
        return standardised(x, self.mean, self.deviation, self.form == SEQUENCES) if self.mean else x

    @classmethod
    def of(cls, claims: Mapping[str, Claim]) -> "Agreement":
        """Of all sites by their names; a Disagreement names two of them."""
        if problems := list(_problems(claims)):
            raise Disagreement(" ".join(problems[:MOST_TOLD]))
        all_claims = list(claims.values())
        features = all_claims[0].features
        inputs = [moments for claim in all_claims if (moments := claim.inputs_by(features))]
        targets = [claim.target for claim in all_claims if claim.target]
        scale = MeanVariance.pooled(inputs) if len(inputs) == len(claims) else None
        target = MeanVariance.pooled(targets) if len(targets) == len(claims) else None
        preparation, scale = _prepared(claims, scale)
        targets_named = {claim.target_name for claim in all_claims}
        return cls(
            classes=_classes(claims),
            features=preparation.inputs if preparation else features,
            preparation=preparation,
            target=targets_named.pop() if len(targets_named) == 1 else "",
            ignored=all_claims[0].ignored,
            form=all_claims[0].form,
            many=all_claims[0].many,
            mean=scale.mean if scale else (),
            deviation=scale.deviation if scale else (),
            target_mean=target.mean[0] if target else None,
            target_deviation=target.deviation[0] if target else None,
            brightest=all_claims[0].brightest,
        )


def _prepared(
    claims: Mapping[str, Claim], scale: MeanVariance | None
) -> tuple[Preparation | None, MeanVariance | None]:
    """How the columns of tables become inputs, and the scale of these; nothing where all are plain numbers."""
    tables = {site: claim.table for site, claim in claims.items() if claim.table is not None}
    if all(table.plain for table in tables.values()):
        return None, scale
    if len(tables) < len(claims):
        one = next(site for site in claims if site not in tables)
        raise Disagreement(
            f'Site "{one}" has no table, but others have tables with more than numbers in them.'
        )
    preparation, mean, variance = agree(tables)
    scaled = all(table.scaled for table in tables.values())
    return preparation, MeanVariance(1, mean, variance) if scaled else None


def _problems(claims: Mapping[str, Claim]) -> Iterator[str]:
    """Each site beside the latest one that fitted: whoever is alone is told once."""
    fitted, *others = claims
    for site in others:
        if problem := _problem(fitted, claims[fitted], site, claims[site]):
            yield problem
        else:
            fitted = site


def _problem(one: str, a: Claim, other: str, b: Claim) -> str:
    """Why two sites do not fit together, in a sentence; empty where they do."""
    both = f'Sites "{one}" and "{other}"'
    if bool(a.classes) != bool(b.classes):
        has, lacks = (one, other) if a.classes else (other, one)
        return (
            f'{both} differ in their task: "{has}" has classes, "{lacks}" has numbers as targets; '
            "say which with task=classification or task=regression."
        )
    if a.many != b.many:
        return f"{both} differ in their targets: one has several labels an example, the other one class."
    if sorted(a.features) != sorted(b.features):
        mine, yours = sorted(set(a.features) - set(b.features)), sorted(set(b.features) - set(a.features))
        return f'{both} have different columns: "{one}" alone has {listed(mine)}, "{other}" {listed(yours)}.'
    if a.shape != b.shape:
        return f"{both} have examples of different shapes: {_shape(a.shape)} and {_shape(b.shape)}."
    if a.brightest != b.brightest:
        return f"{both} differ in their white pixels: {a.brightest} and {b.brightest}."
    for moments in (a.inputs, a.target, b.inputs, b.target):
        if moments and len(moments.mean) not in (1, a.shape[0], a.shape[-1]):
            return f"{both} do not describe their inputs alike."
    return ""


def _classes(claims: Mapping[str, Claim]) -> tuple[str, ...]:
    """The list that somebody declares, or all that were found, sorted."""
    author = next((name for name, claim in claims.items() if claim.declared), None)
    if author is None:
        return in_order([name for claim in claims.values() for name in claim.classes])
    classes = claims[author].classes
    for name, claim in claims.items():
        fits = claim.classes == classes if claim.declared else set(claim.classes) <= set(classes)
        if not fits:
            raise Disagreement(
                f'Sites "{author}" and "{name}" differ in their classes: {listed(classes)} and {listed(claim.classes)}.'
            )
    return classes


def in_order(names: Sequence[str]) -> tuple[str, ...]:
    """Without repetitions, sorted: as numbers where all of them are, else as text."""
    if all(name.removeprefix("-").isdecimal() for name in names):
        return tuple(sorted(set(names), key=int))
    return tuple(sorted(set(names)))


def standardised(x: Tensor, mean: Sequence[float], deviation: Sequence[float], last: bool = False) -> Tensor:
    """(x − mean) / deviation for each feature of vectors (n, features), channel of images (n, channels, …), or, where
    they come `last`, feature of sequences (n, steps, features)."""
    shape = (1, *[1] * (x.ndim - 2), -1) if last else (1, -1, *[1] * (x.ndim - 2))
    centre, width = (torch.tensor(part, dtype=torch.float64).view(shape) for part in (mean, deviation))
    return ((x.cpu().double() - centre) / width).to(x.device, torch.float32)


def listed(names: Sequence[str]) -> str:
    """Names in a sentence, at most twelve of them."""
    quoted = ", ".join(f'"{name}"' for name in names[:12])
    return quoted + (", …" if len(names) > 12 else "") if names else "none"


def _shape(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} features" if len(shape) == 1 else "×".join(map(str, shape))
