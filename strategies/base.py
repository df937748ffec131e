"""The round loop that every method shares; a method adds only its own arithmetic.

One exchange a round: the server's distributions go out, each client measures them and its personal model
(when due), trains, and sends its localized global distribution back. Row t of the metrics describes the
models after t rounds; it is measured at the start of exchange t+1, so evaluation costs no exchange of its
own, except for one that ends the run.

Flower's ready-made FedAvg is not reused: it samples by node id (which changes from run to run), sums in
float32 in the order of arrival, and spends two exchanges a round.
"""

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from bayes_core import extrapolate, mean
from bayes_core.families import Family
from bayes_core.streams import stream
from bayes_core.wire import encode
from fedbayes.settings import Settings
from strategies.exchange import BadReply, array_bytes, read_upload, sort_replies
from strategies.measures import Columns, measure
from strategies.records import Exchange, Journal, Row, Upload
from strategies.roster import Roster, StrategyError

ATTEMPTS = 3  # at one round, before the run ends for want of clients


class PersonalStrategy(Strategy):
    """Sampling, failures, evaluation, checkpoints. Subclasses say what is sent and how it is combined."""

    family: Family

    def __init__(
        self, settings: Settings, roster: Roster, identity: Mapping[str, str], tell: Callable[..., None]
    ) -> None:
        self.settings = settings
        self.roster = roster
        self.identity = dict(identity)  # the run's name and UUID, for the clients' stores
        self.tell = tell
        self.tensors: dict[str, Tensor] = {}  # all the server knows: what a checkpoint holds
        self.attempt = 0
        self._exchange = Exchange({}, [], 0.0)
        self._aggregated: list[Upload] = []

    # ------------------------------------------------------------------ a method's own part

    @abstractmethod
    def initial(self, weights: Tensor) -> dict[str, Tensor]:
        """The server's distributions before the first round, from an ordinary network's weights."""

    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """w ← (1−β)·w + β·mean of the uploads."""
        target = self.combine([upload.w for upload in uploads], self.weights(uploads))
        self.tensors["w"] = self.towards(self.tensors["w"], target)

    def combine(self, uploads: Sequence[Tensor], weights: Sequence[float] | None) -> Tensor:
        """The paper's mean, unless a method offers another."""
        return mean(uploads, weights)

    def towards(self, v: Tensor, target: Tensor) -> Tensor:
        """The (1−β) extrapolation, within the family."""
        return self.family.after_extrapolation(extrapolate(v, target, self.settings.beta))

    def prepare(self, grid: Grid, journal: Journal) -> Row:
        """What comes before round 1; gives row 0."""
        return Row({"round": 0})

    def check_report(self, report: Mapping[str, Any]) -> None:
        """BadReply for an upload whose numbers a method cannot use."""

    def describe(self, row: Row, uploads: Sequence[Upload]) -> None:
        """Add a method's own columns to the row of a round."""

    def memory(self) -> dict[str, Any]:
        """What else a method must know after a resume; JSON."""
        return {}

    def remember(self, memory: Mapping[str, Any]) -> None:
        """The reverse of `memory`."""

    def weights(self, uploads: Sequence[Upload]) -> list[float] | None:
        """None for the paper's unweighted mean."""
        by_examples = self.settings.weighting == "examples"
        return [float(upload.n_train) for upload in uploads] if by_examples else None

    # ------------------------------------------------------------------ the loop

    def start(self, grid: Grid, journal: Journal, memory: Mapping[str, Any]) -> None:  # type: ignore[override]
        """All rounds after the one that `memory`, a checkpoint's, speaks of; then the closing exchange."""
        done = int(memory.get("round", 0))
        closed = bool(memory.get("closed"))  # that checkpoint had ended the run, which now goes on
        if memory:
            self.remember(memory["method"])
            row = Row(memory["row"], memory["clients"])
        else:
            row = self.prepare(grid, journal)
        for server_round in range(done + 1, self.settings.rounds + 1):
            due = (server_round - 1) % self.settings.eval_every == 0 or (closed and server_round == done + 1)
            next_row = self._train(grid, server_round, due)
            if due:
                self._measure(row)
            journal.append(row.columns, row.client_rows())
            row = next_row
            self.checkpoint(journal, row, closed=False)
            self.tell("round", rounds=self.settings.rounds, **row.columns)
        last = self.settings.rounds
        messages = self.configure_evaluate(last + 1, ArrayRecord(), ConfigRecord(), grid)
        self.aggregate_evaluate(last + 1, self._send(grid, messages))
        self._measure(row)
        journal.append(row.columns, row.client_rows())
        self.checkpoint(journal, row, closed=True)

    def _train(self, grid: Grid, server_round: int, due: bool) -> Row:
        """Exchange t, repeated while too few replies can be used; what is known of row t already."""
        for self.attempt in range(ATTEMPTS):
            self.roster.refresh()
            messages = self.configure_train(
                server_round, ArrayRecord(), ConfigRecord({"evaluate": due}), grid
            )
            aggregated, _ = self.aggregate_train(server_round, self._send(grid, messages))
            if aggregated is not None:
                return self._row(server_round)
            trouble = f"Round {server_round}: fewer than {self._quorum()} usable replies{self._failures()}"
            self.tell("warning", message=f"{trouble} (attempt {self.attempt + 1} of {ATTEMPTS}).")
        raise StrategyError(f"{trouble}, {ATTEMPTS} times; all rounds up to {server_round - 1} are saved.")

    def _send(self, grid: Grid, messages: list[Message]) -> Iterable[Message]:
        return grid.send_and_receive(messages, timeout=self.settings.round_timeout) if messages else []

    def _measure(self, row: Row) -> None:
        """The measures in the latest replies describe the models before that exchange: `row`."""
        replies, number = self._exchange.replies, row.columns["round"]
        pooled, each = measure(replies, self._examples())
        row.add_measures(pooled, each)
        for site in sorted(set(self.roster.sites) - set(each)):
            reason = replies.failures.get(site, "it cannot be reached")
            self.tell("warning", message=f"Site {site} was not measured for row {number}: {reason}.")
        self.tell("evaluated", round=number, rounds=self.settings.rounds, **pooled)

    def checkpoint(self, journal: Journal, row: Row, closed: bool) -> None:
        memory = {
            "round": row.columns["round"],
            "row": row.columns,
            "clients": row.clients,
            "closed": closed,
            "method": self.memory(),
        }
        journal.save_checkpoint(row.columns["round"], self.tensors, memory)

    # ------------------------------------------------------------------ Flower's hooks

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message a site: train and upload, train only, or (when due) evaluate only.

        `arrays` is not used: a strategy holds its distributions, one or several, in `tensors`.
        """
        sampled = self._sample(server_round)
        others = [site for site in self.roster.online if site not in sampled]
        evaluate = bool(config["evaluate"])
        tasks = {site: {"train": True, "upload": True, "evaluate": evaluate} for site in sampled}
        if self.settings.train_all:
            tasks |= {site: {"train": True, "upload": False, "evaluate": evaluate} for site in others}
        elif evaluate:
            tasks |= {site: {"train": False, "upload": False, "evaluate": True} for site in others}
        return self._messages(server_round, tasks, sampled)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine the usable uploads; (None, None) when they are too few."""
        self._receive(replies)
        uploads = self._uploads()
        if len(uploads) < self._quorum():
            return None, None
        before = dict(self.tensors)
        self.aggregate(uploads)
        if not all(bool(tensor.isfinite().all()) for tensor in self.tensors.values()):
            self.tensors = before
            raise StrategyError(
                f"Round {server_round}: the server's step left the finite numbers (beta={self.settings.beta}); "
                "everything before it is saved."
            )
        self._aggregated = uploads
        return ArrayRecord(), MetricRecord({"clients_ok": len(uploads)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Evaluate-only messages to every site that can be reached."""
        self.roster.refresh()
        tasks = {site: {"train": False, "upload": False, "evaluate": True} for site in self.roster.online}
        return self._messages(server_round, tasks, [])

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The metrics pooled over all clients' test examples."""
        self._receive(replies)
        return MetricRecord(measure(self._exchange.replies, self._examples())[0]) or None

    def _examples(self) -> dict[str, int]:
        return {name: site.n_test for name, site in self.roster.sites.items()}

    def summary(self) -> None:
        """The start event tells it."""

    # ------------------------------------------------------------------ messages and replies

    def _sample(self, server_round: int) -> list[str]:
        """S of the sites that can be reached, by a generator from (seed, round, attempt)."""
        online = self.roster.online
        share = self.settings.clients_per_round
        if share == 0 or share >= len(online):
            return online
        generator = stream(self.settings.seed, "sample", server_round, self.attempt)
        return sorted(online[i] for i in torch.randperm(len(online), generator=generator)[:share].tolist())

    def _messages(
        self, server_round: int, tasks: Mapping[str, Mapping[str, bool]], trained: list[str]
    ) -> list[Message]:
        """Every site gets the server's distributions; the records are made once and shared."""
        records = {
            name: ArrayRecord({row: Array(array) for row, array in encode(v, self.family.rows).items()})
            for name, v in self.tensors.items()
        }
        messages = {}
        for site, task in sorted(tasks.items()):
            said = ConfigRecord({**self.identity, "round": server_round, **task})
            messages[site] = Message(
                RecordDict({**records, "exchange": said}),
                dst_node_id=self.roster.sites[site].node,
                message_type="train" if task["train"] else "evaluate",
                group_id=str(server_round),
                ttl=self.settings.round_timeout,
            )
        self._exchange = Exchange(messages, trained, time.monotonic())
        return list(messages.values())

    def _receive(self, replies: Iterable[Message]) -> None:
        current = self._exchange
        current.replies = sort_replies(current.messages, replies, self.settings.round_timeout)
        for site, content in current.replies.content.items():
            if "notes" in content:
                for note in content["notes"].values():
                    self.tell("warning", message=f"Site {site}: {note!s}.")

    def _uploads(self) -> list[Upload]:
        """The usable uploads in the order of the site ids; the others become failures."""
        replies, uploads = self._exchange.replies, []
        for site in self._exchange.trained:
            if site not in replies.content:
                continue
            content = replies.content[site]
            try:
                w = read_upload(content, "w", self.family, self._like())
                report = dict(content["report"]) if "report" in content else {}
                self.check_report(report)
                uploads.append(Upload(site, w, self.roster.sites[site].n_train, report))
            except BadReply as error:
                replies.failures[site] = str(error)  # its measures, checked on their own, may still be good
        for site, reason in replies.failures.items():
            self.tell("warning", message=f"Site {site} dropped from this round: {reason}.")
        return uploads

    def _like(self) -> Tensor:
        """A tensor of the shape that every upload must have."""
        return next(iter(self.tensors.values()))

    def _quorum(self) -> int:
        share = self.settings.clients_per_round
        return min(self.settings.min_clients, share) if share else self.settings.min_clients

    def _failures(self) -> str:
        reasons = [f"site {site}: {reason}" for site, reason in self._exchange.replies.failures.items()]
        return f" ({'; '.join(reasons[:3])})" if reasons else ""

    def _row(self, server_round: int) -> Row:
        """Row t as far as exchange t tells it."""
        current = self._exchange
        failures = current.replies.failures
        clients: dict[str, Columns] = {
            site: {"status": f"failed: {failures[site]}" if site in failures else "ok"}
            for site in current.messages
            if site in failures or site in current.trained
        }
        columns = {
            "round": server_round,
            "clients_ok": len([site for site in current.trained if site not in failures]),
            "clients_failed": len(failures),
            "seconds": round(time.monotonic() - current.started, 3),
            "bytes_up": sum(array_bytes(content) for content in current.replies.content.values()),
            "bytes_down": sum(array_bytes(message.content) for message in current.messages.values()),
        }
        row = Row(columns, clients)
        self.describe(row, self._aggregated)
        return row
