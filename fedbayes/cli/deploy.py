"""The commands of a real federation: keys, coordinator, site. Heavy imports wait until they are needed."""

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[Path, typer.Argument(metavar="DIR", show_default=False)]
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": False}  # words after `--` are Flower's


def keys(
    folder: Folder,
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name or address of the coordinator; repeat for several."),
    ] = None,
    sites: Annotated[int, typer.Option(metavar="N", min=0, help="How many sites there are in all.")] = 0,
) -> None:
    """Make the keys and certificates of a federation in DIR; what exists is kept.

    For example: fedbayes keys keys --host coordinator.example.org --sites 3
    """
    from fedbayes.deploy.keys import make_keys

    made = make_keys(folder, host or [], sites)
    print(f"New: {', '.join(made.new) or 'nothing'}.")
    print(f"The coordinator's certificate is for {', '.join(made.names)}, until {made.expires:%d %B %Y}.")
    print(
        f"Take {folder}/coordinator to the coordinator and {folder}/site-… to that site; keep {folder}/ca here."
    )


def coordinator(
    context: typer.Context,
    folder: Folder,
    name: Annotated[str, typer.Option(help="What `fedbayes run --on` calls this federation.")] = "lan",
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where sites connect.")] = "0.0.0.0:9092",
    control: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where commands connect; whoever reaches it can start runs."),
    ] = "127.0.0.1:8000",
    register: Annotated[
        bool, typer.Option("--register", help="Only tell a running coordinator about new and removed sites.")
    ] = False,
) -> None:
    """Start the coordinator: Flower's SuperLink, with DIR from `fedbayes keys`. Words after -- go to Flower."""
    from fedbayes.deploy import coordinator as module

    if register:
        module.register(folder, name)
    else:
        module.start(folder, name, listen, control, context.args)


def site(
    context: typer.Context,
    folder: Folder,
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
    )
    start(folder, at, config, context.args)
