"""Runs federations of the embedded engine with its workers on the strict device, and prints as JSON what came of them.

    python device_engine.py FOLDER '{"name": {"method": …}, …}'

Workers are copies of this process, so what is changed here is changed in them. For each run: whether its figures are
those of workers on the CPU, its warnings, whether every worker has computed on the device, and whether states stayed
there: a worker that has served a client's latest message never reads its state from the disk. In one whose name begins
with "broken", the clients' data is left on the CPU: it must fail.
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

from client_app import method, site, store
from fedbayes.cli.progress import RunProgress
from fedbayes.launch.engine import worker
from fedbayes.launch.engine.embedded import Embedded
from fedbayes.launch.plan import plan_run
from fedbayes.launch.resources import cpus
from fedbayes.launch.simulate import conduct
from server_app.events import parse

CLIENTS = 3
answer_as_ever, read_as_ever = worker.answer, store.read


def answer(message: Message, clients: int) -> Message:
    """The device is one of the thread that asks for it, and a worker answers in a thread of its own."""
    with strict_device.StrictMode():
        reply = answer_as_ever(message, clients)
    if strict_device.crossings:
        note("met", "-")
    if message.metadata.message_type != "query.hello":
        note("served", str(message.metadata.dst_node_id - worker.FIRST_NODE))
    return reply


def read(path: Path) -> Any:
    tags, tensors = read_as_ever(path)
    if tensors:  # FedAvg's hold nothing
        note("read", path.parent.name)
    return tags, tensors


def note(what: str, client: str) -> None:
    """A line of all workers' diary, in which those of one client are in their order."""
    with Path(os.environ["DIARY"]).open("a") as file:
        file.write(f"{what} {client} {os.getpid()}\n")


def stayed(diary: list[list[str]]) -> bool:
    """Whether a state was read only by workers that had not served its client's latest message, and some stayed."""
    latest: dict[str, str] = {}
    again = needless = 0
    for what, client, process in diary:
        same = latest.get(client) == process
        needless += what == "read" and same
        if what == "served":
            again, latest[client] = again + same, process
    return again > 0 and not needless


def run(name: str, folder: Path, device: torch.device, words: dict[str, Any]) -> tuple[Outcome, str]:
    """The run, and the error that it ended with."""
    method.stream = strict_device.stream
    site.find_device = lambda wanted: device
    strict = device == strict_device.DEVICE
    worker.answer, store.read = (answer, read) if strict else (answer_as_ever, read_as_ever)
    places = {"out-dir": str(folder / device.type), "run-name": name, "rounds": 2}
    plan = plan_run(SMALL | places | words, CLIENTS)
    ended = conduct(plan, Embedded(plan), RunProgress(Console(quiet=True), name))
    lines = (plan.folder / "log.txt").read_text("utf-8").splitlines()
    return Outcome(plan.folder, [event for line in lines if (event := parse(line))]), ended.error or ""


def main() -> None:
    folder, cases, moved = Path(sys.argv[1]), json.loads(sys.argv[2]), site._moved
    found: dict[str, Any] = {}
    for name, words in cases.items():
        site._moved = (lambda data, device: data) if name.startswith("broken") else moved
        diary = folder / f"diary of {name}"
        diary.touch()
        os.environ["DIARY"] = str(diary)
        strict, error = run(name, folder, strict_device.DEVICE, words)
        if error:
            found[name] = {"error": error}
            continue
        lines = [line.split() for line in diary.read_text().splitlines()]
        plain, _ = run(name, folder, torch.device("cpu"), words)
        found[name] = {
            "same": strict.metrics == plain.metrics and len(strict.rows) == 3,
            "warnings": strict.said("warning"),
            "all on it": len({process for what, _, process in lines if what == "met"})
            == min(cpus(), CLIENTS),
            "stayed": stayed(lines),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
