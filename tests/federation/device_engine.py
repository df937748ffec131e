"""Runs federations of the embedded engine with its workers on the strict device, and prints as JSON what came of them.

    python device_engine.py FOLDER '{"name": {"method": …}, …}' [BREAK]

Workers are copies of this process, so what is changed here is changed in them. For each run: whether its figures are
those of workers on the CPU, its warnings, and whether every worker has computed on the device. With BREAK, the
clients' data is left on the CPU: every run must fail.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import strict_device
import torch
from flwr.app import Message
from harness import SMALL, Outcome
from rich.console import Console

from client_app import method, site
from fedbayes.cli.progress import RunProgress
from fedbayes.launch.engine import worker
from fedbayes.launch.engine.embedded import Embedded
from fedbayes.launch.plan import plan_run
from fedbayes.launch.resources import cpus
from fedbayes.launch.simulate import conduct
from server_app.events import parse

CLIENTS = 3
answer_as_ever = worker.answer


def answer(message: Message, clients: int) -> Message:
    """The device is one of the thread that asks for it, and a worker answers in a thread of its own."""
    with strict_device.StrictMode():
        reply = answer_as_ever(message, clients)
    if strict_device.crossings:
        (Path(os.environ["MET"]) / str(os.getpid())).touch()
    return reply


def run(name: str, folder: Path, device: torch.device, words: dict[str, Any]) -> tuple[Outcome, str]:
    """The run, and the error that it ended with."""
    method.stream = strict_device.stream
    site.find_device = lambda wanted: device
    worker.answer = answer if device == strict_device.DEVICE else answer_as_ever
    places = {"out-dir": str(folder / device.type), "run-name": name, "rounds": 2}
    plan = plan_run(SMALL | places | words, CLIENTS)
    ended = conduct(plan, Embedded(plan), RunProgress(Console(quiet=True), name))
    lines = (plan.folder / "log.txt").read_text("utf-8").splitlines()
    return Outcome(plan.folder, [event for line in lines if (event := parse(line))]), ended.error or ""


def main() -> None:
    folder, cases = Path(sys.argv[1]), json.loads(sys.argv[2])
    if len(sys.argv) > 3:
        site._moved = lambda data, device: data
    found: dict[str, Any] = {}
    for name, words in cases.items():
        met = folder / "met" / name
        met.mkdir(parents=True)
        os.environ["MET"] = str(met)
        strict, error = run(name, folder, strict_device.DEVICE, words)
        if error:
            found[name] = {"error": error}
            continue
        plain, _ = run(name, folder, torch.device("cpu"), words)
        found[name] = {
            "same": strict.metrics == plain.metrics and len(strict.rows) == 3,
            "warnings": strict.said("warning"),
            "all on it": len(list(met.iterdir())) == min(cpus(), CLIENTS),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
