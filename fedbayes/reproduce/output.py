"""Everything that is made of the ledger: tables, verdicts, Markdown, CSV and one page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedbayes.protocol.files import replace_file
from fedbayes.reproduce.cells import Cell, cells
from fedbayes.reproduce.checks import Figure, Verdict, figures_in, papers_own, verdict
from fedbayes.reproduce.claims import claims
from fedbayes.reproduce.ledger import FAILED, Ledger
from fedbayes.reproduce.recipes import ROUNDS
from fedbayes.reproduce.results import Result, results, with_further
from fedbayes.reproduce.sheets import ABOUT, NAMES, Sheet, flat_csv, markdown, sheets
from server_app.report.certainty import entropy

COLUMNS = {"pm": "pm_accuracy", "gm": "gm_accuracy", "pm_nnr": "pm_nonzero", "gm_nnr": "gm_nonzero"}


@dataclass(frozen=True)
class Output:
    """One table or set of figures as the ledger has it."""

    what: str
    results: Sequence[Result]
    others: dict[tuple[str, str], Result]  # of every cell that a claim may ask for

    @classmethod
    def of(
        cls,
        what: str,
        picked: Sequence[Cell] | None,
        ledger: Ledger,
        rounds: int | None = None,
        seeds: Sequence[int] | None = None,
        longest: bool = False,
    ) -> "Output":
        """Of these cells, or of all of the table."""
        shown = with_further(what, ledger) if picked is None else picked
        asked = {figure.what for claim in claims(what) for figure in figures_in(claim)}
        every = [cell for table in asked for cell in cells(table)]
        found = results(every, ledger, rounds, seeds, longest)
        return cls(
            what,
            results(shown, ledger, rounds, seeds, longest),
            {(one.cell.what, one.cell.name): one for one in found},
        )

    @cached_property
    def sheets(self) -> list[Sheet]:
        return sheets(self.results)

    @cached_property
    def verdicts(self) -> list[Verdict]:
        return [verdict(claim, self._ours, papers_own) for claim in claims(self.what)]

    def _ours(self, figure: Figure) -> float | None:
        result = self.others.get((figure.what, figure.name))
        if result is None or not result.entries:
            return None
        if figure.figure == "entropy":
            told = [one.entropy.get(str(figure.at), {}) for one in result.entries]
            values = [entropy(counts) for sites in told for counts in sites.values() if counts]
            return sum(values) / len(values) if values else None
        if figure.at is not None:
            curves = [dict(one.curves.get(COLUMNS[figure.figure], ())) for one in result.entries]
            values = [100 * line.get(figure.at, math.nan) for line in curves]
            mean = sum(values) / len(values)
            return None if math.isnan(mean) else mean
        spread = result.ours(COLUMNS[figure.figure])
        return spread.mean if spread else None

    def claim_lines(self) -> list[str]:
        """The verdicts for a terminal."""
        if not any(one.ours.count(True) + one.ours.count(False) for one in self.verdicts):
            return []
        width = max(len(one.mark) for one in self.verdicts)
        lines = ["What the paper says of it:"]
        for one in self.verdicts:
            where = f" (not: {', '.join(one.against)})" if one.against else ""
            lines.append(f"  {one.mark:<{width}}  {one.claim.says}: {one.counts}{where}")
        return lines

    @property
    def words(self) -> list[str]:
        """What is to be known of all figures."""
        said = [ABOUT]
        for model in ROUNDS:
            mine = [one for one in self.results if one.entries and one.cell.model == model]
            some = sorted({one.rounds for one in mine if not one.cell.keeps})
            if len(some) > 1:
                count = " and of ".join(map(str, some))
                said.append(
                    f"Careful: there are runs of {count} rounds; only those of as many can be compared."
                )
        return said

    def markdown(self) -> str:
        parts = [f"# {NAMES[self.what]}", *self.words]
        parts += [f"## {sheet.title}\n\n{markdown(sheet)}" for sheet in self.sheets]
        rows = [
            [one.claim.says, one.mark, one.counts, ", ".join(one.against) or "–", one.in_paper]
            for one in self.verdicts
        ]
        parts.append(f"## What the paper says of it\n\n{markdown(Sheet('', VERDICTS, rows, ()))}")
        failed = [f"- {one.cell.name}: {one.why}" for one in self.results if one.state == FAILED]
        parts += ["## What failed\n\n" + "\n".join(failed)] if failed else []
        return "\n\n".join(parts) + "\n"

    def write(self, folder: Path) -> list[Path]:
        """WHAT.md, WHAT.csv and WHAT.html."""
        from fedbayes.reproduce.page import render

        folder.mkdir(parents=True, exist_ok=True)
        texts = {"md": self.markdown(), "csv": flat_csv(self.results), "html": render(self)}
        for kind, text in texts.items():
            replace_file(folder / f"{self.what}.{kind}", text.encode())
        return [folder / f"{self.what}.{kind}" for kind in texts]


VERDICTS = ("", "here", "places", "not in", "by the paper's own figures")
