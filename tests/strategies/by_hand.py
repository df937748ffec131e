"""A round of a method by hand: a few clients, three scalars."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from flwr.app import MetricRecord, RecordDict
from torch import Tensor

from fedbayes.protocol.codec import Wire
from strategies.rounds.intake import Intake
from strategies.rounds.method import ServerMethod
from strategies.rounds.replies import read_reply
from strategies.rounds.stages.weigh import Weigh
from strategies.rounds.state import Came, State

START = torch.tensor([0.0, 0.0, 0.0])
OneRound = Callable[..., tuple[State, Came]]


@pytest.fixture
def one_round() -> OneRound:
    """one_round(method, state, {site: upload}, …): the state after it, and what came."""

    def run(
        method: ServerMethod,
        state: State,
        uploads: Mapping[str, Tensor],
        reports: Mapping[str, Mapping[str, Any]] | None = None,
        number: int = 1,
        examples: Sequence[int] = (),
    ) -> tuple[State, Came]:
        codec = Wire(method.family)
        stages = [Weigh("off", by_examples=True)] if examples else []
        intake = Intake(method, state, codec, stages, number, len(uploads), {})
        for place, (site, upload) in enumerate(uploads.items()):
            report = dict((reports or {}).get(site, {}))
            records: dict[str, Any] = {"report": MetricRecord(report)}
            if method.traits.uploads:
                records["w"] = codec.leave(upload, upload)
            intake.take(site, examples[place] if examples else 1, read_reply(RecordDict(records)))
        came = intake.close()
        return method.step(state, came), came

    return run
