"""The commands of a real federation: keys, coordinator, site. Heavy imports wait until they are needed."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedbayes.errors import CommandError

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": False}  # words after `--` are Flower's

On = Annotated[
    str | None, typer.Option(metavar="NAME", help="Of a real federation (see `fedbayes coordinator`).")
]
LogFormat = Annotated[
    str, typer.Option(metavar="text|json", help="Lines of log as they are, or each as JSON.")
]


def _checked(log_format: str) -> str:
    if log_format not in ("text", "json"):
        raise CommandError(f'--log-format takes text or json, not "{log_format}".')
    return log_format


def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of all keys; made if need be.")],
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name or address of the coordinator; repeat for several."),
    ] = None,
    sites: Annotated[int, typer.Option(metavar="N", min=0, help="How many sites there are in all.")] = 0,
    renew: Annotated[
        bool,
        typer.Option(
            "--renew", help="Replace the coordinator's certificate by a new one; --host changes its names."
        ),
    ] = False,
) -> None:
    """Make the keys and certificates of a federation in DIR; what exists is kept.

    For example: fedbayes keys keys --host coordinator.example.org --sites 3
    """
    if renew:
        return _renew(folder, host or [])
    from fedbayes.deploy.keys import make_keys

    made = make_keys(folder, host or [], sites)
    print(f"New: {', '.join(made.new) or 'nothing'}.")
    print(f"The coordinator's certificate is for {', '.join(made.names)}, until {made.expires:%d %B %Y}.")
    print(
        f"Take {folder}/coordinator to the coordinator and {folder}/site-… to that site; keep {folder}/ca here."
    )


def _renew(folder: Path, hosts: list[str]) -> None:
    from fedbayes.deploy import renewal

    renewed = renewal.renew(folder, hosts)
    if renewed.authority:
        print(
            f"New: ca.crt. Take it to every site before the old one expires; {folder}/coordinator has it too."
        )
    print("New: server.crt.")
    print(f"The coordinator's certificate is for {', '.join(renewed.names)}, until {renewed.until:%d %B %Y}.")
    print(f"Copy {folder}/coordinator/*.crt to the coordinator and restart it; runs go on with --resume.")


def coordinator(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder keys/coordinator.")],
    name: Annotated[str, typer.Option(help="What `fedbayes run --on` calls this federation.")] = "lan",
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where sites connect.")] = "0.0.0.0:9092",
    control: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where commands connect; whoever reaches it can start runs."),
    ] = "127.0.0.1:8000",
    metrics_port: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=1, max=65535, help="Serve Prometheus metrics there, at /metrics."),
    ] = None,
    metrics_host: Annotated[str, typer.Option(metavar="HOST", help="On this address.")] = "127.0.0.1",
    log_format: LogFormat = "text",
    register: Annotated[
        bool, typer.Option("--register", help="Only tell a running coordinator about new and removed sites.")
    ] = False,
) -> None:
    """Start the coordinator: Flower's SuperLink, with DIR from `fedbayes keys`. Words after -- go to Flower."""
    from fedbayes.deploy import coordinator as module

    if register:
        module.register(folder, name)
    else:
        metrics = f"{metrics_host}:{metrics_port}" if metrics_port else ""
        module.start(folder, name, listen, control, context.args, metrics, _checked(log_format))


def site(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The site's folder, such as keys/site-0.")],
    at: Annotated[str, typer.Option(metavar="HOST[:PORT]", help="The coordinator.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="This site's own data: a file, a folder, or package.module:function."
        ),
    ] = None,
    share: Annotated[
        str | None, typer.Option(metavar="I/N", help="A share of the run's data set instead, from 0/N on.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the personal model is kept (DIR/state).")
    ] = None,
    log_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A copy of the log: one line per round, rotated.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The site's name (that of the folder unless given).")
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="cpu, cuda, cuda:N or mps, whatever the run says.")
    ] = None,
    data_changed: Annotated[
        bool,
        typer.Option("--data-changed", help="Go on with runs that began with other data than are here now."),
    ] = False,
    dp_budget: Annotated[
        str | None,
        typer.Option(
            metavar="EPS[@DELTA]",
            help="Train only with dp-example-noise, and no further than this ε, in all runs together.",
        ),
    ] = None,
    log_format: LogFormat = "text",
    only_app: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HASH",
            help='Carry out this app alone; "installed": the one of this fedbayes. Repeat for more.',
        ),
    ] = None,
    allow_code: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PACKAGE",
            help="Let runs name functions of this package here (model=, method=). Repeat for more.",
        ),
    ] = None,
) -> None:
    """Start a site: Flower's SuperNode, with DIR from `fedbayes keys`. Words after -- go to Flower.

    For example: fedbayes site site-0 --at coordinator.example.org --data scans.npz
    """
    from fedbayes.deploy.site import SiteConfig, start
    from fedbayes.protocol.settings import FUNCTION

    here = folder.resolve()
    config = SiteConfig(
        name=name or here.name,
        state=(state or here / "state").resolve(),
        data=data if data is None or FUNCTION.fullmatch(data) else str(Path(data).resolve()),
        share=share,
        log_file=log_file.resolve() if log_file else None,
        device=device,
        data_changed=data_changed,
        dp_budget=dp_budget,
        only_app=tuple(only_app or ()),
        allow_code=tuple(allow_code or ()),
    )
    start(folder, at, config, context.args, _checked(log_format))


def sites(
    on: Annotated[str, typer.Option(metavar="NAME", help="Of which federation.")] = "lan",
) -> None:
    """Show who may take part in a federation, who is connected, and how its runs went with them."""
    from fedbayes.deploy import operators
    from fedbayes.deploy.connections import keys_of

    with operators.coordinator(on) as client:
        there, ran = operators.nodes(client), operators.runs(client)
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(operators.sites_table(there, ran))
    print(operators.summary(there, ran))
    if (keys := keys_of(on)) and (words := operators.certificates(keys)):
        print(words)


def show_runs(on: str, console: Console) -> None:
    from fedbayes.deploy import operators

    with operators.coordinator(on) as client:
        ran = operators.runs(client)
    if ran:
        console.print(operators.runs_table(ran))
    else:
        print(f"The coordinator of {on} has had no run since it was started; run folders hold those before.")


def stop(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's name, or its number.")],
    on: Annotated[str, typer.Option(metavar="NAME", help="On which federation.")] = "lan",
) -> None:
    """Stop a run of a federation; what it has saved stays, and it can be resumed."""
    from fedbayes.deploy import operators

    with operators.coordinator(on) as client:
        stopped = operators.stop(client, run)
    print(f"Stopped {stopped.name}; at least {stopped.told.round} of {stopped.told.rounds} rounds are saved.")
    if stopped.told.name:
        print(f"Resume with:  fedbayes run --resume {stopped.told.name} --on {on}")
