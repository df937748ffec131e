"""`fedbayes watch` over real HTTP: who gets in, what is at which address, what a half-written run does to it."""

import http.client
import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedbayes.cli import command
from fedbayes.watch.server import Server

MakeRun = Callable[..., Path]
ROWS = [
    {"round": 0, "pm_accuracy": 0.1, "gm_accuracy": 0.1},
    {"round": 3, "pm_accuracy": 0.75, "gm_accuracy": 0.5, "clients_ok": 2, "clients_failed": 1, "seconds": 2},
]
CLIENTS = """\
round,site,n_test,pm_accuracy,gm_accuracy,status
1,0,20,,,ok
1,1,20,,,failed: <b>out of memory</b>
3,0,20,0.8,0.5,ok
3,1,20,0.7,0.5,idle
"""
EVENT = {"event": "round", "time": 0, "round": 3, "clients_ok": 2, "clients_failed": 1, "seconds": 2.0}


class Client:
    """Asks a server as a browser does."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.key = f"token={server.token}"

    def ask(
        self, path: str, method: str = "GET", **headers: str
    ) -> tuple[int, str, http.client.HTTPResponse]:
        link = http.client.HTTPConnection("127.0.0.1", self.server.server_address[1], timeout=20)
        try:
            link.request(
                method, path, headers={name.replace("_", "-"): text for name, text in headers.items()}
            )
            answer = link.getresponse()
            return answer.status, answer.read().decode(), answer
        finally:
            link.close()

    def see(self, path: str, status: int = 200) -> str:
        found, text, _ = self.ask(f"{path}{'&' if '?' in path else '?'}{self.key}")
        assert found == status, text
        return text


@pytest.fixture
def client(here: Path) -> Iterator[Client]:
    with Server(here / "runs", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Client(server)
        server.shutdown()
        thread.join()


@pytest.fixture
def run(make_run: MakeRun) -> Path:
    folder = make_run("a", saved=3, rows=ROWS, rounds=3)
    (folder / "clients.csv").write_text(CLIENTS)
    (folder / "log.txt").write_text(
        f"=== a\nFEDBAYES {json.dumps(EVENT)}\n\x1b[31m<script>x</script>\x1b[0m\n"
    )
    return folder


def words(html: str) -> str:
    """What a reader sees, roughly."""
    html = html.replace("\u2060", "")  # that a line is not broken there
    return " ".join(re.sub(r"<(style|script).*?</\1>|<[^>]+>", " ", html, flags=re.DOTALL).split())


def test_without_the_token_or_from_elsewhere_nothing_is_told(client: Client, run: Path) -> None:
    for path in ("/", "/run/a", "/run/a/rounds.csv", "/?token=", "/?token=wrong", "/nowhere", "/?token=%ff"):
        status, text, _ = client.ask(path)
        assert (status, text) == (
            403,
            "This page opens at the address that `fedbayes watch` printed, with its token.\n",
        )
    for host in ("evil.example", "127.0.0.1.evil.example:80", "", "[", "evil.example@127.0.0.2"):
        status, text, _ = client.ask(f"/?{client.key}", Host=host)
        assert status == 403 and text.startswith("This page is for browsers on its own machine")
    for host in ("localhost:9000", "127.0.0.1", "[::1]:80"):  # a tunnel has a port of its own
        assert client.ask(f"/?{client.key}", Host=host)[0] == 200


def test_it_listens_on_this_machine_only(client: Client) -> None:
    assert client.server.server_address[0] == "127.0.0.1"
    assert client.server.url("a b") == (
        f"http://127.0.0.1:{client.server.server_address[1]}/run/a%20b?token={client.server.token}"
    )


def test_nothing_can_be_written(client: Client, run: Path) -> None:
    before = {file: file.read_bytes() for file in sorted(run.iterdir())}
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert client.ask(f"/run/a?{client.key}", method)[:2] == (405, "These pages are only for reading.\n")
    for path in ("/", "/run/a", "/run/a/report"):
        client.see(path)
    assert {file: file.read_bytes() for file in sorted(run.iterdir())} == before


def test_the_page_of_a_run(client: Client, run: Path) -> None:
    page = client.see("/run/a")
    said = words(page)
    assert "round 3 of 3" in said and "75.0 % personal accuracy" in said
    assert [figure in page for figure in ('id="convergence"', 'id="clients"', 'id="seconds"')] == [True] * 3
    half = "50.0 % (29.9–70.1 %)"  # of 20 test examples, after Wilson
    assert f"0 – 20 80.0 % (58.4–91.9 %) {half} 3 0 ok" in said, (
        "the sites: last answer, failed replies, status"
    )
    assert f"1 – 20 70.0 % (48.1–85.5 %) {half} – 1 failed: &lt;b&gt;out of memory&lt;/b&gt;" in said
    assert "round 3: 2 replies, 1 failed, 2.0 s" in said, "events are told in words"
    assert "&lt;script&gt;x&lt;/script&gt;" in said and "\x1b" not in page
    assert page.count("<script>") == 1


def test_the_policy_lets_nothing_run_but_the_pages_own_script(client: Client, run: Path) -> None:
    from base64 import b64encode
    from hashlib import sha256

    _, page, answer = client.ask(f"/run/a?{client.key}")
    found = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    assert found is not None
    digest = b64encode(sha256(found[1].encode()).digest()).decode()
    policy = str(answer.headers["Content-Security-Policy"])
    assert f"script-src 'sha256-{digest}'" in policy and "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert (
        answer.headers["Referrer-Policy"] == "no-referrer" and answer.headers["Cache-Control"] == "no-store"
    )
    report = client.ask(f"/run/a/report?{client.key}")[2]
    assert "script-src" not in str(report.headers["Content-Security-Policy"])


def test_a_page_that_is_the_same_is_not_sent_again(client: Client, run: Path) -> None:
    _, _, first = client.ask(f"/run/a?{client.key}")
    tag = str(first.headers["ETag"])
    assert client.ask(f"/run/a?{client.key}", If_None_Match=tag)[:2] == (304, "")
    with (run / "log.txt").open("a") as log:
        log.write("another line\n")
    status, page, _ = client.ask(f"/run/a?{client.key}", If_None_Match=tag)
    assert status == 200 and "another line" in page
    assert client.ask(f"/run/a?{client.key}", "HEAD")[:2] == (200, "")


def test_the_list_and_the_comparison(client: Client, run: Path, make_run: MakeRun) -> None:
    make_run("b", saved=3, rows=ROWS, rounds=3, zeta=2.0)
    broken = make_run("broken")
    (broken / "config.json").write_text("{")
    page = client.see("/")
    assert re.findall(r'name="run" value="(\w+)"', page) == ["b", "a"], "what cannot be read is not ticked"
    assert "broken" in page and "unreadable" in page
    said = words(client.see("/compare?run=a&run=b"))
    assert "2 runs in 2 groups that differ in zeta" in said
    for query in ("", "?run=a", "?run=a&run=a"):
        assert "Tick two runs or more" in client.see(f"/compare{query}", 400)
    assert "There is no run &#34;gone&#34;" in client.see("/compare?run=a&run=gone", 404)
    assert "cannot be read" in client.see("/compare?run=a&run=broken", 404)


def test_tables_are_handed_out_and_nothing_else(client: Client, run: Path, here: Path) -> None:
    assert client.see("/run/a/clients.csv") == CLIENTS
    (here / "secret").write_text("secret")
    outside = (
        "/run/..%2F..%2Fhere", "/run/%2e%2e", "/run/a%2F..", "/run/a/..%2F..%2Fsecret", "/run/a/config.json",
        "/run/a/checkpoint.safetensors", "/run//etc/passwd", "/run/a%00", "/../secret", "/run/a/b/c",
    )  # fmt: skip
    for path in outside:
        assert "secret" not in words(client.see(path, 404)).replace("..%2Fsecret", "")


def test_half_written_and_deleted_runs(client: Client, run: Path) -> None:
    with (run / "rounds.csv").open("a") as rounds:
        rounds.write("4,0.8")  # a row that is being written
    assert "round 3 of 3" in words(client.see("/run/a"))
    (run / "clients.csv").write_bytes(b"round,site\n\xff\xfe")
    (run / "evaluations.jsonl").write_text('{"round": 3, "pm"')
    assert "clients.csv cannot be used" in words(client.see("/run/a"))
    (run / "rounds.csv").unlink()
    assert "rounds.csv is not in the run folder" in words(client.see("/run/a"))
    (run / "config.json").write_text('{"format": 1')
    assert "cannot be read" in client.see("/run/a", 404)
    shutil.rmtree(run)
    for path in ("/run/a", "/run/a/report", "/run/a/rounds.csv"):
        assert "There is no run &#34;a&#34;" in client.see(path, 404)
    assert "There are no runs in this folder yet" in client.see("/")


def test_states_that_only_the_lock_tells(client: Client, make_run: MakeRun, here: Path) -> None:
    folder = make_run("a", state="running", saved=3, rows=ROWS, rounds=7)
    said = words(client.see("/run/a"))
    assert "a interrupted" in said and "ended without a word; it can be resumed" in said
    lock = json.dumps({"pid": os.getpid(), "created": psutil.Process().create_time(), "marker": "0"})
    (folder / "lock.json").write_text(lock)
    said = words(client.see("/run/a"))
    assert "a running" in said and "round 3 of 7" in said and "about 8 s left" in said
    new = here / "runs" / "new"
    new.mkdir()
    (new / "lock.json").write_text(lock)
    assert "waits until its clients have said hello" in client.see("/run/new")
    assert words(client.see("/")).count("starting") == 1


def test_the_command_opens_a_page_and_ends_with_ctrl_c(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []

    def browse(url: str) -> None:
        """A browser that is still connected when Ctrl-C comes."""
        place = re.fullmatch(r"http://127\.0\.0\.1:(\d+)(/run/a\?token=\S{20,})", url)
        assert place is not None
        link = http.client.HTTPConnection("127.0.0.1", int(place[1]), timeout=20)
        link.request("GET", place[2])
        seen.append(link.getresponse().status)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", lambda url: threading.Thread(target=browse, args=(url,)).start())
    with pytest.raises(SystemExit) as ended:
        command.main(["watch", "a", "--port", "0"])
    first, url, how, last = capsys.readouterr().out.splitlines()
    assert (ended.value.code, seen) == (0, [200])
    assert first == "The run a:" and "?token=" in url and how.startswith("Ctrl-C ends this page")
    assert last == "The page has ended."


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["gone"], 'There is no run "gone" in '),
        (["../.."], 'There is no run "../.." in '),
        (["a", "b"], "`fedbayes watch` takes one run or none; on its page others can be chosen."),
        (["zeta=1"], '`fedbayes watch` takes only out-dir=…, not "zeta".'),
        (["--port", "70000"], "Invalid value for '--port'"),
    ],
)
def test_what_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert refused(arguments, capsys).startswith(f"fedbayes: {sentence}")


def test_a_port_that_is_taken(client: Client, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = client.server.server_address[1]
    said = refused(["--no-browser", "--port", str(port)], capsys)
    assert said.startswith(f"fedbayes: Port {port} of 127.0.0.1 cannot be used (")


def refused(arguments: list[str], capsys: Any) -> str:
    with pytest.raises(SystemExit) as ended:
        command.main(["watch", *arguments])
    assert ended.value.code == 2
    return str(capsys.readouterr().err)
