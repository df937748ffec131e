"""In which order the tests run."""

from pathlib import Path

import pytest

LONG = ("federation", "strategies", "examples")  # folders of whole runs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long files first: what `make test` deals to its workers last is short, and none waits for another."""
    rank = {folder: number for number, folder in enumerate(LONG)}
    here = Path(__file__).parent
    items.sort(key=lambda item: rank.get(item.path.relative_to(here).parts[0], len(LONG)))
