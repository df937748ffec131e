"""A round by hand for the tests of methods."""

from by_hand import one_round

__all__ = ["one_round"]
