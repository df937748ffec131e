"""`fedbayes watch`: runs in a browser, while they go on and afterwards."""

import os
import shlex
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedbayes.cli.reporting import only_out_dir
from fedbayes.errors import CommandError
from fedbayes.launch.plan import absolute, out_dir_word
from fedbayes.protocol.settings import defaults

Run = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN] [out-dir=DIR]",
        help="A run by name or folder; all of them unless given.",
        show_default=False,
    ),
]


def watch(
    words: Run = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Of 127.0.0.1 (8765, or a free one).", min=0, max=65535, show_default=False
        ),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page, or only print its address.")] = True,
) -> None:
    """Show runs in a browser, live: rounds, curves, sites, failures, log; tick runs to compare them.

    Only this machine can reach the page, and only with the token in its address. Ctrl-C ends it; runs go on.
    """
    from fedbayes.launch.simulate import Stopped, StopSignals
    from fedbayes.watch.server import Server

    out_dir, run = _find(words or ())
    with StopSignals():
        try:
            with Server(out_dir, port) as server:
                url = server.url(run)
                print(f"The run {run}:" if run else f"The runs in {out_dir}:")
                print(f"  {url}")
                print("Ctrl-C ends this page; runs go on.", flush=True)
                if browser and _has_screen():
                    webbrowser.open(url)
                server.serve_forever(poll_interval=0.2)
        except Stopped:
            print("The page has ended.")


def _find(words: Sequence[str]) -> tuple[Path, str]:
    """The folder of runs, and the one to begin with, if any."""
    names = [word for word in words if "=" not in word]
    values = only_out_dir("watch", [word for word in words if "=" in word])
    out_dir = absolute(values.get("out-dir", defaults()["out-dir"]))
    if len(names) > 1:
        raise CommandError("`fedbayes watch` takes one run or none; on its page others can be chosen.")
    if not names:
        return out_dir, ""
    for folder in (out_dir / names[0], absolute(names[0])):
        # A run that is only just starting has no config.json yet.
        if folder.name and any((folder / name).exists() for name in ("config.json", "lock.json")):
            return folder.parent, folder.name
    command = shlex.join(["fedbayes", "runs", *out_dir_word(out_dir)])
    raise CommandError(f'There is no run "{names[0]}" in {out_dir}; `{command}` lists those there are.')


def _has_screen() -> bool:
    """Whether a browser would have a window: without one, some open in the terminal itself."""
    return sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
