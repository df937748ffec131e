"""Who says that it has more examples than can be, against the median by hand and by brute force."""

import random
from statistics import median

from fedbayes.protocol.plausible import IMPLAUSIBLE, UNLIKELY, beyond, counted


def test_honest_sites_of_very_different_sizes_are_left_alone() -> None:
    for sizes in (
        (20, 20_000),
        (20, 20, 20, 20_000),
        (20, 50, 300, 20_000, 20_000),
        (0, 0, 0, 20_000),
        (7,),
        (),
    ):
        named = {str(i): size for i, size in enumerate(sizes)}
        assert not beyond(named, IMPLAUSIBLE)
        assert counted(named) == named
    assert beyond({"a": 20, "b": 50, "c": 20_000}, UNLIKELY) == {"c": 35.0}, "named all the same"


def test_one_that_claims_more_is_found_and_weighs_as_the_others_do() -> None:
    sizes = {"a": 20, "b": 50, "c": 0, "liar": 10**9}
    assert beyond(sizes, IMPLAUSIBLE) == {"liar": 35.0}
    assert counted(sizes) == {"a": 20, "b": 50, "c": 0, "liar": 35}
    assert beyond({"a": 20, "b": 10**6, "c": 10**6}, IMPLAUSIBLE) == {}, "two of three agree"


def test_the_median_is_that_of_the_others() -> None:
    draw = random.Random(0)
    for _ in range(300):
        sizes = {str(i): int(10 ** draw.uniform(0, 6)) for i in range(draw.randrange(2, 9))}
        others = {name: median(n for other, n in sizes.items() if other != name) for name in sizes}
        assert beyond(sizes, 7) == {name: others[name] for name, n in sizes.items() if n > 7 * others[name]}
