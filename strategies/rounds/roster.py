"""Who takes part: the hello exchange, at the start and again for each node that appears later.

The server knows a client by its site id, its sizes and the shape of its model: what hello tells it. It never
sees data, nor a path.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedbayes.protocol import messages as key
from fedbayes.protocol.agreement import Agreement, Claim
from fedbayes.protocol.plausible import IMPLAUSIBLE, UNLIKELY, beyond, counted
from fedbayes.protocol.settings import NAME, Settings
from strategies.rounds.doubts import doubts
from strategies.rounds.exchange import GRACE, Exchange, Nearby, held, is_simulation, now, patience, pause
from strategies.rounds.greetings import Greetings
from strategies.rounds.majority import majority_of, majority_of_claims
from strategies.rounds.replies import BadReply, Hello, read_claim, read_hello, shown

SETTLE = 1.0  # seconds without a new node after which the federation is taken as complete
POLL = 0.2
SOONEST_CUT = (
    120.0  # seconds that everybody has for hello, in which data are read; afterwards straggler-cutoff holds
)
# What a site can claim too much of: in words, what then follows, and what where it is not plausible.
ONCE = "The columns pm_sites_accuracy and the like count each site once."
APART = "that is not plausible, and the pooled figures are without it."
CLAIMS = {
    "n_test": ("test examples", f"the pooled figures are mostly its own. {ONCE}", f"{APART} {ONCE}"),
    "n_validation": ("validation examples", "the pooled figures of them are mostly its own.", APART),
    "n_train": (
        "training examples",
        "where uploads count by their examples (weighting=examples), they are mostly its own.",
        "that is not plausible; where uploads count by their examples, its own count as the others' do.",
    ),
}
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
    registered: bool = False  # its name is that of the key by which it is connected

    @property
    def sizes(self) -> dict[str, int]:
        held = {"n_validation": self.n_validation} if self.n_validation else {}
        return {"n_train": self.n_train, "n_test": self.n_test, **held}

    @property
    def decisions(self) -> int:
        """What a model says of one example: one thing, or of several labels each."""
        return len(self.classes) if self.claim.many else 1


class Roster:
    """The sites of a run; `online` is the part of them that can be reached now."""

    def __init__(
        self,
        grid: Grid,
        settings: Settings,
        tell: Callable[..., None],
        agreement: Agreement | None = None,
        before: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        self.agreement = agreement  # of an earlier attempt at this run; else made of the first sites' claims
        self._before = before or {}  # what each site had then
        self._grid = grid
        self._settings = settings
        self._tell = tell
        self._greetings = Greetings(again=not is_simulation(grid))
        self._twins: list[
            Site
        ] = []  # who came under the name of one that is there: it may be about to be given up
        self._error = ""
        self.left_out: dict[int, str] = {}  # nodes that take no part, and why
        self._told: set[str] = set()  # who was left out and why; a node that is asked again says it again
        self._all_or_none = settings.resume and is_simulation(grid)  # then no client is left out
        self.sites: dict[str, Site] = {}
        self.joined: Callable[[Site], None] = lambda site: (
            None
        )  # hears of those who come while a run is under way
        self.online: list[str] = []
        self.weights: dict[str, int] = {}  # what each site's training examples weigh
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
            looked = time.monotonic()
            if nodes != seen:
                seen, changed = nodes, looked
            settled = looked - changed >= SETTLE or isinstance(self._grid, Nearby)
            if len(nodes) >= need and (settled or (looked - start > limit and not is_simulation(self._grid))):
                break
            if looked - start > limit and len(nodes) < need:
                raise StrategyError(
                    f"Only {len(nodes)} of at least {need} clients connected within {limit:g} s."
                )
            time.sleep(POLL)
        self.refresh()
        limit += now()
        while len(self.sites) < need and self._greetings.silent and now() < limit:
            pause(POLL)  # a site that was killed while it answered may be back in a moment
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

    def apart(self, of: str = "n_test") -> frozenset[str]:
        """The sites that do not count in pooled figures, since they claim more examples than can be."""
        return frozenset(beyond(self._sizes(of), IMPLAUSIBLE))

    def _sizes(self, of: str) -> dict[str, int]:
        return {name: getattr(site, of) for name, site in self.sites.items()}

    def _doubt(self) -> None:
        """Name, once, each site that says it has far more examples than the others."""
        for of, (what, outcome, apart) in CLAIMS.items():
            sizes = self._sizes(of)
            # In a secure sum nobody can be told from the others, and left out.
            implausible = {} if self._settings.secure_sum else beyond(sizes, IMPLAUSIBLE)
            for name, others in beyond(sizes, UNLIKELY).items():
                if (doubt := f"{name} {of} {name in implausible}") in self._told:
                    continue
                self._told.add(doubt)
                self._tell(
                    "warning",
                    message=f"Site {name} says that it has {sizes[name]} {what}, the others about {others:g}: "
                    f"{apart if name in implausible else outcome}",
                )

    def refresh(self, need: int = 0) -> None:
        """Greet the nodes that are new, and note which sites can be reached now.

        A run under way does not wait for their answers, unless fewer than `need` sites are there without them.
        """
        limit = now() + self._settings.wait_timeout
        while True:
            nodes = set(self._grid.get_node_ids())
            settled = {site.node for site in (*self.sites.values(), *self._twins)}
            due = self._greetings.due(self._grid, nodes, settled)
            if self.sites and not is_simulation(self._grid):
                self._welcome(due, nodes)
            elif due:
                self._greet(due, nodes)
            self.online = sorted(name for name, site in self.sites.items() if site.node in nodes)
            if len(self.online) >= need or not self._greetings.awaited or now() > limit:
                break
            pause(POLL)
        self.weights = counted(self._sizes("n_train"))
        settled = {site.node for site in self.sites.values()}
        self.known = nodes if nodes <= settled or is_simulation(self._grid) else set()

    def _greet(self, new: list[int], nodes: set[int]) -> None:
        """Wait for everybody's answer, and find what most agree on."""
        started = bool(self.sites)
        sites = self._uncontested(self._hello(new))
        if self.agreement is None and sites:
            sites = self._uncontested(self._agree(sites))  # who is asked again may say another name
        for site in self._alike(sites):
            if problem := self._conflict(site, nodes):
                raise StrategyError(problem)
            self._take_in(site)
            if started:  # here the start was incomplete
                self.joined(site)
        settled = {site.node for site in self.sites.values()}
        for node in set(new) - settled - self._greetings.silent:
            self._greetings.failed(node, silent=False)

    def _welcome(self, new: list[int], nodes: set[int]) -> None:
        """A run under way: ask who is new, and take in those who have answered by now."""
        self._greetings.begin(self._grid, lambda node: self._ask([node]), new)
        came = [site for one in self._greetings.answered(self._grid) for site in self._heard(one)]
        came += [site for site in self._twins if site.node in nodes]
        self._twins = []
        for site in came:
            if rivalry := self._rivalry(site, came, nodes):
                self._leave_out(rivalry, site.node)
                self._twins.append(site)
            elif problem := self._conflict(site, nodes) or self._change(site):
                self._leave_out(problem, site.node)
                self._greetings.failed(site.node, silent=False)
            else:
                self._take_in(site)
                self.joined(site)
                self._doubt()

    def _take_in(self, site: Site) -> None:
        self.sites[site.name] = site
        self.left_out.pop(site.node, None)

    def _uncontested(self, sites: list[Site]) -> list[Site]:
        """Without those who call themselves alike, where most names are one site's: nobody knows which of them it is.

        One whose key is registered for the name is known.
        """
        nodes = {site.node for site in sites}
        named: dict[str, list[Site]] = {}
        for site in sites:
            named.setdefault(site.name, []).append(site)
        odd = {one.node: why for one in sites if (why := self._rivalry(one, named[one.name], nodes))}
        rest = [site for site in sites if site.node not in odd]
        if odd and (2 * len(rest) <= len(named) or len(rest) < self._settings.min_clients):
            raise StrategyError(next(iter(odd.values())))
        for site in sites:
            if site.node in odd:
                self._leave_out(odd[site.node], site.node)
                self._twins.append(site)
        return rest

    def _rivalry(self, site: Site, others: Iterable[Site], nodes: set[int]) -> str:
        """A sentence where another one is there that calls itself by this site's name."""
        known = self.sites.get(site.name)
        for other in (*([known] if known else []), *others):
            if other.name == site.name and other.node != site.node and other.node in nodes:
                if site.registered and not other.registered:
                    continue
                one, two = sorted((site.node, other.node))
                return f'Two nodes ({one} and {two}) call themselves site "{site.name}".'
        return ""

    def _hello(self, nodes: list[int]) -> list[Site]:
        """The sites that answer usably, in the order of their nodes; the others are left out."""
        return self._heard(held(self._ask(nodes), self._grid))

    def _ask(self, nodes: list[int]) -> Exchange[dict[str, Any]]:
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
        return Exchange(messages, limit, _said, cutoff, enough, SOONEST_CUT)

    def _heard(self, one: Exchange[dict[str, Any]]) -> list[Site]:
        replies = one.replies
        self._greetings.late(one, one.started + one.timeout)
        registered = {node.node_id: node.name for node in self._grid.get_nodes() if node.name}
        for node, reason in replies.failures.items():
            self._leave_out(f"node {node} did not answer hello: {reason}", int(node))
            self._greetings.failed(int(node), silent=node not in one.raised)
        sites = []
        for node, said in sorted(replies.content.items()):
            try:
                sites.append(_site(int(node), said, registered.get(int(node))))
                if self._settings.secure_sum and not sites[-1].key:
                    raise HelloError(f"site {sites.pop().name} tells no key for secure sums")
            except Exception as error:  # it comes from another machine, and is that one's trouble alone
                words = f"{error}" if isinstance(error, HelloError) else f"node {node} said {error!r}"
                self._leave_out(shown(words, LONGEST), int(node))
                self._greetings.failed(int(node), silent=False)
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
            self._leave_out_of_majority([site for site in sites if site.name not in claims], str(error))
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
        answered = self._hello(again) if again else []
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
            self._leave_out_of_majority([site], why)
        return self._unchanged([site for site in sites if site not in odd])

    def _unchanged(self, sites: list[Site]) -> list[Site]:
        """Without those who have other data than when the run began, where most have not; else everybody."""
        rest = [site for site in sites if not self._change(site)]
        if self._all_or_none or 2 * len(rest) <= len(sites) or len(rest) < self._settings.min_clients:
            return sites
        for site in sites:
            if why := self._change(site):
                self._leave_out(why, site.node)
        return rest

    def _change(self, site: Site) -> str:
        """A sentence where a site's sizes are others than when the run began, and its owner does not say so."""
        if site.data_changed or (had := self._before.get(site.name, site.sizes)) == site.sizes:
            return ""
        return (
            f"site {site.name} had {dict(had)} when the run began and now has {site.sizes}: its data has changed; "
            "--data-changed goes on all the same."
        )

    def _leave_out_of_majority(self, sites: list[Site], why: str) -> None:
        names = " and ".join(f"site {site.name}" for site in sites)
        self._leave_out(
            f"{names}, since most sites agree without: {shown(why, LONGEST)}", *(site.node for site in sites)
        )

    def _leave_out(self, reason: str, *nodes: int) -> None:
        self.left_out |= dict.fromkeys(nodes, reason)
        if self._error.count("\n") < TOLD and reason.partition(": ")[2] not in self._error:
            # every site's trouble, but each only once
            self._error = f"{self._error}\n{reason}".lstrip("\n")
        if not self._all_or_none and reason not in self._told:
            self._told.add(reason)
            self._tell("warning", message=f"Left out: {reason}")

    def _conflict(self, site: Site, nodes: set[int]) -> str | None:
        if problem := self._rivalry(site, (), nodes):
            return problem
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
        registered=registered is not None,
    )


def _labels(hello: Hello) -> tuple[int, ...] | None:
    """Counts that fit what else the site says; nonsense is left out."""
    fits = len(hello.labels) == len(hello.classes) and sum(hello.labels) == hello.n_train
    return tuple(hello.labels) if fits and min(hello.labels, default=-1) >= 0 else None
