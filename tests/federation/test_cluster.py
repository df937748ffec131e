"""A simulation on a Ray cluster of three nodes, one of which is killed: real processes, real sockets."""

import csv
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.cluster import forget
from fedbayes.launch.app_bundle import PACKAGES
from fedbayes.launch.engine import cluster
from fedbayes.launch.engine.actor import Actor
from fedbayes.launch.flower import free_port
from fedbayes.protocol.settings import Settings, defaults

ENVIRONMENT = {**os.environ, "RAY_DISABLE_USAGE_STATS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
PATIENCE = 400.0  # seconds, for a busy machine


class Cluster:
    """A head and further nodes, each a group of processes of its own.

    None can import fedbayes: what serves clients there has come with the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        for package in PACKAGES:
            (own := folder / "broken" / package).mkdir(parents=True)
            (own / "__init__.py").write_text(f'raise ImportError("the node\'s own {package}")\n')
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.start("--head", f"--port={self.port}", "--include-dashboard=false")
        for _ in range(2):
            self.start(f"--address={self.address}")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, *words: str, python_path: str = "") -> None:
        command = [Path(sys.executable).with_name("ray"), "start", *words, "--num-cpus=1", "--block"]
        log = self.folder / f"node{len(self.nodes)}.log"
        path = os.pathsep.join(filter(None, (python_path, str(self.folder / "broken"))))
        with log.open("wb") as out:
            self.nodes.append(
                subprocess.Popen(
                    command,
                    stdout=out,
                    stderr=out,
                    env=ENVIRONMENT | {"PYTHONPATH": path},
                    start_new_session=True,
                )
            )
        deadline = time.monotonic() + PATIENCE
        while "Ray runtime started" not in log.read_text():
            assert time.monotonic() < deadline and self.nodes[-1].poll() is None, log.read_text()
            time.sleep(0.1)

    def kill(self, number: int) -> None:
        """All processes of a node: they are in sessions of their own, but children of its first one."""
        import psutil

        first = psutil.Process(self.nodes[number].pid)
        for process in [*first.children(recursive=True), first]:
            process.kill()
        self.nodes[number].wait()

    def end(self) -> None:
        for number, node in enumerate(self.nodes):
            if node.poll() is None:
                self.kill(number)
        forget(self.port)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.end()


def command(folder: Path, name: str, *words: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "fedbayes.cli",
        "run",
        "eval-every=2",
        f"run-name={name}",
        f"out-dir={folder}",
        *words,
    ]


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "rounds.csv").open(newline="") as file:
        return [
            {key: value for key, value in row.items() if key != "seconds"} for row in csv.DictReader(file)
        ]


@pytest.mark.deployment
def test_figures_are_those_of_this_machine(nodes: Cluster, tmp_path: Path) -> None:
    """Also with a network from the folder of the command, which the nodes do not have, as they have no fedbayes."""
    (tmp_path / "own_network.py").write_text(
        "from torch import nn\n"
        "def make(inputs, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(inputs[0] * inputs[1] * inputs[2], classes))\n"
    )
    words = ["rounds=2", "model=own_network:make", "method=cfedbayes", "clusters=2"]
    for name, engine in (("there", ["--engine", "ray", "--address", nodes.address]), ("here", [])):
        done = subprocess.run(
            command(tmp_path, name, *words, *engine),
            cwd=tmp_path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert rows(tmp_path / "there") == rows(tmp_path / "here")
    assert not (tmp_path / "there" / cluster.BUNDLE).exists()


@pytest.mark.deployment
def test_a_killed_node_costs_messages_and_not_the_run(nodes: Cluster, tmp_path: Path) -> None:
    words = ["rounds=30", "local-steps=200", "--engine", "ray", "--address", nodes.address]
    run = subprocess.Popen(
        command(tmp_path, "run", *words),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    file, deadline = tmp_path / "run" / "rounds.csv", time.monotonic() + PATIENCE
    while run.poll() is None and not (file.exists() and len(rows(file.parent)) > 4):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert run.poll() is None
    nodes.kill(2)
    said, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, said
    found = rows(file.parent)
    assert len(found) == 31 and sum(int(row["clients_failed"] or 0) for row in found) <= 2
    log = (file.parent / "log.txt").read_text()
    assert cluster.LOST in log or "An actor was lost" in log


@pytest.mark.deployment
def test_where_there_is_no_cluster_it_is_said(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    done = subprocess.run(
        command(tmp_path, "run", "--engine", "ray", "--address", address),
        env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 1 and f"There is no Ray cluster at {address}" in done.stderr, done.stderr


@pytest.mark.deployment
def test_the_cluster_of_this_machine(nodes: Cluster, tmp_path: Path) -> None:
    """`--address auto`, which is what is meant without one."""
    done = subprocess.run(
        command(tmp_path, "run", "rounds=1", "--engine", "ray", "--address", "auto", "--clients", "3"),
        env={**ENVIRONMENT, "RAY_ADDRESS": nodes.address}, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(rows(tmp_path / "run")) == 2


@pytest.mark.deployment
def test_a_live_node_that_does_not_see_the_folder_is_named(nodes: Cluster, tmp_path: Path) -> None:
    """A path that is the command's own folder for the command, and another one for every other process."""
    folder = Path("/proc/self/cwd/runs")
    done = subprocess.run(
        command(folder, "run", "rounds=1", "--engine", "ray", "--address", nodes.address),
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert f"of the cluster does not see the folder {folder}; out-dir must be on a path" in done.stderr


@pytest.mark.deployment
def test_a_node_without_a_package_is_named(nodes: Cluster, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
    )
    nodes.start(f"--address={nodes.address}", python_path=str(tmp_path))
    try:
        done = subprocess.run(
            command(tmp_path / "out", "run", "rounds=10000", "--engine", "ray", "--address", nodes.address),
            env=ENVIRONMENT, capture_output=True, text=True, timeout=cluster.PATIENCE,
        )  # fmt: skip
    finally:
        nodes.kill(-1)
    assert done.returncode == 1, done.stdout
    assert re.search(
        r"The node [\d.]+ of the cluster lacks the package torch; fedbayes' dependencies", done.stderr
    )


def test_what_a_node_says_of_what_it_does_not_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.7")
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    words = {"run-name": "run", "out-dir": str(out), "data-dir": str(data), "dataset": "mnist"}
    settings = Settings.parse(defaults() | words)
    actor = Actor(cluster.post_of(settings, 3, "token"))
    folder = cluster.bundle(settings)
    assert "10.0.0.7" in actor.problem() and str(out) in actor.problem()
    folder.mkdir(parents=True)
    (folder / cluster.TOKEN).write_text("of another run")
    assert "share" in actor.problem()
    (folder / cluster.TOKEN).write_text("token")
    assert actor.problem() == ""
    data.rmdir()
    assert f"10.0.0.7 of the cluster does not see {data}; data must be on a path" in actor.problem()


@pytest.mark.parametrize(
    ("dataset", "found"),
    [
        ("digits", []),
        ("mnist", ["data"]),
        ("package.module:function", ["data"]),
        ("{}/a.npz,{}/b.npz", ["a.npz", "b.npz"]),
        ("{}/nowhere.npz", []),  # the clients themselves will say so
    ],
)
def test_which_data_nodes_must_see(tmp_path: Path, dataset: str, found: list[str]) -> None:
    for name in ("data", "a.npz", "b.npz"):
        (tmp_path / name).touch()
    words = {"dataset": dataset.replace("{}", str(tmp_path)), "data-dir": str(tmp_path / "data")}
    seen = cluster.data_of(Settings.parse(defaults() | words))
    assert seen == tuple(str(tmp_path / name) for name in found)


def test_an_actor_is_there_before_any_package() -> None:
    """Else a node that lacks one could not say so."""
    code = (
        "import sys; before = set(sys.modules); import fedbayes.launch.engine.actor; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names); "
        "assert new <= {'fedbayes'}, new"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("there", "settings", "needs"),
    [
        ({"CPU": 8.0}, {}, {"num_cpus": 1}),
        ({"CPU": 8.0, "GPU": 1.0}, {"threads": 2}, {"num_cpus": 2, "num_gpus": 0.125}),
        ({"CPU": 8.0, "GPU": 1.0}, {"gpu-share": 0.5}, {"num_cpus": 1, "num_gpus": 0.5}),
        ({"CPU": 8.0, "GPU": 1.0}, {"device": "cpu"}, {"num_cpus": 1}),
    ],
)
def test_what_an_actor_takes(
    there: dict[str, float], settings: dict[str, object], needs: dict[str, float]
) -> None:
    assert cluster._needs(Settings.parse(defaults() | settings), there) == needs
