"""The folder that Flower is asked to run: the installed packages beside the app's pyproject.toml.

`flwr run` takes a folder with a pyproject.toml. In a checkout that is the checkout itself, but an installed
command has only packages in site-packages; so every run gets a copy of its own, from wherever Python finds
them, and works from any folder.
"""

import importlib.util
import pkgutil
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tomli_w

from fedbayes.errors import CommandError
from fedbayes.protocol.settings import app_file

PACKAGES = ("bayes_core", "client_app", "server_app", "strategies", "fedbayes")


def package_folder(name: str) -> Path:
    """Where Python finds a package, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise CommandError(f'The package "{name}" is not installed beside fedbayes; install fedbayes again.')
    return Path(next(iter(spec.submodule_search_locations)))


def assemble(target: Path, further: Mapping[str, Any] = MappingProxyType({})) -> Path:
    """Copy the app to `target`, which must not exist.

    `further` are the defaults of a method from elsewhere: Flower takes no setting that the app does not declare.
    """
    target.mkdir(parents=True)
    for name in PACKAGES:
        shutil.copytree(
            package_folder(name),
            target / name,
            ignore=shutil.ignore_patterns("__pycache__", "tests", "*.toml"),
        )
    shutil.copyfile(app_file(), target / "pyproject.toml")
    if further:
        content = tomllib.loads(app_file().read_text("utf-8"))
        content["tool"]["flwr"]["app"]["config"] |= nested(further)
        (target / "pyproject.toml").write_text(tomli_w.dumps(content), "utf-8")
    return target


def nested(config: Mapping[str, Any]) -> dict[str, Any]:
    """Keys with dots as tables of tables, as TOML writes them."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        *tables, name = key.split(".")
        place = found
        for table in tables:
            place = place.setdefault(table, {})
        place[name] = value
    return found


def methods() -> list[str]:
    """The methods that have both halves: a strategy for the server and a file for the client."""
    server = {module.name for module in pkgutil.iter_modules([str(package_folder("strategies"))])}
    client_folder = package_folder("client_app") / "methods"
    client = {module.name for module in pkgutil.iter_modules([str(client_folder)])}
    return sorted(name for name in server & client if not name.startswith("_"))


def write_run_config(file: Path, config: Mapping[str, Any]) -> Path:
    """The run's settings as a TOML file: `flwr run -c key=value` cannot take quotes inside a value."""
    file.write_text(tomli_w.dumps(nested(config)), "utf-8")
    return file


def toml_value(value: bool | int | float | str) -> str:
    """One scalar in TOML, on one line."""
    return tomli_w.dumps({"_": value}).removeprefix("_ = ").removesuffix("\n")
