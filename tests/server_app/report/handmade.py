"""Pieces of run folders made by hand: a tally that is empty but for some bins, counts, CSV files."""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

MakeRun = Callable[..., Path]
Row = Mapping[str, Any]


def write_csv(file: Path, rows: Sequence[Row]) -> None:
    names = list(dict.fromkeys(key for row in rows for key in row))
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, names, restval="")
        writer.writeheader()
        writer.writerows(rows)


def tally(**bins: tuple[float, float, float]) -> dict[str, list[float]]:
    """tally(b3=(examples, sum of confidence, right)): a tally that is empty but for these bins."""
    numbers: dict[str, list[float]] = {
        name: [0.0] * 15 for name in ("bin_n", "bin_confidence", "bin_correct")
    }
    for name, values in bins.items():
        for key, value in zip(numbers, values, strict=True):
            numbers[key][int(name[1:])] = value
    total = sum(numbers["bin_n"])
    return {
        "n": [total],
        "correct": [sum(numbers["bin_correct"])],
        "nll": [1.0],
        "brier": [1.0],
        "entropy": [1.0],
        "mutual_information": [0.5],
        **numbers,
    }


def entropies(**bins: float) -> list[float]:
    """entropies(b0=5, b19=5): counts of 20 bins."""
    counts = [0.0] * 20
    for name, count in bins.items():
        counts[int(name[1:])] = count
    return counts
