"""A grid over settings: `key=v1,v2` words of a command line, and the points that they span.

With several methods, a method's points have only the settings that it uses, so that no point is run twice.
"""

import hashlib
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from fedbayes.errors import CommandError
from fedbayes.protocol.settings import Settings, defaults

LONGEST = 80  # characters of a point's name
WITH_COMMAS = ("dataset", "classes")  # whose values may have commas themselves
# Points are compared on the same data, from one seed, in one folder: of these there is one value.
ONE_OF = (
    "seed", "layout", "groups", "dirichlet-alpha", "size", "noisy-clients", "task", "target", "test-fraction",
    "validation-fraction", "data-dir", "out-dir", "run-name",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Point:
    """One run of a grid."""

    method: str
    values: Mapping[str, str]  # where it is in the grid, without the method
    words: Mapping[str, str]  # all that is given for its run, with the method and these values

    @property
    def name(self) -> str:
        """Of its run: from its values, the same whenever the same point is asked for."""
        text = "_".join((self.method, *(f"{key}-{value}" for key, value in self.values.items())))
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", text)
        if name == text and len(name) <= LONGEST:
            return name
        return f"{name[:LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def in_words(self) -> str:
        return " ".join((f"method={self.method}", *(f"{key}={value}" for key, value in self.values.items())))


def parse_grid(words: Mapping[str, str]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The settings with several values, and those with one."""
    grid: dict[str, list[str]] = {}
    rest: dict[str, str] = {}
    for key, text in words.items():
        if "," not in text or key in WITH_COMMAS:
            rest[key] = text
            continue
        values = [value.strip() for value in text.split(",")]
        if key in ONE_OF:
            raise CommandError(
                f"`fedbayes tune` compares points on the same data and takes one value of {key}, not {text}."
            )
        if not all(values):
            raise CommandError(f'{key} has an empty value in "{text}".')
        if twice := [value for value in values if values.count(value) > 1]:
            raise CommandError(f"{key} has the value {twice[0]} twice.")
        grid[key] = values
    if not grid:
        raise CommandError(
            "`fedbayes tune` takes at least one setting with several values and commas between, such as zeta=1,10."
        )
    return grid, rest


def points(grid: Mapping[str, list[str]], rest: Mapping[str, str]) -> list[Point]:
    """All of them, method by method, in the order of the command line."""
    from fedbayes.launch.methods import keys_of
    from fedbayes.launch.plan import check_method

    chosen = grid.get("method") or [rest.get("method", str(defaults()["method"]))]
    for method in chosen:
        check_method(Settings.parse(defaults() | {"method": method}))
    shared = {str(field.alias) for field in Settings.model_fields.values()}
    uses = {method: shared | keys_of(method) for method in chosen}
    anyone = set().union(*uses.values())
    found = []
    for method in chosen:
        # What nobody uses stays, for its run to refuse it in words of its own.
        mine = {key for key in (*grid, *rest) if key in uses[method] or key not in anyone}
        axes = {key: values for key, values in grid.items() if key in mine and key != "method"}
        given = {key: value for key, value in rest.items() if key in mine} | {"method": method}
        for values in itertools.product(*axes.values()):
            at = dict(zip(axes, values, strict=True))
            found.append(Point(method, at, given | at))
    return found
