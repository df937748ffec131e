"""A Ray cluster of this machine alone, for as long as something is measured on it."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil

from fedbayes.launch.engines import RAY
from fedbayes.launch.flower import environment, free_port
from fedbayes.launch.resources import cpus

PATIENCE = 120.0  # seconds for it to start
STARTED = "Ray runtime started"


@contextmanager
def address_for(engine: str) -> Iterator[str | None]:
    """Of a cluster with one CPU for each core, if the engine takes one."""
    if engine != RAY:
        yield None
        return
    port = free_port()
    with tempfile.TemporaryFile("w+") as log:
        node = subprocess.Popen(
            [
                Path(sys.executable).with_name("ray"), "start", "--head", f"--port={port}", f"--num-cpus={cpus()}",
                "--include-dashboard=false", "--block",
            ],
            stdout=log, stderr=log, env=environment() | {"RAY_USAGE_STATS_ENABLED": "0"},
        )  # fmt: skip
        try:
            _wait_for(node, log)
            yield f"127.0.0.1:{port}"
        finally:
            with suppress(psutil.Error):  # they end with each other
                for process in psutil.Process(node.pid).children(recursive=True):
                    with suppress(psutil.Error):
                        process.kill()
            node.kill()
            node.wait()
            forget(port)


def forget(port: int) -> None:
    """Take away Ray's note of a cluster that was killed: `ray.init()` would look for it for minutes."""
    from ray._common.utils import get_ray_address_file

    note = Path(get_ray_address_file(None))
    if note.exists() and note.read_text().strip().endswith(f":{port}"):
        note.unlink()


def _wait_for(node: subprocess.Popen[bytes], log: IO[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        log.seek(0)
        said = log.read()
        if STARTED in said:
            return
        if node.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(said)
        time.sleep(0.1)
