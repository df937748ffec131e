"""Who takes part: the hello exchange, at the start and again for each node that appears later.

The server knows a client by its site id, its sizes and the shape of its model: what hello tells it. It never
sees data, nor a path.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedbayes.protocol import messages as key
from fedbayes.protocol.agreement import Agreement, Claim
from fedbayes.protocol.settings import NAME, Settings
from strategies.rounds.doubts import doubts
from strategies.rounds.exchange import GRACE, Exchange, Nearby, held, is_simulation, patience
from strategies.rounds.late import Late
from strategies.rounds.majority import majority_of, majority_of_claims
from strategies.rounds.replies import BadReply, Hello, read_claim, read_hello, shown

SETTLE = 1.0  # seconds without a new node after which the federation is taken as complete
POLL = 0.2
SOONEST_CUT = (
    120.0  # seconds that everybody has for hello, in which data are read; afterwards straggler-cutoff holds
)
UNLIKELY = 100  # times as many examples as the others have
LONGEST = 500  # characters of a site's own words
HIDDEN_AMONG = 3  # sites of a secure sum, at least
TOLD = 10  # troubles of sites in one message


class StrategyError(Exception):
    """A run that cannot start or go on; its text is one sentence for the user."""


@dataclass(frozen=True)
class Site:
    """One client, as its hello describes it."""

    name: str
    node: int
    n_train: int
    n_test: int
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    claim: Claim
    fingerprint: str  # of the model's parameters: names, shapes, what is frozen
    group: int | None  # its true group, where the data layout has groups
    partitions: int  # into how many shares a simulation cuts its data
    labels: tuple[int, ...] | None  # training examples of each class, where the site tells
    n_validation: int = 0  # examples held out of its training data
    data_changed: bool = False  # its owner knows that a run goes on with other data
    installed: str = ""  # the version of fedbayes there
    key: str = ""  # of secure sums, and what shows that it is the site's
    proof: str = ""

    @property
    def decisions(self) -> int:
        """What a model says of one example: one thing, or of several labels each."""
        return len(self.classes) if self.claim.many else 1


class Roster:
    """The sites of a run; `online` is the part of them that can be reached now."""

    def __init__(
        self, grid: Grid, settings: Settings, tell: Callable[..., None], agreement: Agreement | None = None
    ) -> None:
        self.agreement = agreement  # of an earlier attempt at this run; else made of the first sites' claims
        self._grid = grid
        self._settings = settings
        self._tell = tell
        self._asked: set[int] = set()
        self._late = Late()  # nodes that were silent; they are greeted again when they answer
        self._error = ""
        self._all_or_none = settings.resume and is_simulation(grid)  # then no client is left out
        self.sites: dict[str, Site] = {}
        self.joined: Callable[[Site], None] = lambda site: (
            None
        )  # hears of those who come while a run is under way
        self.online: list[str] = []
        self.known: set[int] = (
            set()
        )  # the nodes that were there at the last refresh, where all of them are settled

    def gather(self) -> None:
        """Wait, bounded, until enough nodes are there, and greet them all."""
        need, limit = self._settings.min_clients, self._settings.wait_timeout
        start = changed = time.monotonic()
        seen: set[int] = set()
        while True:
            nodes = set(self._grid.get_node_ids())
            now = time.monotonic()
            if nodes != seen:
                seen, changed = nodes, now
            settled = now - changed >= SETTLE or isinstance(self._grid, Nearby)
            if len(nodes) >= need and (settled or (now - start > limit and not is_simulation(self._grid))):
                break
            if now - start > limit and len(nodes) < need:
                raise StrategyError(
                    f"Only {len(nodes)} of at least {need} clients connected within {limit:g} s."
                )
            time.sleep(POLL)
        self.refresh()
        if self._error and self._all_or_none:
            raise StrategyError(f"{self._error[0].upper()}{self._error[1:]}")
        if len(self.sites) < need:
            why = self._error or "no usable answer to hello"
            raise StrategyError(f"Only {len(self.sites)} of at least {need} clients can take part: {why}")
        share = self._settings.clients_per_round
        if share > len(self.sites):
            raise StrategyError(
                f"clients-per-round is {share}, but only {len(self.sites)} clients take part."
            )
        if self._settings.secure_sum and len(self.sites) < HIDDEN_AMONG:
            raise StrategyError(
                f"secure-sum=true hides a site among others and takes at least {HIDDEN_AMONG}, but only "
                f"{len(self.sites)} take part."
            )
        self._doubt()

    def _doubt(self) -> None:
        """Name a site that says it has far more test examples than the others: pooled figures are then its own."""
        for site in self.sites.values():
            others = [other.n_test for other in self.sites.values() if other is not site]
            if others and site.n_test > UNLIKELY * max(median(others), 1):
                self._tell(
                    "warning",
                    message=f"Site {site.name} says that it has {site.n_test} test examples, the others about "
                    f"{median(others):g}: the pooled figures are mostly its own. The columns pm_sites_accuracy and "
                    "the like count each site once.",
                )

    def refresh(self) -> None:
        """Greet the nodes that are new, and note which sites can be reached now."""
        nodes = set(self._grid.get_node_ids())
        self._asked -= set(map(int, self._late.hear(self._grid)))
        new = sorted(nodes - self._asked)
        if new:
            self._greet(new, nodes)
        self.online = sorted(name for name, site in self.sites.items() if site.node in nodes)
        self.known = nodes if nodes <= self._asked and not self._late.waiting else set()

    def _greet(self, new: list[int], nodes: set[int]) -> None:
        started = bool(self.sites)
        sites = self._hello(new, self._settings.wait_timeout if started else self._settings.round_timeout)
        if self.agreement is None and sites:
            sites = self._agree(sites)
        if not started:
            sites = self._alike(sites)
        for site in sites:
            problem = self._conflict(site, nodes)
            if problem and not started:
                raise StrategyError(problem)
            if problem:
                self._asked.discard(site.node)  # its twin may only be a node that is about to be given up
                self._leave_out(problem)
            else:
                self.sites[site.name] = site
                if started:
                    self.joined(site)

    def _hello(self, nodes: list[int], seconds: float) -> list[Site]:
        """The sites that answer usably, in the order of their nodes; the others are left out."""
        limit = patience(self._grid, self._settings.round_timeout)
        said = {key.VERSION: 1, key.SETTINGS: json.dumps(self._settings.as_config())}
        if self.agreement is not None:
            said[key.AGREED] = self.agreement.write()
        messages = {
            str(node): Message(
                RecordDict({key.HELLO: ConfigRecord(said)}), node, "query.hello",  # type: ignore[arg-type]
                ttl=limit + GRACE,
            )
            for node in nodes
        }  # fmt: skip
        cutoff = 0.0 if is_simulation(self._grid) else self._settings.straggler_cutoff
        enough = max(self._settings.min_clients, len(nodes) // 2 + 1)
        one = Exchange(
            messages, min(patience(self._grid, seconds), limit), _said, cutoff, enough, SOONEST_CUT
        )
        replies = held(one, self._grid).replies
        self._late.note(one.unanswered, one.started + limit)
        registered = {node.node_id: node.name for node in self._grid.get_nodes() if node.name}
        self._asked |= set(nodes)  # asked once: a node that is dead must not hold up every round
        for node, reason in replies.failures.items():
            self._leave_out(f"node {node} did not answer hello: {reason}")
        sites = []
        for node, said in sorted(replies.content.items()):
            try:
                sites.append(_site(int(node), said, registered.get(int(node))))
                if self._settings.secure_sum and not sites[-1].key:
                    raise HelloError(f"site {sites.pop().name} tells no key for secure sums")
            except Exception as error:  # it comes from another machine, and is that one's trouble alone
                words = f"{error}" if isinstance(error, HelloError) else f"node {node} said {error!r}"
                self._leave_out(shown(words, LONGEST))
        return sites

    def _agree(self, sites: list[Site]) -> list[Site]:
        """Make one agreement of all claims; those who spoke of other classes are asked again under it."""
        claims = {site.name: site.claim for site in sorted(sites, key=lambda site: site.name)}
        try:
            self.agreement = Agreement.of(claims)
        except Exception as error:  # a Disagreement names two sites; claims come from other machines
            most = majority_of_claims(claims, self._settings.min_clients)
            if not most:
                raise StrategyError(shown(error, LONGEST)) from None
            claims = {name: claims[name] for name in sorted(most)}
            try:
                self.agreement = Agreement.of(claims)
            except Exception as further:  # each fits to each, and yet not all of them
                raise StrategyError(shown(further, LONGEST)) from None
            self._leave_out_of_majority([site.name for site in sites if site.name not in claims], str(error))
            sites = [site for site in sites if site.name in claims]
        for site in sites:
            others = {name for other in sites if other is not site for name in other.classes}
            if others and others.isdisjoint(site.classes):
                self._tell(
                    "warning",
                    message=f'Site "{site.name}" shares no class with the others; it has '
                    f"{shown(', '.join(site.classes[:12]))}. If these are the same things under other names, "
                    "the setting classes declares the names.",
                )
        for doubt in doubts(claims):
            self._tell("warning", message=shown(doubt, LONGEST))
        prepared = self.agreement.preparation is not None  # alone, a site knows only its own categories
        again = [site.node for site in sites if prepared or site.classes != self.agreement.classes]
        kept = [site for site in sites if site.node not in again]
        answered = self._hello(again, self._settings.round_timeout) if again else []
        return sorted(kept + answered, key=lambda site: site.node)

    def _alike(self, sites: list[Site]) -> list[Site]:
        """Those who have the model and classes of most sites, where most of them have one; else everybody."""
        kinds = {site.name: (site.fingerprint, site.input_shape, tuple(site.classes)) for site in sites}
        kept = majority_of(kinds, self._settings.min_clients)
        first = next((site for site in sites if site.name in kept), None)
        odd = [site for site in sites if first and site.name not in kept]
        for site in odd:
            assert first is not None
            same = (site.fingerprint, site.input_shape) == (first.fingerprint, first.input_shape)
            why = _other_classes(site) if same else _different_models(first, site)
            self._leave_out_of_majority([site.name], why)
        return [site for site in sites if site not in odd]

    def _leave_out_of_majority(self, names: list[str], why: str) -> None:
        self._leave_out(
            f"{' and '.join(f'site {name}' for name in names)}, since most sites agree without: {shown(why, LONGEST)}"
        )

    def _leave_out(self, reason: str) -> None:
        if self._error.count("\n") < TOLD and reason.partition(": ")[2] not in self._error:
            # every site's trouble, but each only once
            self._error = f"{self._error}\n{reason}".lstrip("\n")
        if not self._all_or_none:
            self._tell("warning", message=f"Left out: {reason}")

    def _conflict(self, site: Site, nodes: set[int]) -> str | None:
        twin = self.sites.get(site.name)
        if twin and twin.node in nodes:
            return f'Two nodes ({twin.node} and {site.node}) call themselves site "{site.name}".'
        assert self.agreement is not None
        if site.classes != self.agreement.classes:
            return _other_classes(site)
        for other in self.sites.values():
            if (other.fingerprint, other.input_shape) != (site.fingerprint, site.input_shape):
                return _different_models(other, site)
        return None


def _other_classes(site: Site) -> str:
    return f'Site "{site.name}" has other classes than all sites have agreed on.'


def _different_models(one: Site, other: Site) -> str:
    return (
        f'Sites "{one.name}" and "{other.name}" have different models: '
        f"{one.fingerprint} for inputs {one.input_shape} and "
        f"{other.fingerprint} for inputs {other.input_shape}."
    )


class HelloError(ValueError):
    """A site's own words on why it cannot take part."""


def _said(content: RecordDict) -> dict[str, Any]:
    return dict(content.config_records[key.HELLO])


def _site(node: int, said: dict[str, Any], registered: str | None) -> Site:
    """A site must call itself by the name that its key is registered for, where it is."""
    name = shown(said.get(key.SITE), 100)
    if name != said.get(key.SITE) or not NAME.fullmatch(name) or name in (".", ".."):
        raise HelloError(f"node {node} has the impossible site id {name[:40]!r}")
    if registered not in (None, name):
        raise HelloError(f'the key of site "{registered}" was used by a node that calls itself "{name}"')
    if error := said.get(key.ERROR):
        raise HelloError(f"site {name}: {shown(error, LONGEST)}")
    try:
        hello = read_hello(said)
        claim = read_claim(hello)
    except BadReply as error:
        raise HelloError(f"site {name} {error}") from None
    if hello.n_train < 1:
        raise HelloError(f"site {name} has no training data")
    return Site(
        name=name,
        node=node,
        n_train=hello.n_train,
        n_test=hello.n_test,
        input_shape=tuple(hello.input_shape),
        classes=tuple(hello.classes),
        claim=claim,
        fingerprint=hello.fingerprint,
        group=hello.group if hello.group >= 0 else None,
        partitions=hello.partitions,
        labels=_labels(hello),
        n_validation=hello.n_validation,
        data_changed=hello.data_changed,
        installed=hello.installed,
        key=hello.key,
        proof=hello.proof,
    )


def _labels(hello: Hello) -> tuple[int, ...] | None:
    """Counts that fit what else the site says; nonsense is left out."""
    fits = len(hello.labels) == len(hello.classes) and sum(hello.labels) == hello.n_train
    return tuple(hello.labels) if fits and min(hello.labels, default=-1) >= 0 else None
