"""Flower's own simulation: one private SuperLink, one run in it, and nothing left afterwards."""

import http.client
import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fedbayes.errors import CommandError
from fedbayes.launch.app_bundle import assemble, write_run_config
from fedbayes.launch.flower import ANSI, environment, free_port, program
from fedbayes.launch.plan import Plan, further_defaults
from fedbayes.launch.processes import MARKER, MARKER_BYTES, end_all, members, start_reaper, temporary_folder
from fedbayes.launch.resources import client_resources
from fedbayes.launch.run_folder import WORKSHOP

START_SECONDS = 90.0  # a SuperLink answers after 2 s here; a cold disk takes longer


class Federation:
    """The processes of one run. Every one of them carries `marker`; `end` leaves none behind."""

    starting = "starting Flower…"

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.marker = secrets.token_hex(MARKER_BYTES)
        self.temporary = temporary_folder(self.marker)
        self.workshop = plan.folder / WORKSHOP
        self._resources, self._variables = client_resources(plan.settings, plan.clients)
        self._children: list[subprocess.Popen[str]] = []
        self._reaper: subprocess.Popen[bytes] | None = None
        self._log: IO[str] | None = None

    def start(self) -> None:
        """The SuperLink, which is ready to take a run some seconds later."""
        self.temporary.mkdir(mode=0o700)
        self._reaper = start_reaper(self.marker)
        assemble(self.workshop / "app", further_defaults(self.plan.settings))
        self._log = (self.plan.folder / "log.txt").open("a", encoding="utf-8", errors="replace")
        self._log.write(f"\n=== {time.strftime('%Y-%m-%d %H:%M:%S')} {self.plan.settings.run_name}\n")
        self._log.flush()
        self._port = free_port()
        home = self.workshop / "home"
        home.mkdir()
        connection = f'[superlink.local]\naddress = "127.0.0.1:{self._port}"\ninsecure = true\n'
        (home / "config.toml").write_text(f'[superlink]\ndefault = "local"\n\n{connection}', "utf-8")
        self._superlink = self._spawn(
            "flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess",
            "--host", "127.0.0.1", "--port", str(self._port), stdout=self._log,
        )  # fmt: skip

    def _wait_for_an_answer(self) -> None:
        deadline, superlink = time.monotonic() + START_SECONDS, self._superlink
        while not _is_healthy(self._port):
            if superlink.poll() is not None:
                raise CommandError(f"Flower's SuperLink ended at once with status {superlink.returncode}.")
            if time.monotonic() > deadline:
                raise CommandError(f"Flower's SuperLink did not answer within {START_SECONDS:.0f} s.")
            time.sleep(0.1)

    def lines(self) -> Iterator[str]:
        """Start the run and follow its log, line by line, to its end; all of it goes to log.txt too."""
        self._wait_for_an_answer()
        config = write_run_config(self.workshop / "run.toml", self.plan.settings.as_config())
        federation = {"num-supernodes": self.plan.clients, **self._resources}
        process = self._spawn(
            "flwr", "run", str(self.workshop / "app"), "local", "--stream",
            "--federation-config", " ".join(f"{key}={value}" for key, value in federation.items()),
            "-c", str(config), stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None and self._log is not None
        for line in process.stdout:
            text = ANSI.sub("", line.rstrip("\n"))
            self._log.write(text + "\n")
            self._log.flush()
            yield text
        process.wait()

    def says_failed(self) -> bool:
        """Whether Flower itself counts the run as failed: `flwr run --stream` ends with 0 either way."""
        process = self._spawn(
            "flwr", "list", "--format", "json", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            answer, _ = process.communicate(timeout=60)
            runs = json.loads(answer[answer.index("{") :])["runs"]
            return any(run["status"] in ("finished:failed", "finished:stopped") for run in runs)
        except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
            return True

    def end(self) -> None:
        """End every process of the run and delete what only they needed; nothing, if it was never started."""
        if self._reaper is None or self._reaper.stdin is None:
            return
        self._reaper.stdin.close()  # it sets to work now
        try:
            self._reaper.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._reaper.kill()
        end_all(self.marker)  # finds none, unless someone killed the reaper
        for child in self._children:
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
        if self._log is not None:
            self._log.close()
        shutil.rmtree(self.workshop, ignore_errors=True)
        if left := members(self.marker):
            numbers = ", ".join(str(process.pid) for process in left)
            raise CommandError(f"These processes of the run could not be ended: {numbers}.")

    def _spawn(
        self, script: str, *arguments: str, stdout: int | IO[str], stderr: int = subprocess.STDOUT
    ) -> subprocess.Popen[str]:
        """A Flower program in a session of its own: the terminal's Ctrl-C is for the command alone."""
        child = subprocess.Popen(
            [str(program(script)), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            env=self._environment(),
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        self._children.append(child)
        return child

    def _environment(self) -> dict[str, str]:
        inherited = {key: value for key, value in environment().items() if key != "RAY_ADDRESS"}  # no cluster
        variables = dict(self._variables)
        if self.plan.settings.user_code:  # looked for in the folder where the command was started
            folders = filter(None, (os.environ.get("PYTHONPATH"), str(Path.cwd())))
            variables["PYTHONPATH"] = os.pathsep.join(folders)
        return inherited | variables | {
            MARKER: self.marker,
            "FLWR_HOME": str(self.workshop / "home"),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "RAY_TMPDIR": str(self.temporary),
            "RAY_USAGE_STATS_ENABLED": "0",
            "SPT_NOENV": "1",  # asks setproctitle, which Ray uses, not to write its titles over the marker
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }  # fmt: skip


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
