"""Before any code of an app runs at a site: is it one that the site's owner trusts?

Flower's ClientApp process unpacks the app that the SuperNode was sent and imports it from a folder that is named after
what the coordinator says of it. `watch` stands between: it looks at the bundle (bundles.py), and sees that what was
unpacked is what was looked at, and that this, and no other folder, is imported.
"""

import hashlib
import importlib
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from fedbayes.deploy.bundles import RefusedAppError, Trust, is_as_sent
from fedbayes.deploy.resident import RUNNER, forget_app
from fedbayes.protocol.files import locked

PATIENCE = 60.0  # seconds for another message to unpack its app
NEEDED = ("install_from_fab", "get_load_client_app_fn", "get_project_dir")


def watch(trust: Trust) -> None:
    """Have every app looked at in this process and in those that are forked from it."""
    if not trust:
        return
    runner: Any = importlib.import_module(RUNNER)
    if not all(hasattr(runner, name) for name in NEEDED):
        sys.exit("This version of Flower is not known to fedbayes: apps cannot be checked before they run.")
    unpack, find, place = (getattr(runner, name) for name in NEEDED)
    installed: list[Path] = []

    def checked_unpack(bundle: bytes, *words: Any, **named: Any) -> Path:
        installed.clear()
        try:
            files = trust.check(bundle)
        except RefusedAppError as error:
            print(f"Refused: {error}.", flush=True)
            raise
        if (there := _in_place(bundle, files, place)) is not None:
            installed.append(there.resolve())
            return there
        with _alone():
            folder: Path = unpack(bundle, *words, **named)
            if not is_as_sent(folder, files):  # of another app whose hash begins alike, or changed since
                shutil.rmtree(folder)
                folder = unpack(bundle, *words, **named)
                if not is_as_sent(folder, files):
                    raise RefusedAppError("the app cannot be unpacked as it was sent")
        installed.append(folder.resolve())
        return folder

    def checked_find(*words: Any, **named: Any) -> Callable[..., Any]:
        load = find(*words, **named)

        def load_checked(*names: Any) -> Any:
            if [place(*names).resolve()] != installed:
                raise RefusedAppError("the coordinator names another app than the one that it sent")
            return load(*names)

        return load_checked

    runner.install_from_fab, runner.get_load_client_app_fn = checked_unpack, checked_find


def _in_place(bundle: bytes, files: Mapping[str, bytes], place: Callable[..., Path]) -> Path | None:
    """Where the app is already as it was sent, as for all messages but the first: nobody has to be waited for."""
    from flwr.cli.config_utils import get_fab_metadata

    with suppress(OSError):  # somebody is at it just now
        folder = place(*get_fab_metadata(bundle), hashlib.sha256(bundle).hexdigest())
        if folder.is_dir() and is_as_sent(folder, files):
            return folder
    return None


def _alone() -> AbstractContextManager[None]:
    """No other message of this site unpacks its app meanwhile: Flower takes half an app for a whole one."""
    from flwr.supercore.utils import get_flwr_home

    home = Path(get_flwr_home())
    home.mkdir(parents=True, exist_ok=True)
    return locked(home / "apps.lock", PATIENCE, RefusedAppError("another app is being unpacked here"))


def command(trust: Trust, words: Sequence[str]) -> list[str]:
    """Flower's ClientApp process for one message, watched."""
    return [sys.executable, "-P", "-m", "fedbayes.deploy.guard", trust.write(), *words]


def main() -> None:
    trust, *words = sys.argv[1:]
    program = importlib.import_module("flwr.supernode.cli.flwr_clientapp")
    watch(Trust.read(trust))
    forget_app()  # the site's own fedbayes may be another version than the run's
    sys.argv = ["flwr-clientapp", *words]
    program.flwr_clientapp()


if __name__ == "__main__":
    main()
