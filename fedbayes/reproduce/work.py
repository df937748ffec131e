"""The runs that a table lacks, one after the other or several at once, each written down when it has ended."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from fedbayes.errors import CommandError
from fedbayes.launch.methods import keys_of
from fedbayes.launch.plan import Plan, checked, plan_resume, plan_run
from fedbayes.launch.ready import check_data
from fedbayes.launch.run_folder import is_held
from fedbayes.launch.simulate import Stopped, StopSignals
from fedbayes.protocol.settings import Settings, SettingsError, defaults
from fedbayes.reproduce.cells import ENTROPY, Cell
from fedbayes.reproduce.child import ENDED
from fedbayes.reproduce.ledger import FAILED, FINISHED, NO_DATA, STOPPED, Entry, Ledger, measured
from server_app.stored import RunError

# What makes a run another one, beside its method's own settings and those that its cell gives.
COMMON = (
    "method", "dataset", "layout", "groups", "size", "model", "clients-per-round", "train-all",
    "local-steps", "batch-size", "optimizer", "lr-global", "lr-end", "adam-beta2", "buffers", "wire", "eval-samples",
    "validation-fraction", "precision",
)  # fmt: skip
OF_NO_MATTER = ("eval-every", "compile")  # neither changes what is learned


@dataclass(frozen=True)
class Job:
    """One run of a cell."""

    cell: Cell
    seed: int
    rounds: int
    settings: Mapping[str, Any] = field(hash=False)  # by which it is found in the ledger
    refused: str = field(default="", hash=False)  # why it cannot even be planned

    @classmethod
    def of(cls, cell: Cell, seed: int, asked_rounds: int | None) -> "Job":
        rounds = cell.rounds(asked_rounds)
        settings, refused = _settings(cell.method, tuple(cell.words().items()))
        own = {"clients": cell.clients, "rounds": rounds, "seed": seed}
        return cls(cell, seed, rounds, {**settings, **own}, refused)

    @property
    def title(self) -> str:
        return f"{self.cell.name}, seed {self.seed}"

    @property
    def run_name(self) -> str:
        """Runs that differ in anything have other names, so no folder is taken for another's."""
        digest = hashlib.sha256(json.dumps(dict(self.settings), sort_keys=True).encode()).hexdigest()[:8]
        cell = self.cell
        return f"{cell.data}-{cell.size}-{cell.method}-{self.rounds}r-seed{self.seed}-{digest}"

    def plan(self, data_dir: Path, out_dir: Path) -> Plan:
        """A new run, or the one that is there and goes on."""
        words = {
            **self.cell.words(), **self.cell.found_in(data_dir), "rounds": str(self.rounds),
            "seed": str(self.seed), "data-dir": str(data_dir), "out-dir": str(out_dir), "run-name": self.run_name,
        }  # fmt: skip
        folder = out_dir / self.run_name
        if (folder / "config.json").exists():
            return plan_resume(str(folder), defaults() | words, self.cell.clients)
        return plan_run(words, self.cell.clients)

    def entry(self, state: str, why: str = "", **found: Any) -> Entry:
        return Entry(self.cell.name, self.seed, self.rounds, dict(self.settings), state, why, **found)


@cache
def _settings(method: str, given: tuple[tuple[str, str], ...]) -> tuple[dict[str, Any], str]:
    """All that makes runs with these words others than those with others; and why they are refused, if they are."""
    words, refused = dict(given), ""
    try:
        config = checked(Settings.parse(defaults() | words), given=words).as_config()
    except (SettingsError, CommandError) as error:
        config, refused = defaults() | words, str(error)
    keys = {*COMMON, *keys_of(method), *words} - {*OF_NO_MATTER}
    return {key: config[key] for key in sorted(keys)}, refused


class Runner(Protocol):
    """Where runs go on: `fedbayes.reproduce.child.Children`."""

    def start(self, name: str, plan: Plan) -> None: ...

    def hear(self) -> Iterable[tuple[str, dict[str, Any]]]: ...

    def stop(self) -> None: ...


class Watcher(Protocol):
    """Who sees what happens."""

    def begun(self, job: Job) -> None: ...

    def event(self, job: Job, event: Mapping[str, Any]) -> None: ...

    def ended(self, job: Job, entry: Entry) -> None: ...


@dataclass
class Work:
    """All runs of a table. What is finished in the ledger is not run again."""

    jobs: Sequence[Job]
    ledger: Ledger
    data_dir: Path
    out_dir: Path
    runner: Runner
    watcher: Watcher
    at_once: int = 1
    _missing: dict[tuple[str, str], str] = field(
        default_factory=dict
    )  # data sets that are not there, and why
    _plans: dict[str, tuple[Job, Plan]] = field(default_factory=dict)

    def waiting(self) -> list[Job]:
        found = ((job, self.ledger.find(job.settings)) for job in self.jobs)
        return [job for job, entry in found if entry is None or entry.state != FINISHED]

    def run(self) -> bool:
        """Whether it came to its end; False where it was stopped, be it by Ctrl-C."""
        todo = iter(self.waiting())
        with StopSignals() as signals:
            try:
                while self._fill(todo) or self._plans:
                    if self._plans:
                        self._listen()
            except Stopped:
                signals.shield()
                self._stop()
                return False
        return True

    def _fill(self, todo: Iterator[Job]) -> bool:
        """Start runs while there is room; whether there may be more."""
        while len(self._plans) < self.at_once:
            job = next(todo, None)
            if job is None:
                return False
            if entry := self._start(job):
                self._end(job, entry)
        return True

    def _start(self, job: Job) -> Entry | None:
        """Start a run; its entry where there is nothing to be run."""
        if job.refused:
            return job.entry(FAILED, job.refused)
        if (known := self.ledger.find(job.settings)) and known.state == FINISHED:
            return known  # by another command, meanwhile
        if job.run_name in self._plans or is_held(self.out_dir / job.run_name):
            return job.entry(STOPPED, "Another command is running it.")
        try:
            plan = job.plan(self.data_dir, self.out_dir)
        except (CommandError, SettingsError, RunError) as error:
            return job.entry(FAILED, str(error))
        if plan.finished:
            return self._finished(job, plan)
        data = (plan.settings.dataset, plan.settings.layout)
        if data not in self._missing:
            try:
                check_data(plan.settings, plan.clients)
            except (CommandError, SettingsError) as error:
                self._missing[data] = str(error)
        if data in self._missing:
            return job.entry(NO_DATA, self._missing[data])
        self._plans[job.run_name] = job, plan
        self.watcher.begun(job)
        self.runner.start(job.run_name, plan)
        return None

    def _listen(self) -> None:
        for name, event in self.runner.hear():
            job, plan = self._plans[name]
            if event["event"] != ENDED:
                self.watcher.event(job, event)
                continue
            del self._plans[name]
            if event["status"] == 0:
                self._end(job, self._finished(job, plan))
            elif event["status"] == 130:
                self._end(job, job.entry(STOPPED))
                raise Stopped
            else:
                self._end(job, job.entry(FAILED, str(event["error"])))

    def _stop(self) -> None:
        """End what runs, and write down what was finished meanwhile."""
        self.runner.stop()
        while self._plans:
            for name, event in self.runner.hear():
                if event["event"] == ENDED:
                    job, plan = self._plans.pop(name)
                    done = event["status"] == 0
                    self._end(job, self._finished(job, plan) if done else job.entry(STOPPED))

    def _finished(self, job: Job, plan: Plan) -> Entry:
        found = measured(plan.folder, job.rounds, job.cell.keeps == ENTROPY)
        if not any(found["figures"].get(f"{model}_accuracy") is not None for model in ("pm", "gm")):
            return job.entry(FAILED, "No model has an accuracy that is a number after the last round.")
        return job.entry(FINISHED, **found)

    def _end(self, job: Job, entry: Entry) -> None:
        self.ledger.add(entry)
        self.watcher.ended(job, entry)


def seconds_left(waiting: Sequence[Job], entries: Sequence[Entry], at_once: int) -> float | None:
    """Guessed from finished runs, those that are most alike; None while none is finished."""
    paces: dict[tuple[Any, ...], list[float]] = {}
    for entry in entries:
        if entry.state == FINISHED and entry.seconds:
            for likeness in _likenesses(entry.settings):
                paces.setdefault(likeness, []).append(entry.seconds / entry.rounds)
    total = 0.0
    for job in waiting:
        known = next((paces[one] for one in _likenesses(job.settings) if one in paces), None)
        if known is None:
            return None
        total += job.rounds * sum(known) / len(known)
    return total / at_once


def _likenesses(settings: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """From the closest kind to any."""
    method, data, size = settings["method"], settings["dataset"], settings["size"]
    model, layout = settings["model"], settings["layout"]
    return [
        (method, data, layout, size, model), (method, size, model), (method, model), (size, model), (model,), (),
    ]  # fmt: skip
