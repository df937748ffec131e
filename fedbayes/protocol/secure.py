"""What both sides of a secure sum agree on: who takes part, how numbers are laid out, how far they reach.

A site's answer is one array record, MASKED: `upload` (the changes of all tensors, one after the other by name, in steps
of fixed point), `report` and `measures` (figures, by a layout that is told beside them), `shares` of its own mask for
each site of the cohort, encrypted, and `check`, by which the mask is recognised. A part is summed over the sites that
have it: uploads and reports over those that were asked for them, measures over all that measure.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from flwr.app import RecordDict

from bayes_core.masks import FEWEST, threshold
from bayes_core.predict.metrics import summarise
from fedbayes.protocol import messages as key
from fedbayes.protocol.columns import BY_SITE, METRICS, MODELS
from fedbayes.protocol.settings import Settings

UPLOAD, REPORT, MEASURES = "upload", "report", "measures"  # the parts
SHARES, PAIRS, CHECK, LAYOUT = "shares", "pairs", "check", ".layout"
NONCE, SEALED = 12, 12 + 66 + 16  # bytes: of a nonce, and of a share with it and its tag
REACH = 4.0  # of a number's change in a round: beyond, it is cut off
DEVIATIONS = 8.0  # of noise that fit into it
EACH_SITE = "each_site"  # figures of which sites have a mean, each counting once
NUMBERS = {metric.key: metric for metric in METRICS if metric.bounds is not None}  # that are averaged

Measures = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Cohort:
    """The sites of one exchange and what each takes part in; `attempt` counts the exchanges since the run's start."""

    attempt: int
    names: tuple[str, ...]  # sorted
    keys: tuple[str, ...]  # theirs, in the same order
    proofs: tuple[str, ...]
    upload: frozenset[str]
    measures: frozenset[str]
    largest: int = (
        0  # training examples of a site, by which all weigh their uploads; 0: every site counts the same
    )

    def said(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "names": list(self.names),
            "keys": list(self.keys),
            "proofs": list(self.proofs),
            UPLOAD: sorted(self.upload),
            MEASURES: sorted(self.measures),
            "largest": self.largest,
        }

    def weight(self, examples: int) -> float:
        """What an upload of so many examples is multiplied by, at most 1."""
        return min(examples / self.largest, 1.0) if self.largest else 1.0

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> "Cohort":
        """ValueError where it cannot be one."""
        names, keys, proofs = (tuple(map(str, said[name])) for name in ("names", "keys", "proofs"))
        upload, measures = (frozenset(map(str, said[name])) for name in (UPLOAD, MEASURES))
        if list(names) != sorted(set(names)) or not len(names) == len(keys) == len(proofs):
            raise ValueError("a cohort whose names and keys do not fit")
        if upload | measures != set(names):
            raise ValueError("a cohort of other sites than those it names")
        return cls(int(said["attempt"]), names, keys, proofs, upload, measures, int(said["largest"]))

    def members(self, part: str) -> frozenset[str]:
        return self.measures if part == MEASURES else self.upload

    def parts_of(self, site: str) -> list[str]:
        return [part for part in (UPLOAD, REPORT, MEASURES) if site in self.members(part)]

    @property
    def least(self) -> int:
        """How many of all sites must tell shares, so that two thirds of those in each sum are among them.

        Each of these then knows over whom its round was summed, although others, who only measure, could help as well.
        """
        fewest = min((len(some) for some in (self.upload, self.measures) if some), default=0)
        return max(FEWEST, len(self.names) - fewest // 3)

    def too_few(self, left: Sequence[str]) -> str | None:
        """Why these sites cannot be summed over, or None."""
        for what, members in (("uploads", self.upload), ("measures", self.measures)):
            if members and len(members) < FEWEST:
                return f"a sum of the {what} of {len(members)} sites hides none of them; it takes {FEWEST}"
            if members and (found := len(members & set(left))) < (least := threshold(len(members))):
                return f"{found} of {len(members)} sites are left in the sum of {what}, and {least} are the least"
        if len(set(left)) < self.least:
            return f"{len(set(left))} of {len(self.names)} sites are left, and {self.least} are the least"
        return None


def context_of(asked: RecordDict, model: str) -> str:
    """A digest of everything that all sites of an exchange are told alike, with that of the tensors (`model_of`).

    The secrets that two sites have in common are made of it, too. Where a coordinator tells them different things,
    another model say, under which only one site's upload is not 0, their masks do not cancel, nor can they open each
    other's shares (Pasquini, Francati, Ateniese 2022, "Eluding Secure Aggregation in Federated Learning via Model
    Inconsistency").
    """
    common = {
        word: asked[key.EXCHANGE][word] for word in (key.RUN, key.UUID, key.ROUND, key.SETTINGS, key.AGREED)
    }
    told = [common, Cohort.read(asked[key.SECURE]).said(), model]
    return sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def model_of(asked: RecordDict) -> str:
    """A digest of the tensors that a site is sent."""
    found = sha256()
    for name, record in sorted(asked.array_records.items()):
        for row, array in record.items():
            found.update(json.dumps([name, row, len(array.data)]).encode())
            found.update(array.data)
    return found.hexdigest()


def share_of_noise(settings: Settings, sites: int) -> float:
    """The noise of one site's clipped change, so that those of the fewest sites that a sum may have add up to z."""
    return settings.dp_noise / math.sqrt(threshold(sites))


def reach_of(settings: Settings, sites: int) -> float:
    """How far a number of an upload goes before it is cut off; clipped changes with their noise fit in."""
    clip = max(settings.dp_scales) * (1 + DEVIATIONS * share_of_noise(settings, sites))
    return max(REACH, clip) if settings.dp_noise else REACH


# ---------------------------------------------------------------------- figures, one after the other


def flat(measures: Measures) -> tuple[str, list[float]]:
    """Names with lengths, as JSON, and the numbers in that order."""
    layout, numbers = [], []
    for record, entries in sorted(measures.items()):
        for entry, found in sorted(entries.items()):
            several = list(found) if isinstance(found, list) else [found]
            layout.append([record, entry, len(several) if isinstance(found, list) else 0])
            numbers += [float(one) for one in several]
    return json.dumps(layout), numbers


def nested(layout: str, numbers: Sequence[float]) -> dict[str, dict[str, Any]]:
    """The reverse of `flat`."""
    found: dict[str, dict[str, Any]] = {}
    place = 0
    for record, entry, length in json.loads(layout):
        end = place + (length or 1)
        found.setdefault(record, {})[entry] = list(numbers[place:end]) if length else numbers[place]
        place = end
    return found


def summable(measures: Measures) -> Measures:
    """A site's measures as numbers that need only be added up."""
    found: dict[str, dict[str, Any]] = {record: dict(entries) for record, entries in measures.items()}
    tallies = {model: found[model] for model in MODELS if model in found}
    tested = next((tally["n"][0] for tally in tallies.values()), 0.0)
    for name, metric in NUMBERS.items():
        if name in found:
            weight = tested if metric.pooled else 1.0
            found[name] = {model: number * weight for model, number in found[name].items()}
    means: dict[str, float] = {}
    for model, tally in tallies.items():
        summary = summarise(tally if tested else {name: [1.0] * len(of) for name, of in tally.items()})
        told = {f"{model}_{name}": round(summary[name], 6) for name in BY_SITE if name in summary}
        means |= told if tested else dict.fromkeys(told, 0.0)
    return {**found, EACH_SITE: means}
