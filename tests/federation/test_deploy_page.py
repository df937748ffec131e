"""docs/deploy.md, followed to the letter in an empty folder (but for the ports, which may be taken here)."""

import re
import shlex
from pathlib import Path

import pytest
from deployed import Deployment, Running

from fedbayes.launch.flower import free_port
from server_app.stored import read_rows

pytestmark = pytest.mark.deployment
PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"


def commands() -> list[list[str]]:
    """The words of every `fedbayes` command in the page's blocks, in their order."""
    blocks = re.findall(r"^```\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    lines = [shlex.split(line) for block in blocks for line in block.splitlines()]
    assert {words[0] for words in lines} == {"fedbayes"}
    return [words[1:] for words in lines]


def test_the_page_makes_a_federation_whose_figures_are_those_of_the_simulation(tmp_path: Path) -> None:
    fleet, control = f"localhost:{free_port()}", f"localhost:{free_port()}"
    federation = Deployment(tmp_path, 0)
    finished: dict[str, Running] = {}
    try:
        for number, words in enumerate(commands()):
            if words[0] == "coordinator":
                words += ["--listen", fleet, "--control", control]
            words = [fleet if word == "localhost" and words[0] == "site" else word for word in words]
            running = federation.command(*words, log=str(number))
            federation.running[str(number)] = running
            if words[0] in ("coordinator", "site"):
                running.hears("may take part" if words[0] == "coordinator" else "SuperNode ID")
            else:
                assert running.ends() == 0, running.said
                finished[words[0] + words[1]] = running
    finally:
        federation.end()
    assert "10 rounds, 3 sites, 0 failed replies" in finished["run--on"].said
    network, simulation = (
        read_rows(tmp_path / "runs" / name / "rounds.csv") for name in ("first", "simulated")
    )
    assert len(network) == 11
    figures = ("round", "pm_accuracy", "gm_accuracy", "pm_nll", "gm_nll", "clients_ok", "bytes_up")
    assert [[row[name] for name in figures] for row in network] == [
        [row[name] for name in figures] for row in simulation
    ]
