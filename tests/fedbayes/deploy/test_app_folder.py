"""A run's app is in Flower's folder as a whole or not at all."""

import threading
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from fedbayes.deploy import app_folder
from fedbayes.launch.app_bundle import assemble


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return build_fab_from_disk(assemble(tmp_path_factory.mktemp("bundle") / "app"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_an_app_that_somebody_left_half_is_made_whole(home: Path, bundle: bytes) -> None:
    app_folder.install(bundle)
    (place,) = (home / "apps").iterdir()
    module = place / "server_app" / "app.py"
    content = module.read_bytes()
    module.unlink()
    (place / "client_app" / "app.py").write_text("x")
    app_folder.install(bundle)
    assert module.read_bytes() == content and (place / "client_app" / "app.py").read_text() != "x"
    assert [path.name for path in home.iterdir()] == ["apps"], "nothing else stays"
    before = module.stat().st_ino
    app_folder.install(bundle)
    assert module.stat().st_ino == before, "what is whole stays as it is"


def test_several_at_once_leave_one_whole_app(home: Path, bundle: bytes) -> None:
    threads = [threading.Thread(target=app_folder.install, args=(bundle,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (place,) = (home / "apps").iterdir()
    assert (place / "server_app" / "app.py").is_file() and (place / "pyproject.toml").is_file()


def test_what_is_no_app_is_flowers_to_refuse(home: Path) -> None:
    app_folder.install(b"no zip file")
    assert not (home / "apps").exists()
