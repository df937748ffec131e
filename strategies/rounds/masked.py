"""The sums of one exchange whose terms are masked: added up as they arrive, opened when all masks are taken off.

Nothing here can be read before; and then nothing but sums over all sites that are left.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from bayes_core import masks, shares
from fedbayes.protocol import secure as agreed
from fedbayes.protocol.npy import numbers_of
from fedbayes.protocol.secure import Cohort
from strategies.rounds.replies import BadReply

LONGEST = 2**21  # bytes of figures and their layouts
TRIES = 4000  # at joining shares of which some are false, in one exchange: some seconds for a hundred sites
Layouts = tuple[tuple[str, str], ...]  # of each part with figures, as a site tells it


class MaskedSums:
    """What the sites of a cohort add up to.

    How figures are laid out is what most sites say. Until all are in, those who say the same have a sum of their own:
    one with another layout, be it the first to answer, takes nobody's place.
    """

    def __init__(self, cohort: Cohort, length: int) -> None:
        """`length`: how many numbers an upload has."""
        self.cohort, self.length = cohort, length
        self.totals: dict[str, masks.Vector] = {}  # when all are in
        self.layouts: dict[str, str] = {}  # of figures, by part
        self.sealed: dict[str, masks.Vector] = {}  # by site: its shares for the others
        self.checks: dict[str, bytes] = {}
        self._said: dict[str, Layouts] = {}  # by site
        self._sums: dict[Layouts, dict[str, masks.Vector]] = {}  # of the sites that say the same

    @property
    def left(self) -> list[str]:
        """Who has answered."""
        return sorted(self.sealed)

    def take(self, site: str, record: ArrayRecord) -> None:
        """Add what a site has masked, or BadReply."""
        parts = self.cohort.parts_of(site)
        most = 4 * self.length + LONGEST + 2 * agreed.SEALED * len(self.cohort.names)
        if sum(len(array.data) for array in record.values()) > most:
            raise BadReply("more masked numbers than were asked for")
        found = {name: numbers_of(array) for name, array in record.items()}
        layouts = {part + agreed.LAYOUT for part in parts if part != agreed.UPLOAD}
        if set(found) != {*parts, agreed.SHARES, agreed.CHECK, *layouts}:
            raise BadReply("other parts of a secure sum than were asked for")
        _require(found[agreed.SHARES], "uint8", (len(self.cohort.names), agreed.SEALED), agreed.SHARES)
        _require(found[agreed.CHECK], "uint8", (1, masks.SEED), agreed.CHECK)
        said = tuple((part, _layout(part, found)) for part in parts if part != agreed.UPLOAD)
        if agreed.UPLOAD in parts:
            _require(found[agreed.UPLOAD], "uint32", (self.length,), agreed.UPLOAD)
        _add(self._sums.setdefault(said, {}), {part: found[part] for part in parts})
        self._said[site] = said
        self.sealed[site], self.checks[site] = found[agreed.SHARES].copy(), bytes(found[agreed.CHECK])

    def settle(self) -> dict[str, str]:
        """All are in: one sum of those who agree with most. Who does not is no longer left, by site in words."""
        votes = Counter(one for said in self._said.values() for one in said)
        for (part, text), _ in reversed(votes.most_common()):
            self.layouts[part] = text
        odd = {}
        for site, said in sorted(self._said.items()):
            if parts := [part for part, text in said if text != self.layouts[part]]:
                odd[site] = f"other {parts[0]} than those of most sites"
                del self.sealed[site], self.checks[site]
        for said, sums in self._sums.items():
            if all(self.layouts[part] == text for part, text in said):
                _add(self.totals, sums)
        self._said, self._sums = {}, {}
        return odd

    def sealed_for(self, site: str) -> masks.Vector:
        """The shares of all that are left, as only this site can read them."""
        place = self.cohort.names.index(site)
        return np.stack([self.sealed[name][place] for name in self.left])

    def without(self, gone: Sequence[str], pairs: Mapping[str, masks.Vector]) -> None:
        """Take off the masks that each site that is left has in common with those that are gone."""
        for site, seeds in pairs.items():
            for name, seed in zip(gone, seeds, strict=True):
                self._take_off(bytes(seed), masks.side(site, name), {site, name})

    def open(self, told: Mapping[str, masks.Vector]) -> "Opened":
        """Take off the masks of those that are left, from shares by who told them; nothing where one does not open.

        A mask is recognised by its check, so that false shares can be left out, as long as enough are true.
        """
        places = {name: place for place, name in enumerate(self.cohort.names, 1)}
        names = {place: name for name, place in places.items()}
        least, tries, found = self.cohort.least, iter(range(TRIES)), Opened()
        seeds: dict[str, bytes] = {}
        for line, site in enumerate(self.left):
            lines = {places[name]: bytes(of[line]) for name, of in told.items()}
            lines = {place: share for place, share in lines.items() if share != shares.NONE}
            honest = {place: share for place, share in lines.items() if names[place] not in found.liars}
            fits = partial(_is_seed, self.checks[site])
            some = [one for one in (honest, lines) if len(one) >= least]  # whoever lies once may lie again
            true = next(filter(None, (shares.recover(one, least, fits, tries) for one in some)), None)
            if true is None:
                found.closed.append(site)
                continue
            seeds[site] = shares.join(true)
            for place in lines.keys() - true.keys():
                if not shares.are_one({**true, place: lines[place]}, least, fits):
                    found.liars.setdefault(names[place], []).append(site)
        for site, seed in seeds.items() if not found.closed else ():
            self._take_off(seed, 1, {site})
        return found

    def _take_off(self, seed: bytes, sign: int, whose: set[str]) -> None:
        """A mask off the sums of all parts that these sites have."""
        for part, total in self.totals.items():
            if whose <= self.cohort.members(part):
                masks.cover(total, seed, part, -sign)

    def figures(self, part: str) -> dict[str, dict[str, Any]]:
        """Sums of figures, once they are open."""
        return agreed.nested(self.layouts[part], masks.from_wide(self.totals[part]))


@dataclass
class Opened:
    """What became of the masks: those that do not open, by site, and who told false shares of whose."""

    closed: list[str] = field(default_factory=list)
    liars: dict[str, list[str]] = field(default_factory=dict)


def _is_seed(check: bytes, seed: bytes) -> bool:
    return masks.derive(seed, agreed.CHECK) == check


def _add(totals: dict[str, masks.Vector], terms: Mapping[str, masks.Vector]) -> None:
    for part, term in terms.items():
        if part in totals:
            masks.add(totals[part], term)
        else:
            totals[part] = term.copy()


def _layout(part: str, found: Mapping[str, masks.Vector]) -> str:
    """Of a part with figures, which must have as many as it says."""
    vector, text = found[part], bytes(found[part + agreed.LAYOUT]).decode("utf-8", "replace")
    numbers = [0.0] * len(vector) if vector.ndim else []
    _require(vector, "uint64", (len(numbers), 2), part)
    try:
        fits = agreed.flat(agreed.nested(text, numbers)) == (text, numbers)
    except (ValueError, TypeError, LookupError, RecursionError):
        fits = False
    if not fits:
        raise BadReply(f"a layout of {part} that its numbers do not fit")
    return text


def _require(array: masks.Vector, kind: str, shape: tuple[int, ...], what: str) -> None:
    if array.dtype.name != kind or array.shape != shape:
        raise BadReply(f"{what} of a secure sum with {array.shape} {array.dtype} instead of {shape} {kind}")
