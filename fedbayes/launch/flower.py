"""Flower's own programs: where they are, and the environment in which they are called."""

import importlib.metadata
import os
import re
import socket
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path

from fedbayes.errors import CommandError

ANSI = re.compile(r"\x1b\[[0-9;]*m")  # the colours in its logs
QUIET = {
    "PYTHONUNBUFFERED": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # else every run installs the app's dependencies
}


def program(name: str) -> Path:
    """A program of Flower."""
    return scripts_folder() / name


@lru_cache
def scripts_folder() -> Path:
    """Where Flower's programs are that belong to this Python, whatever PATH says."""
    folders = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    files = importlib.metadata.files("flwr") or []
    folders += [
        Path(str(file.locate())).resolve().parent for file in files if file.name == "flower-superlink"
    ]
    for folder in folders:
        if (folder / "flower-superlink").exists():
            return folder
    raise CommandError("Flower's programs are not installed beside this Python; install fedbayes again.")


def environment() -> dict[str, str]:
    """This process's environment, with Flower's programs first in PATH (they call each other) and no noise."""
    no_proxy = os.environ.get("NO_PROXY", os.environ.get("no_proxy", ""))
    local = ",".join(filter(None, (no_proxy, "127.0.0.1,localhost")))
    path = os.pathsep.join((str(scripts_folder()), os.environ.get("PATH", os.defpath)))
    return {**os.environ, **QUIET, "PATH": path, "NO_PROXY": local, "no_proxy": local}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
