"""A federation over TLS on this machine for minutes or hours, disturbed by a seeded script (docs/reliability.md).

    python experiments/soak.py [--sites 12] [--minutes 60 | --rounds 100] [--least 200] [--calm] [--seed 0]
                               [--keep FOLDER] [--out runs/soak.md]

It lasts for so many minutes, and on until `--least` rounds are saved, by a third longer at most. Each site talks to the
coordinator through a relay of its own, which can cut it off. The seed gives the faults: sites, executors and ClientApps
killed, sites stopped for a while, connections cut or answered with noise, the coordinator killed and started again or
only its ServerApp killed (the run is resumed). The first rounds have only faults of the coordinator, which must not
change a figure; it is left in peace in the second half, so that its memory can be watched. `--calm` leaves all faults
out. At the end, also where something went wrong meanwhile: what each kind of fault has cost, and what must hold
(soaked.py), printed and in a file; the exit status says whether.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "federation")]  # real federations are the tests'

# ruff: noqa: E402
from deployed import Running, family, until
from harness import SMALL
from relay import Relayed
from soaked import Struck, Watcher, judged, part

from fedbayes.errors import CommandError
from fedbayes.launch.flower import program

RUN = "soak"
SETTINGS = {
    "dataset": "digits",
    "model": "dnn",
    "size": "10+5",
    "local_steps": 2,
    "eval_every": 5,
    "zeta": "auto",
}
LEAD = 12  # rounds with faults of the coordinator alone
DEATHS = 6  # of the coordinator and the ServerApp, at most: everybody feels them
AGAIN = 5.0  # seconds until a site that has ended is started again
PAUSE = (30.0, 60.0)  # seconds from one fault to the next
LEAST = 200 / 60  # rounds a minute
TAIL = 40  # lines of the coordinator's log beside a run that ended by itself
LONGER = 4 / 3  # times the minutes, for the rounds that are wanted
WORDS = {  # what a fault is called in the table
    "kill site": "all processes of a site killed, started again 5 s later",
    "stop site": "a site stopped (SIGSTOP) for 20 s",
    "kill executor": "a site's executor killed",
    "kill app": "a ClientApp at work killed",
    "cut": "a site's connection cut for 20 s",
    "noise": "a site's connection cut, its TLS handshakes answered with noise for 40 s",
    "kill coordinator": "the coordinator killed, started again, the run resumed",
    "kill server": "the ServerApp killed, the run resumed",
}
CENTRAL = ("kill coordinator", "kill server")


class Soak:
    """One run of it."""

    def __init__(self, federation: Relayed, seed: int, rounds: int, minutes: float, least: int) -> None:
        self.federation, self.rounds, self.least = federation, rounds, least
        self.began = time.monotonic()
        self.until, self.latest = self.began + 60 * minutes, self.began + LONGER * 60 * minutes
        self.dice = random.Random(seed)
        self.struck: list[Struck] = []
        self.watcher = Watcher(federation, RUN)
        self.ended: dict[int, float] = {}  # when a site was seen to have ended
        self.trouble: list[str] = []  # what nobody has done, and must not happen

    @property
    def settings(self) -> dict[str, Any]:
        small = {key.replace("-", "_"): value for key, value in SMALL.items()}
        return small | SETTINGS | {"min_clients": max(1, self.federation.total // 2)}

    def go(self, calm: bool) -> None:
        """All of it; what went wrong is in `trouble`."""
        self.run = self.federation.run(RUN, **self.settings | {"rounds": self.rounds})
        self.watcher.start()
        try:
            self._disturb(calm)
            if self.run.process.poll() is None:
                self.run.process.send_signal(signal.SIGINT)
            if (status := self.run.ends()) not in (0, 130):  # all rounds, or stopped at the end
                self.trouble.append(f"the run's command ended with status {status}")
        except (AssertionError, CommandError, OSError, psutil.Error) as error:
            self.trouble.append(f"{type(error).__name__}: {error}")
        finally:
            self.watcher.stop()

    def _disturb(self, calm: bool) -> None:
        next_fault = time.monotonic() + PAUSE[0]
        while self._goes_on():
            if not calm and self.saved() > 1 and time.monotonic() >= next_fault:
                self.strike()
                next_fault = time.monotonic() + self.dice.uniform(*PAUSE)
            self.restart()
            time.sleep(0.5)

    def _goes_on(self) -> bool:
        """Until the time is over and the rounds are there; a run that ends by itself is resumed, and noted."""
        if (status := self.run.process.poll()) == 0:
            return False
        if status is not None:
            self.trouble.append(
                f"round {self.saved()}: the run ended by itself ({self.run.said[-300:]}){self._cause()}"
            )
            time.sleep(AGAIN)
            self.run = self.federation.resume(RUN)
        now = time.monotonic()
        # a round's row is written with the next exchange
        return now < self.until or (self.saved() <= self.least and now < self.latest)

    def _cause(self) -> str:
        """What else there is to know of it: Flower's words on each run, and the coordinator's last ones."""
        words = (str(program("flwr")), "list", "lan", "--format", "json")
        try:
            asked = subprocess.run(
                words, env=self.federation.environment, capture_output=True, text=True, timeout=60
            )
            runs = json.loads(asked.stdout[asked.stdout.index("{") :])["runs"]
            ended = [f"{one['run-id']} {one['status']}: {one['status-details']}" for one in runs]
        except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
            ended = [f"its runs are not known ({error!r})"]
        said = self.federation.running["coordinator"].said.splitlines()
        log = [line for line in said if "[uvicorn.access]" not in line][-TAIL:]  # every request is one
        return "\n".join(["", *(f"      {line}" for line in ["Flower:", *ended, "The coordinator:", *log])])

    def saved(self) -> int:
        """Rounds; the last that were seen while the folder cannot be read."""
        with suppress(CommandError, OSError):
            return self.federation.saved(RUN)
        return max(self.watcher.rounds, default=0)

    def choose(self, saved: int) -> str:
        """The next fault; none for now is the empty word."""
        before = [one.saved for one in self.struck if one.fault in CENTRAL]
        deaths = len(before)
        fault = self.dice.choice(sorted(WORDS))
        if saved < LEAD:
            return CENTRAL[deaths] if deaths < len(CENTRAL) else ""
        late = time.monotonic() > (self.began + self.until) / 2
        if fault in CENTRAL and (deaths >= DEATHS or late or saved < before[-1] + 5):
            return "cut"
        return fault

    def strike(self) -> None:
        saved = self.saved()
        number = self.dice.randrange(self.federation.total)
        if not (fault := self.choose(saved)):
            return
        print(f"{time.strftime('%H:%M:%S')}  round {saved}: {fault}, site-{number}", flush=True)
        self.struck.append(Struck(fault, time.time(), number, saved))
        site = self.federation.running[f"site-{number}"]
        match fault:
            case "kill site":
                site.kill()
            case "stop site":
                self._pause(site)
            case "kill executor":
                self._kill([one for one in family(site.process) if part(one, "site-") == "an executor"])
            case "kill app":
                self._kill_at_work(site, f"site-{number}", "a ClientApp")
            case "cut":
                self.federation.relays[number].cut(20.0)
            case "noise":
                self.federation.relays[number].cut(40.0, spoil=True)
            case "kill coordinator":
                self._new_coordinator()
            case "kill server":
                if self._kill_at_work(self.federation.running["coordinator"], "coordinator", "the ServerApp"):
                    self._resume()

    def _new_coordinator(self) -> None:
        self.federation.running["coordinator"].kill()
        self.federation.start_coordinator()
        self.struck[-1].step("the coordinator answers")
        everybody = f"{self.federation.total} of {self.federation.total} sites connected"
        with suppress(AssertionError):  # one may be away for a reason of its own
            until(lambda: everybody in self.federation.asks("sites"), "the sites are back", 60)
        self.struck[-1].step("the sites are back")
        self._resume()

    def _resume(self) -> None:
        self.run.ends()
        self.struck[-1].step("the run's command has ended")
        self.run = self.federation.resume(RUN)
        coordinator = self.federation.running["coordinator"].process
        with suppress(AssertionError):
            until(
                lambda: "the ServerApp" in [part(one, "coordinator") for one in family(coordinator)],
                "it is there",
                120,
            )
        self.struck[-1].step("the next ServerApp is started")

    def _pause(self, site: Running) -> None:
        paused = family(site.process)
        for one in paused:
            with suppress(psutil.Error):
                one.suspend()
        time.sleep(20)
        for one in paused:
            with suppress(psutil.Error):
                one.resume()

    def _kill(self, processes: list[psutil.Process]) -> None:
        for one in processes:
            with suppress(psutil.Error):
                one.kill()

    def _kill_at_work(self, running: Running, name: str, wanted: str) -> bool:
        """Kill such a process as soon as there is one: a ClientApp lives for a second, a ServerApp starts slowly."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if found := [one for one in family(running.process) if part(one, name) == wanted]:
                self.struck[-1].when, self.struck[-1].saved = time.time(), self.saved()
                self._kill(found)
                return True
            time.sleep(0.02)
        self.struck.pop()  # there was none
        return False

    def restart(self) -> None:
        """As a restart policy: a site that has ended is started again a little later."""
        for number in range(self.federation.total):
            if self.federation.running[f"site-{number}"].process.poll() is None:
                self.ended.pop(number, None)
            elif time.monotonic() - self.ended.setdefault(number, time.monotonic()) > AGAIN:
                self.federation.launch_site(number)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sites", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--least", type=int, help="rounds that must be saved; 200 in an hour")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calm", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/soak.md"))
    given = parser.parse_args()
    least = min(round(LEAST * given.minutes) if given.least is None else given.least, given.rounds)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        federation = Relayed(folder, given.sites)
        try:
            federation.start_coordinator()
            for first in range(0, given.sites, 3):  # a few at a time: all at once are slow to start
                some = range(first, min(first + 3, given.sites))
                for site in [federation.launch_site(number) for number in some]:
                    site.hears("SuperNode ID")
            soak = Soak(federation, given.seed, given.rounds, given.minutes, least)
            soak.go(given.calm)
            lasted = (time.monotonic() - soak.began) / 60
        finally:
            federation.end()
        title = f"{given.sites} sites, seed {given.seed}, {'calm' if given.calm else 'faults'}: {lasted:.0f} minutes"
        holds, lines = judged(soak.watcher, soak.struck, WORDS, soak.settings, least)
        lines += [f"- went wrong: {words}" for words in soak.trouble]
    text = "\n".join([f"# {title}", "", *lines, ""])
    print(text)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(text, "utf-8")
    sys.exit(not holds or bool(soak.trouble))


if __name__ == "__main__":
    main()
