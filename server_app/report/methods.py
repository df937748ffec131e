"""What a method says of itself: its name, its idea in a sentence, whether it has clusters and a global model."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MethodWords:
    """A method for a reader."""

    title: str
    idea: str = ""
    clusters: bool = False
    global_model: bool = True


def words_of(config: Mapping[str, Any]) -> MethodWords:
    """As the run's config.json tells it; for a run of an earlier version, as the method itself does."""
    said, name = config.get("method"), str(config["settings"]["method"])
    if isinstance(said, Mapping) and said.get("title"):
        return MethodWords(
            str(said["title"]),
            str(said.get("idea", "")),
            bool(said.get("clusters", False)),
            bool(said.get("global_model", True)),
        )
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):  # a config may come from anyone
        return MethodWords(name)
    import strategies  # with Flower, which takes a second; most runs tell it themselves

    try:
        method = strategies.load(name)
    except (strategies.StrategyError, ImportError):
        return MethodWords(name)
    traits = getattr(method, "traits", None)
    title, idea = _WORDS.get(name, (name, ""))
    return MethodWords(
        getattr(method, "title", title),
        getattr(method, "idea", idea),
        bool(getattr(traits, "clusters", name == "cfedbayes")),
        bool(getattr(traits, "global_model", getattr(method, "wants_uploads", True))),
    )


# Of the methods that do not have `title` and `idea` yet.
_WORDS = {
    "pfedbayes": ("pFedBayes", "every client learns a Gaussian over its network's weights, with one prior for all"),
    "sfedbayes": ("sFedBayes", "every client learns a sparse (spike-and-slab) distribution over its network's weights"),
    "cfedbayes": ("cFedBayes", "clients of one kind share a prior, and each learns a distribution of its own"),
    "fedavg": ("FedAvg", "one network for everybody, the mean of the clients' weights"),
    "fedprox": ("FedProx", "FedAvg whose clients stay near the server's weights"),
    "local": ("local", "every client trains alone, for comparison"),
}  # fmt: skip
