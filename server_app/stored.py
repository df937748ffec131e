"""A run folder OUT/RUN as it is read: settings, rows, checkpoint, and what a run that goes on must find there."""

import csv
import json
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    TypeAdapter,
    ValidationError,
)
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedbayes.protocol.agreement import Agreement
from fedbayes.protocol.columns import MEASURED, ROUND_COLUMNS
from fedbayes.protocol.json_text import parse_json
from fedbayes.protocol.settings import Settings

FORMAT = 1
RESUME_MAY_CHANGE = ("rounds", "eval-every")
PLACES = ("resume", "resume-with", "data-changed", "out-dir", "data-dir")  # how and where, not what
CLOSING_ROUNDS = 100
MOST = 10**7  # clients of a run


class Sizes(BaseModel):
    model_config = ConfigDict(strict=True)

    n_train: int
    n_test: int
    n_validation: int = 0


@cache
def _agreements() -> TypeAdapter[Agreement]:
    return TypeAdapter(Agreement)


def _as_agreed(said: dict[str, Any]) -> dict[str, Any]:
    """What stands under agreement, if it can be read as one."""
    try:
        _agreements().validate_json(json.dumps(said), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return said


class ConfigFile(BaseModel):
    """The types of what config.json says. Versions and kinds of runs differ in what they say; nothing is required."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())

    settings: dict[str, str | bool | int | FiniteFloat | None] = {}
    uuid: str = ""
    run: str = ""
    state: str = ""
    message: str | None = ""
    created: str = ""
    clients: Annotated[int, Field(ge=0, le=MOST)] = 0
    partitions: Annotated[int, Field(ge=0, le=MOST)] = 0
    sites: dict[str, Sizes] = {}
    classes: list[str] = []
    agreement: Annotated[dict[str, Any], AfterValidator(_as_agreed)] = {}
    model: dict[str, str | list[int]] = {}
    method: dict[str, str | bool | int] = {}
    layers: dict[str, Annotated[int, Field(ge=0, le=2**40)]] = {}
    columns: list[Any] = []
    left_out: list[str] = []


class RunError(Exception):
    """A run that cannot start or go on; its text is one sentence for the user."""


def read_config(path: Path) -> dict[str, Any] | None:
    """config.json of the run folder, or None where there is no run."""
    file = path / "config.json"
    try:
        config: Any = parse_json(file.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"{file} cannot be read: {str(error)[:200]}.") from None
    if not isinstance(config, dict):
        raise RunError(f"{file} cannot be read: it holds no settings.")
    if config.get("format") != FORMAT:
        said = str(config.get("format"))[:40]
        raise RunError(f"{path} has format {said}; this version reads format {FORMAT}.")
    try:
        ConfigFile.model_validate(config)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))[:60]
        said = first["msg"].removeprefix("Value error, ")[:120]
        raise RunError(f"{file} cannot be used: {where}: {said}.") from None
    found: dict[str, Any] = config
    return found


def read_rows(file: Path) -> list[dict[str, str]]:
    """The rows of rounds.csv or clients.csv, empty cells as empty strings; RunError where it is no such file."""
    if not file.exists():
        return []
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            return [row for row in csv.DictReader(stream) if None not in row.values()]
    except (csv.Error, UnicodeDecodeError) as error:
        raise RunError(f"{file} cannot be used: {error}.") from None


def load_checkpoint(path: Path) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
    """Round, tensors and memory in a run folder's checkpoint; None without one."""
    file = path / "checkpoint.safetensors"
    if not file.exists():
        return None
    try:
        with safe_open(file, framework="pt") as stored:
            metadata = stored.metadata() or {}
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        if metadata.get("format") != str(FORMAT):
            raise RunError(f"{file} has format {metadata.get('format')}; this version reads {FORMAT}.")
        memory = parse_json(metadata["memory"])
        if not isinstance(memory, dict):
            raise ValueError("its memory is none")
        return int(metadata["round"]), tensors, memory
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
        raise RunError(f"{file} is damaged ({error}); the run cannot be resumed from it.") from None


def saved_rounds(path: Path) -> int | None:
    """How many rounds a checkpoint holds, from its header alone; None without one that can be read."""
    try:
        with safe_open(path / "checkpoint.safetensors", framework="numpy") as stored:
            return max(0, int((stored.metadata() or {})["round"]))
    except (SafetensorError, OSError, KeyError, ValueError):
        return None


def check_resumable(config: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """A resumed run may change only what cannot change its past rounds."""
    for key, before in config["settings"].items():
        now = settings.get(key)
        if key not in (*RESUME_MAY_CHANGE, *PLACES) and now != before:
            raise RunError(
                f"The run was started with {key}={before}, not {now}; --resume may change only "
                f"{' and '.join(RESUME_MAY_CHANGE)}."
            )


def facts_of_both(
    path: Path,
    config: Mapping[str, Any],
    settings: Settings,
    facts: Mapping[str, Any],
    changed: Collection[str] = (),
) -> dict[str, Any]:
    """What a resumed run knows: the facts of now, with all sites of before; RunError where they contradict it.

    `changed` are the sites that say themselves that their data are others now.
    """
    check_resumable(config, settings.as_config())
    for site, sizes in facts["sites"].items():
        if site not in changed and config["sites"].get(site, sizes) != sizes:
            raise RunError(
                f"Site {site} had {config['sites'][site]} when {path} was started and now has {sizes}: "
                "its data has changed; --data-changed goes on all the same."
            )
    saved = load_checkpoint(path)
    if saved and saved[0] > settings.rounds:
        raise RunError(f"{path} has {saved[0]} rounds already; resume it with rounds={saved[0]} or more.")
    for key in ("model", "classes", "partitions"):
        if config[key] != facts[key]:
            raise RunError(f"{path} was trained with {key} {config[key]}, not {facts[key]}.")
    return {**facts, "sites": config["sites"] | facts["sites"]}


def resumed(settings: Settings) -> Settings:
    """The settings of a run that goes on: its own, but for those that `resume-with` names (* names all).

    Whoever resumes a run on a federation need not be at the machine where the run folder is.
    """
    if not settings.resume or settings.resume_with == "*":
        return settings
    path = Path(settings.out_dir) / settings.run_name
    config = read_config(path)
    if config is None:
        raise RunError(f"There is no run to resume in {path.resolve()}.")
    given = {"out-dir", "run-name", "resume", *filter(None, settings.resume_with.split(","))}
    now = settings.as_config()
    settings = Settings.parse(now | config["settings"] | {key: now[key] for key in given if key in now})
    saved = load_checkpoint(path)
    if config.get("state") == "finished" and saved and saved[0] == settings.rounds:
        raise RunError(
            f"The run {settings.run_name} is finished ({saved[0]} rounds); train longer with rounds={2 * saved[0]}."
        )
    return settings


def stored_agreement(settings: Settings) -> Agreement | None:
    """What the sites of a run that goes on agreed on when it began; None for a new one."""
    config = read_config(Path(settings.out_dir) / settings.run_name) if settings.resume else None
    return Agreement.read(json.dumps(config["agreement"])) if config and "agreement" in config else None


def stored_sites(settings: Settings) -> dict[str, dict[str, int]]:
    """What the sites of a run that goes on had when they came; none of a new one."""
    config = read_config(Path(settings.out_dir) / settings.run_name) if settings.resume else None
    return dict(config["sites"]) if config and "sites" in config else {}


def closing_rows(path: Path) -> list[dict[str, str]]:
    """The measured rows of the last rounds, without their empty cells: what a closing table is made from.

    Of the columns that every run has, those of models; and all of the method's own.
    """
    rows = read_rows(path)
    latest = int(rows[-1]["round"]) if rows else 0
    fixed = set(ROUND_COLUMNS) - {"round", *MEASURED}
    return [
        {column: cell for column, cell in row.items() if cell and column not in fixed}
        for row in rows
        if int(row["round"]) >= latest - CLOSING_ROUNDS and any(row.get(column) for column in MEASURED)
    ]
