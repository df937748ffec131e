"""The report of real runs: written at the end of every run, rebuilt by the command, whole for every method."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from flwr.app import Error, Message
from harness import Outcome

from fedbayes.cli.command import _status
from server_app.report import write_report
from server_app.report.files import read_run
from strategies import StrategyError

Federate = Callable[..., Outcome]

ALWAYS = {
    "result",
    "convergence",
    "clients",
    "reliability",
    "abstention",
    "by-site",
    "uncertainty",
    "histograms",
    "seconds",
    "traffic",
}
CLASSES = {"classes-pm", "classes-gm"}


@pytest.fixture
def federate(federate: Federate) -> Federate:
    return partial(federate, report=True)


def figures(run: Outcome) -> set[str]:
    return set(re.findall(r'<figure id="([^"]+)"', (run.folder / "report.html").read_text("utf-8")))


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        ({"method": "pfedbayes"}, {"sigma"} | CLASSES),
        ({"method": "sfedbayes"}, {"sigma", "inclusion", "layers"} | CLASSES),
        ({"method": "cfedbayes", "layout": "rotated"}, {"sigma", "kl", "eigenvalues", "memberships"} | CLASSES),
        ({"method": "cfedbayes", "family": "spike-slab"},
         {"sigma", "inclusion", "layers", "kl", "eigenvalues", "memberships"} | CLASSES),
        ({"method": "fedavg"}, {"classes-gm"}),
        ({"method": "local"}, {"classes-pm"}),
    ],
)  # fmt: skip
def test_every_method_has_its_figures(federate: Federate, settings: dict[str, str], more: set[str]) -> None:
    run = federate(rounds=2, **settings)
    assert figures(run) == ALWAYS | more
    assert read_run(run.folder).missing == []


def test_the_page_says_what_the_csv_says(federate: Federate) -> None:
    run = federate()
    page = (run.folder / "report.html").read_text("utf-8")
    for model in ("pm", "gm"):
        assert f"{100 * float(run.rows[-1][f'{model}_accuracy']):.1f}\u202f%" in page
    assert "finished" in page and "class dog" not in page
    assert page.count(" of class ") == 4 * 10, "a simulation tells each client's labels"


def test_nothing_in_the_page_comes_from_elsewhere(federate: Federate) -> None:
    page = (federate(rounds=1).folder / "report.html").read_text("utf-8")
    assert not re.search(r"<script|<link|<iframe|url\(|@import|https?://|javascript:|\son\w+=", page)
    assert "default-src 'none'" in page


def test_a_failed_run_has_a_report_with_the_reason(federate: Federate) -> None:
    def dead(number: int, message: Message, reply: Message) -> Message:
        exchange = message.content.get("exchange")
        if exchange and exchange["round"] == 3:
            return Message(Error(1, "the <disk> is full"), reply_to=message)
        return reply

    with pytest.raises(StrategyError):
        federate(interfere=dead)
    run: Outcome = federate.func.latest  # type: ignore[attr-defined]
    page = (run.folder / "report.html").read_text("utf-8")
    assert run.state == "failed" and "The run failed</b>" in page and "the &lt;disk&gt; is full" in page
    assert "convergence" in figures(run)


def test_failed_replies_are_listed(federate: Federate) -> None:
    def late(number: int, message: Message, reply: Message) -> Message | None:
        exchange = message.content.get("exchange")
        return None if exchange and exchange["round"] == 2 and number == 1 else reply

    run = federate(interfere=late)
    assert figures(run) == ALWAYS | CLASSES | {"sigma", "failed"}
    page = (run.folder / "report.html").read_text("utf-8")
    assert re.search(r'<td class="n">2</td><td>1</td><td class="why">no answer within \d+ s</td>', page)


def test_a_run_is_not_failed_by_its_report(federate: Federate, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(folder: Path) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("server_app.app.write_report", broken)
    run = federate(rounds=1)
    assert run.state == "finished"
    assert any("The report could not be written" in words for words in run.said("warning"))


def test_the_command_rebuilds_it_and_compares(
    federate: Federate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = federate("a", rounds=1), federate("b", rounds=1, method="local")
    before = (first.folder / "report.html").read_text("utf-8")
    (first.folder / "report.html").unlink()

    def fedbayes(*words: str) -> str:
        assert _status(list(words)) == 0
        return capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    answer = fedbayes("report", "a", f"out-dir={first.folder.parent}")
    assert answer.strip() == str(first.folder / "report.html")
    assert (first.folder / "report.html").read_text("utf-8") == before
    answer = fedbayes("compare", str(first.folder), str(second.folder), "--to", "both")
    assert "pFedBayes" in answer and "| pFedBayes | 1 |" in (tmp_path / "both.md").read_text("utf-8")
    assert sorted(path.name for path in tmp_path.glob("both.*")) == ["both.csv", "both.html", "both.md"]


def test_a_site_without_test_data_figures_is_survived(federate: Federate) -> None:
    """A run whose evaluations all failed still has a page."""

    def silent(number: int, message: Message, reply: Message) -> Message:
        for name in ("pm", "gm", "pm_point", "gm_point", "counts"):
            if name in reply.content:
                del reply.content[name]
        return reply

    run = federate(rounds=1, interfere=silent)
    page = write_report(run.folder).read_text("utf-8")
    assert "No round has been measured yet." in page
