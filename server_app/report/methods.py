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
    openings: bool = False  # an exchange before round 1, which may find the clusters


def words_of(config: Mapping[str, Any]) -> MethodWords:
    """As the run's config.json tells it; for a run of an earlier version, as the method itself does."""
    said, name = config.get("method"), str(config["settings"]["method"])
    if isinstance(said, Mapping) and said.get("title"):
        return MethodWords(
            str(said["title"]),
            str(said.get("idea", "")),
            bool(said.get("clusters", False)),
            bool(said.get("global_model", True)),
            bool(said.get("openings", said.get("clusters", False))),
        )
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):  # a config may come from anyone
        return MethodWords(name)
    import strategies  # with Flower, which takes a second; most runs tell it themselves

    try:
        method = strategies.load(name)
    except (strategies.StrategyError, ImportError):
        return MethodWords(name)
    traits = method.traits
    return MethodWords(
        method.title or name, method.idea, traits.clusters, traits.global_model, bool(method.openings)
    )
