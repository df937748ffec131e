"""From a reply to the sums: what is held, what is added where, and what is wrong with an upload, in words."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from bayes_core import Gaussian, Point
from fedbayes.protocol.codec import Wire
from strategies.fedavg import FedAvg
from strategies.local import Local
from strategies.pfedbayes import PFedBayes
from strategies.rounds.intake import Intake
from strategies.rounds.method import ServerMethod
from strategies.rounds.replies import BadReply, Reply, read_reply
from strategies.rounds.stages import Stage
from strategies.rounds.stages.outliers import Outliers
from strategies.rounds.stages.weigh import Weigh
from strategies.rounds.state import Came, Part, State, Traits

ONE, OTHER = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[3.0, 4.0, 7.0]])


class Holds(FedAvg):
    """Keeps single uploads until the step; each has the weights and two numbers that stand for themselves."""

    traits = Traits(single_uploads=True)

    def expects(self, state: State, site: str, report: Mapping[str, Any]) -> dict[str, Part]:
        return {"w": Part("w", state.sent["w"]), "sizes": Part("sizes", shape=(2,))}


class Halves(FedAvg):
    """Sites whose name ends in 1 are added to one sum, the others to another; all of them to a third."""

    family: ClassVar[Point] = Point()

    def init(self, fresh: Any) -> State:
        return State({name: torch.zeros(1, 3) for name in ("odd", "even", "all")})

    def expects(self, state: State, site: str, report: Mapping[str, Any]) -> dict[str, Part]:
        into = "odd" if site.endswith("1") else "even"
        return {"w": Part(into, state.sent[into]), "again": Part("all", state.sent["all"])}


def started(method: ServerMethod) -> State:
    return method.init(lambda *words: torch.zeros(3))


def intake(method: ServerMethod, stages: Sequence[Stage] = (), number: int = 1, expected: int = 2) -> Intake:
    return Intake(method, started(method), Wire(method.family), stages, number, expected, {})


def content(uploads: Mapping[str, Tensor], family: Any = None, **report: Any) -> Reply:
    """As the client's half packs it: distributions by their rows, other tensors as they are."""
    wire = Wire(family or Point())
    records: dict[str, Any] = {
        name: wire.leave(tensor, tensor if tensor.dim() == 2 else None) for name, tensor in uploads.items()
    }
    return read_reply(RecordDict({**records, "report": MetricRecord(report)}))


def test_uploads_are_added_up_and_forgotten() -> None:
    one = intake(FedAvg())
    one.take("b", 5, content({"w": OTHER}, loss=2.0))
    one.take("a", 7, content({"w": ONE}, loss=1.0))
    came = one.close()
    assert [(up.site, up.n_train, up.report, up.weight) for up in came.uploads] == [
        ("a", 7, {"loss": 1.0}, 1.0),
        ("b", 5, {"loss": 2.0}, 1.0),
    ]
    assert not any(up.parts for up in came.uploads) and not one.held
    assert came.sums["w"].result().tolist() == [[2.0, 3.0, 5.0]]


def test_held_uploads_have_their_parts_and_weights() -> None:
    one = intake(Holds(), [Weigh("off", by_examples=True)])
    one.take("b", 30, content({"w": OTHER, "sizes": torch.tensor([30.0, 0.5])}))
    one.take("a", 10, content({"w": ONE, "sizes": torch.tensor([10.0, 0.25])}))
    came = one.close()
    assert [(up.site, up.weight) for up in came.uploads] == [("a", 10.0), ("b", 30.0)]
    assert [up.parts["w"].tolist() for up in came.uploads] == [ONE.tolist(), OTHER.tolist()]
    assert [up.parts["sizes"].tolist() for up in came.uploads] == [[10.0, 0.25], [30.0, 0.5]]
    assert not came.sums


def test_sums_go_where_they_are_expected() -> None:
    one = intake(Halves())
    for number in (1, 2, 11):
        w = torch.full((1, 3), float(number))
        one.take(f"site{number}", 1, content({"w": w, "again": 10 * w}))
    sums = one.close().sums
    assert {name: total.result().tolist() for name, total in sums.items()} == {
        "odd": [[6.0] * 3],
        "even": [[2.0] * 3],
        "all": [[pytest.approx(140 / 3)] * 3],
    }


def test_nobody_in_a_sum_is_no_sum() -> None:
    one = intake(Halves())
    one.take("site2", 1, content({"w": ONE, "again": ONE}))
    assert sorted(one.close().sums) == ["all", "even"]


def test_a_method_without_uploads_takes_reports_only() -> None:
    one = intake(Local())
    one.take("a", 3, read_reply(RecordDict({"report": MetricRecord({"loss": 0.5})})))
    came = one.close()
    assert [up.report for up in came.uploads] == [{"loss": 0.5}] and not came.sums


# ---------------------------------------------------------------------- what is wrong with an upload


def record(**arrays: Any) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def f32(*numbers: float) -> Any:
    return np.array(numbers, np.float32)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ({}, 'no arrays named "w"'),
        ({"w": ConfigRecord({"theta": 1.0})}, 'a record "w" of another type than ours'),
        ({"w": record(theta=f32(1, 2, 3))}, 'no arrays named "sizes"'),
        ({"w": record(theta=f32(1, 2))}, r"unreadable arrays \(shape \(1, 2\) instead of \(1, 3\)\)"),
        ({"w": record(mu=f32(1, 2, 3))}, r"rows \['mu'\] instead of \['theta'\]"),
        ({"w": record(theta=np.zeros(3))}, "another type than float32"),
        ({"w": record(theta=f32(1, math.nan, 3))}, "not finite"),
    ],
    ids=["nothing", "no arrays", "one of two", "shape", "rows", "dtype", "nan"],
)
def test_a_distribution_that_cannot_be_used(records: dict[str, Any], words: str) -> None:
    one = intake(Holds())
    with pytest.raises(BadReply, match=words):
        one.take("a", 1, read_reply(RecordDict(records)))
    came = one.close()
    assert not came.uploads and not came.sums and not one.held


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (record(values=f32(1, 2, 3)), r"shape \(3,\) instead of \(2,\)"),
        (record(values=np.array([[1.0, 2.0]], np.float32)), r"shape \(1, 2\) instead of \(2,\)"),
        (record(values=np.zeros(2)), r"rows \['values'\] instead of values in float32"),
        (record(values=np.zeros(2, np.int64)), "instead of values in float32"),
        (record(theta=f32(1, 2)), r"rows \['theta'\] instead of values"),
        (record(values=f32(1, math.inf)), "values that are not finite"),
        (record(values=f32(math.nan, 1)), "values that are not finite"),
    ],
    ids=["shape", "more axes", "dtype", "whole numbers", "name", "infinite", "nan"],
)
def test_a_tensor_of_its_own_shape_that_cannot_be_used(sizes: ArrayRecord, words: str) -> None:
    one = intake(Holds())
    with pytest.raises(BadReply, match=words):
        one.take("a", 1, read_reply(RecordDict({"w": record(theta=f32(1, 2, 3)), "sizes": sizes})))
    assert not one.close().uploads


def test_bytes_that_are_no_array_are_a_bad_reply() -> None:
    broken = ArrayRecord({"theta": Array("float32", (3,), "numpy.ndarray", b"rubbish")})
    with pytest.raises(BadReply, match="unreadable arrays"):
        intake(FedAvg()).take("a", 1, read_reply(RecordDict({"w": broken})))


def test_one_part_is_not_added_where_another_is_bad() -> None:
    one = intake(Halves())
    with pytest.raises(BadReply):
        one.take(
            "site1",
            1,
            read_reply(RecordDict({"w": record(theta=f32(1, 2, 3)), "again": record(theta=f32(1))})),
        )
    assert not one.close().sums


# ---------------------------------------------------------------------- stages


def taken(stages: Sequence[Stage], said: Mapping[str, float], number: int = 1, kind: Any = FedAvg) -> Came:
    one = intake(kind(), stages, number, len(said))
    for place, (site, uncertainty) in enumerate(said.items()):
        w = torch.full((1, 3), float(place + 1))
        uploads = {"w": w, "sizes": torch.zeros(2)} if kind is Holds else {"w": w}
        one.take(site, 1, content(uploads, uncertainty=uncertainty))
    return one.close()


def test_left_out_uploads_are_named_and_not_in_the_sum() -> None:
    came = taken([Weigh("0.5", by_examples=False)], {"a": 0.3, "b": 0.9, "c": 0.1, "d": 0.6})
    assert sorted(came.left_out) == ["b", "d"]
    assert [up.site for up in came.uploads] == ["a", "b", "c", "d"], "they answered all the same"
    assert came.sums["w"].result().tolist() == [[2.0] * 3], "of 1 and 3"


def test_left_out_uploads_are_not_held_either() -> None:
    came = taken([Weigh("0.5", by_examples=False)], {"a": 0.3, "b": 0.9}, kind=Holds)
    assert came.left_out == ["b"] and not came.sums
    assert {up.site: sorted(up.parts) for up in came.uploads} == {"a": ["sizes", "w"], "b": []}


def test_certainty_weighs_the_sum() -> None:
    came = taken([Weigh("weight", by_examples=False)], {"a": 0.0, "b": math.log(3)})
    assert came.sums["w"].result().tolist() == [[pytest.approx((1 + 2 / 3) / (1 + 1 / 3), rel=1e-5)] * 3]


def test_what_an_early_stage_drops_never_reaches_a_later_one() -> None:
    weigh = Weigh("0.5", by_examples=False)
    one = intake(FedAvg(), [Outliers(Point()), weigh], expected=2)
    with pytest.raises(BadReply, match="an absurd update"):
        one.take("far", 1, content({"w": torch.full((1, 3), 1000.0)}, uncertainty=0.0))
    one.take("near", 1, content({"w": ONE / 10}, uncertainty=0.5))
    came = one.close()
    assert [up.site for up in came.uploads] == ["near"] and came.left_out == [], "⌊0.5·1⌋ = 0"
    assert came.sums["w"].result().tolist() == (ONE / 10).tolist()


def test_sixteen_bits_are_added_to_the_servers_own() -> None:
    """What arrives is a change of the server's distribution, which it never rounds."""
    method = PFedBayes(rho_init=-2.0)
    wire = Wire(Gaussian(), "bfloat16", -2.0)
    state = State({"w": torch.tensor([[0.1, 0.2], [-2.0, -2.0]])})
    received = wire.receive(wire.send(state.sent["w"]))
    one = Intake(method, state, wire, [], 1, 1, {})
    one.take("a", 1, read_reply(RecordDict({"w": wire.leave(received + 0.5, received)})))
    total = one.close().sums["w"].result()
    torch.testing.assert_close(total, state.sent["w"] + 0.5, rtol=0, atol=1e-6)
