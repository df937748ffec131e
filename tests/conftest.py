"""In which order the tests run, and what one leaves behind for the next: no module of its own."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

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
    before, places = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = places
    temporary = tmp_path_factory.getbasetemp()
    own = [name for name in set(sys.modules) - before if _lies_in(temporary, sys.modules[name])]
    for name in own:
        del sys.modules[name]
    if own and (site := sys.modules.get("client_app.site")):
        site.forget()


def _lies_in(folder: Path, module: ModuleType) -> bool:
    """A package without an `__init__.py` has folders, and no file."""
    has = getattr(module, "__dict__", {})  # some answer to any name
    places = [has.get("__file__"), *has.get("__path__", ())]
    return any(Path(place).resolve().is_relative_to(folder) for place in places if place)
