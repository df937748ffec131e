"""A site's processes: what is started again, when, and what ends the site."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedbayes.deploy import supervise
from fedbayes.deploy.supervise import Part, Site

STAYS = ["sleep", "60"]
Watched = Callable[..., Site]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """watched(node, executor, connected, answers): a site whose pauses are short; it ends with the test."""
    for name, value in {"SOON": 0.01, "LATE": 0.02, "POLL": 1.0, "AT_WORK": 2.0, "LOST": 3.0}.items():
        monkeypatch.setattr(supervise, name, value)
    made: list[Site] = []

    def make(
        node: list[str], executor: list[str] | None = None, connected: bool = True, answers: bool = True
    ) -> Site:
        monkeypatch.setattr(supervise, "is_connected", lambda *_: connected)
        monkeypatch.setattr(supervise, "answers", lambda *_: answers)
        carrier = Part("executor", executor, pause=0.01) if executor else None
        made.append(Site(Part("SuperNode", node, pause=0.01), carrier, "127.0.0.1:9", "ca.crt"))
        return made[-1]

    yield make
    for site in made:
        for part in filter(None, (site.node, site.executor)):
            part.end()


def look(site: Site, until: Callable[[], object]) -> int | None:
    """Look again and again; the site's status where it ends before."""
    deadline = time.monotonic() + 20
    while not until():
        assert time.monotonic() < deadline
        if (status := site._look()) is not None:
            return status
        time.sleep(0.005)
    return None


def counting(file: Path, then: str) -> list[str]:
    """A process that says in a file that it was started."""
    return ["sh", "-c", f"echo x >> '{file}'; {then}"]


def starts(file: Path) -> int:
    return file.read_text().count("x") if file.exists() else 0


def test_an_executor_that_ends_is_started_again_and_the_supernode_stays(
    watched: Watched, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = watched(STAYS, counting(tmp_path / "n", "exit 7"))
    assert look(site, lambda: starts(tmp_path / "n") >= 3) is None
    assert site.node.status is None
    assert "The executor has ended (status 7); the executor is started again in" in capsys.readouterr().out


@pytest.mark.parametrize(("status", "ends", "clock"), [(0, 1, True), (5, 5, False)])
def test_one_that_was_never_taken_in_ends_the_site(
    watched: Watched, capsys: pytest.CaptureFixture[str], status: int, ends: int, clock: bool
) -> None:
    site = watched(["sh", "-c", f"exit {status}"], connected=False)
    assert look(site, lambda: False) == ends
    assert ("clock" in capsys.readouterr().out) is clock


@pytest.mark.parametrize("status", [0, 49])  # in its first words, and at the next start
def test_one_that_was_cut_off_before_it_worked_is_started_again(
    watched: Watched, tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    """It ends as for a wrong clock; but nobody answers as the coordinator does."""
    site = watched(counting(tmp_path / "n", f"exit {status}"), connected=False, answers=False)
    assert look(site, lambda: starts(tmp_path / "n") >= 3) is None
    assert "clock" not in capsys.readouterr().out


@pytest.mark.parametrize(("status", "ends", "clock"), [(0, 1, True), (3, 3, False)])
def test_one_that_ends_after_its_work_is_started_again_but_not_for_ever(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    status: int, ends: int, clock: bool,
) -> None:  # fmt: skip
    """Status 0: a clock has jumped while the site worked. Flower gives no reason; the site names the likely one."""
    site = watched(counting(tmp_path / "n", f"exit {status}"), connected=False)
    site.worked = True
    assert look(site, lambda: starts(tmp_path / "n") >= 3) is None
    assert supervise.CLOCK not in capsys.readouterr().out, "it may be a passing trouble"
    monkeypatch.setattr(supervise, "REFUSED", 0.0)
    assert look(site, lambda: False) == ends
    assert (supervise.CLOCK in capsys.readouterr().out) is clock


@pytest.mark.parametrize("answers", [True, False])
def test_one_without_a_connection_is_started_again_once_the_coordinator_answers(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    site = watched(counting(tmp_path / "n", "exec sleep 60"), answers=answers)
    look(site, lambda: site.worked)
    monkeypatch.setattr(supervise, "is_connected", lambda *_: False)
    if answers:
        assert look(site, lambda: starts(tmp_path / "n") == 2) is None
    else:
        look(site, lambda: site.lost > 10)
        assert starts(tmp_path / "n") == 1


def test_one_that_lost_its_way_again_and_again_waits_for_no_longer_pause(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time it was watched for a while already; after a network's noise the last one must not wait longest."""
    monkeypatch.setattr(supervise, "LATE", 60.0)
    site = watched(counting(tmp_path / "n", "exec sleep 60"), connected=False)
    site.worked = True
    assert look(site, lambda: starts(tmp_path / "n") == 5) is None
    assert site.node.pause == supervise.SOON


def test_one_that_never_had_a_connection_is_started_again_too(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator came with another certificate at first: Flower gave up before it was ever at work."""
    monkeypatch.setattr(supervise, "NEVER", 6.0)
    site = watched(counting(tmp_path / "n", "exec sleep 60"), connected=False)
    look(site, lambda: site.lost > 4)
    assert starts(tmp_path / "n") == 1, "it may be slow to start"
    assert look(site, lambda: starts(tmp_path / "n") == 2) is None


def test_no_pause_is_waited_for_when_the_coordinator_is_back(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "node"
    site = watched(counting(file, "exit 1"), answers=False)
    site.worked = True
    monkeypatch.setattr(supervise, "SOON", 60.0)
    monkeypatch.setattr(supervise, "LATE", 60.0)
    assert look(site, lambda: starts(file) == 1 and site.node.process is None) is None
    for _ in range(3):
        site._look()
    assert site.node.process is None and site.away, "nobody answers: the pause is waited for"
    monkeypatch.setattr(supervise, "answers", lambda *_: True)
    assert look(site, lambda: starts(file) == 2) is None
