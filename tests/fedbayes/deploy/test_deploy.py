"""The commands of a federation before anything is started: what they refuse, what they would start."""

import json
import os
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest
from rich.console import Console

from fedbayes.cli.command import main
from fedbayes.deploy import connections, coordinator, executor, remote, site
from fedbayes.deploy.bundles import Trust
from fedbayes.deploy.keys import make_keys
from fedbayes.deploy.packing import installed_app
from fedbayes.deploy.site import SiteConfig
from fedbayes.errors import CommandError
from fedbayes.launch.plan import plan_remote
from fedbayes.protocol.settings import defaults


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    make_keys(tmp_path / "keys", ["127.0.0.1"], 1)
    return tmp_path / "keys"


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(words)
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.startswith("fedbayes: ") and said.count("\n") == 1
    return said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["site", "keys/site-0", "--at", "a"], "either --data PATH, its own data, or --share I/N"),
        (["site", "keys/site-0", "--at", "a", "--share", "3/3"], '--share takes I/N, the I-th of N shares from 0'),
        (["site", "keys/site-9", "--at", "a", "--share", "0/3"], "site-9/ca.crt is missing; `fedbayes keys` makes it"),
        (["site", "keys/site-0", "--at", "a", "--share", "0/3", "--name", "a b"], "A site's name has letters"),
        (["site", "keys/site-0", "--at", "a", "--share", "0/3", "--only-app", "12ab"], "--only-app takes the hash of"),
        (["site", "keys/site-0", "--at", "a", "--share", "0/3", "--allow-code", "a-b"], "--allow-code takes the name"),
        (["coordinator", "keys/site-0"], "site-0/server.crt is missing; `fedbayes keys` makes it"),
        (["coordinator", "keys/coordinator", "--control", "8000"], "--control takes HOST:PORT"),
        (["run", "--on", "lan"], 'There is no federation "lan" in'),
        (["run", "--on", "lan", "--engine", "flower"], "--clients, --seeds and --engine are for simulations"),
        (["run", "--on", "lan", "--clients", "3"], "--clients, --seeds and --engine are for simulations"),
    ],
)  # fmt: skip
def test_what_cannot_start_is_one_sentence(
    keys: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    sentence: str,
) -> None:
    monkeypatch.setattr(connections, "PATIENCE", 0.0)
    assert sentence in refused(capsys, *words)


def test_a_sites_own_configuration_survives_flowers_parsing(tmp_path: Path) -> None:
    from flwr.common.config import parse_config_args

    state = tmp_path / "a folder with = and 'quotes'"
    config = SiteConfig("site-0", state, data=tmp_path / "data.npz", log_file=tmp_path / "site.log")
    assert parse_config_args([config.node_config()]) == {
        "site-id": "site-0", "state-dir": str(state), "data-path": str(tmp_path / "data.npz"),
        "log-file": str(tmp_path / "site.log"), "own-code": "",
    }  # fmt: skip
    shared = SiteConfig("site-0", state, share="2/3", allow_code=("a", "b.c")).node_config()
    assert parse_config_args([shared]) == {
        "site-id": "site-0", "state-dir": str(state), "partition-id": 2, "num-partitions": 3, "own-code": "a,b.c",
    }  # fmt: skip


def test_an_owners_privacy_budget(tmp_path: Path) -> None:
    from flwr.common.config import parse_config_args

    for words in ("8", "2.5@1e-6"):
        config = SiteConfig("site-0", tmp_path, share="2/3", dp_budget=words).node_config()
        assert parse_config_args([config])["dp-budget"] == words
    for wrong in ("much", "-1", "8@2", "nan"):
        with pytest.raises(CommandError, match="--dp-budget takes ε, such as 8, or ε@δ, not"):
            SiteConfig("site-0", tmp_path, share="2/3", dp_budget=wrong).node_config()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """Commands with their environments, in place of what they would do."""
    found: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda path, words, environment: found.append((words, environment)))
    monkeypatch.setattr(subprocess, "Popen", lambda words, env: found.append((words, env)))
    return found


Started = list[tuple[list[str], dict[str, str]]]
needs_fork = pytest.mark.skipif(not executor.fits(()), reason="here Flower starts a process for each message")


@needs_fork
def test_the_site_becomes_flowers_program(
    keys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], started: Started
) -> None:
    monkeypatch.delenv("FLWR_HOME")
    with pytest.raises(SystemExit) as end:
        main(["site", "keys/site-0", "--at", "127.0.0.1:1", "--share", "0/3", "--", "--max-retries", "1"])
    assert end.value.code == 0
    ((watcher, environment),) = started
    assert watcher[1:4] == ["-P", "-m", "fedbayes.deploy.supervise"]
    plan = json.loads(watcher[4])
    words, helper = plan["node"], plan["executor"]
    said = capsys.readouterr().out
    assert words[0].endswith("flower-supernode") and words[1:3] == ["--superlink", "127.0.0.1:1"]
    assert words[-2:] == ["--max-retries", "1"], "what follows -- is Flower's"
    assert environment["FLWR_HOME"] == str(keys / "site-0" / "flower")
    assert "127.0.0.1:1 does not answer yet" in said and "$ " in said and "--root-certificates" in said
    port = words[words.index("--port") + 1]
    secret = Path(words[words.index("--superexec-auth-secret-file") + 1])
    assert helper[-5:-2] == [f"127.0.0.1:{port}", str(os.getpid()), str(secret)] and helper[-1] == "fork"
    assert Trust.read(helper[-2]).key == (keys / "site-0" / "app.pub").read_text().strip()
    assert plan["trust"] == helper[-2], "the SuperNode unpacks nothing else either"
    assert f"apps that are signed with the key of {keys}/site-0/app.pub" in said
    assert len(secret.read_bytes()) == 32 and secret.stat().st_mode & 0o777 == 0o600
    assert (plan["address"], plan["authority"]) == ("127.0.0.1:1", str(keys / "site-0" / "ca.crt"))
    assert words[words.index("--isolation") + 1] == "process", "what carries messages out is the executor"


@pytest.mark.parametrize("extra", [["--isolation", "subprocess"], ["--isolation=subprocess"]])
def test_apps_are_looked_at_also_where_every_message_is_a_new_python(
    keys: Path, started: Started, extra: list[str]
) -> None:
    with pytest.raises(SystemExit):
        words = ["--share", "0/3", "--only-app", "installed", "--", *extra, "--max-retries", "1"]
        main(["site", "keys/site-0", "--at", "127.0.0.1:1", *words])
    plan = json.loads(started[0][0][4])
    assert plan["executor"][-1] == "spawn" and plan["node"][-2:] == ["--max-retries", "1"]
    assert plan["node"].count("--isolation") == 1 and "process" in plan["node"]
    assert Trust.read(plan["executor"][-2]).only == (installed_app(),)


@pytest.mark.parametrize("extra", [["--isolation", "process"], ["--port", "9094"], ["--ssl-certfile", "a"]])
def test_who_arranges_for_an_executor_must_do_without_signatures(
    keys: Path, capsys: pytest.CaptureFixture[str], extra: list[str]
) -> None:
    words = ["site", "keys/site-0", "--at", "127.0.0.1:1", "--share", "0/3", "--", *extra]
    assert "its own programs carry out messages, and look at no signature" in refused(capsys, *words)


@pytest.mark.parametrize(
    "extra",
    [["--isolation", "subprocess"], ["--isolation=subprocess"], ["--port", "9094"], ["--ssl-certfile", "a"]],
)
def test_who_arranges_for_an_executor_gets_none_of_ours(
    keys: Path, started: Started, extra: list[str]
) -> None:
    (keys / "site-0" / "app.pub").unlink()
    with pytest.raises(SystemExit):
        main(["site", "keys/site-0", "--at", "127.0.0.1:1", "--share", "0/3", "--", *extra])
    plan = json.loads(started[0][0][4])
    words = plan["node"]
    assert plan["executor"] == [] and words[-len(extra) :] == extra
    assert words[words.index("--isolation") + 1] == "subprocess", "Flower's way, unless they say otherwise"


def test_the_coordinator_is_remembered_once_and_never_replaced(
    keys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execve", lambda path, words, environment: started.append(words))
    monkeypatch.setattr(subprocess, "Popen", lambda words, **_: started.append(words))
    home = connections.config_file()
    home.parent.mkdir()
    home.write_text('# mine\n[superlink]\ndefault = "local"\n')
    for _ in range(2):
        coordinator.start(keys / "coordinator", "lan", "0.0.0.0:9092", "0.0.0.0:8000", ())
    assert connections.connections() == {
        "lan": {"address": "127.0.0.1:8000", "root-certificates": str(keys / "coordinator" / "ca.crt")}
    }
    assert home.read_text().startswith('# mine\n[superlink]\ndefault = "local"\n')
    assert started[0][-1] == "--register"
    assert started[1][2:4] == ["-m", "fedbayes.deploy.superlink"]
    assert json.loads(started[1][4])["sites"] == str(keys / "coordinator" / "sites")
    assert {"--enable-supernode-auth", "--ssl-certfile"} <= set(started[1])
    with pytest.raises(
        CommandError, match=r'"lan" is another federation in .* at 127\.0\.0\.1:8000; take another'
    ):
        coordinator.start(keys / "coordinator", "lan", "0.0.0.0:9092", "127.0.0.1:8001", ())
    said = capsys.readouterr().out
    assert f"Run folders: out-dir is resolved in {Path.cwd()}" in said and installed_app() in said


def test_a_damaged_configuration_of_flower_is_named(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    connections.config_file().parent.mkdir()
    connections.config_file().write_text("[superlink")
    assert "config.toml cannot be read" in refused(capsys, "run", "--on", "lan")


def listen(certificate: Path | None) -> int:
    """A server for one connection; with TLS when it has a certificate. Its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        plain, _ = server.accept()
        try:
            if certificate is None:
                plain.recv(10)
                plain.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            else:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(certificate, certificate.with_suffix(".key"))
                context.wrap_socket(plain, server_side=True).close()
        except OSError:
            pass  # the other side did not like it
        finally:
            plain.close()
            server.close()

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


def test_whoever_answers_must_be_the_coordinator(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = keys / "site-0" / "ca.crt"
    mine = keys / "coordinator" / "server.crt"
    site.check_coordinator(f"127.0.0.1:{listen(mine)}", authority)
    assert capsys.readouterr().out == ""

    make_keys(tmp_path / "other", ["127.0.0.1"], 0)
    other = tmp_path / "other" / "coordinator" / "server.crt"
    with pytest.raises(
        CommandError, match=r"is not the coordinator of .*: unable to get local issuer certificate"
    ):
        site.check_coordinator(f"127.0.0.1:{listen(other)}", authority)

    mine.unlink()
    monkeypatch.setattr("fedbayes.deploy.keys.LOCAL", ())
    make_keys(keys, ["elsewhere.example.org"], 1)
    with pytest.raises(CommandError, match=r"is not the coordinator of .*: IP address mismatch"):
        site.check_coordinator(f"127.0.0.1:{listen(mine)}", authority)

    with pytest.raises(CommandError, match="does not speak TLS as a coordinator does"):
        site.check_coordinator(f"127.0.0.1:{listen(None)}", authority)


def test_a_remote_plan_leaves_folders_and_settings_to_the_coordinator() -> None:
    plan = plan_remote("lan", None, {"rounds": "7", "out-dir": "here/runs", "run-name": "a"})
    assert plan.settings.out_dir == "here/runs" and plan.settings.rounds == 7
    assert plan.resume_command == "fedbayes run --resume a --on lan out-dir=here/runs"
    again = plan_remote("lan", "a", {"rounds": "9"}).settings
    assert again.resume and again.run_name == "a" and again.resume_with == "rounds" and again.rounds == 9
    assert plan_remote("lan", "a", {}).settings.resume_with == ""
    assert plan_remote("lan", None, {}).settings.run_name.startswith(f"{defaults()['method']}-")
    with pytest.raises(CommandError, match='There is no method "nonsense"'):
        plan_remote("lan", None, {"method": "nonsense"})


def test_a_run_that_ends_without_a_word_of_its_own_has_flowers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(listed: dict[str, object]) -> str:
        monkeypatch.setattr(remote.Remote, "_ask", staticmethod(lambda *_: listed))
        monkeypatch.setattr(remote.Remote, "start", lambda self: None)
        monkeypatch.setattr(remote.Remote, "_stream", lambda self: iter(["INFO : hm"]))
        assert remote.run_on(plan_remote("lan", None, {"run-name": "a"}), Console()) == 1
        return capsys.readouterr().err.splitlines()[0]

    monkeypatch.setattr(remote, "keys_of", lambda name: None)
    missed = {"status": "finished:failed", "status-details": "No heartbeat\x1b[2J received\nfrom the task"}
    assert ended({"runs": [missed]}) == "fedbayes: The run failed: No heartbeat [2J received from the task."
    assert ended({"runs": [missed | {"status-details": ""}]}) == "fedbayes: The run failed."
    unknown = "fedbayes: The run failed: the coordinator was started anew."
    assert ended({"error-message": "Run ID 7 not found"}) == unknown


def test_a_coordinator_that_was_only_just_started_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    absent = {
        "error-message": "Connection to the SuperLink is unavailable. Please check your network connection"
    }
    answers = [absent, absent, {"run-id": 7}]
    monkeypatch.setattr(remote, "PAUSE", 0.0)
    monkeypatch.setattr(remote, "assemble", lambda folder, defaults: folder)
    monkeypatch.setattr(remote, "sign_app", lambda app, keys: None)
    monkeypatch.setattr(remote.Remote, "_ask", staticmethod(lambda *_: answers.pop(0)))
    one = remote.Remote(plan_remote("lan", None, {"run-name": "a"}))
    one.start()
    assert one.number == "7" and not answers
    answers += [{"error-message": "A run cannot be started: no permission"}]
    with pytest.raises(CommandError, match="did not take the run: A run cannot be started"):
        one.start()
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            connections.remember("first", "127.0.0.1:8000", Path("ca.crt"))

    with monkeypatch.context() as patch:
        patch.setenv("FLWR_HOME", str(tmp_path))
        patch.setattr(connections.time, "sleep", sleep)
        connections.wait_for("first")
    assert len(looks) == 2, "at its first start it has yet to write down where it is"
    answers += [absent]
    monkeypatch.setattr(remote, "PATIENCE", -1.0)
    with pytest.raises(
        CommandError, match="did not take the run: Connection to the SuperLink is unavailable"
    ):
        one.start()
