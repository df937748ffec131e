"""Every method as a Flower strategy: Flower's own signatures, real ArrayRecords in and out.

For those who have a ServerApp and a ClientApp of their own and would use `PFedBayes()` as they use Flower's FedAvg:

    strategy = PFedBayes(beta=1.0)
    result = strategy.start(grid, strategy.initial_arrays(flatten(network)), num_rounds=3)

Messages are as Flower's own strategies make them: the record "arrays" (rows such as `mu` and `rho` by name; of several
distributions `u0.mu` and so on) and "config"; a reply has "arrays" and a MetricRecord with "num-examples". Our own loop
(loop.py) drives the same method with more care: one exchange per round, replies one by one, attempts, checkpoints.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from fedbayes.protocol.codec import Wire
from fedbayes.protocol.messages import REPORT
from strategies.rounds.exchange import sample
from strategies.rounds.intake import Intake
from strategies.rounds.replies import BadReply, Reply, read_reply, reason_of
from strategies.rounds.state import State

if TYPE_CHECKING:
    from strategies.rounds.method import ServerMethod

ARRAYS, CONFIG, EXAMPLES, SERVER_ROUND = "arrays", "config", "num-examples", "server-round"
log = logging.getLogger("flwr")


class FlowerStrategy(Strategy):
    """Flower's hooks for a method, which is this object's other side."""

    FLOWER: ClassVar[frozenset[str]] = frozenset(
        ("fraction_train", "fraction_evaluate", "min_available_nodes", "wait")
    )

    def __init__(
        self,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_available_nodes: int = 2,
        wait: float = 600.0,
    ) -> None:
        """`wait` bounds, in seconds, how long to wait for so many nodes."""
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_available_nodes, self.wait = min_available_nodes, wait
        self._state = State({})

    def initial_arrays(self, weights: Tensor) -> ArrayRecord:
        """The arrays to start from, of an ordinary network's weights (T,); all of several starts are these."""
        self._state = self._method.init(lambda *words: weights)
        return self._record(self._state.sent)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Flower's own loop; exchanges that the method needs before round 1 come first."""
        for number in range(1 - self._method.openings, 1):
            messages = self.configure_train(number, initial_arrays, train_config or ConfigRecord(), grid)
            found, _ = self.aggregate_train(number, grid.send_and_receive(messages, timeout=timeout))
            if found is None:
                raise RuntimeError(
                    f"No usable reply to the exchange before round 1 that {type(self).__name__} begins with."
                )
            initial_arrays = found
        return super().start(
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        self._state = replace(self._state, sent=self._tensors(arrays))
        share = 1.0 if server_round < 1 or self._method.traits.every_site else self.fraction_train
        nodes = self._nodes(grid, share, "train", server_round)
        return [self._message(node, server_round, config, "train") for node in nodes]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The arrays after the method's step; (None, None) where no reply can be used."""
        from strategies.rounds.stages.weigh import Weigh

        method = self._method
        by_examples = getattr(method.options, "weighting", "") == "examples"
        stages = [Weigh("off", by_examples)] if by_examples else []
        intake = Intake(method, self._state, self._codec, stages, server_round, 0, {})
        said: list[dict[str, Any]] = []
        for site, content in self._usable(replies):
            try:
                metrics = _metrics(content)
                if (examples := int(metrics.get(EXAMPLES, 1))) < 1:
                    raise BadReply(f"{examples} examples instead of at least one")
                intake.take(site, examples, self._content(content, metrics))
                said.append(metrics)
            except (BadReply, ValueError, TypeError, KeyError) as error:
                log.warning("Node %s dropped from round %s: %s", site, server_round, error)
        came = intake.close()
        if not came.uploads:
            return None, None
        self._state = method.step(self._state, came)
        return self._record(self._state.sent), _mean(said)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        if not self.fraction_evaluate:
            return []
        self._state = replace(self._state, sent=self._tensors(arrays))
        nodes = self._nodes(grid, self.fraction_evaluate, "evaluate", server_round)
        return [self._message(node, server_round, config, "evaluate") for node in nodes]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The mean of the clients' numbers, weighted by their examples."""
        return _mean([_metrics(content) for _, content in self._usable(replies)])

    def summary(self) -> None:
        log.info("\t%s with %s", type(self).__name__, self._method.options)

    # ------------------------------------------------------------------ records

    @property
    def _method(self) -> "ServerMethod":
        return self  # type: ignore[return-value]  # a ServerMethod is a FlowerStrategy

    @property
    def _codec(self) -> Wire:
        return Wire(self._method.family)

    def _record(self, tensors: Mapping[str, Tensor]) -> ArrayRecord:
        records = {name: self._codec.send(v, name in self._method.plain) for name, v in tensors.items()}
        if set(records) == {"w"}:
            return records["w"]
        named = {f"{name}.{row}": array for name, one in records.items() for row, array in one.items()}
        return ArrayRecord(named)

    def _tensors(self, record: ArrayRecord) -> dict[str, Tensor]:
        return {name: self._codec.receive(one) for name, one in _split(record).items()}

    def _content(self, content: RecordDict, metrics: Mapping[str, Any]) -> Reply:
        """A reply of Flower's shape in ours."""
        record = next(iter(content.array_records.values()), ArrayRecord())
        return read_reply(RecordDict({**_split(record), REPORT: MetricRecord(dict(metrics))}))

    def _message(self, node: int, server_round: int, config: ConfigRecord, kind: str) -> Message:
        arrays = self._record(self._method.send(self._state, str(node)))
        said = ConfigRecord({**config, SERVER_ROUND: server_round})
        return Message(RecordDict({ARRAYS: arrays, CONFIG: said}), dst_node_id=node, message_type=kind)

    def _nodes(self, grid: Grid, share: float, *words: int | str) -> list[int]:
        """Some of the nodes, after a bounded wait for enough of them."""
        deadline = time.monotonic() + self.wait
        while len(nodes := sorted(grid.get_node_ids())) < self.min_available_nodes:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"Only {len(nodes)} of {self.min_available_nodes} nodes connected within {self.wait:g} s."
                )
            time.sleep(1)
        count = 0 if share >= 1 else max(1, int(share * len(nodes)))
        chosen = sample([str(node) for node in nodes], count, self._method.seed, *words)
        return [int(node) for node in chosen]

    def _usable(self, replies: Iterable[Message]) -> Iterable[tuple[str, RecordDict]]:
        for reply in replies:
            if reply.has_error():
                log.warning("Node %s: %s", reply.metadata.src_node_id, reason_of(reply))
            else:
                yield str(reply.metadata.src_node_id), reply.content


def _split(record: ArrayRecord) -> dict[str, ArrayRecord]:
    """Rows of one distribution are those of `w`; with a dot, of several."""
    parts: dict[str, dict[str, Any]] = {}
    for key, array in record.items():
        name, _, row = key.rpartition(".")
        parts.setdefault(name or "w", {})[row] = array
    return {name: ArrayRecord(rows) for name, rows in parts.items()}


def _metrics(content: RecordDict) -> dict[str, Any]:
    return dict(next(iter(content.metric_records.values()), {}))


def _mean(said: list[dict[str, Any]]) -> MetricRecord | None:
    """Of every number that all clients name, weighted by their examples."""
    if not said:
        return None
    weights = [float(one.get(EXAMPLES, 1)) for one in said]
    shared = [
        key
        for key in said[0]
        if key != EXAMPLES and all(isinstance(one.get(key), int | float) for one in said)
    ]
    total = sum(weights) or 1.0
    return MetricRecord(
        {
            key: sum(w * float(one[key]) for w, one in zip(weights, said, strict=True)) / total
            for key in shared
        }
    )
