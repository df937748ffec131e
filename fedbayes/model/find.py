"""The model that a word of a command line means."""

import re
from pathlib import Path

from fedbayes.model.finished import Finished
from fedbayes.model.personal import PersonalModel, find_personal

GLOBAL = re.compile(r"(?P<run>.+)/global(-(?P<which>[A-Za-z0-9_]+))?")


def find_model(word: str, out_dir: Path) -> PersonalModel:
    """A file, its folder, RUN/SITE, or RUN/global: the model that all clients share (RUN/global-0 of several).

    A site may be called global: then it is meant.
    """
    states, asked = out_dir / "state", GLOBAL.fullmatch(word.rstrip("/"))
    if asked and not (states / word).exists() and not Path(word).exists():
        folder = out_dir / asked["run"]
        if (folder / "config.json").exists():
            return Finished.open(folder).global_model(asked["which"] or "")
    return PersonalModel.load(find_personal(word, states))
