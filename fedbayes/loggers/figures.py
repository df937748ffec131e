"""The figures in a run's events, by the names that loggers give them: accuracy/personal, round/seconds and so on."""

from collections.abc import Mapping
from typing import Any

from fedbayes.protocol.columns import MODELS, RESERVED


def figures_of(event: Mapping[str, Any]) -> dict[str, float]:
    """What one event tells in numbers; nothing for most kinds of them."""
    match event.get("event"):
        case "round":
            named = {name: f"round/{name}" for name in event if name not in RESERVED}
        case "evaluated":
            metrics = [name.partition("_") for name in event if name.partition("_")[0] in MODELS]
            named = {f"{model}_{metric}": f"{metric}/{MODELS[model]}" for model, _, metric in metrics}
        case _:
            return {}
    return {tag: event[name] for name, tag in named.items() if isinstance(event[name], int | float)}
