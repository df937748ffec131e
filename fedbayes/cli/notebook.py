"""The bar in a Jupyter notebook: one output that is replaced as the run goes on, and stays when it has ended."""

import html
import time
from typing import Any

LEAST = 0.1  # seconds between two pictures: each is a message to the browser


class Shown:
    """How far a run is, as text and as HTML."""

    def __init__(self, title: str, done: int, rounds: int, words: str) -> None:
        self._title, self._done, self._rounds, self._words = title, done, rounds, words

    def __repr__(self) -> str:
        return f"{self._title}: {self._words}"

    def _repr_html_(self) -> str:
        bar = f'<progress value="{self._done}" max="{max(self._rounds, 1)}"></progress>'
        return f"<b>{html.escape(self._title)}</b> {bar} {html.escape(self._words)}"


class NotebookBar:
    def start(self, title: str, status: str) -> None:
        from IPython.display import display

        self._title, self._began, self._latest = title, time.monotonic(), 0.0
        self._shown = Shown(title, 0, 0, status)
        self._handle: Any = display(self._shown, display_id=True)  # type: ignore[no-untyped-call]

    def update(self, done: int, rounds: int, scores: str) -> None:
        self._shown = Shown(
            self._title, done, rounds, "  ".join(filter(None, (f"round {done}/{rounds}", scores)))
        )
        if time.monotonic() - self._latest > LEAST:
            self._latest = time.monotonic()
            self._handle.update(self._shown)

    def stop(self) -> None:
        self._handle.update(self._shown)
