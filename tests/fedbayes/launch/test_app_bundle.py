"""The app folder that Flower gets: complete, and with settings that survive the journey."""

import io
import tomllib
import zipfile
from pathlib import Path

import pytest

from fedbayes.launch.app_bundle import assemble, methods, toml_value, write_run_config
from fedbayes.protocol.settings import Settings, defaults


@pytest.mark.parametrize(
    "value",
    [
        True, False, 0, -3, 0.001, 1e-05, 1e20, "", "plain", "with space", 'a "quote"', "it's",
        "back\\slash\\n", "tab\there", "new\nline", "del\x7f", "ünï–", "# no comment", "a = b",
    ],
)  # fmt: skip
def test_a_value_survives_toml(value: object) -> None:
    read = tomllib.loads(f"key = {toml_value(value)}")["key"]  # type: ignore[arg-type]
    assert read == value and type(read) is type(value)


def test_flower_reads_the_settings_as_they_were(tmp_path: Path) -> None:
    from flwr.common.config import parse_config_args

    settings = Settings.parse(defaults() | {"out-dir": "/a 'b' \"c\"\\d", "zeta": "1e-5"})
    file = write_run_config(tmp_path / "run.toml", settings.as_config())
    assert parse_config_args([str(file)]) == settings.as_config()


def test_flower_can_pack_the_assembled_app(tmp_path: Path) -> None:
    from flwr.cli.build import build_fab_from_disk

    app = assemble(tmp_path / ".flower" / "app")
    names = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(app))).namelist()
    assert {
        "pyproject.toml",
        "server_app/app.py",
        "client_app/app.py",
        "fedbayes/protocol/settings.py",
    } <= set(names)
    assert not list(app.rglob("__pycache__"))


def test_a_method_needs_both_halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "strategies/a.py",
        "strategies/rounds/loop.py",
        "client_app/methods/a.py",
        "client_app/methods/b.py",
    ):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    monkeypatch.setattr("fedbayes.launch.app_bundle.package_folder", lambda name: tmp_path / name)
    assert methods() == ["a"]
