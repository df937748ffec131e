"""What `soak.py` sees while it goes on, and what must hold afterwards (docs/reliability.md)."""

import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

import psutil
from deployed import Deployment, family
from harness import Outcome
from safetensors import SafetensorError, safe_open

from fedbayes.errors import CommandError
from server_app.stored import read_rows

EVERY = 0.4  # seconds between looks; a round over the network takes more than three
SAMPLE = 10.0  # seconds between looks at memory
GROWTH, SLACK = 1.05, 8.0  # times, and MB: what a process may hold more in the last quarter than in the third


@dataclass
class Struck:
    """A fault, and the rounds that were saved when it came."""

    fault: str
    when: float
    site: int
    saved: int
    steps: dict[str, float] = field(default_factory=dict)  # what was there again, and after how many seconds

    def step(self, what: str) -> None:
        self.steps[what] = time.time() - self.when


@dataclass
class Watcher:
    """Looks at memory, saved rounds and the sites' personal models, from a thread of its own."""

    federation: Deployment
    run: str
    memory: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    rounds: dict[int, float] = field(default_factory=dict)  # when each was first seen to be saved
    states: dict[int, dict[int, tuple[str, float]]] = field(default_factory=lambda: defaultdict(dict))
    over: bool = False

    def start(self) -> None:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.over = True
        self._thread.join()

    def _watch(self) -> None:
        sampled = 0.0
        while not self.over:
            with suppress(CommandError):
                self.rounds.setdefault(self.federation.saved(self.run), time.time())
            for number in range(self.federation.total):
                self._look(number)
            if time.monotonic() - sampled > SAMPLE:
                self._sample()
                sampled = time.monotonic()
            time.sleep(EVERY)

    def _look(self, number: int) -> None:
        """The state of a site, and the one before it: which round each is of, and which it was trained from."""
        for name in ("previous.safetensors", "personal.safetensors"):
            with suppress(OSError, SafetensorError, KeyError):
                file = self.federation.state(number, self.run) / name
                with safe_open(file, framework="numpy") as stored:
                    tags = stored.metadata()
                known = self.states[number].get(int(tags["round"]))
                if known is None or known[0] != tags["from"]:
                    self.states[number][int(tags["round"])] = (tags["from"], time.time())

    def _sample(self) -> None:
        kinds: dict[str, list[float]] = defaultdict(list)
        for name, running in dict(self.federation.running).items():
            for one in family(running.process):
                with suppress(psutil.Error):
                    kinds[part(one, name)].append(one.memory_info().rss / 2**20)
        for kind, sizes in kinds.items():
            if kind not in ("a ClientApp", "gone"):  # which lives for a message
                self.memory[kind].append(max(sizes))


def part(process: psutil.Process, name: str) -> str:
    """Which part of a coordinator or site a process is."""
    with suppress(psutil.Error, OSError):
        if not name.startswith("site-"):
            return "the ServerApp" if "serverapp" in " ".join(process.cmdline()) else "the SuperLink"
        if process.name().startswith("flower-super"):
            return "a SuperNode"
        if not process.name().startswith("fedbayes-exec"):
            return "a watcher"
        above = [one.name() for one in process.parents()[:2]]
        own = sum(one.startswith("fedbayes-exec") for one in above)
        return ("an executor", "what it keeps ready", "a ClientApp")[own]
    return "gone"


# ---------------------------------------------------------------- afterwards


def judged(
    watcher: Watcher, struck: list[Struck], words: dict[str, str], settings: dict[str, Any], least: int
) -> tuple[bool, list[str]]:
    """Whether all that must hold does, and what it was like, in lines of Markdown."""
    federation, folder = watcher.federation, watcher.federation.folder / "runs" / watcher.run
    rows, clients = read_rows(folder / "rounds.csv"), read_rows(folder / "clients.csv")
    flat, memory = memory_table(watcher.memory)
    log = (federation.folder / "coordinator.log").read_text(errors="replace")
    counted = {
        number: [int(row["round"]) for row in clients if row["site"] == f"site-{number}" and row["status"] == "ok"]
        for number in range(federation.total)
    }  # fmt: skip
    agreed = _agrees(federation, watcher.run, settings)
    checks = {
        f"{len(rows) - 1} rounds, and {least} at least": len(rows) - 1 >= least,
        "every round once": [int(row["round"]) for row in rows] == list(range(len(rows))),
        "no personal model lost": all(not_lost(watcher.states[site], counted[site]) for site in counted),
        "none used twice": all(map(none_twice, watcher.states.values())),
        "every personal model finite, and of its site's last counted round or later": all(
            _finite(federation, watcher.run, site, counted[site]) for site in counted
        ),
        "memory flat": flat,
        f"rounds 0 to {agreed}, before the first lost reply, those of a calm simulation": agreed >= 0,
        "the database never locked": "database is locked" not in log,
    }
    if not struck:
        checks["no reply lost"] = all(row["clients_failed"] in ("", "0") for row in rows)
    lines = [
        _summary(watcher, rows),
        *faults_table(watcher, struck, words, clients),
        *memory,
        *_reasons(clients),
    ]
    return all(checks.values()), lines + [f"- {name}: {'yes' if ok else 'NO'}" for name, ok in checks.items()]


def _summary(watcher: Watcher, rows: list[dict[str, str]]) -> str:
    seconds = [float(row["seconds"]) for row in rows[1:] if row["seconds"]] or [0.0]
    failed = sum(int(row["clients_failed"] or 0) for row in rows)
    replies = sum(int(row["clients_ok"] or 0) for row in rows) + failed
    times = [watcher.rounds[t] for t in sorted(watcher.rounds) if t]
    usual = median([after - before for before, after in pairwise(times)] or [0.0])
    return (
        f"{len(rows) - 1} rounds, {failed} of {replies} replies failed; seconds a round: median {median(seconds):.1f}, "
        f"longest {max(seconds):.1f}; from save to save {usual:.1f}"
    )


def _reasons(clients: list[dict[str, str]]) -> list[str]:
    """Why replies failed, the most frequent first."""
    found = Counter(
        row["status"].removeprefix("failed: ")[:90] for row in clients if row["status"].startswith("failed: ")
    )
    return ["", *(f"- {number} × {why}" for why, number in found.most_common()), ""]


def not_lost(states: dict[int, tuple[str, float]], counted: list[int]) -> bool:
    """Every counted round was saved, and every state was trained from the one before it."""
    known = sorted(states)
    earlier = dict(zip(known, ["", *map(str, known)], strict=False))
    return set(counted) <= states.keys() and all(states[t][0] == earlier[t] for t in known)


def none_twice(states: dict[int, tuple[str, float]]) -> bool:
    """No two rounds were trained from one state; of a repeated round the last attempt is the one that counts."""
    origins = [origin for origin, _ in states.values()]
    return len(origins) == len(set(origins))


def faults_table(
    watcher: Watcher, struck: list[Struck], words: dict[str, str], clients: list[dict[str, str]]
) -> list[str]:
    if not struck:
        return []
    lines = [
        "",
        "| fault | times | replies lost, mean | until the round was saved, s | until the site's next work, s |",
        "|---|---|---|---|---|",
    ]
    for fault in sorted({one.fault for one in struck}):
        same = [one for one in struck if one.fault == fault]
        lost = [_lost(clients, one) for one in same]
        saved = [watcher.rounds[one.saved + 1] - one.when for one in same if one.saved + 1 in watcher.rounds]
        again = [
            min(later) - one.when
            for one in same
            if (later := [t for _, t in watcher.states[one.site].values() if t > one.when])
        ]
        lines.append(
            f"| {words[fault]} | {len(same)} | {sum(lost) / len(lost):.1f} | {_range(saved)} | {_range(again)} |"
        )
        for step in same[0].steps:
            taken = [one.steps[step] for one in same if step in one.steps]
            lines.append(f"| … until {step} | {len(taken)} | | {_range(taken)} | |")
    return lines


def _range(seconds: list[float]) -> str:
    return f"{median(seconds):.0f} (at most {max(seconds):.0f})" if seconds else ""


def _lost(clients: list[dict[str, str]], one: Struck) -> int:
    """Rounds that a site missed from a fault on."""
    states = {int(row["round"]): row["status"] for row in clients if row["site"] == f"site-{one.site}"}
    lost, at = 0, one.saved + 1
    if not states.get(at, "ok").startswith("failed"):
        at += 1  # it had answered already
    while states.get(at, "ok").startswith("failed"):
        lost, at = lost + 1, at + 1
    return lost


def memory_table(memory: dict[str, list[float]]) -> tuple[bool, list[str]]:
    """Whether no kind of process has grown in the second half, and what each held."""
    lines = [
        "",
        "| the largest of its kind, MB (median) | second quarter | third | last |",
        "|---|---|---|---|",
    ]
    flat = True
    for kind, sizes in sorted(memory.items()):
        quarter = len(sizes) // 4
        if not quarter:
            continue
        middle = [median(sizes[n * quarter : (n + 1) * quarter]) for n in (1, 2)] + [median(sizes[-quarter:])]
        lines.append(f"| {kind} | " + " | ".join(f"{size:.0f}" for size in middle) + " |")
        flat &= middle[2] <= GROWTH * middle[1] + SLACK
    return flat, lines


def _finite(federation: Deployment, run: str, number: int, counted: list[int]) -> bool:
    if not counted:
        return True
    with (
        suppress(OSError, SafetensorError, KeyError),
        safe_open(federation.state(number, run) / "personal.safetensors", framework="pt") as stored,
    ):
        finite = all(stored.get_tensor(key).isfinite().all() for key in stored.keys())  # noqa: SIM118
        return finite and int(stored.metadata()["round"]) >= counted[-1]
    return False  # there is none that can be read


def _agrees(federation: Deployment, run: str, settings: dict[str, Any]) -> int:
    """The last round before the first lost reply, if all figures up to there are those of a calm simulation; else −1.

    The models after a round are measured in the next one, which has to be whole as well.
    """
    outcome = Outcome(federation.folder / "runs" / run)
    disturbed = outcome.metrics
    hit = [number for number, row in enumerate(outcome.rows) if row["clients_failed"] not in ("", "0")]
    until = (hit[0] if hit else len(disturbed)) - 1
    given = [f"{key.replace('_', '-')}={value}" for key, value in (settings | {"rounds": until + 1}).items()]
    command = [sys.executable, "-m", "fedbayes.cli", "run", "--clients", str(federation.total), *given]
    ran = subprocess.run(
        [*command, "run-name=calm", "out-dir=calm"], cwd=federation.folder, capture_output=True,
        env=federation.environment,
    )  # fmt: skip
    if ran.returncode:
        print(f"the calm simulation failed: {ran.stderr.decode(errors='replace')[-500:]}")
        return -1
    calm = Outcome(federation.folder / "calm" / "calm").metrics
    return until - 1 if disturbed[:until] == calm[:until] else -1
