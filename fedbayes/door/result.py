"""What a run gives: tables, a picture, models, a report. All of it is read from the run folder when it is asked for."""

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbayes.door.given import model_setting
from fedbayes.errors import CommandError
from fedbayes.protocol.columns import BY_KEY, MODELS
from server_app.rows import headline, last, series
from server_app.stored import read_config, read_rows

if TYPE_CHECKING:
    from fedbayes.model.personal import PersonalModel

TEXT = {"site": str, "status": str}  # columns that are no numbers, even where they look so
COLOURS = {"pm": "#0072b2", "gm": "#009e73"}


class Result:
    """One run on this machine's disk."""

    def __init__(self, folder: Path, model: Any = None) -> None:
        self.folder = folder
        self._model = model

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def config(self) -> dict[str, Any]:
        """What config.json says of it: settings, sites, state."""
        return read_config(self.folder) or {}

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.config.get("settings", {}))

    @property
    def rounds(self) -> Any:
        """rounds.csv: one row for each round. A pandas DataFrame, or a list of dictionaries without pandas."""
        return table(self._text("rounds.csv"))

    @property
    def clients(self) -> Any:
        """clients.csv: one row for each client and round that it was asked in."""
        return table(self._text("clients.csv"))

    def personal(self, site: int | str) -> "PersonalModel":
        """The model of one client: `result.personal(3).predict(x).probabilities`."""
        from fedbayes.model.personal import PersonalModel, find_personal

        self._give_the_network()
        states = self.folder.parent / "state"
        return PersonalModel.load(find_personal(f"{self.name}/{site}", states), trust_code=True)

    def global_model(self, which: int | str = "") -> "PersonalModel":
        """The model that all clients share; of several (clusters), one by its number."""
        from fedbayes.model.finished import Finished

        self._give_the_network()
        return Finished.open(self.folder).global_model(str(which))

    def report(self) -> Path:
        """The page report.html, which opens offline; written again if it is gone."""
        from server_app.report import write_report

        file = self.folder / "report.html"
        return file if file.exists() else write_report(self.folder)

    def plot(self, metric: str | None = None, ax: Any = None) -> Any:
        """A metric of the personal and the global models over the rounds; matplotlib's Axes."""
        try:
            import matplotlib.pyplot as pyplot
        except ImportError:
            raise CommandError("plot() needs matplotlib; install it with `pip install matplotlib`.") from None
        rows = read_rows(self.folder / "rounds.csv")
        metric = metric or headline(rows)
        lines = {model: series(rows, f"{model}_{metric}") for model in MODELS}
        if not any(lines.values()):
            known = ", ".join(
                key for key in BY_KEY if any(series(rows, f"{model}_{key}") for model in MODELS)
            )
            raise CommandError(f'The run {self.name} has no "{metric}"; it has {known or "no figures yet"}.')
        ax = ax or pyplot.subplots(figsize=(6, 4))[1]
        for model, points in lines.items():
            if points:
                ax.plot(
                    *zip(*points, strict=True),
                    marker="o",
                    markersize=3,
                    color=COLOURS[model],
                    label=MODELS[model],
                )
        title = BY_KEY[metric].title if metric in BY_KEY else ""
        ax.set(title=self.name, xlabel="round", ylabel=title or metric)
        ax.grid(alpha=0.3)
        ax.legend()
        return ax

    def __repr__(self) -> str:
        rows = read_rows(self.folder / "rounds.csv")
        key = headline(rows)
        scores = [
            f"{MODELS[model]} {BY_KEY[key].title} {value:.4f}"
            for model in MODELS
            if (value := last(rows, f"{model}_{key}")) is not None
        ]
        done = max((int(row["round"]) for row in rows), default=0)
        return f"<{self.name}: {', '.join([str(self.config.get('state')), f'{done} rounds', *scores])}>"

    def _text(self, name: str) -> str:
        file = self.folder / name
        if not file.exists():
            raise CommandError(f"The run {self.name} has no {name}: no round of it is complete.")
        return file.read_text("utf-8")

    def _give_the_network(self) -> None:
        """To this process, where the run's network was an object: another run may have had another one since."""
        if self._model is not None:
            model_setting(self._model)


def table(text: str) -> Any:
    """CSV as a pandas DataFrame; without pandas as dictionaries, None where a cell is empty."""
    try:
        import pandas
    except ImportError:
        return [
            {key: _value(key, cell) for key, cell in row.items()} for row in csv.DictReader(io.StringIO(text))
        ]
    return pandas.read_csv(io.StringIO(text), dtype=TEXT)


def _value(key: str, cell: str) -> int | float | str | None:
    if not cell:
        return None
    if key in TEXT:
        return cell
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell
