"""A table of cells, for the terminal, Markdown and the page alike; and every figure as CSV."""

import csv
import io
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from fedbayes.protocol.columns import MODELS
from fedbayes.reproduce.cells import DATA
from fedbayes.reproduce.results import Result, shown, signed
from server_app.rows import NONE, WINDOW

TITLES = {
    "mnist": "MNIST",
    "fmnist": "FMNIST",
    "cifar10": "CIFAR-10",
    "svhn": "SVHN",
    "mnist-rotated": "MNIST–MNIST⊥",
    "fmnist-rotated": "FMNIST–FMNIST⊥",
    "cifar10-rotated": "CIFAR-10–CIFAR-10⊥",
    "mnist-fmnist": "MNIST–FMNIST",
}
NAMES = {
    "table1": "Table 1: personal and global models",
    "table2": "Table 2: sFedBayes, by λ at the start",
    "table3": "Table 3: clients of two kinds",
    "settings": "Hyper-parameters on MNIST medium (appendix)",
    "figures": "Figures 2 and 3",
}
ABOUT = (
    "Accuracy in per cent on all clients' test data, in the last round; mean ± sample sd where there are several "
    "seeds. The paper's runs have 800 rounds, and it gives the best of the last 100, which is chosen on test data."
)


@dataclass(frozen=True)
class Sheet:
    """One table."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    columns: Sequence[str]  # the names of the first ones, by which rows are told apart


def sheets(results: Sequence[Result]) -> list[Sheet]:
    """One for each data set; of the settings, one for each method."""
    groups: dict[str, list[Result]] = {}
    for one in results:
        if not one.cell.keeps:
            key = one.cell.method if one.cell.what == "settings" else one.cell.data
            groups.setdefault(key, []).append(one)
    return [_sheet(_title(some[0]), some) for some in groups.values()]


def _title(one: Result) -> str:
    title = TITLES[one.cell.data]
    return f"{one.cell.method} on {title} {one.cell.size}" if one.cell.what == "settings" else title


def _sheet(title: str, results: Sequence[Result]) -> Sheet:
    varied = list(dict.fromkeys(key for one in results for key, _ in one.cell.changes))
    sparse = any(one.paper("pm_nnr") for one in results)
    first = varied if results[0].cell.what == "settings" else ["size", "method", *varied]
    header = [*first, "rounds", "seeds"]
    for model in MODELS:
        name = model.upper()
        header += [f"{name} ours", "paper", "difference"]
        header += [f"{name} non-zero", "paper"] if sparse else []
    rows = []
    for one in results:
        places = {"size": one.cell.size, "method": one.cell.method, **dict(one.cell.changes)}
        cells = [places.get(key, NONE) for key in first]
        cells += [str(one.rounds), str(len(one.entries)) if one.entries else one.state]
        for model in MODELS:
            cells += [
                shown(one.ours(f"{model}_accuracy")),
                shown(one.paper(model)),
                signed(one.difference(model)),
            ]
            if sparse:
                cells += [shown(one.ours(f"{model}_nonzero")), shown(one.paper(f"{model}_nnr"))]
        rows.append(cells)
    return Sheet(title, header, rows, first)


def markdown(sheet: Sheet) -> str:
    lines = [" | ".join(sheet.header), "|".join("---" for _ in sheet.header)]
    lines += [" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in sheet.rows]
    return "\n".join(f"| {line} |" if " | " in line else f"|{line}|" for line in lines)


def flat_csv(results: Sequence[Result]) -> str:
    """Every cell with all its figures."""
    stream = io.StringIO(newline="")
    writer: csv.DictWriter[str] | None = None
    for one in results:
        row = _flat(one)
        if writer is None:
            writer = csv.DictWriter(stream, list(row))
            writer.writeheader()
        writer.writerow(row)
    return stream.getvalue()


def _flat(one: Result) -> dict[str, object]:
    row: dict[str, object] = {
        "cell": one.cell.name,
        "data": one.cell.data,
        "size": one.cell.size,
        "method": one.cell.method,
        "changes": " ".join(f"{key}={value}" for key, value in one.cell.changes),
        "rounds": one.rounds,
        "seeds": one.seeds,
        "state": one.state or "finished",
        "why": one.why,
    }
    for model in MODELS:
        pairs = {
            model: one.ours(f"{model}_accuracy"),
            f"{model}_paper": one.paper(model),
            f"{model}_best_of_last_{WINDOW}_chosen_on_test_data": one.best(f"{model}_accuracy"),
            f"{model}_nonzero": one.ours(f"{model}_nonzero"),
            f"{model}_nonzero_paper": one.paper(f"{model}_nnr"),
            f"{model}_ece": one.plain(f"{model}_ece"),
            f"{model}_nll": one.plain(f"{model}_nll"),
        }
        for key, value in pairs.items():
            row[key] = "" if value is None else round(value.mean, 4)
            row[f"{key}_sd"] = "" if value is None or value.sd is None else round(value.sd, 4)
        difference = one.difference(model)
        row[f"{model}_difference"] = "" if difference is None else round(difference, 4)
    rand = one.plain("adjusted_rand")
    row["adjusted_rand"] = "" if rand is None else round(rand.mean, 4)
    row["command"] = command(one)
    return row


def command(one: Result) -> str:
    """The run behind a cell, by itself."""
    words = {**one.cell.words(), "rounds": str(one.rounds)}
    given = [f"{key}={value}" for key, value in words.items()]
    return shlex.join(["fedbayes", "run", *given, "--clients", str(DATA[one.cell.data].clients)])
