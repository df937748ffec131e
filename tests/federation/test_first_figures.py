"""What a newcomer sees first: with the very settings of the demonstrations, the models visibly learn."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from harness import SMALL, Outcome

from fedbayes.protocol.settings import defaults

Federate = Callable[..., Outcome]
ROOT = Path(__file__).parents[2]


def line(file: str, words: str) -> list[str]:
    """The settings of the first command with these words in a file."""
    found = re.search(rf"^.*{re.escape(words)}.*$", (ROOT / file).read_text("utf-8"), re.MULTILINE)
    assert found, words
    return [word for word in shlex.split(found[0].replace("$(VENV)", "")) if "=" in word]


COMPOSE = yaml.safe_load((ROOT / "docker/compose.yml").read_text("utf-8"))["services"]["runner"]["command"]
SHOWN = {
    "make run": (10, line("Makefile", "fedbayes run dataset=digits")),
    "docs/deploy.md": (3, line("docs/deploy.md", "fedbayes run --on lan run-name=first")),
    "compose": (3, COMPOSE),
    "kubernetes": (3, line("docker/README.md", "-- fedbayes run --on lan")),
}


@pytest.mark.parametrize("where", SHOWN)
def test_the_first_rounds_go_the_right_way(federate: Federate, where: str) -> None:
    clients, words = SHOWN[where]
    given = dict(word.split("=", 1) for word in words)
    assert given["zeta"] == "auto", "the weight of the prior follows the data, as a user would keep it"
    plain = {key: defaults()[key] for key in SMALL}
    run = federate("first", clients, **plain | given | {"rounds": 3, "eval-every": 1, "run-name": "first"})
    personal = [float(row["pm_accuracy"]) for row in run.rows]
    shared = [float(row["gm_accuracy"]) for row in run.rows]
    assert personal[0] < personal[1] < personal[3] and personal[3] > 0.7, personal
    assert shared[3] > shared[1] > shared[0], shared
