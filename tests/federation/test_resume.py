"""A run killed at any moment and resumed ends like one that was never stopped."""

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Message
from harness import Outcome
from inprocess import InProcessGrid

from client_app.site import forget
from server_app import runs
from server_app.runs import RunFolder
from server_app.stored import RunError, read_config, read_rows
from strategies import StrategyError

Federate = Callable[..., Outcome]


class Killed(BaseException):
    """Ends the process, as far as a test can: nobody catches it."""


@pytest.fixture
def killed(federate: Federate) -> Callable[..., None]:
    def run(server_round: int, client: int, **settings: object) -> None:
        """Kill the run when `client` has done its part of exchange `server_round`, the others not yet."""

        def interfere(number: int, message: Message, reply: Message) -> Message:
            exchange = message.content.get("exchange")
            if exchange and exchange["round"] == server_round and number == client:
                raise Killed
            return reply

        with pytest.raises(Killed):
            federate("killed", interfere=interfere, **settings)

    return run


@pytest.fixture(scope="module")
def calm(federate_once: Federate) -> Outcome:
    return federate_once("calm")


@pytest.mark.parametrize("server_round", [1, 2, 3, 4, 5])  # 5 is the closing exchange
@pytest.mark.parametrize("client", [0, 2, 3])
def test_killed_in_any_round(
    federate: Federate, calm: Outcome, killed: Callable[..., None], server_round: int, client: int
) -> None:
    killed(server_round, client)
    assert federate("killed", resume=True).metrics == calm.metrics


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_plain_methods_resume_too(federate: Federate, killed: Callable[..., None], method: str) -> None:
    killed(3, 1, method=method)
    resumed = federate("killed", resume=True, method=method)
    assert resumed.metrics == federate("calm", method=method).metrics


def test_killed_with_sampled_clients(federate: Federate, killed: Callable[..., None]) -> None:
    settings = {"clients_per_round": 2, "rounds": 6, "eval_every": 1}
    killed(4, 3, **settings)
    assert federate("killed", resume=True, **settings).metrics == federate("calm", **settings).metrics


def test_killed_between_the_rows_and_the_checkpoint(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(self: RunFolder, server_round: int, *arguments: object) -> None:
        if server_round == 3:
            raise Killed
        original(self, server_round, *arguments)  # type: ignore[arg-type]

    original = RunFolder.save_checkpoint
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_checkpoint", save)
        with pytest.raises(Killed):
            federate("killed")
    assert [row["round"] for row in federate.latest.rows] == ["0", "1", "2"]  # type: ignore[attr-defined]
    assert federate("killed", resume=True).metrics == federate("calm").metrics


def test_a_torn_last_line_is_dropped(federate: Federate, killed: Callable[..., None]) -> None:
    killed(4, 1)
    file: Path = federate.latest.folder / "rounds.csv"  # type: ignore[attr-defined]
    with file.open("a") as stream:
        stream.write("3,0.51,0.4")
    assert federate("killed", resume=True).metrics == federate("calm").metrics


def test_killed_twice(federate: Federate, killed: Callable[..., None]) -> None:
    killed(2, 1)
    killed(3, 2, resume=True)
    assert federate("killed", resume=True).metrics == federate("calm").metrics


def test_more_rounds_for_a_finished_run(federate: Federate) -> None:
    federate("grown", rounds=3)
    assert federate("grown", rounds=6, resume=True).metrics[4:] == federate("long", rounds=6).metrics[4:]
    rows = read_rows(federate.latest.folder.parent / "grown" / "rounds.csv")  # type: ignore[attr-defined]
    assert [row["round"] for row in rows] == [str(number) for number in range(7)]
    assert rows[3]["pm_accuracy"], "the end of the first run stays measured"


def test_resume_may_change_only_rounds_and_eval_every(federate: Federate) -> None:
    federate("run")
    with pytest.raises(RunError, match=r"started with zeta=10.0, not 3; --resume may change only"):
        federate("run", resume=True, zeta=3)
    with pytest.raises(RunError, match="no run to resume"):
        federate("other", resume=True)


def test_a_damaged_checkpoint_is_named(federate: Federate, killed: Callable[..., None]) -> None:
    killed(3, 1)
    file = federate.latest.folder / "checkpoint.safetensors"  # type: ignore[attr-defined]
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(RunError, match=r"checkpoint.safetensors is damaged"):
        federate("killed", resume=True)


def test_a_second_writer_is_refused(federate: Federate, monkeypatch: pytest.MonkeyPatch) -> None:
    from server_app import runs

    monkeypatch.setattr(runs, "LOCK_WAIT", 0.1)
    run = federate("run")
    lock = runs._take_lock(run.folder)
    with pytest.raises(RunError, match="Another process is writing"):
        federate("run", resume=True, rounds=5)
    lock.close()


def test_a_damaged_personal_file_is_set_aside_and_the_run_goes_on(federate: Federate) -> None:
    run = federate("run", rounds=2)
    store = run.folder.parent / "state" / "run" / "1"
    for name in ("personal.safetensors", "previous.safetensors"):
        (store / name).write_bytes(b"rubbish")
    grown = federate("run", rounds=4, resume=True)
    assert grown.state == "finished"
    assert any("Site 1: personal.safetensors is damaged" in text for text in grown.said("warning"))
    assert (store / "personal.safetensors.damaged").read_bytes() == b"rubbish"


def test_a_finished_run_resumed_as_it_is_stays_whole(federate: Federate) -> None:
    before = federate("run").metrics
    assert federate("run", resume=True).metrics == before
    with pytest.raises(RunError, match="has 4 rounds already"):
        federate("run", resume=True, rounds=2)


def test_a_stopped_run_is_marked_before_flower_ends_its_process(federate: Federate) -> None:
    """Flower's handler of the signal may not come to an end; what the folder says then is what remains."""
    seen: list[str] = []

    def interfere(number: int, message: Message, reply: Message) -> Message:
        exchange = message.content.get("exchange")
        if exchange and exchange["round"] == 2 and number == 0:
            signal.raise_signal(signal.SIGINT)
        return reply

    before = signal.signal(
        signal.SIGINT,
        lambda *_: seen.append(federate.latest.state),  # type: ignore[attr-defined]
    )
    try:
        run = federate(interfere=interfere)
        assert signal.getsignal(signal.SIGINT).__name__ == "<lambda>", "it is put back"  # type: ignore[union-attr]
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == ["stopped"] and run.state == "finished"


def _rewrite(folder: Path, seed: int) -> str:
    """Two sites with a table each, of as many rows whatever they hold."""
    folder.mkdir(exist_ok=True)
    draw = np.random.default_rng(seed)
    for name in ("east", "west"):
        rows = [f"{draw.normal():.4f},{draw.normal():.4f},{i % 2}" for i in range(30)]
        (folder / f"{name}.csv").write_text("\n".join(["a,b,kind", *rows]))
    forget()
    return str(folder)


def test_a_run_goes_on_with_other_data_only_if_that_is_meant(federate: Federate, tmp_path: Path) -> None:
    data = _rewrite(tmp_path / "sites", 1)
    federate("run", clients=2, dataset=data, rounds=2)
    assert federate("run", clients=2, dataset=data, rounds=3, resume=True).state == "finished"
    _rewrite(tmp_path / "sites", 2)
    with pytest.raises(StrategyError, match="site east: the data here are not those that the run run was"):
        federate("run", clients=2, dataset=data, rounds=4, resume=True)
    changed = federate("run", clients=2, dataset=data, rounds=4, resume=True, data_changed=True)
    assert changed.state == "finished"
    assert federate("run", clients=2, dataset=data, rounds=5, resume=True).state == "finished", "said once"


def test_a_simulation_goes_on_with_all_its_clients_or_not_at_all(
    federate: Federate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At real sites the others may go on; here the one file that has changed is the user's own."""
    data = _rewrite(tmp_path / "sites", 1)
    federate("run", clients=2, dataset=data, rounds=2)
    east = tmp_path / "sites" / "east.csv"
    east.write_text(east.read_text().replace(",0\n", ",1\n", 1))
    forget()
    monkeypatch.setattr("strategies.rounds.roster.is_simulation", lambda grid: True)
    with pytest.raises(StrategyError, match=r"^Site east: the data here are not those that the run run was"):
        federate("run", clients=2, dataset=data, rounds=3, resume=True)
    changed = federate("run", clients=2, dataset=data, rounds=3, resume=True, data_changed=True)
    assert [row["clients_ok"] for row in changed.rows[1:]] == ["2", "2", "2"]


def test_a_folder_with_the_name_of_a_data_set_is_watched_too(
    federate: Federate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _rewrite(tmp_path / "wards", 1)
    monkeypatch.chdir(tmp_path)
    federate("run", clients=2, dataset="wards", rounds=1)
    _rewrite(tmp_path / "wards", 2)
    with pytest.raises(StrategyError, match="the data here are not those"):
        federate("run", clients=2, dataset="wards", rounds=2, resume=True)


def test_a_site_that_comes_back_with_other_data_is_told_so(federate: Federate, tmp_path: Path) -> None:
    data = _rewrite(tmp_path / "sites", 1)
    nodes = [
        {"site-id": name, "state-dir": str(tmp_path / name), "data-path": f"{data}/{name}.csv"}
        for name in ("east", "west")
    ]
    federate("run", grid=InProcessGrid({}, 2, node_configs=nodes), rounds=2)
    _rewrite(tmp_path / "sites", 2)
    again = {"rounds": 3, "resume": True}
    with pytest.raises(StrategyError, match=r"not those that the run run was started with.*--data-changed"):
        federate("run", grid=InProcessGrid({}, 2, node_configs=nodes), **again)
    meant = [node | {"data-changed": True} for node in nodes]
    (tmp_path / "sites" / "east.csv").write_text((tmp_path / "sites" / "east.csv").read_text() + "\n0,1,1")
    forget()
    assert federate("run", grid=InProcessGrid({}, 2, node_configs=meant), **again).state == "finished"


def test_a_full_disk_at_the_coordinator_is_one_sentence_and_a_true_state(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = federate("calm")
    real, folder = runs.replace_file, federate.latest.folder.parent / "run"  # type: ignore[attr-defined]
    full = False

    def write(path: Path, data: bytes, durable: bool = True) -> None:
        nonlocal full
        full = full or (
            path.name == "checkpoint.safetensors" and b'"round": "3"' in data[:4000].replace(b":", b": ")
        )
        if full and (folder / runs.RESERVE).exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        real(path, data, durable)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "replace_file", write)
        with pytest.raises(
            RunError, match=r"run cannot be written: No space left on device\. .* \(--resume run\)\."
        ):
            federate("run")
    config = read_config(folder)
    assert full and config and config["state"] == "failed" and "No space left" in config["message"]
    assert not (folder / runs.RESERVE).exists()
    assert federate("run", resume=True).metrics == calm.metrics


def test_room_is_asked_for_before_a_run_begins(federate: Federate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs.shutil, "disk_usage", lambda _: SimpleNamespace(free=10 * 2**20))
    with pytest.raises(RunError, match=r"has 10 MB left, and this run takes 32 MB; make room"):
        federate()
    assert federate.latest.rows == [] and federate.latest.state == "failed"  # type: ignore[attr-defined]
