"""What is at which address: the list of runs, a run, its report and tables, and a comparison. Nothing here writes."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fedbayes.cli.listing import Listed, by_age, listed
from fedbayes.launch.run_folder import is_held
from server_app.evaluations import FILE as EVALUATIONS
from server_app.report import render
from server_app.report.compare import render as render_comparison
from server_app.report.files import read_run
from server_app.report.groups import group
from server_app.report.live import EVERY, FILES, live, refusal, starting, watched
from server_app.report.page import POLICY
from server_app.report.watched import POLICY as LIVE_POLICY
from server_app.rows import NONE
from server_app.stored import RunError

HTML, TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"
# What a page of a run is made of: it is made anew when one of them has changed.
SOURCES = (
    "config.json", "rounds.csv", "clients.csv", EVALUATIONS, "checkpoint.safetensors", "clusters.json", "log.txt",
    "lock.json",
)  # fmt: skip
KEPT = 64  # pages
GOING_ON = ("running", "starting")
MOST_BYTES = 64 * 2**20  # of a file that is handed out
Stamp = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Answer:
    """What a browser gets."""

    status: HTTPStatus
    body: bytes
    kind: str = HTML
    policy: str = POLICY

    @property
    def tag(self) -> str:
        """The same for the same content."""
        return f'"{sha256(self.body).hexdigest()[:32]}"'


class Pages:
    """The pages of the runs in one folder."""

    def __init__(self, out_dir: Path, token: str) -> None:
        self._out_dir = out_dir
        self._token = token
        self._key = urlencode({"token": token})
        self._made: dict[str, tuple[object, Answer]] = {}
        self._listed: dict[str, tuple[Stamp, Listed | None]] = {}
        self._lock = threading.Lock()  # one page at a time: a browser asks for no more

    def answer(self, parts: Sequence[str], query: Mapping[str, Sequence[str]]) -> Answer:
        """The page at a path that has been taken apart and decoded."""
        with self._lock:
            try:
                return self._answer(parts, query)
            except RunError as error:
                return self._refuse(HTTPStatus.NOT_FOUND, str(error))
            except Exception as error:  # a run folder may hold anything: the other pages stay
                return self._refuse(
                    HTTPStatus.INTERNAL_SERVER_ERROR,
                    f"This page cannot be made: {type(error).__name__}: {error}",
                )

    def _answer(self, parts: Sequence[str], query: Mapping[str, Sequence[str]]) -> Answer:
        match list(parts):
            case []:
                return self._list()
            case ["compare"]:
                return self._compare(query.get("run", ()))
            case ["run", name]:
                return self._run(self._folder(name))
            case ["run", name, "report"]:
                folder = self._folder(name)
                return self._once(
                    f"report {name}", stamp(folder), lambda: _page(render(read_run(folder)), POLICY)
                )
            case ["run", name, file] if file in FILES:
                return self._file(self._folder(name) / file)
            case _:
                return self._refuse(HTTPStatus.NOT_FOUND, "There is no such page.")

    def _folder(self, name: str) -> Path:
        """A run by its name, which must be one that the folder itself lists: no path leads out of it."""
        found = next((folder for folder in self._folders() if folder.name == name), None)
        if found is None:
            raise RunError(f'There is no run "{name[:100]}" in {self._out_dir} (any more).')
        return found

    def _folders(self) -> list[Path]:
        try:
            return sorted(path for path in self._out_dir.iterdir() if path.is_dir())
        except OSError:
            return []

    def _run(self, folder: Path) -> Answer:
        now, held = stamp(folder), is_held(folder)
        changed = last_change(now)

        def make() -> Answer:
            if (folder / "config.json").exists():
                return _page(live(folder, self._key, held, changed), LIVE_POLICY)
            if not held:
                raise RunError(f'There is no run "{folder.name}" in {self._out_dir} (any more).')
            words = "The run has begun, and waits until its clients have said hello."
            return _page(starting(folder, self._key, "starting", words, changed), LIVE_POLICY)

        return self._once(f"run {folder.name}", (now, held), make)

    def _list(self) -> Answer:
        runs = [self._line(one) for one in reversed(by_age(map(self._look, self._folders())))]
        content: dict[str, Any] = {"title": "Runs", "folder": str(self._out_dir), "token": self._token}
        return _page(watched("list", self._key, 2 * EVERY, None, runs=runs, **content), LIVE_POLICY)

    def _look(self, folder: Path) -> Listed | None:
        """As the folder's files say; those of a run that has ended are read once."""
        now = stamp(folder)
        before = self._listed.get(folder.name)
        if before is not None and before[0] == now and (before[1] is None or before[1].state not in GOING_ON):
            return before[1]
        found = listed(folder)
        self._listed[folder.name] = (now, found)
        return found

    @staticmethod
    def _line(run: Listed) -> dict[str, Any]:
        scores = [NONE if value is None else f"{value:.3f}" for value in (run.personal, run.global_)]
        started = time.strftime("%d %b %H:%M", time.localtime(run.created)) if run.created else NONE
        return {
            "name": run.name,
            "place": f"/run/{quote(run.name, safe='')}",
            "readable": run.state not in ("unreadable", "starting"),
            "method": run.method,
            "dataset": Path(run.dataset).name,
            "state": run.state,
            "rounds": run.rounds,
            "personal": scores[0],
            "global_": scores[1],
            "started": started,
        }

    def _compare(self, names: Sequence[str]) -> Answer:
        chosen = list(dict.fromkeys(names))
        if len(chosen) < 2:
            return self._refuse(HTTPStatus.BAD_REQUEST, "Tick two runs or more, and then Compare.")
        folders = [self._folder(name) for name in chosen]

        def make() -> Answer:
            groups = group([read_run(folder, weights=False) for folder in folders])
            return _page(render_comparison(groups, "Comparison"), POLICY)

        return self._once(f"compare {chosen}", [stamp(folder) for folder in folders], make)

    def _file(self, file: Path) -> Answer:
        try:
            with file.open("rb") as stream:
                return Answer(HTTPStatus.OK, stream.read(MOST_BYTES), TEXT)
        except OSError:
            raise RunError(f"{file.name} is not in the folder of the run {file.parent.name}.") from None

    def _refuse(self, status: HTTPStatus, words: str) -> Answer:
        return Answer(status, refusal(self._key, status.phrase, words).encode())

    def _once(self, address: str, now: object, make: Callable[[], Answer]) -> Answer:
        """The page as it was made last, while what it is made of has not changed."""
        known = self._made.get(address)
        if known is not None and known[0] == now:
            return known[1]
        answer = make()
        self._made.pop(address, None)
        self._made[address] = (now, answer)
        while len(self._made) > KEPT:
            del self._made[next(iter(self._made))]
        return answer


def stamp(folder: Path) -> Stamp:
    """When each of a run's files was last written, and its size."""
    found = []
    for name in SOURCES:
        try:
            about = (folder / name).stat()
        except OSError:
            continue
        found.append((name, about.st_mtime_ns, about.st_size))
    return tuple(found)


def last_change(now: Stamp) -> float | None:
    """In seconds since 1970."""
    return max((time_ns for _, time_ns, _ in now), default=0) / 1e9 or None


def _page(text: str, policy: str) -> Answer:
    return Answer(HTTPStatus.OK, text.encode("utf-8", "replace"), HTML, policy)
