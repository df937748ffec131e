"""What one imports: light until it is used."""

import subprocess
import sys

import pytest


def test_the_package_is_light_until_a_model_is_asked_for() -> None:
    code = (
        "import sys, fedbayes, fedbayes.cli.command; assert not {'torch', 'numpy', 'flwr'} & set(sys.modules); "
        "from fedbayes import PersonalModel, Personal; assert Personal is PersonalModel; "
        "assert 'torch' in sys.modules and callable(PersonalModel.load)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_not_there_is_an_ordinary_error() -> None:
    with pytest.raises(ImportError, match="cannot import name 'Nobody'"):
        from fedbayes import Nobody  # noqa: F401
