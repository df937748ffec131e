"""The pages of `fedbayes watch` in a real browser: they renew themselves, and keep what a reader has done."""

import csv
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import Outcome
from page_checks import CONTRAST, INSPECT

from experiments.browser import find_browser, open_browser
from fedbayes.watch.server import Server

pytest.importorskip("playwright", reason="the package playwright is not installed")
pytestmark = pytest.mark.skipif(find_browser() is None, reason="there is no Chromium on this machine")


@pytest.fixture(scope="module")
def runs(federate_once: Callable[..., Outcome]) -> Path:
    """Two runs of two methods; the first is made to be going on."""
    first = federate_once("first", rounds=3, eval_every=1)
    federate_once("second", method="fedavg", rounds=2)
    lock = {"pid": os.getpid(), "created": psutil.Process().create_time(), "marker": "0"}
    (first.folder / "lock.json").write_text(json.dumps(lock))
    (first.folder / "log.txt").write_text("".join(f"line {i}\n" for i in range(150)))
    config = json.loads((first.folder / "config.json").read_text())
    config |= {"state": "running", "settings": config["settings"] | {"rounds": 5}}
    (first.folder / "config.json").write_text(json.dumps(config))
    return first.folder.parent


@pytest.fixture(scope="module")
def server(runs: Path) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch, Server(runs, 0) as server:
        for module in ("server_app.report.live", "fedbayes.watch.pages"):
            patch.setattr(f"{module}.EVERY", 0.1)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def show(browser: Any, server: Server) -> Iterator[Callable[..., Any]]:
    """Opens a page; what the browser complains of (but a run that is gone) or fetches elsewhere fails the test."""
    said: list[str] = []
    opened = []
    home = server.url().partition("?")[0]

    def open_page(run: str = "", width: int = 1280, scheme: str = "light") -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened.append(page)
        page.on("console", lambda message: None if "404" in message.text else said.append(message.text))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("request", lambda one: None if one.url.startswith((home, "data:")) else said.append(one.url))
        page.goto(server.url(run))
        return page

    yield open_page
    for page in opened:
        page.close()
    assert said == []


@pytest.mark.parametrize("width", [390, 1280])
def test_everything_is_drawn_and_nothing_overflows(show: Callable[..., Any], width: int) -> None:
    page = show("first", width)
    figures = page.evaluate("[...document.querySelectorAll('figure')].map(one => one.id)")
    assert figures == ["convergence", "clients", "uncertainty", "seconds", "traffic"]
    assert page.evaluate(INSPECT) == []
    assert show("", width).evaluate(INSPECT) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read(show: Callable[..., Any], scheme: str) -> None:
    for name in ("first", ""):
        page = show(name, scheme=scheme)
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert page.evaluate(CONTRAST) >= 4.5


def test_a_run_that_goes_on_is_shown_as_it_does(show: Callable[..., Any], runs: Path) -> None:
    page, folder = show("first"), runs / "first"
    assert page.locator(".badge").inner_text() == "running"
    page.locator("#convergence summary").click()
    assert page.evaluate(
        "(log => log.scrollTop + log.clientHeight >= log.scrollHeight - 1)(document.querySelector('pre'))"
    )
    page.evaluate("document.querySelector('pre').scrollTop = 40")
    with (folder / "rounds.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    with (folder / "rounds.csv").open("a", newline="") as stream:
        csv.DictWriter(stream, rows[-1]).writerow(rows[-1] | {"round": "4", "pm_accuracy": "0.875"})
    with (folder / "log.txt").open("a") as log:
        log.write("the line that was added\n")
    page.get_by_text("the line that was added").wait_for(state="attached")
    page.get_by_text("personal, now 87.5").wait_for()
    assert page.locator("#convergence details").get_attribute("open") is not None, "it stays open"
    assert page.evaluate("document.querySelector('pre').scrollTop") == 40, "and the log where the reader is"
    assert "last change" in page.locator("#live").inner_text()


def test_ticked_runs_are_compared_and_ticks_stay(show: Callable[..., Any], runs: Path) -> None:
    page = show()
    page.get_by_label("compare first").check()
    with (runs / "second" / "log.txt").open("a") as log:
        log.write("changed\n")
    (runs / "third").mkdir()
    (runs / "third" / "rounds.csv").write_text("")  # one that cannot be read
    page.get_by_text("unreadable").wait_for()
    assert page.get_by_label("compare first").is_checked()
    page.get_by_label("compare second").check()
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("heading", name="Comparison").wait_for()
    assert page.locator("#convergence-gm svg").count() == 3, "a drawing, and two samples in its legend"


def test_a_page_whose_run_is_gone_stays_and_says_so(
    show: Callable[..., Any], runs: Path, server: Server
) -> None:
    page = show("second")
    (runs / "second").rename(runs.parent / "moved")
    try:
        page.get_by_text("the run is not there any more").wait_for(timeout=20_000)
        assert page.locator("#convergence").count() == 1
    finally:
        (runs.parent / "moved").rename(runs / "second")
