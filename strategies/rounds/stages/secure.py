"""Secure sums at the server (`secure-sum`): it adds up what is masked, and takes the masks off the sum alone.

The seam that no other stage uses: `prepare` tells every site of an exchange who else takes part, `take` adds up what
arrives, and `finish`, when all replies are in, asks those who are left for what takes the masks off (`query.unmask`).
Where somebody is missing, first for the masks that the others have in common with it: all of them must answer, and
nothing is revealed yet, so an exchange that fails here can be repeated. Then for shares of the masks of those who are
left, of which two thirds do. What comes out are sums of uploads and of measures, and nothing of a single site.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from bayes_core import masks, shares
from bayes_core.server.aggregate import Mean
from fedbayes.protocol import messages as key
from fedbayes.protocol import secure as agreed
from fedbayes.protocol.codec import record_of
from fedbayes.protocol.npy import numbers_of
from fedbayes.protocol.secure import Cohort, reach_of
from fedbayes.protocol.settings import Settings, SettingsError
from strategies.rounds.exchange import GRACE, Exchange, Replies, Task, patience
from strategies.rounds.masked import MaskedSums
from strategies.rounds.measures import Columns
from strategies.rounds.replies import BadReply, Reply
from strategies.rounds.roster import Site, StrategyError
from strategies.rounds.stages import Arrival
from strategies.rounds.stages.private import Private, PrivateMean
from strategies.rounds.state import Came, Part, State, Upload

if TYPE_CHECKING:
    from strategies.rounds.method import ServerMethod

ALL = "all"  # the name under which sites are measured together
Failures = dict[str, str]


class Secure:
    """One exchange after the other, of which only sums are known."""

    name = "secure"
    left_out = ()

    def __init__(self, settings: Settings, method: "ServerMethod") -> None:
        self.settings, self.method = settings, method
        self.private: Private | None = None  # the stage that accounts for the noise of the sites
        self.by_examples = getattr(method.options, "weighting", "") == "examples"
        self.sums = MaskedSums(Cohort(0, (), (), (), frozenset(), frozenset()), 0)
        self.said: dict[str, Any] = {}
        self.parts: dict[str, Part] = {}
        self.measured: list[str] = []  # those whose measures are in the sum that was opened
        self.means: Columns = {}
        self.spent: dict[str, dict[str, Any]] = {}  # by site: what it says openly of its own budget
        self.lost = ""  # why the latest sum cannot be opened any more, nor asked for again
        self.lost_in_row = 0
        self.distrusted: dict[str, str] = {}  # by site, why it takes no further part
        self.remarks: list[str] = []  # of the latest exchange, on sites that are in its sum

    @property
    def least(self) -> int:
        """Uploads without which there is no sum."""
        return masks.threshold(len(self.sums.cohort.upload))

    # what every stage is asked; uploads do not come past here
    def open(self, number: int, expected: int) -> None: ...

    def arrive(self, arrival: Arrival) -> list[Arrival]:
        return [arrival]

    def close(self, used: int) -> list[Arrival]:
        return []

    def memory(self) -> dict[str, Any]:
        return {"measured": self.measured}

    def remember(self, memory: Any) -> None:
        self.measured = list(map(str, (memory or {}).get("measured", [])))

    # ------------------------------------------------------------------ one exchange

    def require(self, state: State) -> None:
        """Of the run that begins: everything that leaves a site can be summed."""
        if state.statistics:
            raise StrategyError(
                "secure-sum: the statistics of this network's batch norm would leave sites unmasked; take "
                "buffers=local."
            )
        for name, part in self.method.expects(state, "", {}).items():
            if part.base is None or part.into != name:
                raise StrategyError(
                    f'secure-sum adds up changes of what is sent, and the upload "{name}" of method='
                    f"{self.settings.method} is none; take another method."
                )

    def prepare(
        self,
        messages: Mapping[str, Message],
        tasks: Mapping[str, Task],
        sites: Mapping[str, Site],
        state: State,
        said: Mapping[str, Any],
    ) -> None:
        """Tell every site of an exchange who takes part in its sums."""
        upload, measures = (
            frozenset(site for site, task in tasks.items() if task[what])
            for what in (key.UPLOAD, key.EVALUATE)
        )
        names = tuple(sorted(upload | measures))
        keys, proofs = (tuple(getattr(sites[name], of) for name in names) for of in ("key", "proof"))
        largest = max((sites[name].n_train for name in upload), default=0) if self.by_examples else 0
        cohort = Cohort(self.sums.cohort.attempt + 1, names, keys, proofs, upload, measures, largest)
        self.said = {word: said[word] for word in (key.UUID, key.ROUND, key.SETTINGS)}
        self.parts = dict(sorted(self.method.expects(state, "", {}).items()))
        self.sums = MaskedSums(cohort, sum(_base(part).numel() for part in self.parts.values()))
        self.measured, self.spent, self.lost, self.remarks = [], {}, "", []
        for message in messages.values():
            message.content[key.SECURE] = ConfigRecord(cohort.said())

    def take(self, site: str, reply: Reply) -> None:
        """Add what a site has masked, or BadReply. One that trains for itself has nothing to add."""
        if not self.sums.cohort.parts_of(site):
            return
        if key.MASKED not in reply.arrays:
            raise BadReply(reply.refusal or "nothing masked")
        self.sums.take(site, reply.arrays[key.MASKED])
        self.spent[site] = {name: value for name, value in reply.report.items() if name == key.EPSILON}

    def finish(
        self, grid: Grid, main: Exchange[Reply], came: Came, quorum: int, sites: Mapping[str, Site]
    ) -> Failures:
        """Open the sums into `came`; where that cannot be, `came` has no uploads. Who is not in them, and why."""
        odd, cohort, left = self.sums.settle(), self.sums.cohort, self.sums.left
        uploaded = [site for site in left if site in cohort.upload]
        if not left or cohort.too_few(left) or (cohort.upload and len(uploaded) < quorum):
            return odd
        if gone := [name for name in cohort.names if name not in left]:
            pairs = self._ask(grid, main, sites, agreed.PAIRS, (len(gone), masks.SEED))
            if pairs.failures:
                return odd | _unanswered(pairs.failures)
            self.sums.without(gone, pairs.content)
        told = self._ask(grid, main, sites, agreed.SHARES, (len(left), shares.SIZE))
        if len(told.content) < cohort.least:
            return odd | _unanswered(told.failures)
        if closed := self._opened(told.content):
            return odd | closed
        self.measured = sorted(cohort.measures & set(left))
        if uploaded:
            self._hand_over(came, uploaded, sites)
        return odd

    def _opened(self, told: Mapping[str, masks.Vector]) -> Failures:
        """Take the last masks off; where that cannot be, whose do not open.

        Sites sum a round once, so it is lost then. A site whose mask does not open while others' do is left out from
        here on: it has dealt false shares, or more than a third of the others have told such of it.
        """
        opened, left = self.sums.open(told), self.sums.left
        for liar, whose in opened.liars.items():
            names = ", ".join(whose[:3]) + (f" and {len(whose) - 3} more" if len(whose) > 3 else "")
            doubt = f"; or site {names} has dealt it" if len(whose) == 1 else ""
            self.remarks.append(f"Site {liar} told a false share of the mask of {names}{doubt}.")
        self.lost_in_row = self.lost_in_row + 1 if opened.closed else 0
        if not opened.closed:
            return {}
        if self.private and self.sums.cohort.upload:
            self.private.release()  # whoever has the missing mask could open the sum
        words = "the shares of its mask do not fit together"
        if len(opened.closed) < len(left):
            self.lost = f"the mask of site {', '.join(opened.closed)} does not open"
            self.distrusted |= dict.fromkeys(opened.closed, words)
        else:
            self.lost = "more sites told false shares than a sum can do without"
        return dict.fromkeys(opened.closed, words)

    def _ask(
        self, grid: Grid, main: Exchange[Reply], sites: Mapping[str, Site], what: str, shape: tuple[int, int]
    ) -> Replies[masks.Vector]:
        """Everybody who is left, for pairs' masks or for shares; its bytes count with the exchange's."""
        limit = patience(grid, min(self.settings.round_timeout, self.settings.wait_timeout))
        said = {**self.said, "attempt": self.sums.cohort.attempt, "survivors": self.sums.left}
        questions = {}
        for site in self.sums.left:
            content = RecordDict({key.UNMASK: ConfigRecord({**said, "reveal": what == agreed.SHARES})})
            if what == agreed.SHARES:
                content[key.MASKED] = record_of({agreed.SHARES: self.sums.sealed_for(site)})
            questions[site] = Message(content, sites[site].node, "query.unmask", ttl=limit + GRACE)
        small = Exchange(questions, limit, _reader(what, shape))
        for _ in small.read(small.conduct(grid)):
            pass
        main.bytes_up += small.bytes_up
        main.bytes_down += small.bytes_down
        return small.replies

    def _hand_over(self, came: Came, uploaded: Sequence[str], sites: Mapping[str, Site]) -> None:
        """The sums as a method finds them: means of the uploads, and of what clients report."""
        told = self.sums.figures(agreed.REPORT).get(key.REPORT, {})
        report = {name: total / len(uploaded) for name, total in told.items()}
        came.uploads = [Upload(site, sites[site].n_train, report | self.spent[site]) for site in uploaded]
        cohort = self.sums.cohort
        asked, weight = len(cohort.upload), sum(cohort.weight(sites[site].n_train) for site in uploaded)
        steps = self.sums.totals.pop(agreed.UPLOAD)
        total = torch.from_numpy(masks.from_narrow(steps, asked, reach_of(self.settings, asked)))
        sizes = [_base(part).numel() for part in self.parts.values()]
        for part, change in zip(self.parts.values(), torch.split(total, sizes), strict=True):
            base = _base(part)
            moved = change.view(base.shape)
            noised = self.private and NoisedMean(base, moved, self.private)
            came.sums[part.into] = noised or SecureMean(base, moved, weight)

    # ------------------------------------------------------------------ measures

    def together(self, sites: Mapping[str, Site]) -> tuple[Replies[Reply], dict[str, Site]]:
        """The latest measures, as of one site that has everybody's examples."""
        self.means, found = {}, [sites[name] for name in self.measured]
        if not found:
            return Replies(), {}
        told = self.sums.figures(agreed.MEASURES)
        tested = max(sum(site.n_test * site.decisions for site in found), 1)
        with_tests = max(sum(site.n_test > 0 for site in found), 1)
        for name, total in told.pop(agreed.EACH_SITE, {}).items():
            self.means[name.replace("_", "_sites_", 1)] = round(total / with_tests, 6)
        for name, metric in agreed.NUMBERS.items():
            of = tested if metric.pooled else len(found)
            if name in told:
                told[name] = {model: total / of for model, total in told[name].items()}
        if "nonzero" in (counts := told.get(key.COUNTS, {})):
            counts["nonzero"] = [total / len(found) for total in counts["nonzero"]]
        tests, held = sum(site.n_test for site in found), sum(site.n_validation for site in found)
        one = replace(found[0], name=ALL, labels=None, group=None, n_test=tests, n_validation=held)
        return Replies({ALL: Reply(measures=told)}), {ALL: one}

    def alone(self, pooled: Columns, usable: bool) -> tuple[Columns, dict[str, Columns]]:
        """The figures of all sites with means in which each counts once; of single sites only that they measured."""
        return (pooled | self.means, {site: {} for site in self.measured}) if usable else ({}, {})


class SecureMean:
    """base + Σ changes / Σ weights: an `Aggregate` that was made at once."""

    def __init__(self, base: Tensor, change: Tensor, weight: float) -> None:
        self.base, self.change, self.weight = base, change, weight

    def add(self, upload: Tensor, weight: float = 1.0) -> None:
        raise AssertionError("A secure sum takes no single upload.")

    def result(self) -> Tensor:
        return (self.base.double() + self.change / self.weight).to(self.base.dtype)


class NoisedMean(PrivateMean):
    """base + Σ changes / S, with the noise that sites have added."""

    def __init__(self, base: Tensor, change: Tensor, stage: Private) -> None:
        super().__init__(base, stage)
        self.change = change

    def result(self) -> Tensor:
        if self.drawn is None:
            self.stage.release()
            moved = self.base.double() + self.change / self.stage.planned
            self.drawn = self.within(moved.to(self.base.dtype))
        return self.drawn


def _base(part: Part) -> Tensor:
    assert part.base is not None  # `require` has seen to it
    return part.base


def _reader(name: str, shape: tuple[int, int]) -> Callable[[RecordDict], masks.Vector]:
    def read(content: RecordDict) -> masks.Vector:
        record = content.array_records.get(key.MASKED, ArrayRecord())
        found = numbers_of(record[name]) if name in record else None
        if found is None or found.shape != shape or found.dtype.name != "uint8":
            raise BadReply("an unreadable answer to unmask")
        return found.copy()

    return read


def _unanswered(failures: Mapping[str, str]) -> Failures:
    return {site: f"it did not help to unmask the sum: {reason}" for site, reason in failures.items()}


def stage(settings: Settings, method: "ServerMethod") -> Secure:
    if words := impossible(settings, method):
        raise SettingsError(f"secure-sum=true: {words}")
    return Secure(settings, method)


def impossible(settings: Settings, method: "ServerMethod") -> str | None:
    """Why such a run cannot have secure sums, or None."""
    name, share = f"method={settings.method}", settings.clients_per_round
    if not method.traits.uploads:
        return f"with {name} nothing leaves a client that could be summed; leave it out."
    if method.traits.single_uploads or method.openings or method.traits.clusters:
        return f"{name} needs single uploads, not only their sum; take another method."
    if settings.wire != "float32":
        return f"masked numbers take 32 bits; leave wire={settings.wire} out."
    if settings.aggregation_confidence != "off":
        return "what a client says of its certainty is not seen; leave aggregation-confidence out."
    if method.aggregate_by is not Mean:
        return f"only aggregation=mean is a sum, not {getattr(method.options, 'aggregation', 'another')}."
    if 0 < share < masks.FEWEST:
        return f"a sum of {share} uploads hides none; clients-per-round takes at least {masks.FEWEST}, or 0 for all."
    return None
