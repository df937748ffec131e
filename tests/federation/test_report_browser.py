"""Pages in a real browser: everything is drawn, nothing overflows or overlaps, nothing is fetched or logged."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from harness import Outcome

from experiments.browser import find_browser, open_browser
from server_app.report.compare import write_comparison

pytest.importorskip("playwright", reason="the package playwright is not installed")
pytestmark = pytest.mark.skipif(find_browser() is None, reason="there is no Chromium on this machine")

Federate = Callable[..., Outcome]
PAGES = ("pfedbayes", "cfedbayes", "fedavg", "many", "comparison")
FIGURES = {
    "pfedbayes": (
        "result convergence clients classes-pm classes-gm reliability uncertainty histograms sigma seconds traffic "
        "failed"
    ),
    "cfedbayes": (
        "result convergence clients classes-pm classes-gm reliability uncertainty histograms kl eigenvalues "
        "memberships sigma inclusion layers seconds traffic"
    ),
    "fedavg": "result convergence clients classes-gm reliability uncertainty histograms seconds traffic",
    "many": "result convergence clients classes-pm classes-gm reliability uncertainty histograms sigma seconds traffic",
    "comparison": (
        "convergence-pm convergence-gm clients reliability-pm reliability-gm uncertainty seconds megabytes"
    ),
}
LONG = "a-site-with-a-rather-long-name-at-the-other-end-of-the-world"

# What is wrong with the page that is open, in words; the empty list is what a test wants.
INSPECT = """() => {
  const wrong = [], page = document.documentElement, wide = page.clientWidth;
  if (page.scrollWidth > wide) wrong.push(`the page is ${page.scrollWidth} wide, not ${wide}`);
  for (const one of document.querySelectorAll('main *')) {
    if (one.closest('.scroll, details:not([open])') && !one.matches('.scroll')) continue;
    const box = one.getBoundingClientRect();
    if (box.right > wide + 1 || box.left < -1) wrong.push(`${one.tagName} ${one.className} reaches ${box.right}`);
  }
  for (const figure of document.querySelectorAll('figure:has(> svg)')) {
    const svg = figure.querySelector(':scope > svg'), frame = svg.getBoundingClientRect();
    if (frame.width < 200 || frame.height < 60) wrong.push(`${figure.id} is ${frame.width} x ${frame.height}`);
    const ink = [...svg.querySelectorAll('path, circle, rect, line')].filter(shape => {
      const style = getComputedStyle(shape), box = shape.getBBox();
      const seen = style.fill !== 'none' || (style.stroke !== 'none' && parseFloat(style.strokeWidth) > 0);
      return seen && (box.width > 0.5 || box.height > 0.5);
    });
    if (ink.length < 3) wrong.push(`${figure.id} has only ${ink.length} shapes`);
    for (const shape of ink) {
      const box = shape.getBoundingClientRect();
      if (box.right > frame.right + 2 || box.left < frame.left - 2 || box.top < frame.top - 2 ||
          box.bottom > frame.bottom + 2) wrong.push(`${figure.id}: a ${shape.tagName} is outside`);
    }
    const texts = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
    for (const [words, box] of texts) {
      if (box.right > frame.right + 1 || box.left < frame.left - 1 || box.bottom > frame.bottom + 1 ||
          box.top < frame.top - 1) wrong.push(`${figure.id}: "${words}" is cut off`);
      if (box.height < 8) wrong.push(`${figure.id}: "${words}" is ${box.height} pixels high`);
    }
    texts.forEach(([one, a], i) => texts.slice(i + 1).forEach(([other, b]) => {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 3) wrong.push(`${figure.id}: "${one}" and "${other}" overlap`);
    }));
    if ((svg.getAttribute('aria-label') || '').length < 20) wrong.push(`${figure.id} has no words`);
  }
  return wrong;
}"""

# The lowest contrast between words and what lies behind them (WCAG asks for 4.5).
CONTRAST = """() => {
  const light = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(c => c / 255)
      .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = one => {
    const before = one.previousElementSibling;  // the cell that a number stands in
    if (one.matches('text.on')) return getComputedStyle(before).fill;
    for (; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const chosen = 'p, h1, h2, h3, figcaption, .tiles b, .tiles span, .legend li, td, th, svg text, summary';
  return Math.min(...[...document.querySelectorAll(chosen)].map(one => {
    const style = getComputedStyle(one), front = one.tagName === 'text' ? style.fill : style.color;
    const [a, b] = [light(front), light(behind(one))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  }));
}"""


@pytest.fixture(scope="module")
def pages(federate_once: Federate) -> dict[str, Path]:
    """One page of each kind, from real runs."""

    def late(number: int, message: Message, reply: Message) -> Message | None:
        exchange = message.content.get("exchange")
        return None if exchange and exchange["round"] == 2 and number == 1 else reply

    def renamed(number: int, message: Message, reply: Message) -> Message:
        if number == 0 and "hello" in reply.content:
            reply.content["hello"]["site"] = LONG
        return reply

    runs = [
        federate_once("pfedbayes", report=True, interfere=late),
        federate_once(
            "cfedbayes", report=True, clients=8, method="cfedbayes", family="spike-slab", layout="rotated"
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
