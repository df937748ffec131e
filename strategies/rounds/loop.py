"""The round loop that every method shares; a method adds only its own arithmetic.

One exchange a round: the server's distributions go out, each client measures them and its personal model
(when due), trains, and sends its localized global distribution back. Row t of the metrics describes the
models after t rounds; it is measured at the start of exchange t+1, so evaluation costs no exchange of its
own, except for one that ends the run.

Flower's ready-made FedAvg is not reused: it samples by node id (which changes from run to run), sums in
float32 in the order of arrival, and spends two exchanges a round.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from bayes_core.families import is_finite
from bayes_core.predict.metrics import tally_lengths
from fedbayes.protocol.settings import Settings
from strategies.rounds.confidence import HeldBack, check_uncertainty
from strategies.rounds.evidence import evidence
from strategies.rounds.exchange import Exchange
from strategies.rounds.measures import Columns, measure
from strategies.rounds.messages import Task, compose, sample, tasks_of
from strategies.rounds.method import ServerMethod
from strategies.rounds.outliers import Outliers
from strategies.rounds.records import Journal, Row, Upload
from strategies.rounds.replies import BadReply, read_upload
from strategies.rounds.roster import Roster, StrategyError

ATTEMPTS = 3  # at one round, before the run ends for want of clients


class PersonalStrategy(ServerMethod, Strategy):
    """Sampling, failures, evaluation, checkpoints. Subclasses say what is sent and how it is combined."""

    def __init__(
        self, settings: Settings, roster: Roster, identity: Mapping[str, str], tell: Callable[..., None]
    ) -> None:
        super().__init__(settings, roster, tell)
        self.identity = dict(identity)  # the run's name and UUID, for the clients' stores
        self.attempt = 0
        self.exchange = Exchange({}, 0.0)
        self.sampled: list[str] = []  # the sites whose training counts in this exchange
        self.outliers = Outliers()
        self.held_back = HeldBack(0.0, 0)
        self.left_out: list[str] = []  # of the usable uploads, by `aggregation-confidence`

    # ------------------------------------------------------------------ the loop

    def start(self, grid: Grid, journal: Journal, memory: Mapping[str, Any]) -> None:  # type: ignore[override]
        """All rounds after the one that `memory`, a checkpoint's, speaks of; then the closing exchange."""
        done = int(memory.get("round", 0))
        closed = bool(memory.get("closed"))  # that checkpoint had ended the run, which now goes on
        if memory:
            self.remember(memory["method"])
            self.outliers = Outliers(memory.get("outliers", ()))
            row = Row(memory["row"], memory["clients"])
        else:
            row = self.prepare(grid, journal)
        for server_round in range(done + 1, self.settings.rounds + 1):
            due = self._is_due(server_round - 1) or (closed and server_round == done + 1)
            next_row = self._train(grid, server_round, due)
            if due:
                self._measure(row)
            journal.append(row.columns, row.client_rows(), row.evidence)
            row = next_row
            self.checkpoint(journal, row, closed=False)
            self.tell("round", rounds=self.settings.rounds, **row.columns)
        last = self.settings.rounds
        self.configure_evaluate(last + 1, ArrayRecord(), ConfigRecord(), grid)
        self.aggregate_evaluate(last + 1, self.exchange.conduct(grid))
        self._measure(row)
        journal.append(row.columns, row.client_rows(), row.evidence)
        self.checkpoint(journal, row, closed=True)

    def _is_due(self, number: int) -> bool:
        """Whether the models after so many rounds are measured; round 1 always is, where most is learned."""
        return number == 1 or number % self.settings.eval_every == 0

    def _train(self, grid: Grid, server_round: int, due: bool) -> Row:
        """Exchange t, repeated while too few replies can be used; what is known of row t already."""
        for self.attempt in range(ATTEMPTS):
            self.roster.refresh()
            self.configure_train(server_round, ArrayRecord(), ConfigRecord({"evaluate": due}), grid)
            aggregated, _ = self.aggregate_train(server_round, self.exchange.conduct(grid))
            if aggregated is not None:
                return self._row(server_round)
            trouble = f"Round {server_round}: fewer than {self._quorum()} usable replies{self._failures()}"
            self.tell("warning", message=f"{trouble} (attempt {self.attempt + 1} of {ATTEMPTS}).")
        raise StrategyError(f"{trouble}, {ATTEMPTS} times; all rounds up to {server_round - 1} are saved.")

    def _measure(self, row: Row) -> None:
        """The measures in the latest replies describe the models before that exchange: `row`."""
        replies, number = self.exchange.replies, row.columns["round"]
        pooled, each = measure(replies, self._examples(), self._lengths())
        row.add_measures(pooled, each)
        parameters = next(iter(self.tensors.values())).shape[1]
        row.evidence = evidence(replies, self.roster.sites, parameters, self._lengths())
        for site in sorted(set(self.roster.sites) - set(each)):
            reason = replies.failures.get(site, "it cannot be reached")
            self.tell(
                "warning", message=_sentence(f"Site {site} was not measured for row {number}: {reason}")
            )
        self.tell("evaluated", round=number, rounds=self.settings.rounds, **pooled)

    def checkpoint(self, journal: Journal, row: Row, closed: bool) -> None:
        memory = {
            "round": row.columns["round"],
            "row": row.columns,
            "clients": row.clients,
            "closed": closed,
            "method": self.memory(),
            "outliers": self.outliers.medians,
        }
        journal.save_checkpoint(row.columns["round"], self.tensors, memory)

    # ------------------------------------------------------------------ Flower's hooks

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message a site: train and upload, train only, or (when due) evaluate only.

        `arrays` is not used: a strategy holds its distributions, one or several, in `tensors`.
        """
        self.sampled = self.sample(server_round)
        upload, evaluate = self.wants_uploads, bool(config["evaluate"])
        tasks = tasks_of(self.sampled, self.roster.online, upload, evaluate, self.settings.train_all)
        return self._compose(server_round, tasks)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add up the usable uploads as they arrive; (None, None) when they are too few."""
        self._receive(replies)
        for site, reason in self.exchange.replies.failures.items():
            self.tell("warning", message=_sentence(f"Site {site} dropped from this round: {reason}"))
        if len(self.uploads) < self._quorum():
            return None, None
        before = dict(self.tensors)
        self.step()
        if not all(is_finite(tensor) for tensor in self.tensors.values()):
            self.tensors = before
            raise StrategyError(
                f"Round {server_round}: the server's step left the finite numbers (beta={self.settings.beta}); "
                "everything before it is saved."
            )
        self.aggregates = {}  # as large as all the rest
        return ArrayRecord(), MetricRecord({"clients_ok": len(self.uploads)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Evaluate-only messages to every site that can be reached."""
        self.roster.refresh()
        self.sampled = []
        tasks = tasks_of([], self.roster.online, upload=False, evaluate=True, train_all=False)
        return self._compose(server_round, tasks)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The metrics pooled over all clients' test examples."""
        self._receive(replies)
        return MetricRecord(measure(self.exchange.replies, self._examples(), self._lengths())[0]) or None

    def _examples(self) -> dict[str, int]:
        return {name: site.n_test for name, site in self.roster.sites.items()}

    def _lengths(self) -> dict[str, int]:
        return tally_lengths(next(iter(self.roster.sites.values())).classes)

    def summary(self) -> None:
        """The start event tells it."""

    # ------------------------------------------------------------------ one exchange

    def sample(self, server_round: int) -> list[str]:
        """S of the sites that can be reached."""
        share = self.settings.clients_per_round
        return sample(self.roster.online, share, self.settings.seed, "sample", server_round, self.attempt)

    def _compose(self, server_round: int, tasks: Mapping[str, Task]) -> list[Message]:
        timeout = self.settings.round_timeout
        said: dict[str, str | int] = {**self.identity, "round": server_round}
        messages = compose(self.tensors, self.wire, tasks, said, self.roster.sites, timeout)
        self.exchange = Exchange(messages, timeout)
        return list(self.exchange.messages.values())

    def _receive(self, replies: Iterable[Message]) -> None:
        self.uploads, self.aggregates = [], {}
        self.held_back = HeldBack(self.share_left_out(), len(self.sampled))
        unusable: dict[str, str] = {}
        for site, content in self.exchange.read(replies):
            try:
                if site in self.sampled:
                    self._take(site, content)
            except BadReply as error:
                unusable[site] = str(error)  # its measures, checked on their own, may still be good
            for name in list(content.array_records):
                del content[name]  # what remains is small
        for upload, w in self.held_back.settle(len(self.uploads)):
            self.add(upload, w)
        self.left_out = [upload.site for upload, _ in self.held_back.held]
        self.held_back.held.clear()
        self.outliers.close_round()
        self.uploads.sort(key=lambda upload: upload.site)
        failures = self.exchange.replies.failures | unusable
        self.exchange.replies.failures = dict(sorted(failures.items()))
        for site, content in self.exchange.replies.content.items():
            for note in dict(content.get("notes", {})).values():
                self.tell("warning", message=f"Site {site}: {note!s}.")

    def _take(self, site: str, content: RecordDict) -> None:
        """Use the upload in a reply, or BadReply."""
        upload = Upload(site, self.roster.sites[site].n_train, dict(content.get("report", {})))
        base = self.tensors[self.base_of(upload.report)]
        if self.settings.aggregation_confidence != "off":
            check_uncertainty(upload.report)
        if self.wants_uploads:
            w = read_upload(content, self.wire, base)
            self.outliers.judge(w, base, self.family)
            for one, distribution in self.held_back.offer(upload, w):
                self.add(one, distribution)
        self.uploads.append(upload)

    def _quorum(self) -> int:
        share = self.settings.clients_per_round
        return min(self.settings.min_clients, share) if share else self.settings.min_clients

    def _failures(self) -> str:
        reasons = [f"site {site}: {reason}" for site, reason in self.exchange.replies.failures.items()]
        return f" ({'; '.join(reasons[:3])})" if reasons else ""

    def _row(self, server_round: int) -> Row:
        """Row t as far as exchange t tells it."""
        current, failures = self.exchange, self.exchange.replies.failures
        clients: dict[str, Columns] = {
            site: {"status": f"failed: {failures[site]}" if site in failures else "ok"}
            for site in current.messages
            if site in failures or site in self.sampled
        }
        columns = {
            "round": server_round,
            "clients_ok": len(self.uploads),
            "clients_failed": len(failures),
            "seconds": round(current.seconds, 3),
            "bytes_up": current.bytes_up,
            "bytes_down": current.bytes_down,
        }
        for upload in self.uploads:
            if "uncertainty" in upload.report:
                clients[upload.site]["uncertainty"] = round(float(upload.report["uncertainty"]), 6)
        for site in self.left_out:
            clients[site]["status"] = "left out"
        row = Row(columns, clients)
        self.describe(row)
        return row


def _sentence(words: str) -> str:
    """Reasons in Flower's words have a full stop already."""
    return words if words.endswith((".", "?")) else f"{words}."
