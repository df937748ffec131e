"""`fedbayes.run`: a run on this machine, from Python."""

import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from fedbayes.cli.progress import RunProgress
from fedbayes.door.given import dataset_setting, model_setting
from fedbayes.door.kernels import own_kernels
from fedbayes.door.result import Result
from fedbayes.errors import CommandError
from fedbayes.launch.engines import EMBEDDED, Engine, check_engine
from fedbayes.launch.plan import Plan, absolute, find_run, run_config
from fedbayes.launch.run_folder import saved_rounds
from fedbayes.launch.simulate import FINISHED, STOPPED, Display, train
from fedbayes.loggers import chosen
from fedbayes.protocol.objects import is_object
from fedbayes.protocol.settings import SettingsError, defaults, kebab
from server_app.stored import RunError


def run(
    *,
    dataset: Any = None,
    model: Any = None,
    clients: int | None = None,
    resume: str | None = None,
    engine: str = EMBEDDED,
    address: str | None = None,
    progress: bool = True,
    tensorboard: bool = False,
    log: str | Sequence[str] = (),
    **settings: Any,
) -> Result:
    """Train a simulated federation and return its result; fedbayes.Error says in a sentence what went wrong.

        result = fedbayes.run(method="pfedbayes", dataset="digits", clients=10, rounds=20)

    Settings are those of docs/settings.md, with underscores; `pfedme={"penalty": 15}` is `pfedme.penalty`.
    `dataset` is a setting, or a list with one (x_train, y_train, x_test, y_test) for each client, or one (x, y) that
    `layout` deals to them; `model` a setting, or a function (inputs, classes) → torch.nn.Module.
    `resume` goes on with a run, by its name or folder; data and network that were objects must be given again.
    `log` is mlflow, wandb or several of them: settings, figures and files go there too.
    `engine` is embedded, flower or, with the `address` of a cluster, ray.
    Ctrl-C stops and saves the run, and is raised again.
    """
    words = as_words(settings)
    with one_kind_of_error():
        check_engine(engine, address)
        logs, tensorboard = chosen([log] if isinstance(log, str) else log, tensorboard)
        if dataset is not None:
            words["dataset"], number = dataset_setting(dataset)
            if number is not None and clients not in (None, number):
                raise CommandError(f"dataset has the data of {number} clients, not of clients={clients}.")
            clients = number or clients
        if model is not None:
            words["model"] = model_setting(model)
        if resume is not None:
            _require_the_same_data(resume, words)
        watched_by = bar if progress else event_files
        with own_kernels(_place(resume, words)):
            plan, ended = train(words, clients, resume, engine, address, tensorboard, logs, watched_by)
        again = f'fedbayes.run(resume="{plan.folder}")'
        kept = f" {saved_rounds(plan.folder)} of {plan.settings.rounds} rounds are saved; go on with {again}."
        if ended.status == STOPPED:
            raise stopped_by(ended.signal, "Stopped." + (kept if ended.kept else ""))
        if ended.status != FINISHED:
            raise CommandError("\n".join([ended.error + (kept if ended.kept else ""), *ended.details]))
    return Result(plan.folder, model)


def _place(resume: str | None, words: Mapping[str, Any]) -> Path:
    """The out-dir; one that is no folder is refused with the other settings."""
    if resume:
        return find_run(resume, words).parent
    given = words.get("out-dir", defaults()["out-dir"])
    return absolute(str(given) if isinstance(given, str | Path) else defaults()["out-dir"])


def bar(plan: Plan, engine: Engine) -> Display:
    """On standard error, or in the notebook."""
    return RunProgress(Console(stderr=True), plan.settings.run_name, plan.event_files, engine.starting, plan)


def event_files(plan: Plan, engine: Engine) -> Display:
    """TensorBoard's files and loggers at most."""
    console = Console(quiet=True, force_terminal=False, force_jupyter=False)
    return RunProgress(console, plan.settings.run_name, plan.event_files, logged=plan)


def as_words(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Keyword arguments as settings."""
    words: dict[str, Any] = {}
    for name, value in settings.items():
        key = prefix + kebab(name)
        if isinstance(value, Mapping):
            words |= as_words(value, f"{key}.")
        elif isinstance(value, list | tuple):
            words[key] = ",".join(map(str, value))
        elif value is not None:
            plain = value.item() if hasattr(value, "item") else value  # numpy's and torch's numbers
            words[key] = plain if isinstance(plain, bool | int | float | str) else str(plain)
    return words


@contextmanager
def one_kind_of_error() -> Iterator[None]:
    """Whatever is the user's to put right is a CommandError, and its text one sentence."""
    try:
        yield
    except (SettingsError, RunError) as error:
        raise CommandError(str(error)) from None


def stopped_by(number: int, sentence: str) -> BaseException:
    """Ctrl-C stays what it is; another signal would have ended the program."""
    if number == signal.SIGINT:
        return KeyboardInterrupt(sentence)
    print(sentence, file=sys.stderr)
    return SystemExit(128 + number)


def _require_the_same_data(resume: str, words: Mapping[str, Any]) -> None:
    folder = find_run(resume, words)
    before, now = str(run_config(folder)["settings"].get("dataset")), words.get("dataset")
    if is_object(before) and now is not None and now != before:
        raise CommandError(
            f"The run {folder.name} was started with other data ({before}); give the same objects again."
        )


def folder_of(run: "str | Path | Result", out_dir: str | Path | None) -> Path:
    """Of a run that is given by its name, its folder or its result."""
    if isinstance(run, Result):
        return run.folder
    return find_run(str(run), {} if out_dir is None else {"out-dir": str(out_dir)})
