"""The model that a word of a command line means."""

import re
from pathlib import Path

from fedbayes.model.finished import Finished
from fedbayes.model.personal import PersonalModel, find_personal

GLOBAL = re.compile(r"(?P<run>.+)/global(-(?P<which>[A-Za-z0-9_]+))?")


def find_model(word: str, out_dir: Path, trust_code: bool = False) -> PersonalModel:
    """A file, its folder, RUN/SITE, or RUN/global: the model that all clients share (RUN/global-0 of several).

    A site may be called global: then it is meant. RUN names a run of one's own, and with it the code that it used; a
    file or folder may come from anybody, and what it names is imported only with `trust_code`.
    """
    states, asked = out_dir / "state", GLOBAL.fullmatch(word.rstrip("/"))
    if asked and not (states / word).exists() and not Path(word).exists():
        folder = out_dir / asked["run"]
        if (folder / "config.json").exists():
            return Finished.open(folder).global_model(asked["which"] or "")
    found = find_personal(word, states)
    return PersonalModel.load(found, trust_code or _is_of_own_run(found, out_dir))


def _is_of_own_run(found: Path, out_dir: Path) -> bool:
    """Whether it is the store of a run whose folder is among one's own."""
    own = found.is_dir() and found.resolve().parent.parent == (out_dir / "state").resolve()
    return own and (out_dir / found.resolve().parent.name / "config.json").exists()
