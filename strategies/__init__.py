"""The server's half of every method, one file each, found by the method's name."""

from fedbayes.protocol.user_code import UserCodeError, find_half
from strategies.rounds.method import ServerMethod
from strategies.rounds.roster import StrategyError

__all__ = ["ServerMethod", "StrategyError", "load"]


def load(method: str) -> type[ServerMethod]:
    """What strategies/<method>.py calls METHOD; of `package.module`, what its module `server` does."""
    try:
        found: type[ServerMethod] = find_half("strategies", method, "server")
    except UserCodeError as error:
        raise StrategyError(str(error)) from None
    return found
