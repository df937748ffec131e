"""A real federation on loopback, through the `fedbayes` command: one coordinator, several sites, each its processes."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from harness import Outcome

from fedbayes.launch.flower import free_port
from fedbayes.launch.run_folder import saved_rounds

LIBC = ctypes.CDLL(None)
PATIENCE = 400.0  # seconds, for a busy machine; nothing here takes that long on a quiet one


def until(what: Callable[[], Any], why: str, patience: float = PATIENCE) -> Any:
    """Wait for something to be true, and return it."""
    deadline = time.monotonic() + patience
    while not (found := what()):
        assert time.monotonic() < deadline, f"waited {patience:.0f} s in vain: {why}"
        time.sleep(0.1)
    return found


def family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """A process and all its descendants."""
    try:
        parent = psutil.Process(process.pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return []


def _end_with_the_tests() -> None:
    """Nothing outlives the tests, not even when they are killed (Linux: PR_SET_PDEATHSIG)."""
    if sys.platform == "linux":
        LIBC.prctl(1, signal.SIGTERM)


class Running:
    """A command in the background, with what it says in a file."""

    def __init__(self, command: Sequence[str], folder: Path, log: Path, environment: dict[str, str]) -> None:
        self.log = log
        self.before = log.stat().st_size if log.exists() else 0
        with log.open("ab") as stream:
            # A session of its own: the kernel shares the processor fairly between sessions, as between machines.
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
                start_new_session=True, preexec_fn=_end_with_the_tests,
            )  # fmt: skip

    @property
    def said(self) -> str:
        """What it has said since this start."""
        return self.log.read_bytes()[self.before :].decode("utf-8", "replace")

    def hears(self, words: str, patience: float = PATIENCE) -> None:
        def heard() -> bool:
            assert self.process.poll() is None or words in self.said, f"ended without {words!r}:\n{self.said}"
            return words in self.said

        until(heard, f"{words!r} in {self.log.name}:\n{self.said[-2000:]}", patience)

    def ends(self, patience: float = PATIENCE) -> int:
        """Its exit status, once it has one."""
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.log.name} did not end:\n{self.said[-2000:]}") from None

    def kill(self) -> None:
        """As a power cut: all of its processes at once."""
        for each in family(self.process):
            with suppress(psutil.Error):  # a ClientApp may just have ended by itself
                each.kill()
        self.process.wait()

    def stop(self) -> None:
        """As its administrator does: SIGTERM, and time to say good-bye."""
        descendants = family(self.process)
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        for each in descendants:
            with suppress(psutil.Error):
                each.kill()
        self.process.wait()


class Deployment:
    """The coordinator and its sites; `folder` is the coordinator's working folder and holds everybody's files."""

    def __init__(self, folder: Path, sites: int) -> None:
        self.folder = folder
        self.environment = {**os.environ, "FLWR_HOME": str(folder / "flower"), "COLUMNS": "120"}
        self.fleet, self.control = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.total = sites
        self.running: dict[str, Running] = {}
        if sites:
            assert self.command("keys", "keys", "--host", "127.0.0.1", "--sites", str(sites)).ends() == 0

    def command(self, *words: str, log: str = "command", **environment: str) -> Running:
        command = [sys.executable, "-m", "fedbayes.cli", *words]
        return Running(command, self.folder, self.folder / f"{log}.log", self.environment | environment)

    def launch_coordinator(self, *more: str) -> Running:
        """Start it and do not wait for it."""
        words = ("coordinator", "keys/coordinator", "--listen", self.fleet, "--control", self.control, *more)
        self.running["coordinator"] = self.command(*words, log="coordinator")
        return self.running["coordinator"]

    def start_coordinator(self, *more: str) -> Running:
        self.launch_coordinator(*more).hears("may take part")
        return self.running["coordinator"]

    def asks(self, *words: str) -> str:
        """What a command says that ends well."""
        running = self.command(*words, log="asked")
        assert running.ends() == 0, running.said
        return running.said

    def address(self, number: int) -> str:
        """Where a site finds the coordinator."""
        return self.fleet

    def launch_site(
        self,
        number: int,
        state: Path | None = None,
        flower: Sequence[str] = (),
        words: Sequence[str] = (),
        **environment: str,
    ) -> Running:
        """Start a site and do not wait for it; `words` are for the command, `flower` for Flower's program."""
        name = f"site-{number}"
        given = ["--at", self.address(number), "--share", f"{number}/{self.total}"]
        given += ["--state", str(state or self.state(number).parent.parent)]
        given += ["--log-file", str(self.folder / f"{name}.lines"), *words, "--", *flower]
        environment = {"FLWR_HOME": str(self.home(number))} | environment
        self.running[name] = self.command("site", f"keys/{name}", *given, log=name, **environment)
        return self.running[name]

    def home(self, number: int) -> Path:
        """The folder that Flower has at a site."""
        return self.folder / "keys" / f"site-{number}" / "flower"

    def start_site(
        self, number: int, state: Path | None = None, flower: Sequence[str] = (), **environment: str
    ) -> Running:
        """Start a site as a restart policy does: one that was killed is refused until it is given up."""
        deadline = time.monotonic() + PATIENCE
        while True:
            site = self.launch_site(number, state, flower, **environment)
            while "SuperNode ID" not in site.said and site.process.poll() is None:
                time.sleep(0.1)
            if "SuperNode ID" in site.said:
                return site
            assert time.monotonic() < deadline, site.said
            time.sleep(3)

    def state(self, number: int, run: str = "-") -> Path:
        """The folder of a site's personal model."""
        return self.folder / f"disk-{number}" / run / f"site-{number}"

    def run(self, name: str, *words: str, **settings: Any) -> Running:
        """`fedbayes run --on lan` in the background."""
        given = [f"{key.replace('_', '-')}={value}" for key, value in settings.items()]
        return self.command("run", "--on", "lan", f"run-name={name}", *words, *given, log=f"run-{name}")

    def resume(self, name: str, **settings: Any) -> Running:
        given = [f"{key.replace('_', '-')}={value}" for key, value in settings.items()]
        return self.command("run", "--on", "lan", "--resume", name, *given, log=f"run-{name}")

    def outcome(self, name: str) -> Outcome:
        return Outcome(self.folder / "runs" / name)

    def saved(self, name: str) -> int:
        folder = self.folder / "runs" / name
        return saved_rounds(folder) if folder.exists() else 0

    def wait_for_round(self, name: str, saved: int, command: Running) -> None:
        """Until so many rounds are saved."""

        def there() -> bool:
            assert command.process.poll() is None, command.said
            return self.saved(name) >= saved

        until(there, f"round {saved} of {name}")

    def at_work(self, number: int, state: Path) -> psutil.Process | None:
        """The ClientApp of a site, if there is one that has opened its personal state (Linux: /proc)."""
        for process in family(self.running[f"site-{number}"].process):
            with suppress(psutil.Error, OSError):
                opened = Path(f"/proc/{process.pid}/fd").iterdir()
                if any(str(file.readlink()) == str(state) for file in opened):
                    return process
        return None

    def end(self) -> None:
        for running in self.running.values():
            running.stop()


@contextmanager
def started(folder: Path, sites: int, **flower: Sequence[str]) -> Iterator[Deployment]:
    """A coordinator with its sites; `flower` has further words for Flower's program at some, as `site_2=…`."""
    federation = Deployment(folder, sites)
    try:
        federation.start_coordinator()
        for number in range(sites):
            federation.launch_site(number, flower=flower.get(f"site_{number}", ()))
        for number in range(sites):
            federation.running[f"site-{number}"].hears("SuperNode ID")
        yield federation
    finally:
        federation.end()


def interrupt(running: Running) -> None:
    """Ctrl-C."""
    running.process.send_signal(signal.SIGINT)
