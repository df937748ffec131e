"""The cells of the paper's tables and figures: which data, which method, and what is added to its recipe."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedbayes.errors import CommandError
from fedbayes.reproduce import paper
from fedbayes.reproduce.recipes import EVAL_EVERY, RECIPES, ROUNDS

WHATS = ("table1", "table2", "table3", "settings", "figures")
SIZES = ("small", "medium", "large")
ENTROPY_ROUNDS = 10  # of the runs behind figure 2, which shows rounds 0, 1 and 10
ENTROPY = "entropy"
KEPT_GATES = 0.7  # of the gates that are open at the start, how many sFedBayes' DNN is asked to keep


@dataclass(frozen=True)
class Data:
    """One of the paper's data sets."""

    words: str  # what is added to `fedbayes run`
    clients: int
    model: str = "dnn"
    parts: tuple[str, ...] = ()  # further words by which --only finds it


DATA = {
    "mnist": Data("dataset=mnist", 10),
    "fmnist": Data("dataset=fmnist", 10),
    "cifar10": Data("dataset=cifar10", 20, "vgg"),
    "svhn": Data("dataset=svhn", 20, "vgg"),
    # Two groups of five clients each that hold all classes; the images of one are upside down …
    "mnist-rotated": Data("dataset=mnist layout=rotated groups=2", 10, "dnn", ("mnist", "rotated")),
    "fmnist-rotated": Data("dataset=fmnist layout=rotated groups=2", 10, "dnn", ("fmnist", "rotated")),
    "cifar10-rotated": Data("dataset=cifar10 layout=rotated groups=2", 10, "vgg", ("cifar10", "rotated")),
    # … or one holds 90 % MNIST and 10 % FMNIST, and the other the reverse.
    "mnist-fmnist": Data("dataset=mnist layout=mixed", 10, "dnn", ("mixed",)),
}
# Files of a data set that is not there as torchvision lays it out: data-dir/NAME.npz with x and y, and its sizes.
OWN_FILES = {"cifar10": "cifar-10-batches-py", "svhn": "train_32x32.mat"}
COUNTS = {"small": "25+475", "medium": "100+400", "large": "450+150"}


@dataclass(frozen=True)
class Cell:
    """One or more runs, one for each seed."""

    what: str
    data: str
    size: str
    method: str
    changes: tuple[tuple[str, str], ...] = ()  # of the recipe
    keeps: str = ""  # what the ledger keeps of it beside figures

    @cached_property
    def name(self) -> str:
        """As the paper's figures name it, and people: `mnist/small/pfedme`."""
        varied = [f"{key}={value}" for key, value in self.changes]
        return "/".join((self.data, self.size, self.method, *varied, *filter(None, [self.keeps])))

    @cached_property
    def parts(self) -> frozenset[str]:
        """The words by which --only finds it."""
        varied = [word for key, value in self.changes for word in (f"{key}={value}", value)]
        kept = [self.keeps] if self.keeps else []
        return frozenset(
            (self.data, *DATA[self.data].parts, self.size, self.method, self.model, *varied, *kept)
        )

    @property
    def model(self) -> str:
        return DATA[self.data].model

    @property
    def clients(self) -> int:
        return DATA[self.data].clients

    @property
    def extra(self) -> bool:
        """Whether the paper has no such row."""
        return self.what in ("table1", "table3") and self.name not in paper.figures(self.what)

    def rounds(self, asked: int | None) -> int:
        return ENTROPY_ROUNDS if self.keeps == ENTROPY else asked or ROUNDS[self.model]

    def words(self) -> dict[str, str]:
        """The settings of its runs, but for rounds, seed and places: data, recipe, and what this cell changes."""
        recipe = RECIPES[self.method]
        given = f"method={self.method} {DATA[self.data].words} size={self.size} model={self.model} "
        given += recipe.vgg if self.model == "vgg" else recipe.dnn
        every = "1" if self.keeps == ENTROPY else str(EVAL_EVERY[self.model])
        pairs = (word.partition("=")[::2] for word in given.split())
        found = {"eval-every": every, **dict(pairs), **dict(self.changes)}
        if self.method == "sfedbayes" and self.model == "dnn":
            found["sparsity-target"] = f"{KEPT_GATES * float(found['lambda-init']):g}"
        return found

    def found_in(self, data_dir: Path) -> dict[str, str]:
        """Other words for the same data, where data-dir has it as one .npz file."""
        dataset = self.words()["dataset"]
        file = data_dir / f"{dataset}.npz"
        if dataset not in OWN_FILES or (data_dir / OWN_FILES[dataset]).exists() or not file.exists():
            return {}
        return {"dataset": str(file), "size": COUNTS[self.size]}


def cells(what: str, further: bool = False) -> list[Cell]:
    """What the paper has, small data first; with `further`, the methods that it does not have too."""
    match what:
        case "table1" | "table3":
            return _compared(what, further)
        case "table2":
            return [
                Cell(what, paper.dataset_of(row), row["size"], "sfedbayes", paper.changes_of(row))
                for row in sorted(paper.rows(what), key=lambda row: SIZES.index(row["size"]))
            ]
        case "settings":
            return [
                Cell(what, "mnist", "medium", paper.method_of(row), paper.changes_of(row))
                for row in paper.rows(what)
            ]
        case "figures":
            curves = [cell for cell in _compared("table1", False) if cell.data == "mnist"]
            personal = [cell for cell in curves if "pm" in paper.figures("table1")[cell.name]]
            first = Cell(what, "mnist", "medium", "pfedbayes", keeps=ENTROPY)
            return [first, *(Cell(what, cell.data, cell.size, cell.method) for cell in personal)]
    raise CommandError(f'There is no "{what}" to reproduce; there are {", ".join(WHATS)}.')


def _compared(what: str, further: bool) -> list[Cell]:
    """Methods against data sets and sizes."""
    rows = [row for row in paper.rows(what) if not row["method"].endswith(paper.EARLY)]
    data = list(dict.fromkeys(paper.dataset_of(row) for row in rows))
    named = dict.fromkeys(paper.method_of(row) for row in rows)
    methods = list(dict.fromkeys((*named, *RECIPES))) if further else list(named)
    found = [Cell(what, name, size, method) for size in SIZES for name in data for method in methods]
    return [cell for cell in found if further or not cell.extra]


def chosen(what: str, only: str, further: bool = False) -> list[Cell]:
    """The cells that have every part of one of the given: `mnist/small/pfedme,fmnist/fedavg`, in any order of parts.

    A method that the paper does not have is found too when it is named.
    """
    if not only:
        return cells(what, further)
    every = cells(what, True)
    known = {part for cell in every for part in cell.parts}
    picked: dict[Cell, None] = {}
    for words in only.split(","):
        parts = [part for part in words.strip().lower().split("/") if part]
        if unknown := [part for part in parts if part not in known]:
            raise CommandError(f'{what} has no "{unknown[0]}"; --only takes {_listed(every)}.')
        named = further or any(part in RECIPES for part in parts)
        found = [cell for cell in every if cell.parts.issuperset(parts) and (named or not cell.extra)]
        if not found:
            raise CommandError(f'{what} has no cell that is all of "{words.strip()}".')
        picked |= dict.fromkeys(found)
    return [cell for cell in every if cell in picked]


def _listed(every: Iterable[Cell]) -> str:
    """All parts there are, kind by kind."""
    kinds: Mapping[str, dict[str, None]] = {"data": {}, "size": {}, "method": {}, "of": {}}
    for cell in every:
        kinds["data"] |= dict.fromkeys((cell.data, *DATA[cell.data].parts))
        kinds["size"][cell.size] = None
        kinds["method"][cell.method] = None
        kinds["of"] |= dict.fromkeys([f"{key}={value}" for key, value in cell.changes])
        kinds["of"] |= dict.fromkeys(filter(None, [cell.keeps]))
    return "; ".join(", ".join(parts) for parts in kinds.values() if parts)
