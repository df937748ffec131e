"""The server's half of every method: one Flower Strategy a file, found by the method's name."""

from importlib import import_module

from strategies.rounds.loop import PersonalStrategy
from strategies.rounds.roster import StrategyError

__all__ = ["PersonalStrategy", "StrategyError", "load"]


def load(method: str) -> type[PersonalStrategy]:
    """The strategy in strategies/<method>.py: what the module calls METHOD."""
    try:
        found: type[PersonalStrategy] = import_module(f"strategies.{method}").METHOD
    except (ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name != f"strategies.{method}":
            raise
        raise StrategyError(f'There is no method "{method}": strategies/{method}.py is missing.') from None
    return found
