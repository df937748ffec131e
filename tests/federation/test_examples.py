"""The examples in the documentation, as they stand there."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from harness import Outcome

from client_app import site
from client_app.store import read
from fedbayes.launch.plan import parse_words, plan_run
from server_app.stored import read_rows

DOCS = Path(__file__).parents[2] / "docs"
Federate = Callable[..., Outcome]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)


def lines_of(block: str) -> list[str]:
    return [line for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize(
    ("script", "command"),
    [("make_wine", "wine.npz"), ("make_gardens", "gardens"), ("my_data", "my_data:load")],
)
def test_one_s_own_data_in_ten_lines(
    federate: Federate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, command: str
) -> None:
    block = next(block for block in blocks("data.md", "python") if block.startswith(f"# {script}.py"))
    (line,) = re.findall(
        rf"^    fedbayes run (dataset={command}.*)$", (DOCS / "data.md").read_text("utf-8"), re.M
    )
    assert len(lines_of(block)) <= 10
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    site.forget()
    (tmp_path / f"{script}.py").write_text(block)
    if script.startswith("make"):
        subprocess.run([sys.executable, f"{script}.py"], check=True)
    words = shlex.split(line)
    clients = int(words[words.index("--clients") + 1]) if "--clients" in words else None
    settings = parse_words([word for word in words if "=" in word])
    plan = plan_run(settings | {"out-dir": str(tmp_path)}, clients)
    own = {
        key.replace("-", "_"): value for key, value in plan.settings.as_config().items() if key in settings
    }
    run = federate(clients=plan.clients, rounds=8, local_steps=20, eval_every=8, **{"size": "small"} | own)
    assert float(run.rows[-1]["pm_accuracy"]) > 0.75


def test_a_backbone_of_one_s_own(tmp_path: Path) -> None:
    """Pretrained on images that no client has, then as it is under a Bayesian head, and going on to learn."""
    here = DOCS.parent / "examples" / "backbone"
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (200, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", x=x, y=np.arange(200) % 4)
    environment = os.environ | {"PYTHONPATH": str(here)}

    def python(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    said = python(str(here / "pretrain.py"), "images.npz", "--epochs", "1", "--each", "5")
    assert "20 images for backbone.safetensors, 180 in clients.npz" in said
    common = [
        "run",
        "dataset=clients.npz",
        "layout=iid",
        "size=20+10",
        "rounds=1",
        "local-steps=1",
        "--clients",
        "2",
    ]
    head = 1024 * 4 + 4
    for name, words in (("frozen", []), ("warm", ["bayesian=head"])):
        python("-m", "fedbayes.cli", *common, f"model=backbone:{name}", *words, f"run-name={name}")
        _, state = read(tmp_path / "runs" / "state" / name / "0" / "personal.safetensors")
        assert state["q"].shape == (2, head)
    frozen, warm = (read_rows(tmp_path / "runs" / name / "rounds.csv")[1] for name in ("frozen", "warm"))
    assert int(frozen["bytes_up"]) < 2 * (8 * head + 1000) < int(warm["bytes_up"])


def test_the_worked_example(tmp_path: Path) -> None:
    """The commands through a shell, on real files and a real simulation, as a stranger would type them."""
    programs, commands = blocks("example.md", "python"), blocks("example.md", "sh")
    assert sum(len(lines_of(block)) for block in programs + commands) < 40
    for program in programs:
        (tmp_path / program.split()[1]).write_text(program)
    bin_folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    script = "\n".join(["set -e", *commands, "python ask.py"])
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    together, alone = (
        read_rows(tmp_path / "runs" / name / "rounds.csv")[-1] for name in ("together", "alone")
    )
    assert float(together["pm_rmse"]) < float(alone["pm_rmse"]) < 90
    assert 0.8 < float(together["pm_coverage"]) <= 1
    answers = read_rows(tmp_path / "answers.csv")
    assert len(answers) == 5 and all(
        float(row["low"]) < float(row["mean"]) < float(row["high"]) for row in answers
    )
    assert (tmp_path / "exported" / "network.onnx").exists()
