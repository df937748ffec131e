"""The sums of one exchange whose terms are masked: added up as they arrive, opened when all masks are taken off.

Nothing here can be read before; and then nothing but sums over all sites that are left.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from bayes_core import masks, shares
from fedbayes.protocol import secure as agreed
from fedbayes.protocol.npy import numbers_of
from fedbayes.protocol.secure import Cohort
from strategies.rounds.replies import BadReply

LONGEST = 2**21  # bytes of figures and their layouts


class MaskedSums:
    """What the sites of a cohort add up to."""

    def __init__(self, cohort: Cohort, length: int) -> None:
        """`length`: how many numbers an upload has."""
        self.cohort, self.length = cohort, length
        self.totals: dict[str, masks.Vector] = {}
        self.layouts: dict[str, str] = {}  # of figures; the first site's is the others'
        self.sealed: dict[str, masks.Vector] = {}  # by site: its shares for the others
        self.checks: dict[str, bytes] = {}

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
        texts = {part: self._layout(part, found) for part in parts if part != agreed.UPLOAD}
        if agreed.UPLOAD in parts:
            _require(found[agreed.UPLOAD], "uint32", (self.length,), agreed.UPLOAD)
        self.layouts |= texts
        for part in parts:
            if part in self.totals:
                masks.add(self.totals[part], found[part])
            else:
                self.totals[part] = found[part].copy()
        self.sealed[site], self.checks[site] = found[agreed.SHARES].copy(), bytes(found[agreed.CHECK])

    def _layout(self, part: str, found: Mapping[str, masks.Vector]) -> str:
        """Of a part with figures, which must be that of the sites before."""
        vector, text = found[part], bytes(found[part + agreed.LAYOUT]).decode("utf-8", "replace")
        if self.layouts.get(part, text) != text:
            raise BadReply(f"other {part} than those of the sites before it")
        numbers = [0.0] * len(vector) if vector.ndim else []
        _require(vector, "uint64", (len(numbers), 2), part)
        try:
            fits = part in self.layouts or agreed.flat(agreed.nested(text, numbers)) == (text, numbers)
        except (ValueError, TypeError, LookupError, RecursionError):
            fits = False
        if not fits:
            raise BadReply(f"a layout of {part} that its numbers do not fit")
        return text

    def sealed_for(self, site: str) -> masks.Vector:
        """The shares of all that are left, as only this site can read them."""
        place = self.cohort.names.index(site)
        return np.stack([self.sealed[name][place] for name in self.left])

    def without(self, gone: Sequence[str], pairs: Mapping[str, masks.Vector]) -> None:
        """Take off the masks that each site that is left has in common with those that are gone."""
        for site, seeds in pairs.items():
            for name, seed in zip(gone, seeds, strict=True):
                self._take_off(bytes(seed), masks.side(site, name), {site, name})

    def open(self, told: Mapping[str, masks.Vector]) -> str | None:
        """Take off the masks of those that are left, from shares by who told them; or whose do not fit together."""
        places = {name: place for place, name in enumerate(self.cohort.names, 1)}
        for line, site in enumerate(self.left):
            try:
                seed = shares.join({places[name]: bytes(lines[line]) for name, lines in told.items()})
            except ValueError:
                return site
            if masks.derive(seed, agreed.CHECK) != self.checks[site]:
                return site
            self._take_off(seed, 1, {site})
        return None

    def _take_off(self, seed: bytes, sign: int, whose: set[str]) -> None:
        """A mask off the sums of all parts that these sites have."""
        for part, total in self.totals.items():
            if whose <= self.cohort.members(part):
                masks.cover(total, seed, part, -sign)

    def figures(self, part: str) -> dict[str, dict[str, Any]]:
        """Sums of figures, once they are open."""
        return agreed.nested(self.layouts[part], masks.from_wide(self.totals[part]))


def _require(array: masks.Vector, kind: str, shape: tuple[int, ...], what: str) -> None:
    if array.dtype.name != kind or array.shape != shape:
        raise BadReply(f"{what} of a secure sum with {array.shape} {array.dtype} instead of {shape} {kind}")
