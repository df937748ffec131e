"""The `fedbayes` command. Heavy imports (torch, Flower) wait until a run needs them."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from rich.console import Console

from fedbayes import __version__
from fedbayes.cli import deploy, plain
from fedbayes.cli.methods import methods
from fedbayes.cli.reporting import compare, only_out_dir, report
from fedbayes.cli.reproduce import reproduce
from fedbayes.cli.settings import from_file, settings
from fedbayes.cli.tune import tune
from fedbayes.cli.using import Place, adapt, export, predict
from fedbayes.cli.watch import watch
from fedbayes.deploy import connections
from fedbayes.errors import CommandError, printable
from fedbayes.launch.engines import EMBEDDED, check_engine
from fedbayes.launch.plan import (
    Plan,
    absolute,
    out_dir_word,
    parse_seeds,
    parse_words,
    plan_remote,
    plan_sweep,
)
from fedbayes.launch.ready import check_data, ready
from fedbayes.loggers import chosen
from fedbayes.protocol.settings import SettingsError, defaults

USAGE = 2  # the exit status of a command that was refused before anything started

app = typer.Typer(
    cls=plain.Group,
    help="Personal, sparse and clustered Bayesian federated learning on Flower.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Settings; `fedbayes settings` lists them.", show_default=False
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fedbayes {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def fedbayes(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(cls=plain.Command)
def run(
    words: Words = None,
    clients: Annotated[
        int | None, typer.Option(metavar="N", help="How many clients are simulated (10 unless given).")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Go on with a run, given by its name or folder.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="1,2,3", help="One run per seed, then mean ± sd over them.")
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Train on a real federation (see `fedbayes coordinator`)."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="embedded (unless given); flower: Flower's own simulation; ray: the nodes of a Ray cluster.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Of the Ray cluster, for --engine ray; auto unless given."),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write TensorBoard event files too, while it runs.")
    ] = False,
    log: Annotated[
        list[str] | None,
        typer.Option(
            "--log", metavar="NAME", help="Log it to mlflow, wandb or tensorboard too; repeat for several."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "-c",
            "--config",
            metavar="FILE",
            help="Settings from a TOML file; those that are given as words take precedence.",
        ),
    ] = None,
    data_changed: Annotated[
        bool, typer.Option("--data-changed", help="With --resume: the clients' data are others now.")
    ] = False,
) -> None:
    """Train: a simulated federation on this machine, or a real one.

    For example: fedbayes run method=pfedbayes rounds=50 --clients 20
    """
    values: dict[str, Any] = (from_file(config) if config else {}) | parse_words(words or ())
    console = _console()
    logs, tensorboard = chosen(log or (), tensorboard)
    carrier = engine or EMBEDDED
    check_engine(carrier, address)
    if on is not None and data_changed:
        raise CommandError("--data-changed is for simulations; at a real site its owner says so.")
    if on is not None:
        simulated = clients is not None or seeds is not None or engine is not None
        raise typer.Exit(_run_on(on, resume, values, console, simulated, tensorboard, logs))
    if seeds is not None:
        if resume is not None:
            raise CommandError("--seeds goes on with its own runs; give it without --resume.")
        plans = [
            replace(plan, tensorboard=tensorboard, log=logs)
            for plan in plan_sweep(values, clients, parse_seeds(seeds))
        ]
        raise typer.Exit(_sweep(plans, console, words or (), clients, seeds, carrier, address, config))
    if data_changed and resume is None:
        raise CommandError("--data-changed goes with --resume RUN; a new run takes the data as they are.")
    plan = ready(values | ({"data-changed": "true"} if data_changed else {}), clients, resume)
    from fedbayes.launch.simulate import simulate

    raise typer.Exit(simulate(replace(plan, tensorboard=tensorboard, log=logs), console, carrier, address))


def _run_on(
    on: str,
    resume: str | None,
    values: Mapping[str, Any],
    console: Console,
    simulated: bool,
    tensorboard: bool,
    logs: tuple[str, ...],
) -> int:
    if simulated:
        raise CommandError(
            "--clients, --seeds and --engine are for simulations; with --on the sites are those that are there."
        )
    connections.wait_for(on)
    from fedbayes.deploy.remote import run_on

    return run_on(replace(plan_remote(on, resume, values), tensorboard=tensorboard, log=logs), console)


def _sweep(
    plans: Sequence[Plan],
    console: Console,
    words: Sequence[str],
    clients: int | None,
    seeds: str,
    engine: str,
    address: str | None,
    config: Path | None,
) -> int:
    """The seeds one after the other; a sweep that ends early is continued by the same command."""
    for plan in plans:
        if not plan.finished:
            check_data(plan.settings, plan.clients)
    from fedbayes.cli.tables import seeds_table
    from fedbayes.launch.simulate import say, simulate
    from server_app.stored import read_rows

    name = plans[0].settings.run_name.removesuffix(f"-seed{plans[0].settings.seed}")
    for plan in plans:
        if plan.finished:
            say(console, f"{plan.settings.run_name} is finished already.")
            continue
        if status := simulate(plan, console, engine, address):
            kept = [word for word in words if not word.startswith("run-name=")]
            kept += ["-c", str(config)] if config else []
            command = ["fedbayes", "run", *kept, f"run-name={name}", "--seeds", seeds]
            command += [] if clients is None else ["--clients", str(clients)]
            say(console, f"Go on with all seeds:  {shlex.join(command)}")
            return status
    rows = {plan.settings.seed: read_rows(plan.folder / "rounds.csv") for plan in plans}
    console.print(seeds_table(name, rows))
    return 0


@app.command(cls=plain.Command)
def runs(words: Place = None, on: deploy.On = None) -> None:
    """List the runs of a folder (out-dir=…, "runs" unless given), or with --on those of a federation."""
    from fedbayes.cli.listing import list_runs, runs_table

    if on is not None:
        if words:
            raise CommandError("`runs --on` asks the coordinator, and takes no settings.")
        deploy.show_runs(on, _console())
        return

    values = only_out_dir("runs", words or ())

    out_dir = absolute(values.get("out-dir", defaults()["out-dir"]))
    found = list_runs(out_dir)
    if found:
        console = _console()
        console.print(runs_table(found, console.width))
    else:
        command = shlex.join(["fedbayes", "run", *out_dir_word(out_dir)])
        print(f"There are no runs in {out_dir}; `{command}` makes one.")


for operator in (deploy.sites, deploy.stop):
    app.command(cls=plain.Command)(operator)
for entry in (deploy.keys, deploy.coordinator, deploy.site):
    app.command(cls=plain.Command, context_settings=deploy.PASS_ON)(entry)
for use in (adapt, predict, export, report, compare, watch, methods, settings, tune, reproduce):
    app.command(cls=plain.Command)(use)


def _console() -> Console:
    """Standard output: as wide as the terminal, and wide enough for whole lines in a file or pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=140)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: what can be expected to go wrong is one sentence on stderr and an exit status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a "±" must not end a run on an ASCII terminal
    sys.exit(_status(arguments))


def _status(arguments: Sequence[str] | None) -> int:
    try:
        given = None if arguments is None else list(arguments)
        status = app(given, prog_name="fedbayes", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except click.NoSuchOption as error:
        key = error.option_name.lstrip("-")  # those who write --rounds 50 are told how settings are written
        known = f"{key} is a setting and is written {key}=VALUE, without dashes."
        return _refuse(known if key in defaults() else error.format_message())
    except click.ClickException as error:
        return _refuse(error.format_message())
    except (KeyboardInterrupt, click.Abort):
        print("fedbayes: stopped before anything was started.", file=sys.stderr)
        return 130
    except (CommandError, SettingsError) as error:
        return _refuse(str(error))
    except Exception as error:
        from server_app.stored import RunError

        if isinstance(error, RunError):
            return _refuse(str(error))
        raise


def _refuse(sentence: str) -> int:
    print(f"fedbayes: {printable(sentence)}", file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    main()
