"""Runs federations on the strict device and on the CPU, and prints as JSON whether both gave the same figures.

    python device_runs.py FOLDER '{"name": {"method": …}, …}'

And for which operations the device and its host wait for each other once more, when the latest client's round is
repeated with more steps. A run whose name begins with "resumed" is killed in its second round, which is then asked for
again in what stands for another process. In one whose name begins with "broken", the clients' data is left on the CPU:
it must fail.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import strict_device
import torch
from flwr.app import Message
from harness import SMALL, Outcome
from inprocess import Clock, InProcessGrid

from bayes_core.predict import gp_tree
from client_app import calibrate, examples, method, site, store
from client_app.data import load
from fedbayes.model import finished as finished_room
from fedbayes.model.adapt import adapt
from fedbayes.model.finished import Finished
from fedbayes.protocol.settings import Settings, defaults
from server_app import app as server
from strategies.rounds import exchange, roster
from strategies.rounds.stages import private

ADAPT = "adapt"  # how cases begin after which a new site is adapted, too …
RESUMED = "resumed"  # … and those that are killed in their second round
BROKEN = "broken"  # … and those whose data is left on the CPU
os.fsync = lambda descriptor: None  # type: ignore[assignment]
torch.set_num_threads(1)
roster.SETTLE = 0.0
gp_tree.STARTS = 5
exchange.time = Clock()  # type: ignore[assignment]


reads: list[Path] = []  # of states from the disk that hold something (FedAvg's do not)


def read(path: Path, original: Any = store.read) -> Any:
    tags, tensors = original(path)
    reads.extend([path] if tensors else [])
    return tags, tensors


store.read = read

# Of each kind of step that a method takes in its rounds, few and more.
FEW, MORE = (
    {
        **dict.fromkeys(("local-steps", "pfedvem.head-steps", "pfedgp.inner-steps", "pfedme.personal-steps"), steps),
        **{f"fedpa.{key}": steps for key in ("burn-in", "samples", "sample-steps")},
    }
    for steps in (2, 4)
)  # fmt: skip


class Latest:
    """The latest round of a client, as its method was asked for it."""

    def __init__(self, name: str) -> None:
        self.kind = method.load(name)
        self.call: tuple[method.ClientMethod, Any] | None = None

    def __enter__(self) -> "Latest":
        self.train = self.kind.train

        @wraps(self.train)
        def train(one: method.ClientMethod, *arguments: Any) -> Any:
            self.call = one, arguments
            return self.train(one, *arguments)

        self.kind.train = train  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self.kind.train = self.train  # type: ignore[method-assign]

    def waits(self) -> list[str]:
        """What it waits for in more steps, beside what it waits for in few."""
        assert self.call
        one, arguments = self.call
        met = []
        for steps in (FEW, MORE):
            settings = Settings.parse(one.settings.as_config() | steps)
            again = self.kind(settings, one.network, one.x, one.y, one.site, one.device)
            strict_device.crossings.clear()
            self.train(again, *arguments)
            met.append(Counter(strict_device.crossings))
        return sorted((met[1] - met[0]).elements())


class Killed(BaseException):
    """Ends the process, as far as can be."""


def kill(number: int, message: Message, reply: Message) -> Message:
    """When the last client has done its part of the second round."""
    exchange = message.content.get("exchange")
    if exchange and exchange["round"] == 2 and number == 1:
        raise Killed
    return reply


def run(name: str, folder: Path, device: torch.device, words: dict[str, Any]) -> Outcome:
    examples.NORMAL = private.NORMAL = np.random.default_rng(1).standard_normal
    if name.startswith(RESUMED):
        with suppress(Killed):
            attempt(name, folder, device, words, kill)
        store._kept.clear()
        return attempt(name, folder, device, words | {"resume": True})
    return attempt(name, folder, device, words)


def attempt(
    name: str,
    folder: Path,
    device: torch.device,
    words: dict[str, Any],
    interfere: Callable[[int, Message, Message], Message] | None = None,
) -> Outcome:
    method.stream = calibrate.stream = strict_device.stream
    site.find_device = finished_room.find_device = lambda wanted: device
    site.forget()
    config = (
        defaults()
        | SMALL
        | {"out-dir": str(folder / device.type), "run-name": name, "compile": False}
        | {"rounds": 2}  # every operation is Python here
        | words
    )
    settings = Settings.parse(config)
    outcome = Outcome(folder / device.type / name)
    server._report = lambda folder: None  # type: ignore[assignment]
    server.emit = lambda event, **said: outcome.events.append({"event": event, **said})
    grid = InProcessGrid({}, 3 if "clients-per-round" in words else 2, interfere)
    for context in grid.contexts.values():
        context.run_config = settings.as_config()
    server.run(grid, settings)
    return outcome


def adapted(run: Outcome) -> list[float]:
    """A new site's model, trained where `find_device` says, used on the CPU."""
    finished = Finished.open(run.folder, {"rounds": 2})
    data = load(finished.settings, 1, 2)
    x, x_test = (((part.cpu() + 1) * 8).to(torch.uint8) for part in (data.x_train, data.x_test))
    *_, last = adapt(finished, x, data.y_train.cpu(), "new")
    strict_device.forget_generators()  # a prediction on the CPU has the stream of one on the device
    probabilities: list[float] = last.personal().predict(x_test).probabilities.flatten().tolist()
    return probabilities


def main() -> None:
    folder, cases, moved = Path(sys.argv[1]), json.loads(sys.argv[2]), site._moved
    found: dict[str, Any] = {}
    for name, words in cases.items():
        site._moved = (lambda data, device: data) if name.startswith(BROKEN) else moved
        try:
            with strict_device.StrictMode(), Latest(words.get("method", "pfedbayes")) as latest:
                reads.clear()
                strict = run(name, folder, strict_device.DEVICE, words)
                stayed = not reads
                waits = latest.waits()
                there = adapted(strict) if name.startswith(ADAPT) else []
            plain = run(name, folder, torch.device("cpu"), words)
            here = adapted(plain) if name.startswith(ADAPT) else []
            same = strict.metrics == plain.metrics and here == there
            warnings = strict.said("warning")
            found[name] = {"same": same, "warnings": warnings, "stayed": stayed, "waits": waits}
        except Exception as error:
            found[name] = {"error": str(error)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
