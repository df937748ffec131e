"""A run folder as a report reads it: what is there, and a sentence for each thing that is not."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, FiniteFloat, ValidationError, model_validator

from bayes_core.families import Family, Gaussian, Point, SpikeSlab
from bayes_core.predict.histograms import (
    ENTROPY_BINS,
    LAMBDA_BINS,
    SIGMA_BINS,
    SURE_BINS,
    VALUE_BINS,
    weight_counts,
)
from bayes_core.predict.metrics import RANKS
from fedbayes.protocol.columns import MODELS
from server_app.evaluations import FILE, read_evaluations
from server_app.report.methods import words_of
from server_app.rows import Row
from server_app.stored import RunError, load_checkpoint, read_config, read_rows, saved_rounds

Numbers = list[FiniteFloat]
Entropies = Annotated[Numbers, Field(min_length=ENTROPY_BINS, max_length=ENTROPY_BINS)]
Sigmas = Annotated[Numbers, Field(min_length=SIGMA_BINS, max_length=SIGMA_BINS)]
Ranks = Annotated[Numbers, Field(min_length=RANKS, max_length=RANKS)]
Answers = Annotated[Numbers, Field(min_length=2 * SURE_BINS, max_length=2 * SURE_BINS)]
Values = Annotated[Numbers, Field(min_length=3 * VALUE_BINS, max_length=3 * VALUE_BINS)]
Lambdas = Annotated[Numbers, Field(min_length=LAMBDA_BINS, max_length=LAMBDA_BINS)]
DISTRIBUTION = re.compile(r"w|u\d+")  # in a checkpoint: the server's, or a cluster's
T = TypeVar("T")


class Counts(BaseModel):
    """What one site told of itself in one evaluation."""

    pm_entropy: Entropies | None = None
    gm_entropy: Entropies | None = None
    pm_excess: FiniteFloat | None = None  # mean confidence minus accuracy
    gm_excess: FiniteFloat | None = None
    labels: list[int] | None = None
    group: int | None = None


class Weights(BaseModel):
    """Binned counts of σ and λ, and the non-zero ratio of each layer."""

    sigma: Sigmas | None = None
    lambda_: Lambdas | None = Field(default=None, alias="lambda")
    nonzero: Numbers | None = None


class Tally(BaseModel):
    """Of all clients' test examples, by confidence: how many, the sum of it, how many right."""

    bin_n: Numbers
    bin_confidence: Numbers
    bin_correct: Numbers

    @model_validator(mode="after")
    def _is_whole(self) -> "Tally":
        if len({len(self.bin_n), len(self.bin_confidence), len(self.bin_correct)}) > 1 or not self.n > 0:
            raise ValueError("bins without examples or of different numbers")
        return self

    @property
    def n(self) -> float:
        return sum(self.bin_n)

    @property
    def error(self) -> float:
        """The expected calibration error."""
        gaps = zip(self.bin_confidence, self.bin_correct, strict=True)
        return sum(abs(confidence - correct) for confidence, correct in gaps) / self.n

    @property
    def excess(self) -> float:
        """Mean confidence minus accuracy."""
        return (sum(self.bin_confidence) - sum(self.bin_correct)) / self.n

    @classmethod
    def together(cls, several: Sequence["Tally"]) -> "Tally":
        names = ("bin_n", "bin_confidence", "bin_correct")
        return cls(**{name: [sum(bins) for bins in zip(*(getattr(one, name) for one in several), strict=True)]
                      for name in names})  # fmt: skip


class ByClass(BaseModel):
    """Of sites that tell their labels: true × predicted, and for each class binned probabilities, false and true.

    `many`: of several labels an example; true × predicted, not there and there, of each.
    """

    confusion: Numbers
    scores: Numbers
    sites: int
    many: bool = False

    def scores_of(self, place: int, classes: int) -> tuple[Numbers, Numbers]:
        """Of the examples that are not of this class, and of those that are."""
        bins = len(self.scores) // (2 * classes)
        start = 2 * place * bins
        return self.scores[start : start + bins], self.scores[start + bins : start + 2 * bins]


def _binned(tally: Any) -> Any:
    """A regression's tally has no confidence to bin."""
    return None if isinstance(tally, dict) and "bin_n" not in tally else tally


class Evaluation(BaseModel):
    """One line of evaluations.jsonl."""

    round: int
    pm: Annotated[Tally | None, BeforeValidator(_binned)] = None
    gm: Annotated[Tally | None, BeforeValidator(_binned)] = None
    pm_ranks: Ranks | None = None  # of a regression: where targets fell in their predictives
    gm_ranks: Ranks | None = None
    classes: dict[str, ByClass] = {}
    answers: dict[str, Answers] = {}  # of each model: how sure the wrong ones are, and the right ones
    values: dict[str, Values] = {}  # of each model of numbers: intervals by predicted number
    sites: dict[str, Counts] = {}
    weights: Weights = Weights()

    @model_validator(mode="before")
    @classmethod
    def _find_ranks(cls, line: Any) -> Any:
        tallies = {model: line.get(model) for model in MODELS}
        ranks = {
            f"{model}_ranks": tally.get("ranks")
            for model, tally in tallies.items()
            if isinstance(tally, dict)
        }
        return line | ranks


class Clusters(BaseModel):
    """clusters.json: what a method with clusters found before round 1."""

    sites: list[str]
    labels: list[int]
    k: int
    asked: int
    suggested: int
    eigenvalues: Numbers
    gap: float
    rest: float
    psi: list[Numbers]
    sure: bool | None = None  # runs of earlier versions do not say
    why: str = ""
    odd: list[str] = []  # sites that have little in common with any other

    @model_validator(mode="after")
    def _is_square(self) -> "Clusters":
        if {len(self.labels), len(self.psi), *map(len, self.psi)} != {len(self.sites)} or not self.sites:
            raise ValueError("sites, labels and psi differ in length")
        return self


@dataclass(frozen=True)
class Run:
    """All that a report knows of a run."""

    folder: Path
    config: dict[str, Any]
    rows: list[Row]
    clients: list[Row]
    evaluations: list[Evaluation]
    clusters: Clusters | None
    weights: Weights  # of the server's distributions in the checkpoint, all clusters together
    missing: list[str] = field(default_factory=list)  # sentences
    saved: int | None = None  # rounds in the checkpoint, where there is one

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.config["settings"]
        return settings

    @property
    def uniform(self) -> float:
        """The entropy of a uniform guess, in nats."""
        many = (self.config.get("agreement") or {}).get("many")  # of several labels each is there or not
        return math.log(2 if many else max(len(self.config.get("classes") or ()), 2))

    @property
    def layers(self) -> dict[str, int]:
        layers: dict[str, int] = self.config.get("layers") or {}
        return layers


def read_run(folder: Path, weights: bool = True) -> Run:
    """The run in this folder; RunError where it has no readable config.json.

    Without `weights` the checkpoint, which may be large, is not read but for its header.
    """
    config = read_config(folder)
    if config is None:
        raise RunError(f"There is no run in {folder}: it has no config.json.")
    if not isinstance(config.get("settings"), dict) or "method" not in config["settings"]:
        raise RunError(f"{folder / 'config.json'} lacks the run's settings; there is nothing to report.")
    missing: list[str] = []

    def attempt(file: str, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except (RunError, OSError, ValueError) as error:
            reason = _first_reason(error) if isinstance(error, ValidationError) else str(error).rstrip(".")
            missing.append(
                f"{reason}." if isinstance(error, RunError) else f"{file} cannot be used: {reason}."
            )
            return otherwise

    rows: list[Row] = attempt("rounds.csv", lambda: _rows(folder / "rounds.csv", ()), [])
    clients: list[Row] = attempt("clients.csv", lambda: _rows(folder / "clients.csv", ("site",)), [])
    evaluations: list[Evaluation] = attempt(FILE, lambda: _evaluations(folder), [])
    clusters = attempt("clusters.json", lambda: _clusters(folder / "clusters.json"), None)
    counts = Weights()
    if weights:
        counts = attempt("checkpoint.safetensors", lambda: _weights(folder, config), counts)
    _name_what_is_not_there(folder, config, missing)
    saved = saved_rounds(folder)
    return Run(folder, config, rows, clients, evaluations, clusters, counts, missing, saved)


def _rows(file: Path, needed: Sequence[str]) -> list[Row]:
    """The rows that say which round they are of; ValueError where none of several does."""
    rows = read_rows(file)
    usable: list[Row] = [
        row for row in rows if (row.get("round") or "").isdecimal() and all(row.get(key) for key in needed)
    ]
    if rows and not usable:
        raise ValueError(f"no row has {' and '.join(('round', *needed))}")
    return usable


def _evaluations(folder: Path) -> list[Evaluation]:
    lines = read_evaluations(folder)
    if not lines and (folder / FILE).exists() and (folder / FILE).stat().st_size:
        raise ValueError("no line of it can be read")
    return [Evaluation(**line) for line in lines]


def _clusters(file: Path) -> Clusters | None:
    return Clusters.model_validate_json(file.read_bytes()) if file.exists() else None


def _weights(folder: Path, config: dict[str, Any]) -> Weights:
    """Counts over all of the server's distributions; the ratios of layers are means over them."""
    checkpoint = load_checkpoint(folder)
    if checkpoint is None or not words_of(config).global_model:
        return Weights()
    sizes = list((config.get("layers") or {}).values())
    told = [
        weight_counts(_family(len(v), config), v, sizes if sum(sizes) == v.shape[1] else [int(v.shape[1])])
        for name, v in checkpoint[1].items()
        if DISTRIBUTION.fullmatch(name) and v.ndim == 2
    ]
    if not told:
        return Weights()
    total: dict[str, Any] = {
        key: [sum(column) for column in zip(*(one[key] for one in told), strict=True)] for key in told[0]
    }
    if "nonzero" in total:
        total["nonzero"] = [ratio / len(told) for ratio in total["nonzero"]]
    return Weights(**total)


def _family(rows: int, config: dict[str, Any]) -> Family:
    if rows == 3:
        return SpikeSlab(gated=float(config["settings"].get("lambda-init", 0.5)) < 1)
    return Gaussian() if rows == 2 else Point()


def _name_what_is_not_there(folder: Path, config: dict[str, Any], missing: list[str]) -> None:
    wanted = {
        "rounds.csv": "no figures over rounds",
        "clients.csv": "no figures of single clients",
        FILE: "no reliability diagram, no histograms of certainty and no weights of personal models",
        "checkpoint.safetensors": "no weights of the global model",
    }
    if (words := words_of(config)).clusters and words.openings:
        wanted["clusters.json"] = "no KL matrix"
    for file, consequence in wanted.items():
        if not (folder / file).exists():
            missing.append(f"{file} is not in the run folder: {consequence}.")


def _first_reason(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where + ': ' if where else ''}{first['msg']}"
