"""The rounds of a run: the loop that drives a method.

One exchange per round: the method's tensors go out, each client measures them and its personal model (when due),
trains, and sends its upload back. Row t of the metrics describes the models after t rounds; it is measured at the start
of exchange t+1, so evaluation costs no exchange of its own, except for one that ends the run.

Flower's ready-made loop is not used: it spends two exchanges per round, and holds all replies at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from torch import Tensor

from bayes_core.families import is_finite
from bayes_core.predict.metrics import tally_lengths
from fedbayes.protocol.codec import Wire
from fedbayes.protocol.messages import BODY, CLOSING, EPSILON, ROUND, STATISTICS, UNCERTAINTY
from fedbayes.protocol.settings import Settings
from strategies.rounds.early import EarlyStop
from strategies.rounds.evidence import evidence
from strategies.rounds.exchange import Exchange, Task, compose, is_simulation, patience, sample, tasks_of
from strategies.rounds.intake import Intake
from strategies.rounds.late import Late
from strategies.rounds.measures import Columns, Row, measure
from strategies.rounds.method import ServerMethod, sent_to
from strategies.rounds.replies import BadReply, Reply, as_sentence, dropped, unforeseen
from strategies.rounds.roster import HIDDEN_AMONG, Roster, StrategyError
from strategies.rounds.stages import stages_of
from strategies.rounds.stages.private import private_among
from strategies.rounds.state import KEPT, Came, State

if TYPE_CHECKING:
    from strategies.rounds.stages.secure import Secure

ATTEMPTS = 3  # at one round, before the run ends for want of clients


class Journal(Protocol):
    """Where a run is written down; the server app's run folder is one."""

    def append(
        self, row: Columns, clients: Sequence[Columns], evidence: Mapping[str, Any] | None
    ) -> None: ...

    def keep(self, name: str, evidence: Mapping[str, Any]) -> None: ...

    def save_checkpoint(
        self, server_round: int, tensors: Mapping[str, Tensor], memory: Mapping[str, Any]
    ) -> None: ...


class Loop:
    """One run of a method: sampling, failures, evaluation, checkpoints."""

    def __init__(
        self,
        method: ServerMethod,
        settings: Settings,
        roster: Roster,
        identity: Mapping[str, str],
        tell: Callable[..., None],
    ) -> None:
        self.method, self.settings, self.roster, self.tell = method, settings, roster, tell
        self.identity = dict(identity)  # the run's name and UUID, its settings and what was agreed on
        self.codec = Wire(method.family, settings.wire, method.rho_origin)
        self.stages = stages_of(settings, method)
        self.private = private_among(self.stages)
        self.secure = cast("Secure | None", {stage.name: stage for stage in self.stages}.get("secure"))
        self.state = State({})
        self.exchange: Exchange[Reply] = Exchange({}, 0.0)
        self.at = 0  # the round that is being trained
        self.refusals: dict[str, str] = {}  # of the latest exchange: who does not train, and why
        self.unwilling: set[str] = set()  # with secure sums, who has ever refused: it measures all the same
        self.excused: set[str] = set()  # where a method needs every site, those that it has gone on without
        self.early = EarlyStop(settings.patience)
        self.late = Late()

    def run(self, grid: Grid, journal: Journal, state: State, memory: Mapping[str, Any]) -> None:
        """All rounds after the one that `memory`, a checkpoint's, speaks of; then the closing exchange."""
        self.state = state
        done = int(memory["round"]) if memory else -self.method.openings
        closed = bool(memory.get("closed"))  # that checkpoint had ended the run, which now goes on
        row = Row(memory["row"], memory["clients"]) if memory else Row({"round": done})
        # Before stages had names, outliers stood alone.
        said = memory.get("stages", {"outliers": memory.get("outliers", [])})
        for stage in self.stages:
            stage.remember(said.get(stage.name))
        if self.private:
            self.private.require(state, done > 0 and self.private.name not in said, self.method)
        if self.secure:
            self.secure.private = self.private
            self.secure.require(state)
        self.early.remember(memory.get("early", {}), again=closed)
        for number in range(done + 1, self.settings.rounds + 1):
            if self.private and self.private.over:
                self.tell("note", message=self.private.sentence)
                break
            due = self._is_due(number - 1) or (closed and number == done + 1)
            if self.secure:  # whose sites measure the same models again only together
                again = closed and number == done + 1
                others = again and self.secure.measured != sorted(self._present(grid))
                due = due and not self._is_lost and not others
            next_row = self._train(grid, journal, number, due)
            if next_row is None:
                break
            if due and not self._is_lost:
                self._measure(row)
            if number > 0:
                journal.append(row.columns, row.client_rows(), row.evidence)
            row = next_row
            self._checkpoint(journal, row, closed=False)
            if number > 0:
                told: Columns = {}
                if not is_simulation(grid):
                    told = {"sites": row.statuses(), "left_out": len(self.roster.left_out)}
                self.tell("round", rounds=self.settings.rounds, **row.columns, **told)
            if self.settings.patience and self.early.over:
                self.tell("note", message=self.early.sentence)
                break
        self._close(grid, row.columns["round"] + 1)
        self._measure(row)
        journal.append(row.columns, row.client_rows(), row.evidence)
        self._checkpoint(journal, row, closed=True)

    def _is_due(self, number: int) -> bool:
        """Whether the models after so many rounds are measured; round 1 always is, where most is learned."""
        return number == 1 or (number >= 0 and number % self.settings.eval_every == 0)

    @property
    def _is_lost(self) -> bool:
        """Whether the latest exchange has a secure sum that nobody can open."""
        return bool(self.secure and self.secure.lost)

    # ------------------------------------------------------------------ one exchange

    def _train(self, grid: Grid, journal: Journal, number: int, due: bool) -> Row | None:
        """Exchange t, repeated while too few replies can be used; what is known of row t already.

        None where every site that was asked refuses to train: the run is over.
        """
        self.at = number
        for attempt in range(ATTEMPTS):
            if set(grid.get_node_ids()) != self.roster.known:  # somebody has come or gone
                self.roster.refresh(self._quorum())
            online, upload = self._present(grid), self.method.traits.uploads
            sampled = self._sample(online, number, attempt)
            self._compose(grid, number, tasks_of(sampled, online, upload, due, self.settings.train_all))
            came = self._receive(grid, number, sampled)
            saved = f"all rounds up to {number - 1} are saved" if number > 1 else "no round is saved yet"
            if alike := self.exchange.common_error(len(self.roster.online)):
                asked = len(self.exchange.messages)
                who = f"all {asked} clients" if asked > 1 else "the only client"
                raise StrategyError(f"Round {number}: {who} failed alike: {alike.rstrip('.')}; {saved}.")
            failures = self.exchange.replies.failures
            for sentence in dropped(failures) if failures else ():
                self.tell("warning", message=sentence)
            if self.refusals and self._too_few_train(online, sampled):
                site, reason = next(iter(self.refusals.items()))
                who = "Fewer than three sites train" if self.secure else "No site trains"
                self.tell("note", message=f"{who} any further. Site {site}: {reason}.")
                return None
            if attempt == ATTEMPTS - 1 and self.method.traits.every_site:
                self._excuse(number, came)
            if len(came.uploads) >= self._quorum() and not self._missing(came):
                self._step(number, came)
                for name, document in came.documents.items():
                    journal.keep(name, document)
                return self._row(number, sampled, came)
            if self.secure and self.secure.lost:
                if self.secure.lost_in_row < ATTEMPTS:
                    self.tell("warning", message=f"Round {number} is given up: {self.secure.lost}.")
                    return self._row(number, sampled, came)
                raise StrategyError(
                    f"Round {number}: {self.secure.lost}, {ATTEMPTS} rounds in a row; {saved}."
                )
            trouble = f"Round {number}: fewer than {self._quorum()} usable replies{self._failures()}"
            self.tell("warning", message=f"{trouble} (attempt {attempt + 1} of {ATTEMPTS}).")
        raise StrategyError(f"{trouble}, {ATTEMPTS} times; {saved}.")

    def _excuse(self, number: int, came: Came) -> None:
        """A method that needs every site goes on without those that failed in all attempts, if most are there.

        They are asked all the same, and count when they answer.
        """
        if not (missing := self._missing(came)) or len(came.uploads) < self._fewest():
            return
        self.excused |= missing
        names = " and ".join(f"site {site}" for site in sorted(missing))
        self.tell(
            "warning",
            message=f"Round {number}: method={self.settings.method} needs every site, and goes on without {names} "
            f"after {ATTEMPTS} attempts{self._failures()}. From now on no round is repeated for want of "
            f"{'it' if len(missing) == 1 else 'them'}.",
        )

    def _missing(self, came: Came) -> set[str]:
        """The sites without whose upload the method cannot go on."""
        needed = set(self.roster.sites) - self.excused if self.method.traits.every_site else set()
        return needed - {upload.site for upload in came.uploads}

    def _close(self, grid: Grid, number: int) -> None:
        """Every site that can be reached measures its models, and keeps what it makes of those it received."""
        self.roster.refresh()
        tasks = tasks_of([], self._present(grid), upload=False, evaluate=True, train_all=False)
        self._compose(grid, number, tasks, closing=True)
        self._receive(grid, number, [])

    def _present(self, grid: Grid) -> list[str]:
        """The sites that can be reached and owe no answer."""
        if self.late.waiting:
            self.late.hear(grid)
        away = {*self.late.waiting, *(self.secure.distrusted if self.secure else ())}
        return [site for site in self.roster.online if site not in away] if away else self.roster.online

    def _too_few_train(self, online: Sequence[str], sampled: Sequence[str]) -> bool:
        """Whether the run is over, since sites refuse to train: all that were asked, or too many for a secure sum."""
        if self.secure:
            return len(set(online) - self.unwilling) < HIDDEN_AMONG
        return bool(sampled) and all(site in self.refusals for site in sampled)

    def _sample(self, online: Sequence[str], number: int, attempt: int) -> list[str]:
        """S of the sites that are there; all of them before round 1, or where a method needs them."""
        online = [site for site in online if site not in self.unwilling] if self.unwilling else online
        everybody = number < 1 or self.method.traits.every_site
        share = 0 if everybody else self.settings.clients_per_round
        draw = self.private.sample if self.private else sample
        return draw(online, share, self.settings.seed, "sample", number, attempt)

    def _compose(self, grid: Grid, number: int, tasks: Mapping[str, Task], closing: bool = False) -> None:
        timeout, method, state = patience(grid, self.settings.round_timeout), self.method, self.state
        said: dict[str, str | int | bool] = {**self.identity, ROUND: number, CLOSING: closing}

        def encode(name: str, tensor: Tensor) -> ArrayRecord:
            return self.codec.send(tensor, name in method.plain or name.endswith(STATISTICS))

        messages = compose(
            lambda site: sent_to(method, state, site), encode, tasks, said, self.roster.sites, timeout
        )
        if self.secure:
            self.secure.prepare(messages, tasks, self.roster.sites, state, said)
        cutoff = self.settings.straggler_cutoff
        needed = self.method.traits.every_site and not self.excused
        if number < 1 or needed or is_simulation(grid):
            cutoff = 0.0  # nobody can be done without, or nobody is late
        enough = max(self._quorum(), len(messages) // 2 + 1)
        self.exchange = Exchange(messages, timeout, cutoff=cutoff, enough=enough)

    def _receive(self, grid: Grid, number: int, sampled: Sequence[str]) -> Came:
        """Take the uploads in as they arrive; who failed, and what sites note, is known at the end."""
        sites, wanted, weights = self.roster.sites, set(sampled), self.roster.weights
        intake = Intake(self.method, self.state, self.codec, self.stages, number, len(sampled), sites)
        unusable: dict[str, str] = {}
        for site, reply in self.exchange.read(self.exchange.conduct(grid)):
            try:
                if self.secure:
                    self.secure.take(site, reply)
                elif site in wanted:
                    intake.take(site, weights[site], reply)
            except Exception as error:  # its measures, checked on their own, may still be good
                unusable[site] = str(error) if isinstance(error, BadReply) else unforeseen(error)
            reply.arrays.clear()  # what remains is small
        if self.exchange.unanswered:
            self.late.note(self.exchange.unanswered, self.exchange.started + self.exchange.timeout)
        came = intake.close()
        if self.secure:
            unusable |= self.secure.finish(grid, self.exchange, came, self._quorum(), sites)
            for words in self.secure.remarks:
                self.tell("warning", message=words)
        failures = self._absent(number, sampled) | self.exchange.replies.failures | unusable
        self.exchange.replies.failures = dict(sorted(failures.items()))
        content = self.exchange.replies.content
        self.refusals = {site: reply.refusal for site, reply in content.items() if reply.refusal}
        self.unwilling |= self.refusals.keys() if self.secure else set()
        for site, reply in content.items():
            for note in reply.notes:
                self.tell("warning", message=f"Site {site}: {note}.")
        return came

    def _absent(self, number: int, sampled: Sequence[str]) -> dict[str, str]:
        """Sites that were asked nothing and should have been: they owe an answer, or cannot be reached."""
        if number < 1 or self.settings.clients_per_round:
            return {}  # nobody knows whether they would have been sampled
        reasons = self.late.reasons() if self.late.waiting else {}
        reasons |= self.secure.distrusted if self.secure else {}
        asked = self.exchange.messages.keys()
        away = {site: "it cannot be reached" for site in self.roster.sites if site not in self.roster.online}
        return {site: reason for site, reason in (reasons | away).items() if site not in asked}

    def _step(self, number: int, came: Came) -> None:
        after = self.method.step(self.state, self._seen(number, came))
        if not all(is_finite(tensor) for tensor in (*after.sent.values(), *after.kept.values())):
            beta = getattr(self.method.options, "beta", None)
            raise StrategyError(
                f"Round {number}: the server's step left the finite numbers (beta={beta}); everything before it is "
                "saved."
            )
        averages = {into: total.result() for into, total in came.statistics.items()}
        statistics = {**self.state.statistics, **after.statistics, **averages}
        self.state = replace(
            after, statistics={name: statistics[name] for name in after.sent if name in statistics}
        )
        came.sums.clear()  # as large as all the rest

    def _seen(self, number: int, came: Came) -> Came:
        """What of an exchange its method sees."""
        return came.counting() if self.method.holds(number) else came

    def _told(self, number: int, came: Came) -> tuple[Columns, dict[str, Columns]]:
        """The columns of the method; in a private run ε instead, since they have no noise."""
        if self.private:
            return self.private.columns(), {}
        found, of_sites = self.method.describe(self.state, self._seen(number, came))
        return found, {} if self.secure else of_sites

    def _quorum(self) -> int:
        if self.method.traits.every_site:
            return max(len(self.roster.sites.keys() - self.excused), self._fewest())
        share = self.settings.clients_per_round
        least = min(self.settings.min_clients, share) if share else self.settings.min_clients
        return max(least, self.secure.least) if self.secure else least

    def _fewest(self) -> int:
        """Sites that a method which needs every site can go on with."""
        return max(self.settings.min_clients, len(self.roster.sites) // 2 + 1)

    def _failures(self) -> str:
        reasons = [f"site {site}: {reason}" for site, reason in self.exchange.replies.failures.items()]
        return f" ({'; '.join(reasons[:3])})" if reasons else ""

    # ------------------------------------------------------------------ what is written down

    def _row(self, number: int, sampled: Sequence[str], came: Came) -> Row:
        """Row t as far as exchange t tells it."""
        current, failures = self.exchange, self.exchange.replies.failures
        clients: dict[str, Columns] = {
            site: {"status": f"failed: {failures[site]}" if site in failures else "ok"}
            for site in sorted({*current.messages, *failures})
            if site in failures or site in sampled
        }
        for upload in came.uploads:
            if UNCERTAINTY in upload.report:
                clients[upload.site]["uncertainty"] = round(float(upload.report[UNCERTAINTY]), 6)
        for site in came.left_out:
            clients[site]["status"] = "left out"
        spent = [upload.report[EPSILON] for upload in came.uploads if upload.report.get(EPSILON, -1) >= 0]
        own, of_sites = self._told(number, came)
        columns = {
            "round": number,
            "clients_ok": len(came.uploads),
            "clients_failed": len(failures),
            "seconds": round(current.seconds, 3),
            "bytes_up": current.bytes_up,
            "bytes_down": current.bytes_down,
        }
        if self.settings.dp_example_noise and spent:
            columns["epsilon_examples"] = round(max(spent), 6)
        for site, more in of_sites.items():
            clients.setdefault(site, {}).update(more)
        return Row(own | columns, clients)

    def _measure(self, row: Row) -> None:
        """The measures in the latest replies describe the models before that exchange: `row`."""
        replies, number, sites = self.exchange.replies, row.columns["round"], self.roster.sites
        lengths = tally_lengths(next(iter(sites.values())).classes)
        parameters = next(v for name, v in self.state.sent.items() if name != BODY).shape[-1]
        apart, held_apart = self.roster.apart(), self.roster.apart("n_validation")
        if self.secure:  # all sites as one
            apart = held_apart = frozenset()
            replies, sites = self.secure.together(sites)
            parameters *= len(self.secure.measured)
        tested = {name: site.n_test * site.decisions for name, site in sites.items()}
        held = {name: site.n_validation * site.decisions for name, site in sites.items()}
        pooled, each = measure(replies, tested, lengths, held, apart, held_apart)
        for name, columns in each.items():
            if "n_test" in columns:
                columns["n_test"] = columns["n_test"] // sites[name].decisions
        row.evidence = evidence(replies, sites, parameters, lengths, apart)
        if self.secure:
            pooled, each = self.secure.alone(pooled, bool(each))
            row.evidence["sites"] = {}
        row.add_measures(pooled, each)
        self.early.see(number, pooled)
        unknown = self.secure.lost if self.secure and self.secure.lost else "it cannot be reached"
        for site in sorted(set(self.roster.sites) - set(each)):
            reason = self.exchange.replies.failures.get(site, unknown)
            words = as_sentence(f"Site {site} was not measured for row {number}: {reason}")
            self.tell("warning", message=words)
        self.tell("evaluated", round=number, rounds=self.settings.rounds, **pooled)

    def _checkpoint(self, journal: Journal, row: Row, closed: bool) -> None:
        """The state after a round, with what the next one needs to know of it."""
        state = self.state
        tensors = {**state.sent, **{KEPT + name: tensor for name, tensor in state.kept.items()}}
        tensors |= {name + STATISTICS: tensor for name, tensor in state.statistics.items()}
        memory = {
            "round": row.columns["round"],
            "row": row.columns,
            "clients": row.clients,
            "closed": closed,
            "early": self.early.memory() if self.settings.patience else {},
            "method": dict(self.state.facts),
            "stages": {stage.name: stage.memory() for stage in self.stages},
        }
        journal.save_checkpoint(row.columns["round"], tensors, memory)
