"""The tour: the notebook runs, its outputs are kept in it, and docs/tour.md is the same as a page."""

import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tour(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    import tour

    yield tour
    del sys.modules["tour"]


def test_the_page_is_the_notebook(tour) -> None:  # type: ignore[no-untyped-def]
    text, pictures = tour.page(nbformat.read(tour.NOTEBOOK, as_version=4))
    assert tour.PAGE.read_text("utf-8") == text, "python examples/tour.py writes it"
    for name, content in pictures.items():
        assert (ROOT / "docs" / "images" / name).read_bytes() == content


def test_the_notebook_runs_and_says_what_it_said(tour, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    kept, now = nbformat.read(tour.NOTEBOOK, as_version=4), tour.execute(tmp_path)
    for before, after in zip(kept.cells, now.cells, strict=True):
        assert before.source == after.source
        kinds = [[output.output_type for output in cell.get("outputs", ())] for cell in (before, after)]
        assert kinds[0] == kinds[1], after.source
        assert "stream" not in kinds[1] and "error" not in kinds[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]
