"""What the image installs, one requirement a line: the project's, and what builds it, without Ray (for simulations)."""

import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))
for requirement in (*project["project"]["dependencies"], *project["build-system"]["requires"]):
    print(requirement.replace("flwr[simulation]", "flwr"))
