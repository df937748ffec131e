"""An exception in the user's own code: its cause comes first, once, and a run that cannot go on ends at once."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flwr.app import Error, Message, RecordDict
from harness import Outcome
from inprocess import sites

from client_app import site
from strategies import StrategyError
from strategies.rounds.replies import reason_of

Federate = Callable[..., Outcome]
SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.table, self.out = nn.Embedding(3, 4), nn.Linear(4, classes)

    def forward(self, x):  # fine with the zeros that a network is tried on, not with the pixels of a digit
        return self.out(self.table((x.flatten(1) * 8).long().abs()).mean(1))

def net(inputs, classes):
    return Net(classes)
"""
CAUSE = "IndexError: index out of range in self"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "faulty_net.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "faulty_net:net"
    sys.modules.pop("faulty_net", None)
    site.forget()


def test_all_clients_failing_alike_end_the_run_at_once(federate: Federate, own: str) -> None:
    with pytest.raises(StrategyError) as caught:
        federate(model=own, report=True)
    assert str(caught.value) == f"Round 1: all 4 clients failed alike: {CAUSE}; no round is saved yet."
    run = federate.latest  # type: ignore[attr-defined]
    assert run.said("warning") == []
    page = (run.folder / "report.html").read_text()
    assert "no reply failed" not in page and "4 replies failed" in page and page.count(CAUSE) >= 4


def test_a_real_site_keeps_the_words_and_tells_the_kind(
    federate: Federate, own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StrategyError, match="all 4 clients failed alike: IndexError; the site's own log"):
        federate(grid=sites(tmp_path), model=own)
    assert CAUSE in capsys.readouterr().out


def test_several_sites_with_one_trouble_are_one_sentence(federate: Federate) -> None:
    def interfere(number: int, message: Message, reply: Message) -> Message:
        failing = number in (1, 3) and message.metadata.message_type == "train"
        return Message(Error(2, "<class 'OSError'>:<'disk full'>"), reply_to=message) if failing else reply

    run = federate(interfere=interfere)
    assert run.state == "finished"
    assert run.said("warning")[0] == "Sites 1, 3 dropped from this round: disk full."


def test_the_words_are_found_in_a_traceback_of_rays() -> None:
    text = (
        "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'\x1b[36mray::ClientAppActor.run()\x1b[39m "
        '(pid=7, ip=127.0.0.1)\n  File "x.py", line 1\nIndexError: odd\n\nThe above exception was the direct '
        'cause of the following exception:\n\nray::ClientAppActor.run()\n  File "y.py"\n'
        f"flwr.client.ClientAppException: Exception ClientAppException occurred. Message: {CAUSE}'>"
    )
    asked = Message(RecordDict(), 1, "train")
    asked.metadata.__dict__["_message_id"] = "a"
    assert reason_of(Message(Error(2, text), reply_to=asked)) == CAUSE
