"""Methods that begin with exchanges of their own, and methods that need every site: what the loop owes them."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import Error, Message
from harness import Outcome
from inprocess import Clock, InProcessGrid

import strategies
from fedbayes.cli.listing import list_runs
from fedbayes.launch.plan import plan_resume
from server_app.stored import load_checkpoint
from strategies.fedavg import FedAvg
from strategies.rounds.roster import StrategyError
from strategies.rounds.state import Came, Fresh, State

Federate = Callable[..., Outcome]


class Opening(FedAvg):
    """FedAvg with two exchanges before round 1; it notes in its facts from whom each of its steps came."""

    openings = 2

    def init(self, fresh: Fresh) -> State:
        return replace(super().init(fresh), facts={"steps": []})

    def step(self, state: State, came: Came) -> State:
        note = [came.number, len(came.uploads)]
        return replace(super().step(state, came), facts={"steps": [*state.facts["steps"], note]})


class Needy(FedAvg):
    """FedAvg that takes an upload from each site."""

    traits = replace(FedAvg.traits, every_site=True)


class Killed(BaseException):
    """Ends the process, as far as a test can: nobody catches it."""


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(strategies, "load", lambda method: Opening)
    yield


@pytest.fixture
def needy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(strategies, "load", lambda method: Needy)
    yield


SETTINGS = {"method": "fedavg", "clients_per_round": 2, "rounds": 3, "eval_every": 1}


def exchanges(grid: InProcessGrid) -> list[tuple[int, int, int]]:
    """(round, how many train, how many are measured) of each exchange."""
    said = [message.content["exchange"] for message in grid.sent if "exchange" in message.content]
    rounds = sorted({int(one["round"]) for one in said})
    train = Counter(int(one["round"]) for one in said if one["train"])
    measured = Counter(int(one["round"]) for one in said if one["evaluate"])
    return [(number, train[number], measured[number]) for number in rounds]


def facts(folder: Path) -> list[list[int]]:
    checkpoint = load_checkpoint(folder)
    assert checkpoint
    found: list[list[int]] = checkpoint[2]["method"]["steps"]
    return found


@pytest.mark.usefixtures("opening")
def test_everybody_takes_part_before_round_1(federate: Federate) -> None:
    grid = InProcessGrid({}, 4)
    run = federate("run", grid=grid, **SETTINGS)
    assert exchanges(grid) == [(-1, 4, 0), (0, 4, 0), (1, 2, 4), (2, 2, 4), (3, 2, 4), (4, 0, 4)]
    assert facts(run.folder) == [[-1, 4], [0, 4], [1, 2], [2, 2], [3, 2]]
    assert [row["round"] for row in run.rows] == ["0", "1", "2", "3"]
    assert [row["clients_ok"] for row in run.rows] == ["4", "2", "2", "2"], "row 0 is the last opening's"
    assert all(row["gm_accuracy"] for row in run.rows)
    assert [one["round"] for one in run.events if one["event"] == "round"] == [1, 2, 3]


@pytest.mark.usefixtures("opening")
@pytest.mark.parametrize("server_round", [-1, 0, 1, 2])
def test_killed_in_an_opening_it_resumes(federate: Federate, server_round: int) -> None:
    whole = federate("whole", **SETTINGS)

    def interfere(number: int, message: Message, reply: Message) -> Message:
        exchange = message.content.get("exchange")
        if exchange and exchange["round"] == server_round and number in (2, 3):
            raise Killed
        return reply

    with pytest.raises(Killed):
        federate("torn", interfere=interfere, **SETTINGS)
    folder = whole.folder.parent / "torn"
    checkpoint = load_checkpoint(folder)
    assert (checkpoint[0] if checkpoint else None) == (server_round - 1 if server_round > -1 else None)
    done = max(server_round - 1, 0)
    assert next(one for one in list_runs(folder.parent) if one.name == "torn").rounds == f"{done}/3"
    assert not plan_resume(str(folder), {}, None).finished
    again = federate("torn", resume=True, **SETTINGS)
    assert again.metrics == whole.metrics and facts(again.folder) == facts(whole.folder)
    assert torch.equal(again.tensors["w"], whole.tensors["w"])
    assert next(one["round"] for one in again.events if one["event"] == "start") == done + 1


# ---------------------------------------------------------------------- every site


def failing(site: int, server_round: int, times: int) -> Callable[[int, Message, Message], Message]:
    """This site answers so many times with an error when it is asked to train in this round."""
    left = [times]

    def interfere(number: int, message: Message, reply: Message) -> Message:
        exchange = message.content.get("exchange")
        if (
            exchange
            and exchange["train"]
            and exchange["round"] == server_round
            and number == site
            and left[0]
        ):
            left[0] -= 1
            return Message(Error(1, "the disk is full"), reply_to=message)
        return reply

    return interfere


EVERYBODY = {"method": "fedavg", "rounds": 3, "eval_every": 1}


@pytest.mark.usefixtures("needy")
def test_a_round_without_everybody_is_repeated(federate: Federate) -> None:
    calm = federate("calm", **EVERYBODY)
    run = federate("run", interfere=failing(2, 2, times=2), **EVERYBODY)
    assert run.metrics == calm.metrics, "what comes of it is as if nothing had been"
    trouble = "Round 2: fewer than 4 usable replies (site 2: the disk is full)"
    assert [text for text in run.said("warning") if "Round" in text] == [
        f"{trouble} (attempt 1 of 3).",
        f"{trouble} (attempt 2 of 3).",
    ]


def trained(run: Outcome) -> list[str]:
    """Of each round, the sites whose uploads counted."""
    rows = [row for row in run.clients if row["round"] != "0" and row["status"] == "ok"]
    return ["".join(row["site"] for row in rows if row["round"] == str(t)) for t in range(1, len(run.rows))]


@pytest.mark.usefixtures("needy")
def test_after_three_attempts_a_site_is_left_out_and_counts_again_when_it_answers(federate: Federate) -> None:
    run = federate("run", interfere=failing(2, 2, times=3), **EVERYBODY)
    assert run.state == "finished" and trained(run) == ["0123", "013", "0123"]
    assert [row["clients_failed"] for row in run.rows[1:]] == ["0", "1", "0"]
    assert (
        "Round 2: method=fedavg needs every site, and goes on without site 2 after 3 attempts (site 2: the disk is "
        "full). From now on no round is repeated for want of it."
    ) in run.said("warning")


@pytest.mark.usefixtures("needy")
def test_a_site_that_never_answers_usably_costs_three_attempts_once(federate: Federate) -> None:
    grid = InProcessGrid({}, 4)

    def interfere(number: int, message: Message, reply: Message) -> Message:
        bad = number == 2 and message.metadata.message_type == "train"
        return Message(Error(1, "the disk is full"), reply_to=message) if bad else reply

    grid.interfere = interfere
    run = federate("run", grid=grid, **EVERYBODY)
    assert run.state == "finished" and trained(run) == ["013", "013", "013"]
    assert [number for number, *_ in exchanges(grid)] == [1, 2, 3, 4]
    assert [train for _, train, _ in exchanges(grid)] == [12, 4, 4, 0], "it is asked all the same"


@pytest.mark.usefixtures("needy")
def test_without_most_sites_the_run_ends_in_a_sentence_and_goes_on_when_they_are_back(
    federate: Federate,
) -> None:
    broken = [failing(site, 2, times=3) for site in (2, 3)]
    with pytest.raises(StrategyError) as end:
        federate("run", interfere=lambda n, m, reply: broken[0](n, m, broken[1](n, m, reply)), **EVERYBODY)
    assert str(end.value) == (
        "Round 2: fewer than 4 usable replies (site 2: the disk is full; site 3: the disk is full), 3 times; all "
        "rounds up to 1 are saved."
    )
    ended: Outcome = federate.latest  # type: ignore[attr-defined]
    assert ended.state == "failed" and [row["round"] for row in ended.rows] == ["0"]
    again = federate("run", resume=True, **EVERYBODY)
    assert again.metrics == federate("calm", **EVERYBODY).metrics


@pytest.mark.usefixtures("needy")
def test_a_site_that_is_gone_is_missed_and_then_left_out(federate: Federate) -> None:
    grid = InProcessGrid({}, 4)

    def leave(number: int, message: Message, reply: Message) -> Message:
        exchange = message.content.get("exchange")
        if exchange and exchange["round"] == 1 and number == 3:
            grid.offline.add(3)
        return reply

    grid.interfere = leave
    run = federate("run", grid=grid, **EVERYBODY)
    assert trained(run) == ["0123", "012", "012"]
    assert "goes on without site 3 after 3 attempts (site 3: it cannot be reached)" in " ".join(
        run.said("warning")
    )
    assert [row["clients_failed"] for row in run.rows[1:]] == ["0", "1", "1"]


@pytest.mark.usefixtures("needy")
def test_one_that_is_silent_for_ever_is_then_waited_for_no_longer_than_others(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("strategies.rounds.exchange.time", clock)

    def silent(number: int, message: Message, reply: Message) -> Message | None:
        return None if number == 1 and message.metadata.message_type == "train" else reply

    run = federate("run", interfere=silent, **EVERYBODY)
    assert trained(run) == ["023", "023", "023"]
    assert 3 * 600 < clock.slept < 3 * 600 + 60, "the attempts at round 1, and then the cut-off"


@pytest.mark.parametrize("method", ["fedamp", "heurfedamp", "fedcfl", "bnfed"])
def test_methods_that_need_every_site_go_on_without_one(federate: Federate, method: str) -> None:
    """It fails from round 2 on and is back in round 4, which is as good as a site that comes late."""

    def interfere(number: int, message: Message, reply: Message) -> Message:
        exchange = message.content.get("exchange")
        bad = number == 1 and exchange and exchange["train"] and exchange["round"] in (2, 3)
        return Message(Error(1, "the disk is full"), reply_to=message) if bad else reply

    run = federate("run", interfere=interfere, method=method, rounds=4, eval_every=4)
    assert run.state == "finished" and trained(run) == ["0123", "023", "023", "0123"]
    assert all(tensor.isfinite().all() for tensor in run.tensors.values())
