"""What the ledger has of each cell, beside the paper's figure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fedbayes.reproduce import paper
from fedbayes.reproduce.cells import Cell, cells
from fedbayes.reproduce.ledger import FINISHED, NO_DATA, Entry, Ledger
from fedbayes.reproduce.work import Job
from server_app.rows import NONE

NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Spread:
    """Mean and sample sd over seeds; in per cent where it is a share."""

    mean: float
    sd: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        if not values:
            return None
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + (f" ± {self.sd:.2f}" if self.sd is not None else "")


@dataclass(frozen=True)
class Result:
    """One cell."""

    cell: Cell
    rounds: int
    entries: tuple[Entry, ...]  # the finished ones, of one number of rounds and different seeds
    state: str = ""  # what became of the runs, where none is finished …
    why: str = ""  # … and why, in a sentence

    def ours(self, column: str) -> Spread | None:
        """A figure of the last round, in per cent."""
        return Spread.of([100 * one.figures[column] for one in self.entries if column in one.figures])

    def plain(self, column: str) -> Spread | None:
        """A figure of the last round as it is."""
        return Spread.of([one.figures[column] for one in self.entries if column in one.figures])

    def best(self, column: str) -> Spread | None:
        """The best of the last 100 rounds, as the paper has it: chosen on test data."""
        return Spread.of([100 * one.best[column][0] for one in self.entries if column in one.best])

    def paper(self, figure: str) -> Spread | None:
        """`pm`, `gm`, `pm_nnr` or `gm_nnr`; pFedBayes after 400 rounds where ours has run so many."""
        found = paper.figures("table1" if self.cell.what == "figures" else self.cell.what)
        name = self.cell.name
        early = f"{name}{paper.EARLY}"
        given = found.get(early if self.rounds == 400 and early in found else name, {})
        return Spread(given[figure], given.get(f"{figure}_sd")) if figure in given else None

    def difference(self, model: str) -> float | None:
        ours, theirs = self.ours(f"{model}_accuracy"), self.paper(model)
        return None if ours is None or theirs is None else ours.mean - theirs.mean

    @property
    def seeds(self) -> str:
        return ",".join(str(one.seed) for one in self.entries)


def results(
    picked: Sequence[Cell],
    ledger: Ledger,
    rounds: int | None = None,
    seeds: Sequence[int] | None = None,
    longest: bool = False,
) -> list[Result]:
    """Of these cells; where none was asked for (`longest`), of as many rounds as the ledger has."""
    return [_result(cell, ledger, rounds, seeds, longest) for cell in picked]


def with_further(what: str, ledger: Ledger) -> list[Cell]:
    """The paper's cells, and those of other methods that the ledger knows."""
    named = {entry.name for entry in ledger.entries}
    return [cell for cell in cells(what, True) if not cell.extra or cell.name in named]


def _result(
    cell: Cell, ledger: Ledger, rounds: int | None, seeds: Sequence[int] | None, longest: bool
) -> Result:
    wanted = {**Job.of(cell, 1, rounds).settings}
    usual = cell.rounds(rounds)
    del wanted["rounds"], wanted["seed"]
    found = [one for one in ledger.entries if one.is_of(wanted) and (seeds is None or one.seed in seeds)]
    done = [one for one in found if one.state == FINISHED]
    if longest and rounds is None and done:
        usual = max(one.rounds for one in done)
    mine = tuple(one for one in done if one.rounds == usual)
    if mine:
        return Result(cell, usual, mine)
    others = [one for one in found if one.rounds == usual]
    if not others:
        return Result(cell, usual, (), NOT_RUN)
    last = others[-1]
    return Result(cell, usual, (), "not run: no data" if last.state == NO_DATA else last.state, last.why)


def shown(value: Spread | None) -> str:
    return NONE if value is None else str(value)


def signed(value: float | None) -> str:
    return NONE if value is None else f"{value:+.2f}".replace("-", "−")
