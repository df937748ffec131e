"""A run's app in Flower's folder of apps, whole or not at all.

Flower copies an app file by file to where it is imported from, and takes a folder that is there for one that is
complete: of two runs that begin together, one imports half an app, and a process that is killed meanwhile leaves half
of it for ever. So it is put there before anybody asks for it, by renaming a folder that is complete.
"""

import filecmp
import tempfile
from contextlib import suppress
from pathlib import Path
from zipfile import BadZipFile

import click
from flwr.cli.install import install_from_fab
from flwr.supercore.utils import get_flwr_home


def install(content: bytes) -> None:
    """Put it there, and in place of what is not the same; what is no app is left for Flower to refuse."""
    home = Path(get_flwr_home())
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        try:
            made = install_from_fab(content, Path(scratch), skip_prompt=True)
        except (click.ClickException, BadZipFile, ValueError, KeyError, OSError):
            return
        place = home / made.relative_to(scratch)
        if is_same(made, place):
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            place.rename(Path(scratch) / "before")
        with suppress(OSError):  # somebody else was sooner
            made.rename(place)


def is_same(made: Path, place: Path) -> bool:
    """Whether everything that was made is in place."""
    files = [path.relative_to(made) for path in made.rglob("*") if path.is_file()]
    return not any(filecmp.cmpfiles(made, place, map(str, files), shallow=False)[1:])
