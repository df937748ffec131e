"""The paper's own figures, from the tables in `paper/`: accuracies and non-zero ratios in per cent."""

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

DATA = {
    "MNIST-MNIST_ROT": "mnist-rotated",
    "FMNIST-FMNIST_ROT": "fmnist-rotated",
    "CIFAR10-CIFAR10_ROT": "cifar10-rotated",
}
FIGURES = ("pm", "pm_sd", "gm", "gm_sd", "pm_nnr", "pm_nnr_sd", "gm_nnr", "gm_nnr_sd")
VARIED = ("rho-init", "zeta", "lr-personal", "lr-global", "lambda-init")  # in the order of a cell's name
ROUNDS = 800
EARLY = " (400)"  # pFedBayes has figures after 400 rounds too

Figures = Mapping[str, float]


@cache
def rows(table: str) -> tuple[dict[str, str], ...]:
    """A table as it is printed."""
    text = (files("fedbayes.reproduce") / "paper" / f"{table}.csv").read_text("utf-8")
    return tuple(csv.DictReader(text.splitlines()))


@cache
def figures(table: str) -> dict[str, Figures]:
    """Of each cell, by its name: `mnist/small/pfedme`, `mnist/small/sfedbayes/lambda-init=0.3`."""
    found: dict[str, Figures] = {}
    for row in rows(table):
        given = {key: float(row[key]) for key in FIGURES if row.get(key)}
        if row.get("dataset") == "SVHN" and row.get("method") == "HeurFedAMP":
            # A slip of the table: it has no global model, so what stands in that column is its personal one's.
            given = {key.replace("gm", "pm"): value for key, value in given.items()}
        found[_name(row)] = given
    return found


def method_of(row: Mapping[str, str]) -> str:
    """Our name of a row's method: `perfedavg` for Per-FedAvg; the later of pFedBayes' two rows has no addition."""
    return row.get("method", "sFedBayes").lower().replace("-", "").removesuffix(" (800)")


def dataset_of(row: Mapping[str, str]) -> str:
    named = row.get("dataset", "MNIST")  # the studies of settings are on MNIST medium
    return DATA.get(named, named.lower())


def changes_of(row: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The settings that make this row's cell another than its neighbours."""
    given = {**row, "lambda-init": row.get("lambda-init") or row.get("lambda_init", "")}
    return tuple((key, given[key]) for key in VARIED if given.get(key))


def _name(row: Mapping[str, str]) -> str:
    varied = [f"{key}={value}" for key, value in changes_of(row)]
    return "/".join((dataset_of(row), row.get("size", "medium"), method_of(row), *varied))
