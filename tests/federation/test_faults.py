"""Hostile, broken, dead and late clients: dropped, named and counted; the run goes on with the rest."""

from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord
from harness import Outcome
from inprocess import Clock, InProcessGrid

from server_app.stored import read_config
from strategies import StrategyError

Federate = Callable[..., Outcome]
Fault = Callable[[Message, Message], Message | None]


def _with_rows(reply: Message, change: Callable[[np.ndarray], np.ndarray]) -> Message:
    record = reply.content["w"]
    assert isinstance(record, ArrayRecord)
    reply.content["w"] = ArrayRecord({key: Array(change(record[key].numpy())) for key in record})
    return reply


def not_a_number(message: Message, reply: Message) -> Message:
    def poison(row: np.ndarray) -> np.ndarray:
        row = row.copy()
        row[7] = np.nan
        return row

    return _with_rows(reply, poison)


def wrong_shape(message: Message, reply: Message) -> Message:
    return _with_rows(reply, lambda row: row[:-1])


def wrong_type(message: Message, reply: Message) -> Message:
    return _with_rows(reply, lambda row: row.astype(np.float64))


def wrong_rows(message: Message, reply: Message) -> Message:
    record = reply.content["w"]
    reply.content["w"] = ArrayRecord({"theta": record["mu"]})  # type: ignore[index]
    return reply


def garbage(message: Message, reply: Message) -> Message:
    reply.content["w"]["mu"] = Array("float32", (3,), "numpy.ndarray", b"not numpy at all")  # type: ignore
    return reply


def no_arrays(message: Message, reply: Message) -> Message:
    del reply.content["w"]
    return reply


def error(message: Message, reply: Message) -> Message:
    return Message(Error(1, "<class 'OSError'>:<'No space left on device'>"), reply_to=message)


def silence(message: Message, reply: Message) -> None:
    return None


FAULTS = {
    not_a_number: "not finite",
    wrong_shape: "shape",
    wrong_type: "float32",
    wrong_rows: "rows",
    garbage: "unreadable arrays",
    no_arrays: 'no arrays named "w"',
    error: "No space left on device",
    silence: "no answer",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("victim", [0, 3])
def test_a_bad_client_is_dropped_named_and_counted(federate: Federate, fault: Fault, victim: int) -> None:
    def interfere(number: int, message: Message, reply: Message) -> Message | None:
        training = message.metadata.message_type == "train"
        return fault(message, reply) if training and number == victim else reply

    run = federate(interfere=interfere)
    assert run.state == "finished"
    assert [row["clients_ok"] for row in run.rows[1:]] == ["3"] * 4
    assert [row["clients_failed"] for row in run.rows[1:]] == ["1"] * 4
    assert f"Site {victim} dropped" in run.said("warning")[0] and FAULTS[fault] in run.said("warning")[0]
    row = next(row for row in run.clients if row["round"] == "1" and row["site"] == str(victim))
    assert row["status"].startswith("failed: ") and FAULTS[fault] in row["status"]
    assert run.tensors["w"].isfinite().all()


def test_the_others_result_is_that_of_a_federation_without_the_bad_client(federate: Federate) -> None:
    def silent(number: int, message: Message, reply: Message) -> Message | None:
        return None if number == 2 and message.metadata.message_type == "train" else reply

    dropped = federate("a", interfere=silent)

    nodes = [{"partition-id": i, "num-partitions": 4} for i in (0, 1, 3)]
    without = federate("b", grid=InProcessGrid({}, 3, node_configs=nodes))
    assert (dropped.tensors["w"] == without.tensors["w"]).all()


def test_impossible_metrics_are_dropped_too(federate: Federate) -> None:
    def interfere(number: int, message: Message, reply: Message) -> Message:
        if number == 1 and "pm" in reply.content:
            reply.content["pm"] = MetricRecord({"n": [20.0], "correct": [float("nan")]})
        return reply

    run = federate(interfere=interfere)
    last = [row for row in run.clients if row["round"] == "4" and row["pm_accuracy"]]
    assert [row["site"] for row in last] == ["0", "2", "3"]
    assert 0 <= float(run.rows[-1]["pm_accuracy"]) <= 1


@pytest.mark.parametrize(
    "broken",
    [
        {"n": [20.0], "correct": [5.0]},
        {"n": [1e30], "correct": [0.0]},
        {"n": [20.0], "correct": [21.0]},
        {"n": [20.0], "correct": [1.0], "bin_n": [1.0]},
    ],
)
def test_no_tally_can_end_the_run_or_outweigh_the_others(
    federate: Federate, broken: dict[str, list[float]]
) -> None:
    def interfere(number: int, message: Message, reply: Message) -> Message:
        if number == 1 and "gm" in reply.content:
            whole = dict(reply.content["gm"])
            reply.content["gm"] = MetricRecord(
                broken if len(broken) < 3 and broken["n"] != [1e30] else whole | broken
            )
        return reply

    calm, run = federate("calm"), federate("run", interfere=interfere)
    assert run.state == "finished" and float(run.rows[-1]["gm_accuracy"]) > 0
    measured = [row["site"] for row in run.clients if row["round"] == "4" and row["gm_accuracy"]]
    assert measured == ["0", "2", "3"]
    assert any("Site 1 was not measured" in text for text in run.said("warning"))
    assert (calm.tensors["w"] == run.tensors["w"]).all(), "training is not touched by it"


def test_an_absurd_upload_is_dropped(federate: Federate) -> None:
    def interfere(number: int, message: Message, reply: Message) -> Message:
        if number == 2 and "w" in reply.content:
            return _with_rows(reply, lambda row: row * np.float32(3e37))
        return reply

    run = federate(interfere=interfere)
    assert run.tensors["w"].abs().max() < 100
    assert any("Site 2 dropped" in text and "beyond" in text for text in run.said("warning"))


def test_a_step_out_of_the_finite_numbers_ends_the_run_saved(federate: Federate) -> None:
    with pytest.raises(StrategyError, match=r"Round \d+: the server's step left the finite numbers"):
        federate(beta=1e45, rounds=6)


def test_below_min_clients_the_round_is_repeated(federate: Federate) -> None:
    calls: list[int] = []

    def interfere(number: int, message: Message, reply: Message) -> Message | None:
        if message.metadata.message_type != "train" or message.content["exchange"]["round"] != 2:
            return reply
        calls.append(number)
        return None if number < 2 and len(calls) <= 4 else reply  # the first attempt at round 2

    calm = federate("calm", min_clients=3)
    run = federate("stormy", min_clients=3, interfere=interfere)
    assert calls == [0, 1, 2, 3] * 2
    assert "Round 2: fewer than 3 usable replies" in " ".join(run.said("warning"))
    assert run.metrics == calm.metrics, "a repeated round starts from the state before it"


def test_a_run_without_enough_clients_ends_saved(federate: Federate) -> None:
    def interfere(number: int, message: Message, reply: Message) -> Message | None:
        late = message.metadata.message_type == "train" and message.content["exchange"]["round"] == 3
        return None if late else reply

    with pytest.raises(StrategyError, match=r"Round 3: fewer than 1 usable replies.*up to 2 are saved"):
        federate(interfere=interfere)
    run = federate.latest  # type: ignore[attr-defined]
    assert run.state == "failed" and [row["round"] for row in run.rows] == ["0", "1"]
    assert federate(resume=True).metrics == federate("calm").metrics


def test_when_the_wait_is_over_it_begins_with_those_who_are_there(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the latest came a moment ago; it was an error: "Only 4 of at least 1 clients connected"."""
    monkeypatch.setattr("strategies.rounds.roster.SETTLE", 5.0)
    assert federate(wait_timeout=0.3, rounds=1).rows[1]["clients_ok"] == "4"


def test_no_clients_at_all_is_a_bounded_wait(federate: Federate) -> None:
    grid = InProcessGrid({}, 2)
    grid.offline = {0, 1}
    with pytest.raises(StrategyError, match=r"Only 0 of at least 1 clients connected within 0\.3 s"):
        federate(grid=grid, wait_timeout=0.3)


def test_a_client_that_leaves_and_one_that_comes_late(federate: Federate) -> None:
    grid = InProcessGrid({}, 4)
    grid.offline = {3}

    def interfere(number: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train" and number == 2:
            grid.offline = {0} if message.content["exchange"]["round"] >= 2 else {3}
        return reply

    grid.interfere = interfere
    run = federate(grid=grid, rounds=4, eval_every=1)
    trained = {
        number: [row["site"] for row in run.clients if row["round"] == str(number) and row["status"] == "ok"]
        for number in range(1, 5)
    }
    assert trained == {1: ["0", "1", "2"], 2: ["0", "1", "2"], 3: ["1", "2", "3"], 4: ["1", "2", "3"]}
    config = read_config(run.folder)
    assert config and config["sites"]["3"] == config["sites"]["0"] and config["state"] == "finished"


class Lingering:
    """Site 2 gets stuck in round 2, and sends its answer when the others are in round `back`."""

    def __init__(self, grid: InProcessGrid, back: int) -> None:
        self.grid, self.back = grid, back
        self.kept: Message | None = None
        self.asked: list[int] = []  # the rounds in which site 2 was asked something

    def __call__(self, number: int, message: Message, reply: Message) -> Message | None:
        if "exchange" not in message.content:
            return reply
        at = int(message.content["exchange"]["round"])  # type: ignore
        if number == 0 and at == self.back and self.kept:
            self.grid.replies[self.kept.metadata.reply_to_message_id] = self.kept
        if number != 2:
            return reply
        self.asked.append(at)
        if at != 2:
            return reply
        self.kept = reply
        return None


def test_a_silent_site_is_waited_for_once_and_takes_part_again_when_it_answers(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    grid = InProcessGrid({}, 4)
    grid.interfere = site = Lingering(grid, back=4)
    monkeypatch.setattr("strategies.rounds.exchange.time", clock)
    run = federate(grid=grid, rounds=6, min_clients=3)
    assert clock.slept < 60, "not ten minutes, and only once"
    assert site.asked == [1, 2, 5, 6, 7]
    assert [row["clients_failed"] for row in run.rows[1:]] == ["0", "1", "1", "1", "0", "0"]
    told = [row["status"] for row in run.clients if row["site"] == "2" and row["round"] in "234"]
    assert told[0].startswith("failed: no answer within 3")
    assert told[1:] == ["failed: no answer yet to an earlier round; it is not waited for"] * 2


def test_a_site_that_is_silent_at_the_start_joins_when_it_answers(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has two minutes to say hello, not ten, and is asked again when its first answer has come."""
    clock, kept = Clock(), list[Message]()
    grid = InProcessGrid({}, 4)

    def interfere(number: int, message: Message, reply: Message) -> Message | None:
        if number == 2 and "hello" in message.content and not kept:
            kept.append(reply)
            return None
        if number == 0 and "exchange" in message.content and message.content["exchange"]["round"] == 2:
            grid.replies[kept[0].metadata.reply_to_message_id] = kept[0]
        return reply

    grid.interfere = interfere
    monkeypatch.setattr("strategies.rounds.exchange.time", clock)
    run = federate(grid=grid, rounds=4, min_clients=3)
    assert 110 < clock.slept < 140
    assert any("did not answer hello: no answer within 12" in said for said in run.said("warning"))
    trained = {
        t: [row["site"] for row in run.clients if row["round"] == str(t) and row["status"] == "ok"]
        for t in (1, 2, 3, 4)
    }
    assert trained == {
        1: ["0", "1", "3"],
        2: ["0", "1", "3"],
        3: ["0", "1", "2", "3"],
        4: ["0", "1", "2", "3"],
    }


@pytest.mark.parametrize("words", [{"straggler_cutoff": 0}, {"min_clients": 4}], ids=["off", "needed"])
def test_where_everybody_is_waited_for_it_takes_the_whole_timeout(
    federate: Federate, monkeypatch: pytest.MonkeyPatch, words: dict[str, int]
) -> None:
    clock = Clock()
    monkeypatch.setattr("strategies.rounds.exchange.time", clock)

    def interfere(number: int, message: Message, reply: Message) -> Message | None:
        return None if number == 2 and message.metadata.message_type == "train" else reply

    try:
        federate(interfere=interfere, rounds=1, **words)
    except StrategyError as error:
        assert "fewer than 4" in str(error)
    assert clock.slept > 500


def test_a_site_that_stays_away_is_counted_in_every_round(federate: Federate) -> None:
    grid = InProcessGrid({}, 4)

    def interfere(number: int, message: Message, reply: Message) -> Message:
        if number == 0 and message.metadata.message_type == "train":
            grid.offline = {3} if message.content["exchange"]["round"] >= 1 else set()  # type: ignore
        return reply

    grid.interfere = interfere
    run = federate(grid=grid)
    assert [row["clients_failed"] for row in run.rows[2:]] == ["1"] * 3
    told = {row["status"] for row in run.clients if row["site"] == "3" and int(row["round"]) > 1}
    assert told == {"failed: it cannot be reached"}


def trained(run: Outcome) -> dict[int, list[str]]:
    """Who trained in which round."""
    found: dict[int, list[str]] = {}
    for row in run.clients:
        if row["status"] == "ok" and row["round"] != "0":
            found.setdefault(int(row["round"]), []).append(row["site"])
    return found


def hellos(grid: InProcessGrid, number: int) -> int:
    """How often this site was greeted."""
    node = list(grid.contexts)[number]
    return sum(1 for one in grid.sent if "hello" in one.content and one.metadata.dst_node_id == node)


def round_of(message: Message) -> int:
    exchange = message.content.config_records.get("exchange")
    return int(exchange["round"]) if exchange else 0  # type: ignore[arg-type]


RESTARTED = "the site was started again before it had answered"


def test_a_site_killed_during_hello_is_asked_again_after_a_while(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 10 seconds, and then after 20; a warning that says nothing new is not repeated."""
    clock, grid = Clock(), InProcessGrid({}, 4)

    def interfere(number: int, message: Message, reply: Message) -> Message:
        if number == 0 and round_of(message) in (1, 2, 3, 4):
            clock.slept += 12
        if number == 2 and "hello" in message.content and hellos(grid, 2) < 3:
            return Message(Error(1001, RESTARTED), reply_to=message)
        return reply

    grid.interfere = interfere
    monkeypatch.setattr("strategies.rounds.exchange.time", clock)
    run = federate(grid=grid, rounds=6)
    assert hellos(grid, 2) == 3
    assert [t for t, sites in trained(run).items() if "2" in sites] == [4, 5, 6]
    assert len(run.said("warning")) == 1 and RESTARTED in run.said("warning")[0]
    config = read_config(run.folder)
    assert config and "2" in config["sites"]


def test_a_start_that_lacks_a_site_that_was_killed_during_hello_waits_for_it(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, grid = Clock(), InProcessGrid({}, 3)

    def interfere(number: int, message: Message, reply: Message) -> Message:
        killed = number == 1 and "hello" in message.content and hellos(grid, 1) == 1
        return Message(Error(1001, RESTARTED), reply_to=message) if killed else reply

    grid.interfere = interfere
    monkeypatch.setattr("strategies.rounds.exchange.time", clock)
    run = federate(grid=grid, rounds=1, min_clients=3)
    assert trained(run) == {1: ["0", "1", "2"]} and 9.9 < clock.slept < 12


def test_a_joiner_that_reads_its_data_for_long_holds_up_no_round_and_is_asked_once(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, grid, kept = Clock(), InProcessGrid({}, 4), list[Message]()
    grid.offline = {3}

    def interfere(number: int, message: Message, reply: Message) -> Message | None:
        if number == 0 and round_of(message) == 1:
            grid.offline = set()
        if number == 0 and round_of(message) == 4:
            clock.slept += 400  # far more than wait-timeout, and less than round-timeout
            grid.replies[kept[0].metadata.reply_to_message_id] = kept[0]
        if number == 3 and "hello" in message.content:
            kept.append(reply)
            return None
        return reply

    grid.interfere = interfere
    monkeypatch.setattr("strategies.rounds.exchange.time", clock)
    run = federate(grid=grid, rounds=6)
    assert clock.slept < 401, "nobody has waited"
    assert hellos(grid, 3) == 1
    assert [t for t, sites in trained(run).items() if "3" in sites] == [5, 6]
    assert not run.said("warning") and [row["clients_failed"] for row in run.rows[1:]] == ["0"] * 6


def test_a_joiner_that_never_answers_is_given_up_and_asked_again_when_it_is_back(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, grid = Clock(), InProcessGrid({}, 4)
    grid.offline = {3}

    def interfere(number: int, message: Message, reply: Message) -> Message | None:
        if number == 0 and (at := round_of(message)):
            grid.offline = {3} if at == 3 else set()
            clock.slept += 601 if at == 2 else 0  # round-timeout
        return None if number == 3 and "hello" in message.content and hellos(grid, 3) == 1 else reply

    grid.interfere = interfere
    monkeypatch.setattr("strategies.rounds.exchange.time", clock)
    run = federate(grid=grid, rounds=6)
    assert clock.slept < 602
    assert hellos(grid, 3) == 2, (
        "it is back in round 4, and nobody waits until it has been left alone for 10 s"
    )
    assert [t for t, sites in trained(run).items() if "3" in sites] == [5, 6]
    assert "did not answer hello: no answer within 600 s" in run.said("warning")[0]


def test_a_joiner_without_whom_there_are_too_few_is_waited_for(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Site 0 goes as site 2 comes, which takes eight seconds to say hello."""
    clock, grid, kept = Clock(), InProcessGrid({}, 3), list[Message]()
    grid.offline = {2}
    sleep = clock.sleep

    def slept(seconds: float) -> None:
        sleep(seconds)
        if kept and clock.slept > 8:
            answer = kept.pop()
            grid.replies[answer.metadata.reply_to_message_id] = answer

    def interfere(number: int, message: Message, reply: Message) -> Message | None:
        if number == 1 and round_of(message) == 1:
            grid.offline = {0}
        if number == 2 and "hello" in message.content:
            kept.append(reply)
            return None
        return reply

    grid.interfere, clock.sleep = interfere, slept  # type: ignore[method-assign]
    monkeypatch.setattr("strategies.rounds.exchange.time", clock)
    run = federate(grid=grid, rounds=3, min_clients=2)
    assert trained(run)[1] == ["0", "1"] and trained(run)[2] == trained(run)[3] == ["1", "2"]
    assert 8 < clock.slept < 9


def test_a_site_that_comes_under_the_name_of_one_that_is_there_takes_its_place_when_that_is_gone(
    federate: Federate,
) -> None:
    nodes = [{"partition-id": i, "num-partitions": 3} for i in (0, 1, 2, 2)]
    grid = InProcessGrid({}, 3, node_configs=nodes)
    grid.offline = {3}

    def interfere(number: int, message: Message, reply: Message) -> Message:
        if number >= 2 and (at := round_of(message)):
            grid.offline = set() if at < 3 else {2}
        return reply

    grid.interfere = interfere
    run = federate(grid=grid, rounds=5)
    assert all(sites == ["0", "1", "2"] for sites in trained(run).values())
    assert hellos(grid, 3) == 1
    assert [text for text in run.said("warning") if "Left out" in text] == [
        'Left out: Two nodes (1014 and 1021) call themselves site "2".'
    ]
