"""Who is asked to do what, and what each site is sent: one record for a tensor that several sites get."""

from collections.abc import Callable, Mapping

import pytest
import torch
from flwr.app import ArrayRecord
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from bayes_core import Point
from fedbayes.protocol.agreement import Claim
from fedbayes.protocol.codec import Wire
from strategies.rounds.exchange import compose, sample, tasks_of
from strategies.rounds.roster import Site

SITES = ["a", "b", "c", "d"]
WIRE = Wire(Point())


def site(name: str) -> Site:
    return Site(
        name,
        100 + SITES.index(name),
        5,
        5,
        (2,),
        ("x", "y"),
        Claim((2,), ("x", "y"), True),
        "f",
        None,
        4,
        None,
    )


@pytest.fixture(autouse=True)
def in_a_run() -> None:
    """Flower's messages say whose they are."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


class Encoder:
    """Counts what it is asked for."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str, tensor: Tensor) -> ArrayRecord:
        self.names.append(name)
        return WIRE.send(tensor, plain=name == "told")


def composed(send: Callable[[str], Mapping[str, Tensor]], encode: Encoder, number: int = 3):  # type: ignore[no-untyped-def]
    tasks = tasks_of(SITES[:2], SITES, upload=True, evaluate=True, train_all=False)
    said = {"run": "r", "round": number}
    return compose(send, encode, tasks, said, {name: site(name) for name in SITES}, timeout=60)


def test_what_all_get_is_encoded_once() -> None:
    w, encode = torch.ones(1, 3), Encoder()
    messages = composed(lambda name: {"w": w}, encode)
    assert encode.names == ["w"] and list(messages) == SITES
    assert len({id(message.content["w"]) for message in messages.values()}) == 1


def test_what_two_sites_each_get_is_encoded_once_for_each_pair() -> None:
    starts, encode = [torch.zeros(1, 3), torch.ones(1, 3)], Encoder()
    messages = composed(lambda name: {"w": starts[SITES.index(name) % 2]}, encode)
    assert encode.names == ["w", "w"]
    values = {name: message.content["w"]["theta"].numpy().tolist() for name, message in messages.items()}
    assert values == {"a": [0.0] * 3, "b": [1.0] * 3, "c": [0.0] * 3, "d": [1.0] * 3}
    assert messages["a"].content["w"] is messages["c"].content["w"]


def test_tensors_made_for_one_site_alone_never_take_anothers_place() -> None:
    """They are gone when the next site's are made, and Python may give those the same address."""
    encode = Encoder()
    messages = composed(lambda name: {"w": torch.full((1, 3), float(SITES.index(name)))}, encode)
    assert encode.names == ["w"] * 4
    values = [message.content["w"]["theta"].numpy().tolist() for message in messages.values()]
    assert values == [[0.0] * 3, [1.0] * 3, [2.0] * 3, [3.0] * 3]


def test_one_tensor_under_two_names_is_encoded_for_each() -> None:
    """A name says how it travels: as a distribution, or as it is."""
    w, encode = torch.ones(1, 3), Encoder()
    messages = composed(lambda name: {"w": w, "told": w}, encode)
    content = messages["a"].content
    assert list(content["w"]) == ["theta"] and list(content["told"]) == ["values"]
    assert sorted(encode.names) == ["told", "w"]


def test_messages_say_what_is_asked() -> None:
    messages = composed(lambda name: {"w": torch.ones(1, 3)}, Encoder())
    assert [message.metadata.message_type for message in messages.values()] == ["train"] * 2 + [
        "evaluate"
    ] * 2
    assert [message.metadata.dst_node_id for message in messages.values()] == [100, 101, 102, 103]
    assert {message.metadata.group_id for message in messages.values()} == {"3"}
    assert {message.metadata.ttl for message in messages.values()} == {70.0}
    assert dict(messages["a"].content["exchange"]) == {
        "run": "r", "round": 3, "train": True, "upload": True, "evaluate": True,
    }  # fmt: skip
    assert dict(messages["d"].content["exchange"])["upload"] is False


TRAIN, MEASURE, BOTH = (True, True, False), (False, False, True), (True, True, True)


@pytest.mark.parametrize(
    ("upload", "evaluate", "train_all", "sampled", "others"),
    [
        (True, False, False, TRAIN, None),
        (True, True, False, BOTH, MEASURE),
        (True, False, True, TRAIN, (True, False, False)),
        (True, True, True, BOTH, (True, False, True)),
        (False, True, False, (True, False, True), MEASURE),
    ],
)
def test_tasks(upload: bool, evaluate: bool, train_all: bool, sampled: tuple, others: tuple | None) -> None:
    """(train, upload, evaluate) of the sampled sites and of the others."""
    tasks = tasks_of(["b", "d"], SITES, upload, evaluate, train_all)
    found = {name: (task["train"], task["upload"], task["evaluate"]) for name, task in tasks.items()}
    expected = {"b": sampled, "d": sampled} | ({"a": others, "c": others} if others else {})
    assert found == expected


def test_nobody_is_sampled_in_a_closing_exchange() -> None:
    tasks = tasks_of([], SITES, upload=False, evaluate=True, train_all=False)
    assert list(tasks) == SITES and not any(task["train"] or task["upload"] for task in tasks.values())


def test_a_sample_comes_from_its_words_alone() -> None:
    sites = [f"{i:02}" for i in range(20)]
    first = sample(sites, 5, 1, "sample", 3, 0)
    assert first == sample(sites, 5, 1, "sample", 3, 0) == sorted(first) and len(set(first)) == 5
    assert set(first) <= set(sites)
    others = [
        sample(sites, 5, 1, "sample", 3, 1),
        sample(sites, 5, 1, "sample", 4, 0),
        sample(sites, 5, 2, "sample", 3, 0),
    ]
    assert all(other != first for other in others)
    assert sample(sites, 0, 1) == sample(sites, 20, 1) == sample(sites, 99, 1) == sites


def test_every_site_has_its_turn() -> None:
    """Each of ten is drawn with chance 0.3; in 2000 rounds 600 ± 20.5 times, so within five deviations."""
    sites = [str(i) for i in range(10)]
    drawn = [name for number in range(2000) for name in sample(sites, 3, 1, "sample", number, 0)]
    assert all(abs(drawn.count(name) - 600) < 103 for name in sites)
