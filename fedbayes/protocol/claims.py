"""What one site brings into the agreement of all: shapes, classes, columns, and sums of its training data."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from fedbayes.protocol.tables import TableClaim

AUTO, TOKENS, SEQUENCES = "auto", "tokens", "sequences"  # what inputs are
SMALLEST_DEVIATION = 1e-12  # below, a feature is constant and only its mean is taken off


@dataclass(frozen=True)
class MeanVariance:
    """Mean and variance of each of several numbers, over n examples."""

    n: int
    mean: tuple[float, ...]
    variance: tuple[float, ...]

    @classmethod
    def pooled(cls, parts: Iterable["MeanVariance"]) -> "MeanVariance":
        """Those of all parts' examples together: the variance within the parts and that between their means."""
        parts = list(parts)
        n = sum(part.n for part in parts)
        mean = [sum(part.n * value for part, value in zip(parts, column, strict=True)) / n
                for column in zip(*(part.mean for part in parts), strict=True)]  # fmt: skip
        variance = [
            sum(part.n * (part.variance[k] + (part.mean[k] - centre) ** 2) for part in parts) / n
            for k, centre in enumerate(mean)
        ]
        return cls(n, tuple(mean), tuple(variance))

    @property
    def deviation(self) -> tuple[float, ...]:
        """What to divide by: 1 for a constant."""
        roots = [math.sqrt(value) for value in self.variance]
        return tuple(root if root > SMALLEST_DEVIATION else 1.0 for root in roots)


@dataclass(frozen=True)
class Claim:
    """What one site has. `inputs` and `target` are given only where they are to be scaled together."""

    shape: tuple[int, ...]  # of one example
    classes: tuple[str, ...]  # empty where the targets are numbers
    declared: bool  # whether that is the whole list in its order, or only what was found here
    features: tuple[str, ...] = ()  # names of columns, where they have names
    inputs: MeanVariance | None = (
        None  # of the training inputs, for each feature of vectors or channel of images
    )
    target: MeanVariance | None = None  # of the training targets, where they are numbers
    brightest: int = 255  # the value of a white pixel, where inputs are bytes of images
    ids: tuple[str, ...] = ()  # columns that are different in every row, and no measurements
    table: TableClaim | None = None  # where the examples are rows of a table
    target_name: str = ""  # the name of its target
    ignored: tuple[str, ...] = ()  # columns that the run leaves out
    form: str = AUTO
    many: bool = False  # an example may be of several classes at once

    def inputs_by(self, features: tuple[str, ...]) -> MeanVariance | None:
        """The moments of the inputs, their columns in this order."""
        if self.inputs is None or self.features == features:
            return self.inputs
        order = [self.features.index(name) for name in features]
        mean, variance = self.inputs.mean, self.inputs.variance
        return MeanVariance(self.inputs.n, tuple(mean[k] for k in order), tuple(variance[k] for k in order))

    def write(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> "Claim":
        """ValueError, TypeError or KeyError for what is no claim: it comes from another machine."""
        said = json.loads(text)
        table = TableClaim.of_dict(said["table"]) if said.get("table") else None
        if table and sorted(one.name for one in table.columns) != sorted(map(str, said["features"])):
            raise ValueError("a table of other columns")
        return cls(
            shape=tuple(int(size) for size in said["shape"]),
            classes=tuple(str(name) for name in said["classes"]),
            declared=bool(said["declared"]),
            features=tuple(str(name) for name in said["features"]),
            inputs=_moments(said["inputs"]),
            target=_moments(said["target"]),
            brightest=int(said["brightest"]),
            ids=tuple(str(name) for name in said.get("ids", ())),
            table=table,
            target_name=str(said.get("target_name", "")),
            ignored=tuple(str(name) for name in said.get("ignored", ())),
            form=str(said.get("form", AUTO)),
            many=bool(said.get("many", False)),
        )


def _moments(said: Mapping[str, object] | None) -> MeanVariance | None:
    if said is None:
        return None
    n, mean, variance = int(str(said["n"])), _numbers(said["mean"]), _numbers(said["variance"])
    if (
        n < 1
        or len(mean) != len(variance)
        or not all(map(math.isfinite, (*mean, *variance)))
        or min(variance) < 0
    ):
        raise ValueError("impossible moments")
    return MeanVariance(n, mean, variance)


def _numbers(said: object) -> tuple[float, ...]:
    if not isinstance(said, list):
        raise TypeError("numbers are a list")
    return tuple(float(number) for number in said)
