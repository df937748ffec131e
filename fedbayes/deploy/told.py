"""What a run's events tell its operator: how far it is, who answered, what failed and why. Kept small, for hours."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

# A failed reply's reason → its kind, for counting; the first that fits.
KINDS = {
    "silent": re.compile(r"no answer|not waited for"),
    "away": re.compile(
        r"cannot be reached|unavailable|could not be delivered|offline|started again", re.IGNORECASE
    ),
    "incomplete": re.compile(r"could not be sent|unavailable after all"),
    "too large": re.compile(r"larger than|parts, and at most|more bytes"),
    "forged": re.compile(r"in another's name"),
    "dropped": re.compile(r"not finite|shape|rows|beyond|absurd|family|impossible|unreadable", re.IGNORECASE),
}
OTHER = "error"
SCORES = ("pm_accuracy", "gm_accuracy", "pm_rmse", "gm_rmse", "pm_nll", "gm_nll")


@dataclass
class SiteTold:
    """One site of a run."""

    n_train: int = 0
    n_test: int = 0
    version: str = ""
    last_round: int = 0  # that it has answered
    failures: int = 0
    reason: str = ""  # of the last one


@dataclass
class RunTold:
    """One run, as far as its events have told; `hear` takes them in any number."""

    name: str = ""
    folder: str = ""
    method: str = ""
    state: str = "starting"
    round: int = 0
    rounds: int = 0
    told: int = 0  # rounds that have been told of here
    ok: int = 0
    failed: int = 0
    left_out: int = 0  # nodes that take no part
    seconds: float = 0.0
    last_seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    scores: dict[str, float] = field(default_factory=dict)
    sites: dict[str, SiteTold] = field(default_factory=dict)

    def hear(self, event: Mapping[str, Any]) -> None:
        match event.get("event"):
            case "sites":
                for name, facts in event["sites"].items():
                    self._describe(name, facts)
            case "joined":
                self._describe(str(event["site"]), event)
            case "start":
                self.name, self.folder, self.method = (str(event[key]) for key in ("run", "folder", "method"))
                self.state, self.round, self.rounds = "running", int(event["round"]) - 1, int(event["rounds"])
            case "round":
                self._count(event)
            case "evaluated":
                self.scores = {name: float(event[name]) for name in SCORES if event.get(name) is not None}
            case "finished":
                self.state = "finished"
            case "error":
                self.state = "failed"

    def after(self, before: "RunTold") -> "RunTold":
        """This run as one with an earlier attempt at it: counts go on, all else is what it is now."""
        sites = dict(before.sites)
        for name, site in self.sites.items():
            earlier = before.sites.get(name, SiteTold())
            sites[name] = replace(
                site,
                failures=earlier.failures + site.failures,
                last_round=max(earlier.last_round, site.last_round),
                reason=site.reason or earlier.reason,
            )
        return replace(
            self,
            told=before.told + self.told,
            ok=before.ok + self.ok,
            failed=before.failed + self.failed,
            seconds=before.seconds + self.seconds,
            bytes_up=before.bytes_up + self.bytes_up,
            bytes_down=before.bytes_down + self.bytes_down,
            kinds=before.kinds + self.kinds,
            scores=self.scores or before.scores,
            sites=sites,
        )

    def _describe(self, name: str, facts: Mapping[str, Any]) -> None:
        site = self.sites.setdefault(name, SiteTold())
        site.n_train, site.n_test = int(facts["n_train"]), int(facts["n_test"])
        site.version = str(facts.get("version", ""))

    def _count(self, event: Mapping[str, Any]) -> None:
        self.round, self.told = int(event["round"]), self.told + 1
        self.ok += int(event["clients_ok"])
        self.failed += int(event["clients_failed"])
        self.left_out = int(event.get("left_out", 0))
        self.last_seconds = float(event["seconds"])
        self.seconds += self.last_seconds
        self.bytes_up += int(event["bytes_up"])
        self.bytes_down += int(event["bytes_down"])
        for name, status in event.get("sites", {}).items():
            site = self.sites.setdefault(name, SiteTold())
            if status.startswith("failed: "):
                site.failures, site.reason = site.failures + 1, status.removeprefix("failed: ")
                self.kinds[kind_of(site.reason)] += 1
            else:
                site.last_round = self.round


def kind_of(reason: str) -> str:
    """What sort of failure, of a handful: reasons themselves are endless."""
    return next((kind for kind, words in KINDS.items() if words.search(reason)), OTHER)
