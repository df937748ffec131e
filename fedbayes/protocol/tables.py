"""How a table's columns become a network's inputs: what sites tell of their columns, and what they agree on.

A column is a number, a category, a boolean or a date. Each site tells, for every column, its kind and the sums that the
agreement needs; the agreement is plain data, kept with every model: which inputs a column becomes, what stands for a
missing value, which categories have an input of their own. Whatever else a category says is `other`.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NUMBER, CATEGORY, BOOLEAN, DATE = "number", "category", "boolean", "date"
KINDS = (NUMBER, CATEGORY, BOOLEAN, DATE)
MEASURED = (NUMBER, DATE)  # kinds that are scaled
MOST_CATEGORIES = 50  # of a column; the rarer ones are `other`
LONGEST_NAME = 200  # characters of a category that a site may tell
OTHER = "other"


class Disagreement(ValueError):
    """Claims that do not fit together; its text names the sites and is for the user."""


@dataclass(frozen=True)
class ColumnClaim:
    """What a site tells of one column of its training rows."""

    name: str
    kind: str  # empty where every cell is missing
    n: int  # rows with a value
    missing: int
    mean: float = 0.0  # of numbers, days and truths, where the agreement needs it
    variance: float = 0.0
    binary: bool = False  # a number that is only ever 0 or 1
    words: tuple[tuple[str, int], ...] = ()  # categories that enough rows have, and how many
    fixed: tuple[str, ...] = ()  # the categories, where the run gives them

    @classmethod
    def of_dict(cls, said: Mapping[str, Any]) -> "ColumnClaim":
        """ValueError, TypeError or KeyError for what is no claim: it comes from another machine."""
        words = tuple((str(word)[:LONGEST_NAME], int(count)) for word, count in said["words"])
        found = cls(
            str(said["name"]), str(said["kind"]), int(said["n"]), int(said["missing"]),
            float(said["mean"]), float(said["variance"]), bool(said["binary"]), words,
            tuple(str(word) for word in said["fixed"]),
        )  # fmt: skip
        possible = math.isfinite(found.mean) and math.isfinite(found.variance) and found.variance >= 0
        if found.kind not in ("", *KINDS) or min(found.n, found.missing) < 0 or not possible:
            raise ValueError("an impossible column")
        return found


@dataclass(frozen=True)
class TableClaim:
    """What a site tells of its table."""

    columns: tuple[ColumnClaim, ...]
    na: tuple[str, ...] = ()  # words for a missing value beside the usual ones
    scaled: bool = True  # whether all sites scale together

    @classmethod
    def of_dict(cls, said: Mapping[str, Any]) -> "TableClaim":
        columns = tuple(ColumnClaim.of_dict(column) for column in said["columns"])
        return cls(columns, tuple(str(word) for word in said["na"]), bool(said["scaled"]))

    @property
    def plain(self) -> bool:
        """Numbers alone, and none of them missing: nothing has to be prepared."""
        return all(column.kind == NUMBER and not column.missing for column in self.columns)


@dataclass(frozen=True)
class Column:
    """One column as all sites, and later users of the model, make inputs of it."""

    name: str
    kind: str
    fill: float = 0.0  # what stands for a missing number, day or truth: the mean over all sites
    missing: bool = False  # whether a further input says that the value was missing
    categories: tuple[str, ...] = ()  # each with an input of its own; what is none of them is `other`

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs that it becomes, in their order."""
        if self.kind == CATEGORY:
            names = tuple(f"{self.name}={word}" for word in (*self.categories, OTHER))
        else:
            names = (self.name,)
        return (*names, f"{self.name} missing") if self.missing else names

    @property
    def in_words(self) -> str:
        """`sex (f, m)`, `visit (date)`, `age`."""
        if self.kind == CATEGORY:
            listed = ", ".join(self.categories[:6]) + (", …" if len(self.categories) > 6 else "")
            return f"{self.name} ({listed or OTHER})"
        return self.name if self.kind == NUMBER else f"{self.name} ({self.kind})"


@dataclass(frozen=True)
class Preparation:
    """All columns, in the order of the network's inputs."""

    columns: tuple[Column, ...]
    na: tuple[str, ...] = ()  # words for a missing value beside the usual ones

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(name for column in self.columns for name in column.inputs)

    @property
    def scaled(self) -> tuple[bool, ...]:
        """For each input, whether it is a measurement and is brought to mean 0 and standard deviation 1."""
        return tuple(
            name == column.name and column.kind in MEASURED
            for column in self.columns
            for name in column.inputs
        )

    @classmethod
    def of_dict(cls, said: Mapping[str, Any]) -> "Preparation":
        return cls(
            tuple(
                Column(
                    str(one["name"]), str(one["kind"]), float(one["fill"]), bool(one["missing"]),
                    tuple(map(str, one["categories"])),
                )
                for one in said["columns"]
            ),
            tuple(map(str, said["na"])),
        )  # fmt: skip


def agree(claims: Mapping[str, TableClaim]) -> tuple[Preparation, tuple[float, ...], tuple[float, ...]]:
    """The preparation, and mean and variance of each input, of sites with the same columns in any order.

    Every column that does not fit is told at once, in a Disagreement.
    """
    columns: list[Column] = []
    means: list[float] = []
    variances: list[float] = []
    problems: list[str] = []
    for name in (column.name for column in next(iter(claims.values())).columns):
        parts = {
            site: next(column for column in claim.columns if column.name == name)
            for site, claim in claims.items()
        }
        kinds = {site: part.kind for site, part in parts.items() if part.kind}
        kind, problem = _kind(name, kinds, all(part.binary for part in parts.values() if part.kind == NUMBER))
        problems += [problem] if problem else []
        mean, variance = _pooled(part for part in parts.values() if part.n and part.kind != CATEGORY)
        missing = any(part.missing for part in parts.values())
        words = _categories(parts.values()) if kind == CATEGORY else ()
        columns.append(Column(name, kind, 0.0 if kind == CATEGORY else mean, missing, words))
        measured = [name == one and kind in MEASURED for one in columns[-1].inputs]
        means += [mean if one else 0.0 for one in measured]
        variances += [variance if one else 1.0 for one in measured]
    if problems:
        raise Disagreement(" ".join(problems))
    na = sorted({word for claim in claims.values() for word in claim.na})
    return Preparation(tuple(columns), tuple(na)), tuple(means), tuple(variances)


def _kind(name: str, kinds: Mapping[str, str], binary: bool) -> tuple[str, str]:
    """The kind of a column by what it is at each site, and a sentence where these do not fit together."""
    found = set(kinds.values())
    if len(found) <= 1:
        return next(iter(found), NUMBER), ""
    if found == {BOOLEAN, CATEGORY}:
        return CATEGORY, ""
    if found == {BOOLEAN, NUMBER} and binary:
        return BOOLEAN, ""
    sites = {kind: [site for site, its in kinds.items() if its == kind] for kind in sorted(found)}
    told = " and ".join(f"a {kind} at {_some(names)}" for kind, names in sites.items())
    return CATEGORY, f'The column "{name}" is {told}; kinds={name}:category, say, makes it one thing.'


def _some(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names[:3]) + (", …" if len(names) > 3 else "")


def _pooled(parts: Iterable[ColumnClaim]) -> tuple[float, float]:
    """Mean and variance of all sites' values together."""
    told = list(parts)
    n = sum(part.n for part in told)
    if not n:
        return 0.0, 1.0
    mean = sum(part.n * part.mean for part in told) / n
    return mean, sum(part.n * (part.variance + (part.mean - mean) ** 2) for part in told) / n


def _categories(parts: Iterable[ColumnClaim]) -> tuple[str, ...]:
    """Those that the run gives; else all that some site tells, the commonest where they are too many, sorted."""
    counts: dict[str, int] = {}
    for part in parts:
        if part.fixed:
            return part.fixed
        for word, count in part.words:
            counts[word] = counts.get(word, 0) + count
    common = sorted(counts, key=lambda word: (-counts[word], word))[:MOST_CATEGORIES]
    return tuple(sorted(common))


def given_kinds(text: str) -> dict[str, str]:
    """`stage:category,visit:date`."""
    return dict(_pairs(text.split(",")))


def given_categories(text: str) -> dict[str, tuple[str, ...]]:
    """`sex:f|m;stage:I|II|III`."""
    return {name: tuple(word.strip() for word in words.split("|")) for name, words in _pairs(text.split(";"))}


def _pairs(parts: Iterable[str]) -> Iterator[tuple[str, str]]:
    for part in parts:
        name, colon, value = part.partition(":")
        if colon:
            yield name.strip(), value.strip()
