"""How many examples a site can have, beside the others. It says so itself, and whoever says most is heard most.

Honest sites differ a thousandfold, and nothing is done about that. One that claims more is named, and does not count by
its claim.
"""

from collections.abc import Mapping

UNLIKELY, IMPLAUSIBLE = 100, 1000  # times as many examples as the others, in the middle of them


def beyond(sizes: Mapping[str, int], times: float) -> dict[str, float]:
    """Who has more than so many times the median of the others that have any, and that median."""
    some = sorted(size for size in sizes.values() if size)
    if len(some) < 2:
        return {}
    # Without one of its larger half, the median of the others lies no lower than that of the smaller rest.
    least = _median_without(some, len(some) - 1)
    found = {}
    for name, size in sizes.items():
        if size > times * least and size > times * (other := _median_without(some, some.index(size))):
            found[name] = other
    return found


def _median_without(some: list[int], left_out: int) -> float:
    """Of sorted numbers without one of them."""
    low, high = ((at + (at >= left_out)) for at in ((len(some) - 2) // 2, (len(some) - 1) // 2))
    return (some[low] + some[high]) / 2


def counted(sizes: Mapping[str, int]) -> dict[str, int]:
    """What each site's examples weigh: their number, or where it is not plausible the median of the others."""
    return {**sizes, **{name: round(others) for name, others in beyond(sizes, IMPLAUSIBLE).items()}}
