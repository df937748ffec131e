"""Pages in a real browser: everything is drawn, nothing overflows or overlaps, nothing is fetched or logged."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from harness import Outcome
from page_checks import CONTRAST, INSPECT

from experiments.browser import find_browser, open_browser
from server_app.report.compare import write_comparison

pytest.importorskip("playwright", reason="the package playwright is not installed")
pytestmark = pytest.mark.skipif(find_browser() is None, reason="there is no Chromium on this machine")

Federate = Callable[..., Outcome]
PAGES = ("pfedbayes", "cfedbayes", "fedavg", "many", "comparison")
SURE = "reliability abstention by-site uncertainty histograms"
FIGURES = {
    "pfedbayes": f"result convergence clients classes-pm classes-gm {SURE} sigma seconds traffic failed",
    "cfedbayes": (
        f"result convergence clients classes-pm classes-gm {SURE} kl eigenvalues memberships sigma inclusion layers "
        "seconds traffic"
    ),
    "fedavg": f"result convergence clients classes-gm {SURE} seconds traffic",
    "many": f"result convergence clients classes-pm classes-gm {SURE} sigma seconds traffic",
    "comparison": (
        "convergence-pm convergence-gm clients reliability-pm reliability-gm uncertainty seconds megabytes"
    ),
}
NAMES = {0: "a-site-with-a-rather-long-name-at-the-other-end-of-the-world", 1: "aachen", 2: "MWMWMWMWMW"}


@pytest.fixture(scope="module")
def pages(federate_once: Federate) -> dict[str, Path]:
    """One page of each kind, from real runs."""

    def late(number: int, message: Message, reply: Message) -> Message | None:
        exchange = message.content.get("exchange")
        return None if exchange and exchange["round"] == 2 and number == 1 else reply

    def renamed(number: int, message: Message, reply: Message) -> Message:
        if number in NAMES and "hello" in reply.content:
            reply.content["hello"]["site"] = NAMES[number]
        return reply

    runs = [
        federate_once("pfedbayes", report=True, interfere=late),
        federate_once(
            "cfedbayes",
            report=True,
            clients=8,
            method="cfedbayes",
            family="spike-slab",
            layout="rotated",
            interfere=renamed,
        ),
        federate_once("fedavg", report=True, method="fedavg", interfere=renamed),
        federate_once("many", report=True, clients=50, rounds=1, local_steps=1, size="1+1"),
    ]
    found = {run.folder.name: run.folder / "report.html" for run in runs}
    folders = [run.folder for run in runs[:3]]
    return found | {"comparison": write_comparison(folders, folders[0].parent / "comparison")[0]}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def show(browser: Any, pages: dict[str, Path]) -> Iterator[Callable[..., Any]]:
    """show("fedavg", 390, "dark") opens a page; whatever the browser says or fetches fails the test."""
    said: list[str] = []
    opened = []

    def open_page(name: str, width: int, scheme: str) -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened.append(page)
        page.on("console", lambda message: said.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("requestfailed", lambda request: said.append(f"failed: {request.url}"))
        page.on("request", lambda one: None if one.url == pages[name].as_uri() else said.append(one.url))
        page.goto(pages[name].as_uri())
        return page

    yield open_page
    for page in opened:
        page.close()
    assert said == []


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_every_figure_is_drawn_and_nothing_overflows(show: Callable[..., Any], name: str, width: int) -> None:
    page = show(name, width, "light")
    assert (
        page.evaluate("[...document.querySelectorAll('figure')].map(one => one.id)") == FIGURES[name].split()
    )
    assert page.evaluate(INSPECT) == []
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate(INSPECT) == [], "with all tables open"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_words_can_be_read_in_light_and_dark(show: Callable[..., Any], name: str, scheme: str) -> None:
    page = show(name, 1280, scheme)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate(CONTRAST) >= 4.5
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(19, 22, 26)")


@pytest.mark.parametrize("name", PAGES)
def test_on_paper_it_is_light_and_whole(show: Callable[..., Any], name: str) -> None:
    page = show(name, 700, "dark")  # about the width of a sheet of A4
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(INSPECT) == []
    assert page.pdf(format="A4")[:5] == b"%PDF-"
