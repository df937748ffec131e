"""A real federation as its operator knows it: watched, stopped and cut off; two runs at once; floods; a new start.

Three sites that reach the coordinator through relays, for all tests, which follow each other.
"""

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from deployed import Running, family, until
from harness import SMALL, Outcome
from relay import Relayed

from fedbayes.deploy import orphans
from fedbayes.launch.flower import free_port

pytestmark = pytest.mark.deployment
Federate = Callable[..., Outcome]
SITES = 3
SETTINGS = {key.replace("-", "_"): value for key, value in SMALL.items()} | {"min_clients": SITES}
METRICS = free_port()
BACK = 30.0  # seconds from a network, or a coordinator, that is there again to a site that is
AWAY = 40.0  # seconds of noise, or of another coordinator in its place
SILENT = 120.0  # seconds of a round with a silent site, on a busy machine; its time would be 400
FLOOD = 100 * 2**20  # bytes
ARRAY = 300 * 2**20  # bytes
MOST = 600 * 2**20  # bytes of a process of the coordinator, whatever a site sends; at rest it has half of it


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relayed]:
    federation = Relayed(tmp_path_factory.mktemp("operated"), SITES)
    try:
        federation.start_coordinator("--metrics-port", str(METRICS), "--log-format", "json")
        sites = [federation.launch_site(number) for number in range(SITES - 1)]
        sites.append(federation.launch_site(SITES - 1, words=("--log-format", "json")))
        for site in sites:
            site.hears("SuperNode ID")
        yield federation
    finally:
        federation.end()


def statuses(run: Outcome, server_round: int) -> dict[str, str]:
    return {row["site"]: row["status"] for row in run.clients if row["round"] == str(server_round)}


def as_json(running: Running) -> list[dict[str, Any]]:
    """What it says with --log-format json, without the command's own words before."""
    return [json.loads(line) for line in running.said.splitlines() if line.startswith("{")]


def scraped() -> dict[str, float]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{METRICS}/metrics", timeout=30) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_two_runs_at_once_share_nothing_and_end_as_each_alone(
    federation: Relayed, federate: Federate
) -> None:
    """Watched meanwhile by every eye that an operator has."""
    runs = {
        name: federation.run(name, **SETTINGS | {"seed": seed}) for name, seed in (("one", 1), ("two", 2))
    }
    for name, run in runs.items():
        assert run.ends() == 0, run.said
        assert f"4 rounds, {SITES} sites, 0 failed replies" in run.said
        alone = federate(f"{name}-alone", clients=SITES, **SETTINGS | {"seed": {"one": 1, "two": 2}[name]})
        together = federation.outcome(name)
        assert (together.tensors["w"] == alone.tensors["w"]).all() and together.metrics == alone.metrics
    for number in range(SITES):
        states = [federation.state(number, name) / "personal.safetensors" for name in runs]
        assert all(file.is_file() for file in states) and states[0].read_bytes() != states[1].read_bytes()
    text = federation.asks("sites")
    assert f"{SITES} of {SITES} sites connected; no run is under way." in text
    assert all(f"site-{number}" in text for number in range(SITES)) and text.count("connected") == SITES + 1
    text = federation.asks("runs", "--on", "lan")
    assert text.count("finished") == 2 and " one " in text and " two " in text
    counted = scraped()
    assert counted["fedbayes_sites_connected"] == SITES
    for name in runs:
        assert counted[f'fedbayes_run_round{{run="{name}"}}'] == 4
        assert counted[f'fedbayes_replies_total{{run="{name}"}}'] == 4 * SITES
        assert counted[f'fedbayes_bytes_total{{run="{name}",direction="up"}}'] > 0
    events = [found for found in as_json(federation.running["coordinator"]) if found.get("event") == "round"]
    assert all(found["source"] == "run" and {"seconds", "time", "level"} <= found.keys() for found in events)
    told = sorted((found["run"], found["round"]) for found in events)
    assert told == [(name, t) for name in runs for t in range(1, 5)], "every round of both, once"
    said = as_json(federation.running[f"site-{SITES - 1}"])
    assert len(said) > 5 and all({"time", "level", "source", "message"} <= found.keys() for found in said)
    assert any(found["source"] == "flower" and "SuperNode ID" in found["message"] for found in said)


def test_a_silent_site_costs_no_round_its_whole_time_and_takes_part_again(federation: Relayed) -> None:
    settings = SETTINGS | {"rounds": 500, "round_timeout": 400, "min_clients": 2, "straggler_cutoff": 2}
    run = federation.run("silent", **settings)
    federation.wait_for_round("silent", 1, run)
    paused = family(federation.running["site-2"].process)
    for one in paused:
        one.suspend()
    try:
        silent = "fedbayes_replies_failed_total"
        until(
            lambda: any(name.startswith(silent) and '"silent"' in name for name in scraped()), "a silent site"
        )
    finally:
        for one in paused:
            one.resume()
    back = federation.saved("silent")
    outcome = federation.outcome("silent")
    until(
        lambda: any(
            statuses(outcome, t).get("site-2") == "ok" for t in range(back + 1, federation.saved("silent"))
        ),
        "site-2 takes part again",
    )
    text = federation.asks("stop", "silent")
    assert "Resume with:  fedbayes run --resume silent --on lan" in text
    assert run.ends() == 130 and "Stopped." in run.said, run.said
    hit = [row for row in outcome.rows if row["clients_failed"] not in ("", "0")]
    assert hit and all(float(row["seconds"]) < SILENT for row in hit), [row["seconds"] for row in hit]
    reasons = {row["status"] for row in outcome.clients if row["status"].startswith("failed")}
    assert any("no answer within" in reason for reason in reasons), reasons
    until(lambda: federation.outcome("silent").state == "stopped", "the state at the coordinator")


def test_a_site_comes_back_when_the_network_does(federation: Relayed) -> None:
    """Its TLS handshakes fail for a while: Flower gives up for good then, and lives on."""
    site = federation.running["site-1"]
    before, given_up = site.said.count("SuperNode ID"), site.said.count("SSL/TLS handshake error")
    federation.relays[1].cut(AWAY, spoil=True)
    until(lambda: site.said.count("SSL/TLS handshake error") > given_up, "Flower gives up")
    time.sleep(max(0.0, federation.relays[1].left))
    began = time.monotonic()
    until(lambda: site.said.count("SuperNode ID") > before, "site-1 is back")
    taken = time.monotonic() - began
    print(f"usable again after {taken:.0f} s")
    assert taken < BACK
    assert site.process.poll() is None
    run = federation.run("after", **SETTINGS | {"rounds": 1})
    assert run.ends() == 0 and f"{SITES} sites, 0 failed replies" in run.said, run.said


def test_a_killed_server_app_is_one_sentence_and_a_true_state(federation: Relayed) -> None:
    run = federation.run("orphan", **SETTINGS | {"rounds": 500})
    federation.wait_for_round("orphan", 1, run)
    for app in server_apps(federation):
        app.kill()
    assert run.ends() == 1
    assert "fedbayes: The run's ServerApp ended without a word: it was killed, or" in run.said, run.said
    assert "Traceback" not in run.said and "Resume with:  fedbayes run --resume orphan --on lan" in run.said
    assert federation.outcome("orphan").state == "failed"
    # Right after it is resumed too, when it has not said a word: it waits for one site more than there are.
    run = federation.resume("orphan", min_clients=SITES + 1)
    until(lambda: any(map(imports_torch, server_apps(federation))), "the next one is at work")
    time.sleep(3 * orphans.EVERY)
    for app in server_apps(federation):
        app.kill()
    killed = time.monotonic()
    assert run.ends() == 1
    print(f"missed within {time.monotonic() - killed:.0f} s")
    assert "fedbayes: The run's ServerApp ended without a word: it was killed, or" in run.said, run.said
    assert federation.outcome("orphan").state == "failed"
    saved = federation.saved("orphan")
    run = federation.resume("orphan", rounds=saved + 1, min_clients=SITES)
    assert run.ends() == 0, run.said


def server_apps(federation: Relayed) -> list[psutil.Process]:
    """An earlier run's may be about to end."""
    found = []
    for one in family(federation.running["coordinator"].process):
        with suppress(psutil.Error):  # it has just ended
            if one.name() == "flwr-serverapp":
                found.append(one)
    return found


def imports_torch(process: psutil.Process) -> bool:
    """Flower itself does not: the run's own code is being imported, or at work."""
    with suppress(psutil.Error, OSError):
        return "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()
    return False


def test_a_flood_of_notes_is_refused_and_the_others_go_on(federation: Relayed) -> None:
    federation.running["site-0"].stop()
    hostile = {"PYTHONPATH": str(Path(__file__).parent / "hostile"), "HOSTILE_NOTES": str(FLOOD)}
    federation.start_site(0, **hostile)
    try:
        with grown(psutil.Process(federation.running["coordinator"].process.pid)) as sizes:
            run = federation.run("flood", **SETTINGS | {"rounds": 2, "min_clients": 2})
            assert run.ends() == 0, run.said
    finally:
        federation.running["site-0"].stop()
        federation.start_site(0)
    flood = federation.outcome("flood")
    for t in (1, 2):
        assert "could not be sent as a whole" in statuses(flood, t)["site-0"], statuses(flood, t)
    peak = max(sizes)
    print(f"the SuperLink grew by {peak / 2**20:.0f} MB at most, a round took {flood.rows[1]['seconds']} s")
    assert len(sizes) > 50 and peak < FLOOD, "it never had the notes in its memory"


def test_a_huge_array_is_refused_and_the_others_go_on(federation: Relayed) -> None:
    """Of noise in round 1, of zeros in round 2: those are 5 MB on their way, and 300 when they are put together."""
    federation.running["site-0"].stop()
    hostile = {"PYTHONPATH": str(Path(__file__).parent / "hostile"), "HOSTILE_ARRAY": str(ARRAY)}
    federation.start_site(0, **hostile)
    link = psutil.Process(federation.running["coordinator"].process.pid)
    try:
        with grown(link) as sizes, watched(lambda: highest_of_app(link), 0.2) as apps:
            run = federation.run("array", **SETTINGS | {"rounds": 2, "min_clients": 2})
            assert run.ends() == 0, run.said
    finally:
        federation.running["site-0"].stop()
        federation.start_site(0)
    array = federation.outcome("array")
    seconds = " and ".join(array.rows[t]["seconds"] for t in (1, 2))
    print(f"the SuperLink grew by {max(sizes) >> 20} MB at most, to {highest(link) >> 20} MB;")
    print(f"the ServerApp had {max(apps) >> 20} MB at most; the rounds took {seconds} s")
    for t in (1, 2):
        told = statuses(array, t)
        assert told == {"site-0": "failed: its reply is larger than 16 MB", "site-1": "ok", "site-2": "ok"}
        assert (array.rows[t]["clients_ok"], array.rows[t]["clients_failed"]) == ("2", "1")
        assert float(array.rows[t]["bytes_up"]) < 2**20, "none of it has come to the run"
    assert "Site site-0 dropped from this round: its reply is larger than 16 MB." in run.said
    assert "3 sites, 2 failed replies" in run.said
    assert scraped()['fedbayes_replies_failed_total{run="array",reason="too large"}'] == 2
    assert len(sizes) > 50 and max(sizes) < ARRAY / 2 and highest(link) < MOST
    assert len(apps) > 50 and 0 < max(apps) < MOST, "it was never put together"


def grown(process: psutil.Process) -> AbstractContextManager[list[int]]:
    """By how many bytes it is larger than at first."""
    before = process.memory_info().rss
    return watched(lambda: process.memory_info().rss - before)


def highest_of_app(link: psutil.Process) -> int:
    """The most memory that the run's ServerApp has had so far, in bytes; 0 while there is none."""
    for one in link.children(recursive=True):
        with suppress(psutil.Error, OSError, StopIteration):  # it has just ended
            if one.name() == "flwr-serverapp":
                return highest(one)
    return 0


def highest(process: psutil.Process) -> int:
    """The most memory that it has ever had, in bytes (Linux: /proc)."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@contextmanager
def watched(look: Callable[[], int], every: float = 0.05) -> Iterator[list[int]]:
    """What it finds, looked at all the while from a thread."""
    found, over = list[int](), threading.Event()

    def watch() -> None:
        while not over.wait(every):
            found.append(look())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("ahead", [-400, 60])
def test_a_site_whose_clock_is_wrong_says_so(federation: Relayed, ahead: int) -> None:
    """Flower takes messages from 305 s late to 5 s early, and gives no reason when it does not."""
    federation.running["site-0"].stop()
    try:
        wrong = {"PYTHONPATH": str(Path(__file__).parent / "clock"), "CLOCK_AHEAD": str(ahead)}
        site = federation.launch_site(0, **wrong)
        assert site.ends() == 1
        assert "The likely cause is this machine's clock" in site.said and "SuperNode ID" not in site.said
    finally:
        federation.start_site(0)


def test_another_coordinator_in_its_place_is_outlived(federation: Relayed) -> None:
    """For a while somebody else answers at the address, with a certificate of another authority."""
    folder = federation.folder / "other"
    folder.mkdir()
    other = Relayed(folder, 0)
    assert other.command("keys", "keys", "--host", "127.0.0.1", "--sites", "1").ends() == 0
    other.fleet, other.control = federation.fleet, federation.control
    sites = [federation.running[f"site-{number}"] for number in range(SITES)]

    def told(words: str) -> list[int]:
        return [site.said.count(words) for site in sites]

    before, given_up = told("SuperNode ID"), told("SSL/TLS handshake error")
    federation.running["coordinator"].kill()
    try:
        other.start_coordinator()
        began = time.monotonic()
        until(lambda: told("SSL/TLS handshake error") != given_up, "Flower gives up")
        time.sleep(max(0.0, AWAY - (time.monotonic() - began)))
    finally:
        other.end()
    federation.start_coordinator("--metrics-port", str(METRICS))
    began = time.monotonic()
    until(lambda: scraped()["fedbayes_sites_connected"] == SITES, "everybody is back")
    taken = time.monotonic() - began
    print(f"all usable again after {taken:.0f} s")
    assert taken < BACK
    assert all(site.process.poll() is None for site in sites)
    assert told("SuperNode ID") != before, "whoever had given up was started again"
    run = federation.run("outlived", **SETTINGS | {"rounds": 1})
    assert run.ends() == 0 and f"{SITES} sites, 0 failed replies" in run.said, run.said


def test_a_coordinator_that_starts_anew_knows_its_sites(federation: Relayed) -> None:
    """Killed and started again, it needs no database: those who stayed up are there again, and a run works.

    The run is asked for at once, when the coordinator has not even written down where it is to be reached.
    """
    nodes = {
        one.pid for number in range(SITES) for one in family(federation.running[f"site-{number}"].process)
        if one.name().startswith("flower-super")
    }  # fmt: skip
    federation.running["coordinator"].kill()
    (federation.folder / "flower" / "config.toml").unlink()
    federation.launch_coordinator("--metrics-port", str(METRICS))
    run = federation.run("anew", **SETTINGS | {"rounds": 1, "min_clients": SITES})
    assert run.ends() == 0 and f"{SITES} sites, 0 failed replies" in run.said, run.said
    assert scraped()["fedbayes_sites_connected"] == SITES, "everybody is back"
    assert all(map(psutil.pid_exists, nodes)), "no SuperNode had to be started again"
