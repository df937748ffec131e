"""The one list of metrics, and the columns of rounds.csv and clients.csv that follow from it.

A client measures up to two models on its own test data, `pm` (its personal one) and `gm` (the server's), and on what
it has held out of its training data for validation. Each metric of each model is one column, `pm_accuracy` and so on. A
method may have columns of its own, which come last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

MODELS = {"pm": "personal", "gm": "global"}
VALIDATION = "_val"  # the kind of tally that speaks of validation data


@dataclass(frozen=True)
class Metric:
    """One figure of a model: where it comes from, and how it is shown."""

    key: str  # its column is MODEL_KEY
    title: str = ""
    place: int | None = None  # among the metrics in tables; None: it is only in the files
    kind: str | None = ""  # of the tally that it is computed from; None: the client sends the number itself
    bounds: tuple[float, float] | None = None  # of such a number; what lies outside is left out
    pooled: bool = False  # a client's number counts as often as it has test examples, not once
    share: bool = False  # shown in %
    better: Literal["higher", "lower", ""] = ""
    headline: bool = False  # says how good a model is

    @property
    def source(self) -> str:
        """What the summary of its tally calls it."""
        return self.key.removeprefix(f"{self.kind[1:]}_") if self.kind else self.key

    @property
    def heading(self) -> str:
        """The title as the beginning of a sentence."""
        return self.title[:1].upper() + self.title[1:]


# In the order of the files' columns. Kinds of tallies: "" is the Monte-Carlo predictive, "_point" the posterior-mean
# network, "_scaled" the predictive after temperature scaling, "_val" the predictive on validation data.
METRICS = (
    Metric("accuracy", "accuracy", 0, share=True, better="higher", headline=True),
    Metric("nll", "NLL", 4, better="lower"),
    Metric("brier", "Brier score", 5, better="lower"),
    Metric("ece", "calibration error (ECE)", 6, better="lower"),
    Metric("point_accuracy", "accuracy of the mean network", 1, kind="_point", share=True, better="higher"),
    Metric("rmse", "RMSE", 2, better="lower", headline=True),
    Metric("coverage", "targets within 90 % intervals", 3, share=True),
    Metric("nonzero", "non-zero weights", 10, kind=None, bounds=(0.0, 1.0), share=True),
    Metric("entropy"),
    Metric("mutual_information"),
    Metric("scaled_nll", "NLL after temperature scaling", 7, kind="_scaled", better="lower"),
    Metric("scaled_brier", "Brier score after temperature scaling", 8, kind="_scaled", better="lower"),
    Metric("scaled_ece", "ECE after temperature scaling", 9, kind="_scaled", better="lower"),
    Metric("temperature", kind=None, bounds=(0.0, 1e3)),
    Metric("val_nll", "NLL on validation data", 11, kind=VALIDATION, better="lower"),
    Metric("val_accuracy", "accuracy on validation data", 12, kind=VALIDATION, share=True, better="higher"),
    Metric("conformal_coverage", "conformal coverage", 13, None, (0.0, 1.0), pooled=True, share=True),
    Metric("conformal_size", "mean size of conformal sets", 14, None, (0.0, 1e5), pooled=True),
    Metric("conformal_width", "mean width of conformal intervals", 15, None, (0.0, 1e40), pooled=True),
)
BY_KEY = {metric.key: metric for metric in METRICS}
SHOWN = tuple(
    sorted((metric for metric in METRICS if metric.place is not None), key=lambda metric: metric.place or 0)
)
TITLES = {metric.key: metric.title for metric in SHOWN}
HEADLINES = tuple(metric for metric in SHOWN if metric.headline)

MEASURED = tuple(f"{model}_{metric.key}" for metric in METRICS for model in MODELS)
# The mean over sites, each counting once: what no site can move far by saying that it has many examples.
BY_SITE = ("accuracy", "nll", "rmse")
OF_SITES = tuple(f"{model}_sites_{key}" for key in BY_SITE for model in MODELS)
CLUSTERS = ("clusters", "cluster_changes", "adjusted_rand")
PRIVACY = ("epsilon", "epsilon_examples")
EXCHANGE = ("clients_ok", "clients_failed", "seconds", "bytes_up", "bytes_down")
ROUND_COLUMNS = ("round", *MEASURED, *OF_SITES, *CLUSTERS, *PRIVACY, *EXCHANGE)
CLIENT_COLUMNS = ("round", "site", "cluster", "n_test", *MEASURED, "uncertainty", "status")
RESERVED = (
    "event",
    "time",
    "round",
    "rounds",
    "site",
    "message",
)  # what rows and events say beside their figures


@dataclass(frozen=True)
class Column:
    """A column of a method's own."""

    name: str
    title: str
    of: Literal["round", "client"] = (
        "round"  # a number in rounds.csv, or a cell of each client in clients.csv
    )

    def __post_init__(self) -> None:
        if not (self.name.isascii() and self.name.isidentifier()):
            raise ValueError(f'A column\'s name has letters, digits and "_", unlike {self.name!r}.')
        if self.name in RESERVED:
            raise ValueError(f'"{self.name}" is taken; a column of a method\'s own needs another name.')
        if self.of not in ("round", "client"):
            raise ValueError(f'The column {self.name} is of "round" or "client", not {self.of!r}.')

    def as_config(self) -> dict[str, str]:
        """As config.json keeps it."""
        return asdict(self)


def round_columns(own: Sequence[Column] = ()) -> tuple[str, ...]:
    """The columns of rounds.csv: those of every run, then the method's own that are not among them."""
    return _with_own(ROUND_COLUMNS, own, "round")


def client_columns(own: Sequence[Column] = ()) -> tuple[str, ...]:
    """The columns of clients.csv: those of every run, then the method's own that are not among them."""
    return _with_own(CLIENT_COLUMNS, own, "client")


def columns_of(config: Mapping[str, Any]) -> tuple[Column, ...]:
    """A method's own columns as config.json tells them; what is no column is left out."""
    said = config.get("columns")
    found: list[Column] = []
    for entry in said if isinstance(said, list) else []:
        try:
            found.append(Column(str(entry["name"]), str(entry["title"]), entry["of"]))
        except (KeyError, TypeError, ValueError):
            continue
    return tuple(found)


def _with_own(fixed: Sequence[str], own: Sequence[Column], of: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*fixed, *(column.name for column in own if column.of == of))))
