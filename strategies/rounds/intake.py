"""From a reply to the sums: decoded, checked, weighed, added up or held.

Between a client's upload and the server's sum stand stages (stages/), which no method knows. Nothing unchecked is
aggregated, and everything that can be wrong with an upload has a name.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord
from torch import Tensor

from bayes_core.families import family_of, is_finite
from bayes_core.server.aggregate import Aggregate
from fedbayes.protocol.codec import Wire
from fedbayes.protocol.messages import STATISTICS
from strategies.rounds.replies import BadReply, Reply, shown
from strategies.rounds.roster import Site
from strategies.rounds.stages import Arrival, Stage
from strategies.rounds.stages.private import Private
from strategies.rounds.state import Came, State, Upload

if TYPE_CHECKING:
    from strategies.rounds.method import ServerMethod

BYTES = 9  # of a number, at most: a wrong type is better named than its size
HEADERS = 4096  # bytes of all rows together
ROWS = 16  # of a distribution, at most


class Intake:
    """The uploads of one exchange on their way in."""

    def __init__(
        self,
        method: "ServerMethod",
        state: State,
        codec: Wire,
        stages: Sequence[Stage],
        number: int,
        expected: int,
        sites: Mapping[str, Site],
    ) -> None:
        self.method, self.state, self.codec, self.stages = method, state, codec, stages
        self.came = Came(number, sites)
        self.held: dict[str, Arrival] = {}
        for stage in stages:
            stage.open(number, expected)

    def take(self, site: str, n_train: int, reply: Reply) -> None:
        """Use the upload in a reply, or BadReply."""
        if reply.refusal:
            raise BadReply(reply.refusal)
        expected = self.method.expects(self.state, site, reply.report)
        arrival = Arrival(Upload(site, n_train, reply.report), expected)
        for name, part in expected.items() if self.method.traits.uploads else ():
            record = reply.arrays.get(name)
            if record is None:
                raise BadReply(f'no arrays named "{name}"')
            shape = part.shape if part.base is None else tuple(part.base.shape)
            _check_size(record, shape)
            try:
                arrival.tensors[name] = self.codec.arrive(record, part.base, shape)
            except Exception as error:  # whatever a hostile buffer makes numpy raise
                raise BadReply(f"unreadable arrays ({shown(error)})") from None
            if words := self._problem(arrival, name):
                raise BadReply(words)
            if part.into in self.state.statistics:
                arrival.statistics[name] = self._statistics(reply, name, part.into)
        self._pass(arrival, 0)
        self.came.uploads.append(arrival.upload)

    def close(self) -> Came:
        """What came of the exchange, when all replies are in."""
        for position, stage in enumerate(self.stages):
            for late in stage.close(len(self.came.uploads)):
                self._pass(late, position + 1)
            self.came.left_out += stage.left_out
        uploads = [self._whole(upload) for upload in self.came.uploads]
        self.came.uploads = sorted(uploads, key=lambda upload: upload.site)
        return self.came

    def _problem(self, arrival: Arrival, name: str) -> str | None:
        """Why a tensor cannot be used, or None."""
        if (base := arrival.expected[name].base) is not None:
            return family_of(base, self.method.family).problem(arrival.tensors[name])
        return None if is_finite(arrival.tensors[name]) else "values that are not finite"

    def _statistics(self, reply: Reply, name: str, into: str) -> Tensor:
        """The buffers that go with an upload, or BadReply."""
        record, shape = reply.arrays.get(name + STATISTICS), tuple(self.state.statistics[into].shape)
        if record is None:
            raise BadReply(f'no arrays named "{name}{STATISTICS}"')
        _check_size(record, shape)
        try:
            found = self.codec.arrive(record, None, shape)
        except Exception as error:
            raise BadReply(f"unreadable statistics ({shown(error)})") from None
        if not is_finite(found):
            raise BadReply("statistics that are not finite")
        return found

    def _whole(self, upload: Upload) -> Upload:
        """With its tensors, where uploads are held."""
        held = self.held.get(upload.site)
        return (
            replace(upload, weight=held.weight, parts=held.tensors, statistics=held.statistics)
            if held
            else upload
        )

    def _pass(self, arrival: Arrival, position: int) -> None:
        """On through the stages from this one on, each of which may hold it back for a while, or for good."""
        if position < len(self.stages):
            for one in self.stages[position].arrive(arrival):
                self._pass(one, position + 1)
            return
        for name, found in arrival.statistics.items():
            into = arrival.expected[name].into
            if into not in self.came.statistics:
                self.came.statistics[into] = self.method.buffers_by(self.state.statistics[into])
            self.came.statistics[into].add(found, arrival.weight)
        if self.method.holds(self.came.number):
            self.held[arrival.upload.site] = arrival
        else:
            for name, tensor in arrival.tensors.items():
                into = arrival.expected[name].into
                if into not in self.came.sums:
                    self.came.sums[into] = self._sum(into)
                self.came.sums[into].add(tensor, arrival.weight)

    def _sum(self, into: str) -> Aggregate:
        """The method's own, unless it is to be private."""
        for stage in self.stages:
            if isinstance(stage, Private):
                return stage.sum_for(self.state.sent[into])
        return self.method.sum_for(self.state, into)


def _check_size(record: ArrayRecord, shape: Sequence[int]) -> None:
    """BadReply for arrays that take more bytes than such a tensor can: they are not even unpacked."""
    size, most = sum(len(array.data) for array in record.values()), BYTES * math.prod(shape) + HEADERS
    if size > most or len(record) > ROWS:
        raise BadReply(
            f"arrays of {size} bytes in {len(record)} rows, where at most {most} bytes are expected"
        )
