"""A real federation over gRPC, TLS and node authentication, and every fault that it must survive.

One federation of four sites for all tests, which follow each other: `make test-federation` runs them, in some minutes
(Flower gives up a dead node after 60 s).
"""

import fcntl
import inspect
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from deployed import Deployment, Running, family, interrupt, started, until
from flwr.app import Message
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from harness import SMALL, Outcome
from inprocess import InProcessGrid
from safetensors import safe_open

from fedbayes.cli import deploy
from fedbayes.deploy.keys import make_keys
from fedbayes.launch.flower import environment, free_port, program

pytestmark = pytest.mark.deployment
Federate = Callable[..., Outcome]
SITES = 4
SETTINGS = {key.replace("-", "_"): value for key, value in SMALL.items()}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with started(tmp_path_factory.mktemp("federation"), SITES) as federation:
        yield federation


def files_below(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def tag(file: Path) -> int:
    """The round after which a personal model was saved."""
    with safe_open(file, framework="numpy") as stored:
        return int(stored.metadata()["round"])


def statuses(run: Outcome, server_round: int) -> dict[str, str]:
    return {row["site"]: row["status"] for row in run.clients if row["round"] == str(server_round)}


# ---------------------------------------------------------------- a calm run, watched and knocked at from outside


def test_a_run_ends_as_the_simulation_of_its_seed_whoever_knocks_meanwhile(
    federation: Deployment, federate: Federate
) -> None:
    run = federation.run("calm", **SETTINGS)
    threads = [
        threading.Thread(target=visit, args=(federation,))
        for visit in (wrong_key, twin, wrong_authority, no_tls)
    ]
    failures: list[Any] = []
    hook, threading.excepthook = threading.excepthook, failures.append
    for thread in threads:
        thread.start()
    assert run.ends() == 0, run.said
    for thread in threads:
        thread.join()
    threading.excepthook = hook
    assert not failures, failures[0].exc_value

    calm = federation.outcome("calm")
    simulated = federate(
        "simulated", clients=SITES
    )  # in this process; test_simulation.py holds it against Flower's
    assert calm.metrics == simulated.metrics and len(calm.metrics) == 5
    assert (calm.tensors["w"] == simulated.tensors["w"]).all()
    assert "4 rounds, 4 sites, 0 failed replies" in run.said
    assert f"Run folder:   {federation.folder}/runs/calm at the coordinator of lan" in run.said
    last = calm.rows[-1]
    accuracy = re.search(r"│ accuracy +│ +([\d.]+) │ +([\d.]+) │", run.said)
    assert accuracy and [float(one) for one in accuracy.groups()] == [
        round(float(last[column]), 4) for column in ("pm_accuracy", "gm_accuracy")
    ]


def wrong_key(federation: Deployment) -> None:
    """A key that nobody registered."""
    stranger = federation.folder / "stranger"
    make_keys(stranger, ["127.0.0.1"], 1)
    shutil.copy(federation.folder / "keys/coordinator/ca.crt", stranger / "site-0/ca.crt")
    site = knock(federation, stranger / "site-0", "stranger")
    assert site.ends() != 0
    assert "Exit Code: 305" in site.said and "the coordinator does not know this key" in site.said
    federation.running["coordinator"].hears("No SuperNode found with the given public key")


def twin(federation: Deployment) -> None:
    """A second process with the key, the name and the disk of a site that runs."""
    words = ("--at", federation.fleet, "--share", "0/4", "--state", str(federation.folder / "disk-0"))
    site = federation.command("site", "keys/site-0", *words, log="twin")
    assert site.ends() != 0
    assert "Exit Code: 305" in site.said and "or this site runs already" in site.said


def wrong_authority(federation: Deployment) -> None:
    """A site that trusts another CA must not talk to this coordinator."""
    other = federation.folder / "other"
    make_keys(other, ["127.0.0.1"], 1)
    site = knock(federation, other / "site-0", "other")
    assert site.ends() == 2
    assert f"Whoever answers at {federation.fleet} is not the coordinator" in site.said
    authority = ("--root-certificates", str(other / "site-0/ca.crt"))
    flower_refuses(federation, "CERTIFICATE_VERIFY_FAILED", "flower-ca", *authority)


def no_tls(federation: Deployment) -> None:
    """Flower's own program without TLS, with a key and without; and with TLS but no key at all."""
    key = ("--auth-supernode-private-key", str(federation.folder / "keys/site-0/site.key"))
    reason = "SuperNode authentication requires a secure TLS connection"
    flower_refuses(federation, reason, "flower-key", "--insecure", *key)
    flower_refuses(federation, "Socket closed", "flower-plain", "--insecure")
    authority = ("--root-certificates", str(federation.folder / "keys/coordinator/ca.crt"))
    flower_refuses(federation, "All SuperNodes must be registered", "flower-nobody", *authority)


def knock(federation: Deployment, folder: Path, name: str) -> Running:
    return federation.command("site", str(folder), "--at", federation.fleet, "--share", "0/4", log=name)


def flower_refuses(federation: Deployment, reason: str, log: str, *words: str) -> None:
    """What Flower's program says when it gives up; its process may hang then, and is ended."""
    command = [str(program("flower-supernode")), "--superlink", federation.fleet, "--max-retries", "1"]
    command += ["--port", str(free_port()), *words]
    found = federation.environment | {"PATH": environment()["PATH"]}  # Flower's programs call each other
    site = Running(command, federation.folder, federation.folder / f"{log}.log", found)
    try:
        site.hears(reason)
        assert "SuperNode ID" not in site.said
    finally:
        site.kill()


def test_the_fleet_port_speaks_tls_and_http2_and_nothing_else(federation: Deployment) -> None:
    host, port = federation.fleet.split(":")
    context = ssl.create_default_context(cafile=federation.folder / "keys/coordinator/ca.crt")
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection((host, int(port)), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        assert secure.selected_alpn_protocol() == "h2" and secure.version() in ("TLSv1.2", "TLSv1.3")
        secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
        frame = secure.recv(9)
        assert frame[3] == 4, "a SETTINGS frame: whoever answers speaks HTTP/2"
    for hello in (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"):
        with socket.create_connection((host, int(port)), timeout=30) as plain:
            plain.sendall(hello)
            plain.settimeout(30)
            try:
                answer = plain.recv(100)
            except ConnectionResetError:
                answer = b""
        assert not answer.startswith((b"HTTP", b"\x00")), answer  # at most a TLS alert, then the end


def test_the_control_port_listens_on_loopback_unless_told_otherwise(federation: Deployment) -> None:
    defaults = inspect.signature(deploy.coordinator).parameters
    assert defaults["control"].default == "127.0.0.1:8000" and defaults["listen"].default == "0.0.0.0:9092"
    port = int(federation.control.split(":")[1])
    listening = {
        connection.laddr.ip
        for process in family(federation.running["coordinator"].process)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    }
    assert listening == {"127.0.0.1"}


def test_what_a_site_keeps_and_what_the_coordinator_never_sees(federation: Deployment) -> None:
    for number in range(SITES):
        state = federation.state(number, "calm")
        assert sorted(file.name for file in state.iterdir()) == [
            "personal.safetensors",
            "previous.safetensors",
        ]
        assert tag(state / "personal.safetensors") == 4
        assert not any(file.stat().st_mode & 0o077 for file in files_below(state)), "for its owner alone"
    lines = (federation.folder / "site-1.lines").read_text().splitlines()
    assert [re.sub(r"^\S+ \S+  ", "", line).split("  ")[:2] for line in lines] == [
        ["calm", "round 1"], ["calm", "round 2"], ["calm", "round 3"], ["calm", "round 4"], ["calm", "after round 4:"],
    ]  # fmt: skip
    assert lines[0] in federation.running["site-1"].said
    q = federation.state(0, "calm").joinpath("personal.safetensors").read_bytes()[-4000:]
    at_the_coordinator = [
        federation.folder / "coordinator.log",
        *files_below(federation.folder / "runs"),
        *files_below(federation.folder / "keys/coordinator"),
    ]
    assert not list((federation.folder / "keys/coordinator").glob("*.db*")), (
        "uploads in transit are in memory"
    )
    for file in at_the_coordinator:
        content = file.read_bytes()
        assert b"disk-0" not in content and b"site-0.lines" not in content, f"{file} names a path of a site"
        assert q not in content, f"{file} holds a personal model"


# ---------------------------------------------------------------- faults


def test_dead_and_stuck_sites_are_named_and_counted_and_rejoin_where_they_were(
    federation: Deployment, federate: Federate
) -> None:
    """In one round: SIGKILL of a site, SIGKILL of a ClientApp at work, and a state that another process holds."""
    rounds = 9
    run = federation.run("storm", **SETTINGS | {"rounds": rounds, "round_timeout": 300})
    federation.wait_for_round("storm", 2, run)
    files = {number: federation.state(number, "storm") / "personal.safetensors" for number in (1, 2, 3)}
    before = {number: file.read_bytes() for number, file in files.items()}
    struck = federation.saved("storm") + 1
    locks = {number: os.open(file.parent, os.O_RDONLY) for number, file in files.items()}
    try:
        for lock in locks.values():  # so that all three are in the middle of the next round at the same time
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        apps = {
            number: until(partial(federation.at_work, number, file.parent), f"a ClientApp of site-{number}")
            for number, file in files.items()
        }
        federation.running["site-1"].kill()
        apps[2].kill()
        os.close(locks.pop(1))
        os.close(locks.pop(2))
        federation.wait_for_round("storm", struck, run)
    finally:
        for lock in locks.values():
            os.close(lock)
    assert files[2].read_bytes() == before[2], "the store is intact"
    assert files[1].read_bytes() == before[1] and tag(files[1]) == struck - 1, (
        "as of its last completed round"
    )
    federation.start_site(1)
    assert run.ends() == 0, run.said

    storm = federation.outcome("storm")
    assert storm.state == "finished" and [row["round"] for row in storm.rows] == [
        str(t) for t in range(rounds + 1)
    ]
    told = statuses(storm, struck)
    assert told["site-0"] == "ok"
    assert all(told[site].startswith("failed: ") for site in ("site-1", "site-2", "site-3")), told
    assert "another process has been using the personal model of site site-3 for 60 s" in told["site-3"]
    assert (storm.rows[struck]["clients_ok"], storm.rows[struck]["clients_failed"]) == ("1", "3")
    for site in ("site-1", "site-2", "site-3"):
        assert f"Site {site} dropped from this round" in run.said
    assert float(storm.rows[struck]["seconds"]) < 300, "the dead are given up before the round's time is over"

    after = range(struck + 1, rounds + 1)
    assert {site for t in after for site, status in statuses(storm, t).items() if status != "ok"} <= {
        "site-1"
    }
    mine = [t for t in after if statuses(storm, t).get("site-1") == "ok"]
    assert mine, "site-1 was not back before the last round: more rounds are needed"
    assert mine == list(range(mine[0], rounds + 1)), "it is back, and stays"
    lost = {(number, struck) for number in (1, 2, 3)} | {(1, t) for t in range(struck, mine[0])}
    replayed = federate("replayed", grid=Lossy(lost), rounds=rounds, straggler_cutoff=0)
    assert (storm.tensors["w"] == replayed.tensors["w"]).all(), (
        "as if nothing but those messages had been lost"
    )
    assert storm.metrics[-1] == replayed.metrics[-1]


class Lossy(InProcessGrid):
    """The same federation in this process, whose site i never gets its message of round t for (i, t) in `lost`."""

    def __init__(self, lost: set[tuple[int, int]]) -> None:
        super().__init__({}, SITES)
        self.lost = lost

    def _answer(self, message: Message) -> Message | None:
        exchange = message.content.get("exchange")
        number = list(self.contexts).index(message.metadata.dst_node_id)
        if exchange is not None and (number, int(exchange["round"])) in self.lost:  # type: ignore[arg-type]
            return None
        return super()._answer(message)


def test_a_site_whose_executor_is_killed_gets_another_and_strangers_on_its_machine_no_message(
    federation: Deployment,
) -> None:
    site = federation.running["site-1"]
    carriers = [one for one in family(site.process) if one.name() == "fedbayes-execut"]
    (node,) = (one for one in family(site.process) if one.name().startswith("flower-super"))
    port = next(one.laddr.port for one in node.net_connections("tcp") if one.status == psutil.CONN_LISTEN)
    command = [str(program("flower-superexec")), "--runtime-api-address", f"127.0.0.1:{port}", "--insecure"]
    stranger = Running(command, federation.folder, federation.folder / "robber.log", federation.environment)
    stranger.hears("Starting Flower SuperExec")
    with asking(port) as refused:
        for carrier in carriers:
            carrier.kill()
        site.hears("The executor has ended")
        run = federation.run("robbed", **SETTINGS)
        assert run.ends() == 0, run.said
    assert "4 rounds, 4 sites, 0 failed replies" in run.said
    assert node.is_running(), "it was not disturbed"
    assert len(refused) > 20 and set(refused) == {401}, (
        "it asked all the while, and was never given a message"
    )
    stranger.ends()  # Flower's own program gives up, without a reason


@contextmanager
def asking(port: int) -> Iterator[list[int]]:
    """A process of the same machine that asks a site's SuperNode for work, as an executor does: how it is answered."""
    answers, over = list[int](), threading.Event()
    words = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    client = RuntimeHttpClient.from_server_address(
        f"127.0.0.1:{port}", True, None, [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
    )

    def ask() -> None:
        while not over.wait(0.1):
            try:
                client.AcquireTask(words)
                answers.append(200)
            except httpx.HTTPStatusError as error:
                answers.append(error.response.status_code)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        until(lambda: answers, "the first answer")
        yield answers
    finally:
        over.set()
        thread.join()
        client.close()


def test_an_impostor_is_left_out_whether_the_real_site_is_there_or_not(federation: Deployment) -> None:
    """Site 1 has a key of its own, and calls itself site-0."""
    federation.running["site-1"].stop()
    folder = federation.folder / "impostor" / "site-0"
    shutil.copytree(federation.folder / "keys/site-1", folder)
    words = ("--at", federation.fleet, "--share", "1/4", "--state", str(federation.folder / "stolen"))
    sentence = 'the key of site "site-1" was used by a node that calls itself "site-0"'
    try:
        deadline = time.monotonic() + 120
        while True:  # refused until the coordinator has given site-1 up
            impostor = federation.command("site", str(folder), *words, log="impostor")
            federation.running["impostor"] = impostor
            while "SuperNode ID" not in impostor.said and impostor.process.poll() is None:
                time.sleep(0.1)
            if "SuperNode ID" in impostor.said:
                break
            assert time.monotonic() < deadline, impostor.said
            time.sleep(3)
        run = federation.run("beside", **SETTINGS | {"rounds": 1, "min_clients": 3})
        assert run.ends() == 0 and sentence in run.said, run.said
        assert sorted(statuses(federation.outcome("beside"), 1)) == ["site-0", "site-2", "site-3"]
        federation.running["site-0"].stop()
        run = federation.run("instead", **SETTINGS | {"rounds": 1, "min_clients": 2})
        assert run.ends() == 0 and sentence in run.said, run.said
        assert "site-0" not in statuses(federation.outcome("instead"), 1)
    finally:
        federation.running.pop("impostor").stop()
        for number in (0, 1):
            federation.running[f"site-{number}"].stop()
            federation.start_site(number)


def test_a_hostile_site_and_one_without_disk_space(federation: Deployment, tmp_path: Path) -> None:
    """Each round another kind of nonsense from one site; at another a full disk, which then is read-only."""
    try:
        with useless_disk(tmp_path / "disk") as (disk, make_read_only, reasons):
            for number in (2, 3):
                federation.running[f"site-{number}"].stop()
            federation.start_site(2, state=disk)
            federation.start_site(3, PYTHONPATH=str(Path(__file__).parent / "hostile"))
            run = federation.run("hostile", **SETTINGS | {"rounds": 5})
            federation.wait_for_round("hostile", 2, run)
            make_read_only()
            assert run.ends() == 0, run.said
    finally:  # the next tests begin with a federation as it was
        for number in (2, 3):
            federation.running[f"site-{number}"].stop()
            federation.start_site(number)
    hostile = federation.outcome("hostile")
    nonsense = {1: "not finite", 2: "shape", 3: "rows", 4: "beyond"}
    for t, reason in nonsense.items():
        told = statuses(hostile, t)
        assert told["site-3"].startswith("failed: ") and reason in told["site-3"], told
        assert f"Site site-3 dropped from this round: {told['site-3'].removeprefix('failed: ')}" in run.said
        assert (hostile.rows[t]["clients_ok"], hostile.rows[t]["clients_failed"]) == ("2", "2")
    assert statuses(hostile, 5)["site-3"] == "ok", "in round 5 it is honest"
    assert {statuses(hostile, t)["site-2"].removeprefix("failed: ") for t in range(1, 6)} == reasons
    assert hostile.tensors["w"].isfinite().all() and hostile.tensors["w"].abs().max() < 100
    log = (federation.folder / "site-2.lines").read_text()
    assert str(disk) in log and all(f"] {reason}: '" in log for reason in reasons)
    assert str(disk) not in run.said, "the path stays at the site"


@contextmanager
def useless_disk(folder: Path) -> Iterator[tuple[Path, Callable[[], object], set[str]]]:
    """A folder in which a personal model has no place, how to make it read-only, and what a site says of both.

    Root, whom no permission stops, gets a disk of 64 kB; where it may not mount one, a file stands in the way.
    """
    folder.mkdir()
    if os.getuid() != 0:
        folder.chmod(0o500)
        yield folder, lambda: None, {"Permission denied"}
        return
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        (folder / "hostile").write_text("a file where a folder should be")
        yield folder, lambda: None, {"File exists", "Not a directory"}
        return
    try:
        remount = ["mount", "-o", "remount,ro", str(folder)]
        reasons = {"No space left on device", "Read-only file system"}
        yield folder, lambda: subprocess.run(remount, check=True), reasons
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_run_of_the_same_name_never_takes_the_place_of_an_earlier_one(federation: Deployment) -> None:
    """At the coordinator it is refused; where its folder is gone, the sites keep what they have of the first."""
    again = federation.run("calm", **SETTINGS | {"rounds": 1})
    assert again.ends() == 1 and "calm" in again.said and "--resume" in again.said, again.said
    before = federation.state(0, "calm").joinpath("personal.safetensors").read_bytes()
    uuid = str(json.loads((federation.folder / "runs/calm/config.json").read_text())["uuid"])
    (federation.folder / "runs/calm").rename(federation.folder / "calm-of-old")
    again = federation.run("calm", **SETTINGS | {"rounds": 1})
    assert again.ends() == 0, again.said
    aside = f"personal.safetensors.of-{uuid[:8]}"
    assert federation.state(0, "calm").joinpath(aside).read_bytes() == before
    for number in range(SITES):
        assert (
            f"Site site-{number}: personal.safetensors belongs to another run of the same name" in again.said
        )
        assert tag(federation.state(number, "calm") / "personal.safetensors") == 1


def test_stopped_by_hand_and_killed_at_the_coordinator_a_run_is_resumed(
    federation: Deployment, federate: Federate
) -> None:
    first = federation.run("resumed", **SETTINGS | {"rounds": 6})
    federation.wait_for_round("resumed", 1, first)
    interrupt(first)
    assert first.ends() == 130
    saved = federation.saved("resumed")
    place = re.escape(f"{federation.folder}/runs/resumed at the coordinator of lan.")
    told = re.search(rf"At least (\d) of 6 rounds are saved in {place}", first.said)
    assert told and int(told[1]) <= saved, first.said  # a round may end while Flower stops the run
    assert "Resume with:  fedbayes run --resume resumed --on lan" in first.said
    until(lambda: federation.outcome("resumed").state == "stopped", "the state at the coordinator")

    second = federation.resume("resumed")
    federation.wait_for_round("resumed", saved + 1, second)
    federation.running["coordinator"].kill()
    certificate = federation.folder / "keys/coordinator/server.crt"
    before = certificate.read_bytes()
    assert federation.command("keys", "keys", "--renew").ends() == 0  # the sites need no new files
    assert certificate.read_bytes() != before
    federation.start_coordinator()
    assert second.ends() == 1
    assert "Resume with:  fedbayes run --resume resumed --on lan" in second.said

    third = federation.resume("resumed")
    assert third.ends() == 0, third.said
    resumed = federation.outcome("resumed")
    calm = federate("undisturbed", clients=SITES, rounds=6)
    assert [row["round"] for row in resumed.rows] == [str(t) for t in range(7)]
    assert resumed.metrics == calm.metrics and resumed.state == "finished"
    fourth = federation.resume("resumed")
    assert (
        fourth.ends() == 1
        and "The run resumed is finished (6 rounds); train longer with rounds=12" in fourth.said
    )


def test_a_removed_site_is_shut_out_and_too_few_sites_are_a_clear_end(federation: Deployment) -> None:
    (federation.folder / "keys/coordinator/sites/site-3.pub").unlink()
    sync = federation.command("coordinator", "keys/coordinator", "--register", log="register")
    assert sync.ends() == 0 and "Removed site-3" in sync.said, sync.said
    federation.running["site-3"].stop()
    refused = federation.launch_site(3)
    run = federation.run("few", **SETTINGS | {"min_clients": SITES, "wait_timeout": 5})
    assert run.ends() == 1
    assert "Only 3 of at least 4 clients connected within 5 s." in run.said
    assert refused.ends() != 0 and "Exit Code: 305" in refused.said
    site_that_trusts_nobody_else(federation)
    for number in range(3):
        federation.running[f"site-{number}"].stop()
    run = federation.run("none", **SETTINGS | {"wait_timeout": 5})
    assert run.ends() == 1
    assert "Only 0 of at least 1 clients connected within 5 s." in run.said
    assert not (federation.folder / "runs/none").exists()


def site_that_trusts_nobody_else(federation: Deployment) -> None:
    """With --trusted-entities a site carries out no app but one that is signed by those it names."""
    trusted = federation.folder / "trusted.yaml"
    key = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    trusted.write_text(f"fpk_someone: {key.decode()}\n")
    federation.running["site-0"].stop()
    federation.start_site(0, flower=("--trusted-entities", str(trusted)))
    run = federation.run("unsigned", **SETTINGS | {"min_clients": 3})
    assert run.ends() == 1 and "Only 2 of at least 3 clients can take part" in run.said, run.said
    assert "The FAB could not be verified" in run.said
