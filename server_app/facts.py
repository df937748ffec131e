"""What a run knows of its network and its data before the first round, in words: for its start and its report."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedbayes.protocol.tables import Preparation

KINDS = {"bayesian": "Bayesian", "plain": "plain", "frozen": "frozen"}
MOST = 20  # names in a line


def facts_in_words(config: Mapping[str, Any]) -> list[str]:
    """One line each: the weights, the classes and the columns that all sites have agreed on."""
    return [line for line in (weights_in_words(config), *_agreed(config)) if line]


def weights_in_words(config: Mapping[str, Any]) -> str:
    """`Model dnn: 7,510 Bayesian weights, 1,000 frozen.`; nothing where an older run does not tell."""
    said = config.get("weights")
    counts = {kind: said.get(kind) for kind in KINDS} if isinstance(said, dict) else {}
    told = [f"{count:,} {KINDS[kind]}" for kind, count in counts.items() if count and isinstance(count, int)]
    if not told:
        return ""
    model = config.get("model")
    name = model.get("name") if isinstance(model, dict) else "?"
    return f"Model {name}: {', '.join([f'{told[0]} weights', *told[1:]])}."


def _agreed(config: Mapping[str, Any]) -> Iterator[str]:
    agreement = config.get("agreement")
    if not isinstance(agreement, dict):
        return
    if classes := agreement.get("classes"):
        yield f"{len(classes)} classes: {_names(classes)}."
    prepared = agreement.get("preparation")
    if prepared:
        columns = [column.in_words for column in Preparation.of_dict(prepared).columns]
        yield f"{len(columns)} columns: {_names(columns)}; {len(agreement['features'])} inputs."
    elif features := agreement.get("features"):
        yield f"{len(features)} columns: {_names(features)}."


def _names(names: Sequence[object]) -> str:
    return ", ".join(map(str, names[:MOST])) + (", …" if len(names) > MOST else "")
