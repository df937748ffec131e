"""What `pip install` of a wheel would bring: built, unpacked, and used outside of the checkout."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

from fedbayes.protocol.settings import defaults

CHECKOUT = Path(__file__).parents[2]


def test_the_wheel_alone_tells_every_setting(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(CHECKOUT)], check=True, timeout=600)
    (wheel,) = tmp_path.glob("fedbayes-*.whl")
    with ZipFile(wheel) as files:
        files.extractall(tmp_path / "installed")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    where = "import fedbayes; print(fedbayes.__file__)"

    def python(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert python("-c", where).startswith(str(tmp_path / "installed")), "not the checkout"
    said = python("-m", "fedbayes.cli", "settings")
    assert all(key in said for key in defaults())
