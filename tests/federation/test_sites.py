"""Real sites, without processes: their own disk, their own log, and what of it the coordinator hears."""

import errno
import fcntl
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.proto.node_pb2 import NodeInfo
from harness import SMALL, Outcome
from inprocess import InProcessGrid, sites

from client_app import site, site_log, store
from client_app.data import ClientData, DataError, load
from client_app.redact import SiteError, redact
from client_app.store import Store
from fedbayes.protocol.settings import Settings, defaults
from server_app.stored import RunError
from strategies import StrategyError

Federate = Callable[..., Outcome]


def test_a_federation_of_sites_repeats_the_simulation_and_keeps_state_on_their_own_disks(
    federate: Federate, tmp_path: Path
) -> None:
    simulated = federate("simulated")
    real = federate("real", grid=sites(tmp_path / "far"))
    assert real.metrics == simulated.metrics
    assert (real.tensors["w"] == simulated.tensors["w"]).all()
    assert [row["site"] for row in real.clients if row["round"] == "1"] == [f"site-{i}" for i in range(4)]
    kept = sorted(str(file.relative_to(tmp_path / "far")) for file in (tmp_path / "far").rglob("personal*"))
    assert kept == [f"disk-{i}/real/site-{i}/personal.safetensors" for i in range(4)]
    assert not (tmp_path / "state" / "real").exists(), "the run's out-dir means nothing at a site"


def test_the_run_cannot_choose_a_folder_at_a_site(
    federate: Federate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def watched(settings: Settings, *share: int) -> ClientData:
        asked.append(settings.data_dir)
        return load(settings, *share)

    monkeypatch.setattr(site, "load", watched)
    site.forget()
    far = tmp_path / "far"
    federate("run", grid=sites(far, count=2), data_dir="/chosen/by/the/coordinator", rounds=1)
    assert set(asked) == {str(far / "disk-0" / "data"), str(far / "disk-1" / "data")}


def test_a_run_names_only_code_that_a_sites_owner_has_opened_to_runs(
    federate: Federate, tmp_path: Path
) -> None:
    own = "networks_of_users:half_frozen"
    sentence = (
        f"A run cannot choose code at a site; its owner lets it use {own} with `fedbayes site --allow-code"
    )
    for opened in ("", "networks,networks_of"):
        with pytest.raises(StrategyError, match=sentence):
            federate(grid=sites(tmp_path / "far", count=1, **{"own-code": opened}), model=own)
    grid = sites(tmp_path / "far", count=1, **{"own-code": "a,networks_of_users"})
    assert federate("opened", grid=grid, model=own, rounds=1).rows[1]["clients_ok"] == "1"
    closed = sites(tmp_path / "far", count=1, **{"own-code": "elsewhere.other"})
    config = tuple(sorted(closed.contexts[next(iter(closed.contexts))].node_config.items()))
    foreign = json.dumps(Settings.parse(defaults() | {"method": "elsewhere.ensemble"}).as_config())
    with pytest.raises(
        SiteError, match=r"use elsewhere\.ensemble with `fedbayes site --allow-code elsewhere`"
    ):
        site.participant(config, foreign, None)


def test_a_site_without_a_disk_of_its_own_takes_no_part(federate: Federate) -> None:
    nodes = [{"site-id": "a", "partition-id": 0, "num-partitions": 1}]
    with pytest.raises(StrategyError, match=r"site a: The node's configuration takes state-dir"):
        federate(grid=InProcessGrid({}, 1, node_configs=nodes))


def test_troubles_are_told_without_paths_and_logged_in_full(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = sites(tmp_path / "secret-place")
    (tmp_path / "secret-place").mkdir()
    (tmp_path / "secret-place" / "disk-2").write_text("a file where the state folder should be")
    run = federate("run", grid=grid)
    assert [(row["clients_ok"], row["clients_failed"]) for row in run.rows[1:]] == [("3", "1")] * 4
    assert run.said("warning")[0] == "Site site-2 dropped from this round: Not a directory."
    heard = [*map(str, run.events), (run.folder / "clients.csv").read_text()]
    assert not any("secret-place" in text for text in heard), (
        "what the coordinator hears has no path of a site"
    )
    log = capsys.readouterr()
    assert (
        f"train failed: NotADirectoryError: [Errno 20] Not a directory: '{tmp_path}/secret-place/disk-2"
        in log.out
    )
    assert "Traceback" in log.err


def test_data_that_cannot_be_used_is_told_without_its_path(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise DataError("/home/clinic/patients.csv has no column named outcome.")

    monkeypatch.setattr(site, "load", broken)
    site.forget()
    with pytest.raises(StrategyError) as end:
        federate(grid=sites(tmp_path / "far", count=1))
    assert str(end.value).endswith("site site-0: DataError; the site's own log says more")
    assert "/home/clinic/patients.csv has no column named outcome." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SiteError("training diverged"), "training diverged"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/home/a/b"), "No space left on device"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS), "/home/a/b"), "Read-only file system"),
        (RuntimeError("/home/a/b is odd"), "RuntimeError; the site's own log says more"),
        (ValueError("patient 17"), "ValueError; the site's own log says more"),
    ],
)
def test_what_may_leave_a_site(error: Exception, words: str) -> None:
    assert redact(error) == words


def test_one_line_per_round_in_the_sites_log(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "site.log"
    run = federate("run", grid=sites(tmp_path / "far", count=1, **{"log-file": str(log)}), rounds=3)
    lines = [line.split("  ")[1:] for line in log.read_text().splitlines()]
    size = str(int(run.rows[1]["bytes_up"]))
    scores = {
        row["round"]: [f"PM {float(row['pm_accuracy']):.4f}", f"GM {float(row['gm_accuracy']):.4f}"]
        for row in run.rows
        if row["pm_accuracy"]
    }
    assert [[part for part in line if not part.endswith(" s")] for line in lines] == [
        ["run", "round 1", "after round 0:", *scores["0"], f"{size} bytes in", f"{size} bytes out"],
        ["run", "round 2", "after round 1:", *scores["1"], f"{size} bytes in", f"{size} bytes out"],
        ["run", "round 3", "after round 2:", *scores["2"], f"{size} bytes in", f"{size} bytes out"],
        ["run", "after round 3:", *scores["3"], f"{size} bytes in", "0 bytes out"],
    ]
    assert all(any(part.endswith(" s") for part in line) for line in lines)
    assert capsys.readouterr().out.count("bytes in") == 4, "and on standard output"


def test_a_regressions_log_tells_the_rmse(federate: Federate, tmp_path: Path) -> None:
    log = tmp_path / "site.log"
    grid = sites(tmp_path / "far", count=1, **{"log-file": str(log)})
    run = federate("run", grid=grid, dataset="diabetes", layout="iid", size="60+20", rounds=2, eval_every=1)
    assert run.state == "finished" and [row["clients_failed"] for row in run.rows[1:]] == ["0", "0"]
    told = [line.split("after round ")[1].split("  ")[1:3] for line in log.read_text().splitlines()]
    assert told == [
        [f"{model.upper()} RMSE {float(row[f'{model}_rmse']):.4f}" for model in ("pm", "gm")]
        for row in run.rows
    ]


def test_a_cluster_is_named_in_the_line(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = federate(
        "run", grid=sites(tmp_path / "far"), method="cfedbayes", layout="rotated", clusters=2, rounds=1
    )
    said = [
        line.split("cluster ")[1][0] for line in capsys.readouterr().out.splitlines() if "cluster " in line
    ]
    chosen = [row["cluster"] for row in run.clients if row["round"] == "1"]
    assert said == chosen and set(said) == {"0", "1"}


def test_the_log_file_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_log, "BYTES", 200)
    for number in range(100):
        site_log.write(f"line {number}", str(tmp_path / "site.log"))
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["site.log", *(f"site.log.{i}" for i in range(1, 6))]
    assert all(file.stat().st_size <= 200 for file in files)
    assert "line 99" in files[0].read_text()


def test_a_log_that_cannot_be_written_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site_log.write("a line", str(tmp_path / "missing" / "site.log"))
    assert "a line\nthe log file cannot be written" in capsys.readouterr().out


def test_a_state_in_use_is_waited_for_and_then_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = (Store(tmp_path / "run" / "site-0", "uuid", durable=False) for _ in range(2))
    monkeypatch.setattr(store, "LOCK_WAIT", 0.3)
    with (
        mine.locked(),
        pytest.raises(SiteError, match=r"another process .* personal model of site site-0 for 0\.3 s"),
        other.locked(),
    ):
        pass
    monkeypatch.setattr(store, "LOCK_WAIT", 60.0)
    held = threading.Event()
    release = threading.Event()

    def hold() -> None:
        with mine.locked():
            held.set()
            release.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    threading.Timer(0.3, release.set).start()
    with other.locked():
        assert release.is_set(), "it came in only after the other had left"
    thread.join()


def test_a_dead_process_holds_no_lock(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "site-0"
    folder.mkdir(parents=True)
    child = os.fork()
    if child == 0:
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    with Store(folder, "uuid", durable=False).locked():
        pass


def test_a_site_must_call_itself_by_the_name_of_its_key(federate: Federate, tmp_path: Path) -> None:
    grid = sites(tmp_path / "far", count=3)
    names = ["site-0", "site-1", "somebody-else"]
    grid.get_nodes = lambda: [  # type: ignore[method-assign]
        NodeInfo(node_id=node, name=name) for node, name in zip(grid.contexts, names, strict=True)
    ]
    run = federate(grid=grid, rounds=1)
    assert run.said("warning") == [
        'Left out: the key of site "somebody-else" was used by a node that calls itself "site-2"'
    ]
    assert run.rows[1]["clients_ok"] == "2"


def test_a_run_is_resumed_with_its_own_settings(federate: Federate) -> None:
    """As `fedbayes run --resume --on` does it: it knows the run's name, and not its settings."""
    calm = federate("calm", rounds=6, zeta=3.0)
    federate("run", rounds=3, zeta=3.0)
    defaults = {key.replace("-", "_"): 7 for key in SMALL if key not in ("rounds", "eval-every", "size")}
    again = federate(
        "run", resume=True, resume_with="rounds", rounds=6, eval_every=999, size="2+2", **defaults
    )
    assert again.metrics[4:] == calm.metrics[4:], "row 3 was the last of three, and so was measured"
    assert (again.tensors["w"] == calm.tensors["w"]).all()
    with pytest.raises(RunError, match=r"The run run is finished \(6 rounds\); train longer with rounds=12"):
        federate("run", resume=True, resume_with="")
    with pytest.raises(RunError, match=r"started with zeta=3\.0, not 1\.0; --resume may change only rounds"):
        federate("run", resume=True, resume_with="rounds,zeta", rounds=9, zeta=1.0)
    with pytest.raises(RunError, match="There is no run to resume in"):
        federate("other", resume=True, resume_with="")


def test_the_owner_chooses_the_device(federate: Federate, tmp_path: Path) -> None:
    """Whatever the run says: this machine has no GPU."""
    run = federate(grid=sites(tmp_path / "a", device="cpu"), device="cuda", rounds=1)
    assert run.state == "finished"
    with pytest.raises(StrategyError, match=r"takes device: auto, cpu, cuda, cuda:N or mps"):
        federate("b", grid=sites(tmp_path / "b", device="gpu"), rounds=1)
