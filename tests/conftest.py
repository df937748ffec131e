"""In which order the tests run, and what one leaves behind for the next: no module of its own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LONG = ("federation", "strategies", "examples")  # folders of whole runs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long files first: what `make test` deals to its workers last is short, and none waits for another."""
    rank = {folder: number for number, folder in enumerate(LONG)}
    here = Path(__file__).parent
    items.sort(key=lambda item: rank.get(item.path.relative_to(here).parts[0], len(LONG)))


@pytest.fixture(autouse=True)
def modules_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forgets what a test imported from its temporary folder: the next may have another module of that name."""
    before = set(sys.modules)
    yield
    temporary = tmp_path_factory.getbasetemp()
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).resolve().is_relative_to(temporary):
            del sys.modules[name]
