"""What there is to say of a method, from its two halves: for `fedbayes methods` and docs/methods.md."""

import inspect
from dataclasses import dataclass, fields
from typing import Any

from fedbayes.errors import CommandError
from fedbayes.launch.app_bundle import methods
from fedbayes.launch.methods import halves
from fedbayes.protocol.columns import MODELS
from fedbayes.protocol.settings import Settings, defaults
from fedbayes.protocol.user_code import look_here
from strategies import ServerMethod
from strategies.rounds.state import Traits

GREEK = {"theta": "θ", "mu": "μ", "rho": "ρ", "lambda": "λ"}
# A trait that a method has where others have not (or the reverse), in words; what is told elsewhere has none.
TRAITS = {
    "every_site": "needs every site in every round",
    "single_uploads": "the server sees each upload, and keeps a round's",
    "uploads": "clients send nothing",
    "clusters": "has clusters of clients",
    "shared_part": "",
    "numbers": "only for classes, not for regressions",
    "personal_model": "",
    "global_model": "",
}


@dataclass(frozen=True)
class OwnSetting:
    """A setting that not every method has."""

    key: str
    takes: str
    default: Any


@dataclass(frozen=True)
class Entry:
    """One method."""

    name: str
    title: str
    idea: str
    paper: str
    models: tuple[str, ...]  # pm, gm
    receives: str  # what a client gets in a round: numbers for each weight …
    sends: str  # … and what it gives
    settings: tuple[OwnSetting, ...]
    traits: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]  # of its own in the tables: name and title
    notes: tuple[str, ...]  # what both halves say at length

    @property
    def models_in_words(self) -> str:
        return " and ".join(MODELS[name] for name in self.models)


def catalogue() -> list[Entry]:
    """All methods that ship."""
    return [entry(name) for name in methods()]


def entry(name: str) -> Entry:
    """CommandError where there is no such method."""
    if "." in name:
        look_here()
    if "." not in name and name not in (known := methods()):
        raise CommandError(f'There is no method "{name}"; there are {", ".join(known)}.')
    server, client = halves(name)
    made = server()
    has = {"pm": server.traits.personal_model, "gm": server.traits.global_model}
    receives, sends = _sent(made)
    return Entry(
        name=name,
        title=server.title or name,
        idea=server.idea,
        paper=server.paper,
        models=tuple(model for model in MODELS if has[model]),
        receives=receives,
        sends=sends,
        settings=_settings(name),
        traits=tuple(_traits(server)),
        columns=tuple((column.name, column.title) for column in server.columns),
        notes=tuple(inspect.getdoc(inspect.getmodule(half)) or "" for half in (server, client)),
    )


def _sent(method: ServerMethod) -> tuple[str, str]:
    """Numbers for each weight, down and up. A client that chooses its cluster itself gets all K models."""
    rows = ", ".join(GREEK.get(row, row) for row in method.family.rows)
    one = f"({rows})" if len(method.family.rows) > 1 else rows
    one += " of the shared part" if method.traits.shared_part else ""
    chooses = method.traits.clusters and not method.traits.single_uploads
    return f"K × {one}" if chooses else one, one if method.traits.uploads else "nothing"


def _settings(name: str) -> tuple[OwnSetting, ...]:
    shared = {str(field.alias) for field in Settings.model_fields.values()}
    found: dict[str, OwnSetting] = {}
    for half in halves(name):
        for field in half.reads.model_fields.values():
            key = str(field.alias)
            if key not in shared:
                default = defaults().get(key, field.get_default())
                found.setdefault(key, OwnSetting(key, field.description or "", default))
    return tuple(found[key] for key in sorted(found, key=lambda key: ("." in key, key)))


def _traits(server: type[ServerMethod]) -> list[str]:
    """What is not as usual."""
    usual, said = Traits(), []
    for field in fields(Traits):
        if getattr(server.traits, field.name) != getattr(usual, field.name):
            said.append(TRAITS.get(field.name, field.name.replace("_", " ")))
    if server.openings:
        said.append(f"{server.openings} exchange{'s' * (server.openings > 1)} with all sites before round 1")
    return [words for words in said if words]
