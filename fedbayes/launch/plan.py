"""From the words of a command line to a run that can start: every check that needs no Flower.

Whatever is wrong is found here, before a process is started or a file is written.
"""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbayes.errors import CommandError
from fedbayes.launch.app_bundle import methods
from fedbayes.launch.run_folder import saved_rounds
from fedbayes.protocol.settings import DATASET_NAME, FUNCTION, Settings, SettingsError, defaults
from fedbayes.protocol.user_code import look_here

DEFAULT_CLIENTS = 10
PAPER_CLIENTS = {"cifar10": 20, "svhn": 20}
FOLDERS = ("out-dir", "data-dir")  # made absolute: Flower's processes may work elsewhere


@dataclass(frozen=True)
class Plan:
    """One run that may start: its settings (folders absolute, name given) and the number of clients."""

    settings: Settings
    clients: int
    finished: bool = False  # nothing left to do; only a sweep meets such a run
    tensorboard: bool = False  # event files are wanted too
    log: tuple[str, ...] = ()  # loggers that are wanted

    @property
    def folder(self) -> Path:
        return Path(self.settings.out_dir) / self.settings.run_name

    @property
    def local(self) -> Path:
        """The run folder, which is on this machine."""
        return self.folder

    @property
    def config(self) -> dict[str, Any]:
        return self.settings.as_config()

    @property
    def resume_command(self) -> str:
        """The command that goes on with this run, as a shell takes it."""
        words = ["fedbayes", "run", "--resume", self.settings.run_name]
        return shlex.join([*words, *out_dir_word(Path(self.settings.out_dir))])

    @property
    def event_files(self) -> Path | None:
        """Where TensorBoard's files go, if they are wanted."""
        return self.folder / "tensorboard" if self.tensorboard else None


@dataclass(frozen=True)
class RemotePlan:
    """One run on a federation; its folders are the coordinator's and stay as they were given."""

    settings: Settings
    on: str
    tensorboard: bool = False
    log: tuple[str, ...] = ()
    local = None  # the run folder is at the coordinator

    @property
    def event_files(self) -> Path | None:
        """Where TensorBoard's files go, if they are wanted: on this machine, the run folder being elsewhere."""
        here = absolute(defaults()["out-dir"]) / self.settings.run_name
        return here / "tensorboard" if self.tensorboard else None

    @property
    def config(self) -> dict[str, Any]:
        return self.settings.as_config()

    @property
    def resume_command(self) -> str:
        words = ["fedbayes", "run", "--resume", self.settings.run_name, "--on", self.on]
        kept = [] if self.settings.out_dir == defaults()["out-dir"] else [f"out-dir={self.settings.out_dir}"]
        return shlex.join([*words, *kept])


def out_dir_word(out_dir: Path) -> list[str]:
    """`out-dir=…` for a command printed to the user, where it is not the default."""
    if out_dir == absolute(defaults()["out-dir"]):
        return []
    return [f"out-dir={out_dir.relative_to(Path.cwd()) if out_dir.is_relative_to(Path.cwd()) else out_dir}"]


def absolute(folder: str) -> Path:
    """An absolute path without `..`, links kept as the user wrote them where possible."""
    try:
        path = Path(folder).expanduser()
    except RuntimeError as error:
        raise CommandError(f"The folder {folder} cannot be found: {error}.") from None
    return path.resolve() if ".." in path.parts else path.absolute()


def parse_words(words: Sequence[str]) -> dict[str, str]:
    """`key=value` words; the last one of a key counts."""
    values = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise CommandError(
                f'"{word}" is not a setting; settings are written key=value, such as rounds=50.'
            )
        require_settable(key)
        values[key] = value
    return values


def require_settable(key: str) -> None:
    """Whether the user may give this setting, or has another way to say it."""
    if key == "resume":
        raise CommandError("resume is not a setting to give; a run is resumed with --resume RUN.")
    if key == "data-changed":
        raise CommandError("data-changed is not a setting to give; it is written --data-changed.")


def plan_run(words: Mapping[str, Any], clients: int | None) -> Plan:
    """A new run."""
    settings = _settings(defaults() | dict(words))
    number = number_of_clients(settings, clients)
    check_numbers(settings, number)
    settings = checked(settings, given=words)
    if not settings.run_name:
        settings = _settings(settings.as_config() | {"run-name": free_name(settings)})
    plan = Plan(settings, number)
    if (plan.folder / "config.json").exists():
        raise CommandError(
            f"There is a run {settings.run_name} already; resume it with `{plan.resume_command}`, "
            "or take another run-name."
        )
    return plan


def plan_resume(run: str, words: Mapping[str, Any], clients: int | None) -> Plan:
    """A run that goes on from its checkpoint, with what its config.json says."""
    from server_app.stored import check_resumable

    folder = find_run(run, words)
    config = run_config(folder)
    stored: dict[str, Any] = config["settings"]
    place = {"out-dir": str(folder.parent), "run-name": folder.name, "resume": True}
    settings = checked(_settings(defaults() | stored | dict(words) | place), new=False)
    check_resumable(config, settings.as_config())
    number = int(config["clients"])
    if clients is not None and clients != number:
        raise CommandError(f"The run {folder.name} was started with --clients {number}, not {clients}.")
    check_numbers(settings, number)

    saved = saved_rounds(folder)
    if settings.rounds < saved:
        raise CommandError(
            f"The run {folder.name} has {saved} rounds already; rounds={settings.rounds} is less."
        )
    early = config.get("stopped_early") is not None and settings.rounds == stored.get("rounds")
    done = (settings.rounds == saved or early) and config.get("state") == "finished"
    return Plan(settings, number, finished=done)


def plan_remote(on: str, resume: str | None, words: Mapping[str, Any]) -> RemotePlan:
    """A run on a federation, new or resumed: its coordinator has the run folder, and the last word on both."""
    if resume is not None:
        words = dict(words) | {"run-name": resume, "resume": True, "resume-with": ",".join(words)}
    settings = Settings.parse(defaults() | dict(words))
    check_method(settings)
    settings = checked(settings, new=resume is None, given=words)
    if not settings.run_name:
        settings = Settings.parse(settings.as_config() | {"run-name": free_name(settings)})
    return RemotePlan(settings, on)


def plan_sweep(words: Mapping[str, Any], clients: int | None, seeds: Sequence[int]) -> list[Plan]:
    """One run per seed, NAME-seed1 and so on; those that exist already go on or, when finished, stay."""
    if "seed" in words:
        raise CommandError("Give either seed=… or --seeds …, not both.")
    base = _settings(defaults() | dict(words))
    number = number_of_clients(base, clients)
    check_numbers(base, number)
    checked(base, given=words)
    name = base.run_name or free_name(base)
    plans = []
    for seed in seeds:
        values = dict(words) | {"seed": seed, "run-name": f"{name}-seed{seed}"}
        folder = Path(base.out_dir) / str(values["run-name"])
        if not (folder / "config.json").exists():
            plans.append(plan_run(values, number))
            continue
        # What was not given takes its default, as in the first call: a sweep's runs must not differ.
        plans.append(plan_resume(str(folder), defaults() | values, number))
    return plans


def parse_seeds(text: str) -> list[int]:
    """`1,2,3`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"\d+", part) for part in parts):
        raise CommandError(f'--seeds takes whole numbers with commas between, such as 1,2,3, not "{text}".')
    seeds = [int(part) for part in parts]
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise CommandError(f"--seeds names the seed {seed} twice.")
    return seeds


def find_run(run: str, words: Mapping[str, Any]) -> Path:
    """The folder of a run given by name (in out-dir) or by path."""
    out_dir = absolute(words.get("out-dir", defaults()["out-dir"]))
    for folder in (out_dir / run, absolute(run)):
        if (folder / "config.json").exists():
            return folder
    command = shlex.join(["fedbayes", "runs", *out_dir_word(out_dir)])
    raise CommandError(f'There is no run "{run}" in {out_dir}; `{command}` lists those there are.')


def run_config(folder: Path) -> dict[str, Any]:
    """A config.json that has what a resumed run needs."""
    from server_app.stored import read_config

    config = read_config(folder) or {}
    if not isinstance(config.get("settings"), dict) or not isinstance(config.get("clients"), int):
        raise CommandError(f"{folder / 'config.json'} lacks settings or clients; the run cannot be resumed.")
    return config


def free_name(settings: Settings) -> str:
    """The name that the settings make, with -2 and so on where that is taken."""
    name = settings.made_name()
    number, free = 1, name
    while (Path(settings.out_dir) / free).exists():
        number += 1
        free = f"{name}-{number}"
    return free


def number_of_clients(settings: Settings, clients: int | None) -> int:
    """As asked for; else as many as a folder has sites, or as in the paper."""
    if clients is None and Path(settings.dataset).is_dir():
        from client_app.data import DataError, simulated_sites

        try:
            return len(simulated_sites(settings.dataset))
        except DataError as error:
            raise CommandError(str(error)) from None
    return PAPER_CLIENTS.get(settings.dataset, DEFAULT_CLIENTS) if clients is None else clients


def check_numbers(settings: Settings, clients: int) -> None:
    """The method exists, and its rounds can be filled by this many clients."""
    check_method(settings)
    if clients < 1:
        raise CommandError(f"--clients takes a whole number of at least 1, not {clients}.")
    for key, value in (
        ("clients-per-round", settings.clients_per_round),
        ("min-clients", settings.min_clients),
        ("noisy-clients", settings.noisy_clients),
    ):
        if value > clients:
            raise CommandError(f"{key}={value}, but there are only {clients} clients (--clients {clients}).")


def check_method(settings: Settings) -> None:
    """What is wrong however many clients there are."""
    if not settings.is_foreign and settings.method not in (known := methods()):
        raise CommandError(f'There is no method "{settings.method}"; there are {", ".join(known) or "none"}.')
    if 0 < (sampled := settings.clients_per_round) < settings.min_clients:
        raise CommandError(f"clients-per-round={sampled} can never reach min-clients={settings.min_clients}.")


def checked(settings: Settings, new: bool = True, given: Collection[str] = ()) -> Settings:
    """As both halves of the method read them, whose imports take a second. `given` are the keys that the user wrote.

    A run that goes on may have settings that its method does not use.
    """
    from fedbayes.launch import methods as halves

    if settings.is_foreign:
        look_here()
    return halves.checked(settings, given) if new else halves.read(settings)


def further_defaults(settings: Settings) -> dict[str, Any]:
    """The defaults that a method from elsewhere brings along."""
    from fedbayes.launch import methods as halves

    return halves.own_defaults(settings.method) if settings.is_foreign else {}


def _settings(values: Mapping[str, Any]) -> Settings:
    settings = Settings.parse(values)
    places = {key: str(absolute(settings.as_config()[key])) for key in FOLDERS}
    places["dataset"] = ",".join(_place(part) for part in settings.dataset.split(","))
    try:
        return Settings.parse(settings.as_config() | places)
    except RuntimeError as error:  # Path.expanduser on an unknown ~user
        raise SettingsError(str(error)) from None


def _place(dataset: str) -> str:
    """A name, a function, or a path that Flower's processes find from wherever they work."""
    is_path = not DATASET_NAME.fullmatch(dataset) and not FUNCTION.fullmatch(dataset)
    return str(absolute(dataset)) if is_path else dataset
