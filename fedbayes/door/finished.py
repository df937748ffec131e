"""`fedbayes.load` and `fedbayes.compare`: runs that are there already."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedbayes.door.result import Result, table
from fedbayes.door.run import folder_of, one_kind_of_error
from fedbayes.errors import CommandError


def load(run: str | Path, *, out_dir: str | Path | None = None, model: Any = None) -> Result:
    """The result of a run, by its name in `out_dir` ("runs" unless given) or by its folder.

    `model` is the run's network where that was given as an object: its models cannot be used without.
    """
    with one_kind_of_error():
        return Result(folder_of(run, out_dir), model)


def compare(runs: Sequence[str | Path | Result], *, out_dir: str | Path | None = None) -> Any:
    """Runs side by side: a row for each group that differs in more than the seed, mean and sd of every figure.

    A pandas DataFrame, or a list of dictionaries without pandas.
    """
    from server_app.report.compare import sheet
    from server_app.report.files import read_run
    from server_app.report.groups import group

    with one_kind_of_error():
        folders = [folder_of(run, out_dir) for run in runs]
        if len(folders) < 2:
            raise CommandError(f"compare() takes two runs or more, not {len(folders)}.")
        if twice := [folder.name for folder in folders if folders.count(folder) > 1]:
            raise CommandError(f"compare() was given the run {twice[0]} twice.")
        return table(sheet(group([read_run(folder) for folder in folders])))
