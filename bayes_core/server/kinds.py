"""How many kinds of client there are, and which: from what each two of them have learned in common.

Ψ_ij is large where two clients differ in kind, and where either has moved far on its own: few examples, odd labels. So
it is not Ψ that is clustered but what is left without each client's own part. With the common start as a further point
0, and Ψ about a squared distance,

    S_ij = ½(Ψ_i0 + Ψ_j0 − Ψ_ij) / √(Ψ_i0 Ψ_j0)

is the cosine between the moves of i and j: what is theirs alone is orthogonal and adds nothing. Clients of one kind
have S_ij = f_i f_j, with a strength f that grows with the number of examples; of two kinds, r f_i f_j with r < 1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

APART = 0.12  # clusters have at least so much less in common than clients of one (1 − r) …
DEVIATIONS = 2.25  # … and so many times what is left over from f_i f_j and r f_i f_j, relative to the level …
UNEVEN = (
    0.28  # … which may not be more than this: else there are no kinds, but clients that differ by degrees
)
LUCKY = 1.5  # times both for a cluster of two: among many clients some two always have much in common
NEARLY = 0.8  # of DEVIATIONS is enough for doubt
WEAK = 0.6  # a cluster's mean S relative to the highest: below it is what noisy or small clients share
ODD_DEVIATIONS = 4.0  # of the strengths: a client so much weaker than its cluster is like nobody
MOST_SINGLE = 0.2  # of the clients: with more of them left over, what remains are no kinds
MOST_KINDS = 30
FEWEST = 4
FAR = 1e100
Matrix = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Kinds:
    """A partition, and how sure it is."""

    labels: list[int]  # 0 … k−1, numbered in the order in which they first occur
    sure: bool
    why: str  # a sentence or two
    odd: list[int]  # clients that have little in common with any other
    common: float  # r of the two clusters that have most in common; 1 for one cluster
    uneven: float  # how much what two clients have in common varies, relative to its mean

    @property
    def k(self) -> int:
        return max(self.labels, default=0) + 1


def in_order(labels: Sequence[int]) -> list[int]:
    """The same partition, numbered in the order in which its clusters first occur."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(label, len(numbers)) for label in labels]


def in_common(psi: Matrix, start: Matrix | None = None) -> Matrix:
    """S (N, N), zero on the diagonal, from Ψ and its values between each client and the start.

    Without those, each client's own part a_i is fitted (Ψ_ij ≈ a_i + a_j), and the two that are then farthest apart
    are taken to have nothing in common. A client that is like no other cannot be told from a noisy one then.
    """
    n, psi = len(psi), _finite(psi)
    if start is None:
        total = psi.sum() / (2 * (n - 1)) if n > 1 else 0.0
        own = (psi.sum(1) - total) / max(n - 2, 1)
        rest = psi - own[:, None] - own
        np.fill_diagonal(rest, 0)
        start = own + max(float(rest.max()), 0) / 2
    start = _finite(start)
    start = np.maximum(start, max(1e-9 * float(np.median(start)), 1e-12))
    common: Matrix = (start[:, None] + start - psi) / (2 * np.sqrt(np.outer(start, start)))
    np.fill_diagonal(common, 0)
    return common.clip(-1, 1)  # Ψ is no squared distance where the widths differ much


def _finite(psi: Matrix) -> Matrix:
    """Absurd uploads may be infinitely far away."""
    return np.nan_to_num(psi, nan=FAR, posinf=FAR).clip(0, FAR)


def tree(common: Matrix) -> NDArray[np.float64]:
    """Average linkage: the two groups that have most in common on average join first."""
    from scipy.cluster.hierarchy import linkage  # half a second to import, which every client would pay
    from scipy.spatial.distance import squareform

    merges: NDArray[np.float64] = linkage(squareform(1 - common, checks=False), "average")
    return merges


def cuts(merges: NDArray[np.float64], n: int) -> Iterator[Whole]:
    """Labels of the partitions that the tree gives, with n−1, n−2 … 1 groups."""
    labels: Whole = np.arange(n)
    for step, (left, right) in enumerate(merges[:, :2].astype(int)):
        labels = np.where((labels == left) | (labels == right), n + step, labels)
        yield np.unique(labels, return_inverse=True)[1]


@dataclass(frozen=True)
class Cut:
    """One partition, measured: its clusters have two members or more, and the other clients are single."""

    single: Whole
    strength: Matrix  # f_i / √level; of a single client relative to the cluster it has most in common with
    nearest: Whole  # the cluster of each client; of a single client the one it has most in common with
    level: Matrix  # mean S within each cluster
    common: float  # r of the two clusters that have most in common …
    common_of_two: float  # … and the most of any with a cluster of two; −1 where there are none
    uneven: float

    def holds(self, weak: float, nearly: bool = False) -> bool:
        """Whether its clusters are kinds of client, or nearly so; none with less than `weak` of another's level."""
        least = max(APART, (NEARLY if nearly else 1) * DEVIATIONS * self.uneven)
        apart = self.common <= 1 - least and self.common_of_two <= 1 - LUCKY * least
        even = self.uneven <= UNEVEN and bool(self.level.min() >= weak * self.level.max())
        return apart and even and bool((self.strength[self.single] <= 1 - least).all())


def measure(common: Matrix, labels: Whole) -> Cut | None:
    """None where a cluster has nothing in common."""
    n = len(common)
    groups = [np.flatnonzero(labels == label) for label in range(int(labels.max()) + 1)]
    clusters = [group for group in groups if len(group) > 1]
    single = np.asarray([group[0] for group in groups if len(group) == 1], np.int64)
    if not clusters:
        return None
    belongs = np.zeros((n, len(clusters)))
    for number, group in enumerate(clusters):
        belongs[group, number] = 1
    inside = belongs.sum(1) > 0
    nearest = belongs.argmax(1)
    own = (common @ belongs / np.maximum(belongs.sum(0) - belongs, 1))[np.arange(n), nearest]
    level = belongs.T @ own / belongs.sum(0)
    if (level <= 0).any():
        return None
    strength = np.where(inside, own / level[nearest], 0)
    scale = np.sqrt(level)[nearest] * inside
    fit = np.outer(strength, strength)  # what clients of one kind have in common, relative to the level
    relative = common / np.where(inside, scale, 1)[:, None] / np.where(inside, scale, 1)
    np.fill_diagonal(fit, 0)
    products, squares = belongs.T @ (relative * fit) @ belongs, belongs.T @ fit**2 @ belongs
    r = products / squares
    np.fill_diagonal(r, 1)
    both = np.outer(inside, inside)
    left_over = np.where(both, relative - r[nearest][:, nearest] * fit, 0)
    np.fill_diagonal(left_over, 0)
    sizes = belongs.sum(0)
    pairs = np.triu(np.outer(sizes, sizes), 1)
    free = np.maximum(sizes * (sizes - 3) / 2, 0).sum() + (pairs - (pairs > 0)).sum()
    uneven = float(np.sqrt((left_over**2).sum() / 2 / max(free, 1)))
    if len(single):
        toward = (common[single] * strength) @ belongs / (belongs.T @ strength**2 * level)
        nearest[single], strength[single] = toward.argmax(1), toward.max(1)
    np.fill_diagonal(r, -1)
    most, of_two = float(r.max()), float(r[sizes == 2].max(initial=-1))
    return Cut(single, strength, nearest, level, most, of_two, uneven)


def kinds(psi: Matrix, start: Matrix | None = None, names: Sequence[str] = ()) -> Kinds:
    """The kinds of client, or one where there is doubt.

    Args:
        psi: Ψ (N, N).
        start: Ψ between each client and the start that all had in common (N), if known.
        names: of the clients, for the sentence that says why.
    """
    n = len(psi)
    if n < FEWEST:
        why = (
            f"Fewer than {FEWEST} clients are too few to tell kinds apart."
            if n > 1
            else "There is one client."
        )
        return Kinds([0] * n, n < 2, why, [], 1.0, 0.0)
    common = in_common(psi, start)
    measured = [measure(common, labels) for labels in cuts(tree(common), n) if _few_are_left_over(labels)]
    weak = 0.0 if start is None else WEAK  # without the start levels cannot be compared
    held = [cut for cut in measured if cut and len(cut.level) > 1 and cut.holds(weak)]
    best = max(held, key=lambda cut: (len(cut.level), -len(cut.single)), default=measured[-1])
    if best is None:
        return Kinds([0] * n, False, "The clients have nothing in common.", [], 1.0, 0.0)
    finer = any(cut and len(cut.level) > len(best.level) and cut.holds(0.0, nearly=True) for cut in measured)
    return _judged(best, finer, names or [str(client) for client in range(n)])


def _few_are_left_over(labels: Whole) -> bool:
    sizes = np.bincount(labels)
    return int((sizes > 1).sum()) <= MOST_KINDS and int((sizes == 1).sum()) <= MOST_SINGLE * len(labels)


def _judged(cut: Cut, finer: bool, names: Sequence[str]) -> Kinds:
    """What speaks against a partition, in words."""
    k = len(cut.level)
    within = np.delete(cut.strength, cut.single)
    spread = 1.4826 * float(np.median(np.abs(within - np.median(within))))
    weak = np.flatnonzero(cut.strength < float(np.median(within)) * (1 - max(APART, ODD_DEVIATIONS * spread)))
    odd = sorted({*weak.tolist(), *cut.single.tolist()})
    told = []
    if k > 1:
        told.append(
            f"Clients of different clusters have at most {max(cut.common, 0):.0%} as much in common as those of one."
        )
    if odd:
        who = ", ".join(names[client] for client in odd[:5]) + (" …" if len(odd) > 5 else "")
        told.append(
            f"Little in common with any other: {who}. Of a kind of their own, or with few examples or wrong labels."
        )
    if cut.uneven > UNEVEN:
        told.append(
            f"What two clients have in common varies by {cut.uneven:.0%}, too much to tell kinds apart, as it does "
            "when clients hold different labels."
        )
    if finer:
        told.append("Some clients nearly stand apart: a further kind, or noisy ones.")
    sure = len(told) == (k > 1)
    if k == 1 and sure:
        told.append(
            f"All have about as much in common (it varies by {cut.uneven:.0%}), and no groups stand apart."
        )
    return Kinds(
        in_order(cut.nearest.tolist()), sure, " ".join(told), odd, cut.common if k > 1 else 1.0, cut.uneven
    )
