"""What operators see: tables, metrics, structured logs, the dashboard."""

import io
import json
import re
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from fedbayes.cli.command import main
from fedbayes.deploy import linkstate, log_lines, metrics, operators, replies
from fedbayes.deploy.operators import Node, Run
from fedbayes.deploy.told import RunTold, kind_of
from fedbayes.errors import CommandError
from server_app.events import PREFIX

ROOT = Path(__file__).parents[3]


def round_event(number: int, **statuses: str) -> dict[str, Any]:
    failed = sum(status.startswith("failed") for status in statuses.values())
    return {
        "event": "round", "round": number, "rounds": 9, "clients_ok": len(statuses) - failed, "clients_failed": failed,
        "seconds": 2.5, "bytes_up": 100, "bytes_down": 300,
        "sites": {name.replace("_", "-"): status for name, status in statuses.items()},
    }  # fmt: skip


EVENTS: list[dict[str, Any]] = [
    {"event": "sites", "sites": {f"site-{i}": {"n_train": 10 + i, "n_test": 5, "version": "0.1.0"} for i in range(2)}},
    {"event": "start", "run": "first", "folder": "/runs/first", "method": "pfedbayes", "round": 1, "rounds": 9},
    round_event(1, site_0="ok", site_1="ok"),
    {"event": "evaluated", "round": 1, "pm_accuracy": 0.5, "gm_accuracy": 0.25},
    {"event": "joined", "site": "site-2", "n_train": 7, "n_test": 3, "version": "0.1.1"},
    round_event(2, site_0="ok", site_1="failed: no answer within 30 s", site_2="ok"),
]  # fmt: skip


@pytest.fixture
def told() -> RunTold:
    run = RunTold()
    for event in EVENTS:
        run.hear(event)
    return run


def test_a_run_is_what_its_events_tell(told: RunTold) -> None:
    assert (told.name, told.state, told.round, told.rounds) == ("first", "running", 2, 9)
    assert (told.ok, told.failed, told.seconds, told.bytes_down) == (4, 1, 5.0, 600)
    assert told.kinds == {"silent": 1} and told.scores == {"pm_accuracy": 0.5, "gm_accuracy": 0.25}
    silent = told.sites["site-1"]
    assert (silent.last_round, silent.failures, silent.reason) == (1, 1, "no answer within 30 s")
    assert (told.sites["site-2"].last_round, told.sites["site-2"].n_train) == (2, 7)
    told.hear({"event": "finished"})
    assert told.state == "finished"


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("no answer yet to an earlier round; it is not waited for", "silent"),
        ("it cannot be reached", "away"),
        (replies.ABANDONED, "incomplete"),
        (replies.FORGED, "forged"),
        ("its reply is larger than 16 MB", "too large"),
        ("not finite", "dropped"),
        ("No space left on device", "error"),
    ],
)
def test_reasons_are_counted_by_a_handful_of_kinds(reason: str, kind: str) -> None:
    assert kind_of(reason) == kind


# ---------------------------------------------------------------- metrics


def test_metrics_are_prometheus_text(told: RunTold) -> None:
    told.name = 'odd "name"\\'
    text = metrics.render({"site-0": True, "site-1": False}, [told], {"site-0": 2})
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    sample = re.compile(r'^[a-z_]+(\{([a-z]+="([^"\\]|\\.)*",?)*\})? -?[\d.e+-]+$')
    assert all(map(sample.match, lines)), lines
    assert "fedbayes_sites_connected 1" in lines and 'fedbayes_site_up{site="site-1"} 0' in lines
    assert 'fedbayes_site_forged_total{site="site-0"} 2' in lines
    assert 'fedbayes_site_forged_total{site="site-1"} 0' in lines
    run = 'run="odd \\"name\\"\\\\"'
    assert f'fedbayes_replies_failed_total{{{run},reason="silent"}} 1' in lines
    assert f'fedbayes_run_score{{{run},model="pm",measure="accuracy"}} 0.5' in lines
    described = re.findall(r"^# TYPE (\S+) (gauge|counter)$", text, re.MULTILINE)
    assert [name for name, _ in described] == list(metrics.METRICS)
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in described)


def test_large_counters_move_with_every_round(told: RunTold) -> None:
    """What is up and down in a week of rounds has more digits than `g` prints."""
    told.hear(round_event(3, site_0="ok") | {"bytes_up": 123_456_789_012, "seconds": 1_234_567.25})
    told.hear(round_event(4, site_0="ok") | {"bytes_up": 1, "seconds": 0.5})
    lines = metrics.render({}, [told]).splitlines()
    assert 'fedbayes_bytes_total{run="first",direction="up"} 123456789213' in lines
    assert 'fedbayes_round_seconds_total{run="first"} 1234572.75' in lines


def test_a_run_and_those_that_resumed_it_are_one(told: RunTold) -> None:
    resumed = RunTold()
    resumed.hear(EVENTS[1] | {"round": 3})
    resumed.hear(round_event(3, site_0="ok", site_1="failed: it cannot be reached"))
    lines = metrics.render({}, [told, resumed]).splitlines()
    names = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(names) == len(set(names))
    assert 'fedbayes_rounds_total{run="first"} 3' in lines and 'fedbayes_run_round{run="first"} 3' in lines
    assert 'fedbayes_site_failures_total{run="first",site="site-1"} 2' in lines
    assert 'fedbayes_site_last_round{run="first",site="site-2"} 2' in lines


def test_a_run_that_has_said_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "PATIENCE", 0.05)
    hold = threading.Event()
    silent = SimpleNamespace(StreamLogs=lambda request: iter(hold.wait, True))
    assert operators._told(silent, 7) == RunTold()
    hold.set()


def test_metrics_are_served_on_request(told: RunTold) -> None:
    server = metrics.serve("127.0.0.1", 0, lambda: metrics.render({}, [told]))
    try:
        place = f"http://127.0.0.1:{server.server_address[1]}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{place}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"] == metrics.TYPE
            assert 'fedbayes_run_round{run="first"} 2' in answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            opener.open(f"{place}/etc", timeout=10)
    finally:
        server.shutdown()
        server.server_close()


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    dashboard = json.loads((ROOT / "docs/grafana.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"fedbayes_\w+", target["expr"])
    }
    assert asked == set(metrics.METRICS), "each of them, and no other"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_coordinators_state_hears_the_events_in_the_logs_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.common.constant import NOOP_FLWR_AID
    from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink.federation import NoOpFederationManager

    monkeypatch.setattr(linkstate.MemoryState, "KEYS", {b"a": "site-0"})
    state = linkstate.MemoryState(NoOpFederationManager(), ObjectStoreFactory().store())
    run = state.create_run(
        None, None, "hash", {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
    )
    task = state.run_ids[run].run.primary_task_id
    assert task is not None
    heard: list[Mapping[str, Any]] = []
    state.tell = heard.append  # as with --log-format json
    text = "".join(f"{PREFIX}{json.dumps(event)}\n" for event in EVENTS)
    for start in range(0, len(text), 97):  # Flower sends it in pieces, wherever they end
        state.add_task_log(task, text[start : start + 97])
    state.add_task_log(task, f'{PREFIX}{{"event": "round"}}\nno event\n')
    (found,) = state.runs_told()
    assert (found.name, found.round, found.failed) == ("first", 2, 1)
    assert state.connected() == {"site-0": False}
    assert [one["event"] for one in heard[:-1]] == [event["event"] for event in EVENTS]
    assert heard[-1] == {"run": "first", "event": "round"}, "whose it is, also of one that says little"


# ---------------------------------------------------------------- logs


def test_lines_of_every_program_become_json() -> None:
    lines = [
        "\x1b[92mINFO \x1b[0m:      SuperNode ID: 7\n",
        '2026-11-18T06:03:34.749Z WARNING [uvicorn.access] 127.0.0.1 - "POST /v1" 200\n',
        f'{PREFIX}{{"event": "warning", "message": "a\\nb", "time": 5.0}}\n',
        "The executor has ended (status -9)\n",
        "\x1b[92mINFO \x1b[0m:      \n",
        "\n",
    ]
    out = io.StringIO()
    log_lines.rewrite(lines, out)
    flower, server, event, ours = [json.loads(line) for line in out.getvalue().splitlines()]
    assert (flower["level"], flower["source"], flower["message"]) == ("info", "flower", "SuperNode ID: 7")
    assert (server["level"], server["source"]) == ("warning", "uvicorn.access")
    assert (event["level"], event["source"], event["message"], event["time"]) == (
        "warning",
        "run",
        "a\nb",
        5.0,
    )
    assert ours["message"].startswith("The executor has ended") and ours["time"] > 1e9


# ---------------------------------------------------------------- commands


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, told: RunTold) -> list[int]:
    """A coordinator that answers from here; the numbers of runs that were stopped."""
    stopped: list[int] = []
    ran = [Run(7, "running", 1.7e9, told), Run(6, "finished:failed", 1.6e9, RunTold())]

    @contextmanager
    def coordinator(name: str) -> Iterator[Any]:
        yield SimpleNamespace(StopRun=lambda request: stopped.append(request.run_id))

    monkeypatch.setattr(operators, "coordinator", coordinator)
    monkeypatch.setattr(operators, "runs", lambda client: ran)
    found = [
        Node("site-0", "online", 1.7e9),
        Node("site-1", "offline", 1.7e9),
        Node("site-9", "registered", None),
    ]
    monkeypatch.setattr(operators, "nodes", lambda client: found)
    return stopped


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 0
    return capsys.readouterr().out


def test_sites_and_runs_are_tables(asked: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "sites")
    rows = {cells[1].strip(): [cell.strip() for cell in cells] for line in text.splitlines()
            if len(cells := line.split("│")) > 5}  # fmt: skip
    assert rows["site-0"][2] == "connected" and rows["site-0"][4:10] == [
        "0.1.0",
        "first",
        "2",
        "10",
        "5",
        "0",
    ]
    assert rows["site-1"][2] == "away" and rows["site-1"][9:11] == ["1", "no answer within 30 s"]
    assert rows["site-9"][2] == "never seen"
    assert "1 of 3 sites connected; under way: first." in text
    text = said(capsys, "runs", "--on", "lan")
    assert re.search(r"first +│ pfedbayes +│ running +│ +2/9 │ +0.500 │ +0.250 │ +3 │ +1 │ +2.5", text), text
    assert re.search(r"run 6 +│ - +│ failed|run 6 +│ \S +│ failed", text), text


def test_a_run_is_stopped_by_its_name(asked: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "stop", "first", "--on", "lan")
    assert asked == [7] and "at least 2 of 9 rounds are saved" in text
    assert "fedbayes run --resume first --on lan" in text
    with pytest.raises(CommandError, match='There is no run "other" under way; there is first'):
        operators.stop(SimpleNamespace(), "other")


def test_a_federation_that_nobody_knows_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    for words in (["sites"], ["runs", "--on", "lan"], ["stop", "a"]):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 2 and 'There is no federation "lan"' in capsys.readouterr().err


def test_what_a_site_says_does_not_style_the_table(told: RunTold) -> None:
    told.sites["site-0"].reason = "[red]ha[/red]"
    console = Console(width=160, file=io.StringIO())
    console.print(operators.sites_table([Node("site-0", "online", 1.0)], [Run(1, "running", 1.0, told)]))
    assert "[red]ha[/red]" in console.file.getvalue()  # type: ignore[attr-defined]
