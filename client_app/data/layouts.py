"""Who holds which image: labels → one list of indices per client. No files, no images.

The layouts of the paper's experiments, and `dirichlet`. The partitioners of flwr-datasets are not used: they cut
Hugging Face datasets (pyarrow at every site) into whole parts, without counts for training and test or groups.
Every random choice comes from a numpy generator seeded by the run's seed and by what the choice is for, so all
clients compute the same split without talking to each other.
Within one group (and, without groups, in the whole federation) no image is in two clients, nor in both the
train and the test set.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbayes.protocol.streams import seed_of

Counts = tuple[int, int]  # images for training and for test

# Per client and per class it holds; per client where there are no classes. For the digits an analogue that fits
# 10 clients, in two groups as well.
_TEN_CLIENTS = {"small": (50, 950), "medium": (200, 800), "large": (900, 300)}
_TWENTY_CLIENTS = {"small": (25, 475), "medium": (100, 400), "large": (450, 150)}
SIZES: dict[str, dict[str, Counts]] = {
    "digits": {"small": (5, 25), "medium": (10, 20), "large": (24, 10)},
    "diabetes": {"small": (10, 34), "medium": (22, 22), "large": (34, 10)},  # of 442 people in all
    "functions": {"small": (50, 500), "medium": (200, 500), "large": (900, 500)},
    "mnist": _TEN_CLIENTS,
    "fmnist": _TEN_CLIENTS,
    "cifar10": _TWENTY_CLIENTS,
    "svhn": _TWENTY_CLIENTS,
}
TRAINED = {
    "small": 0.05,
    "medium": 0.2,
    "large": 0.75,
}  # the same shares, for data sets that are not in the list


@dataclass(frozen=True)
class Share:
    """One client's images as indices into the pool, in a shuffled order."""

    train: np.ndarray
    test: np.ndarray
    group: int | None = None
    quarter_turns: int = 0  # how often the images are to be turned by 90°


class NotEnough(Exception):
    """The pool is too small: which class (None: all together) of which data set, what it has and needs."""

    def __init__(self, have: int, need: int, label: int | None, source: int = 0) -> None:
        super().__init__(have, need, label, source)
        self.have, self.need, self.label, self.source = have, need, label, source


def counts_of(dataset: str, size: str, available: int) -> Counts:
    """`small`, `medium`, `large` of this data set, or the numbers in `50+950`.

    Someone's own data have no table: `available`, what there is for each client and class, is used up.
    """
    if size in SIZES.get(dataset, {}):
        return SIZES[dataset][size]
    if size in TRAINED:
        train = max(1, round(TRAINED[size] * available))
        return train, max(1, available - train)
    train, test = (int(part) for part in size.split("+"))
    return train, test


def available(y: np.ndarray, classes: int, layout: str, clients: int, groups: int) -> int:
    """How many examples of a class each client that holds it can have; under iid and dirichlet, of any class."""
    if layout in ("iid", "dirichlet"):
        return len(y) // (clients * max(1, classes // 2))
    holders = {"labels": -(-clients // 2), "rotated": -(-clients // groups), "mixed": -(-clients // 2)}[
        layout
    ]
    return int(np.bincount(y, minlength=classes).min()) // holders


def by_labels(y: np.ndarray, classes: int, counts: Counts, clients: int, seed: int) -> list[Share]:
    """Each client holds half of the classes; each class is held by ⌊N/2⌋ or ⌈N/2⌉ of the N clients."""
    held = _held_classes(classes, clients, seed)
    dealt = _deal(y, held[:, :, None] * np.array(counts), (seed, "labels"))
    return [_share(seed, client, [part]) for client, part in enumerate(dealt)]


def _held_classes(classes: int, clients: int, seed: int) -> np.ndarray:
    """Who holds which class, as zeros and ones (clients, classes): half a circle of consecutive classes each.

    The half circles start at N even distances, as in the public generators of pFedMe and pFedBayes (five
    labels from the client's number on); the seed draws which client gets which. Halves drawn at random would
    put confusable classes (4, 7 and 9) into one client under one seed and apart under the next, and a
    method's accuracy would differ by a point between seeds for that reason only.
    """
    circle = classes * clients
    starts = _generator(seed, "labels", "starts").permutation(clients)[:, None] * classes
    return (2 * ((np.arange(classes) * clients - starts) % circle) < circle).astype(np.int64)


def iid(y: np.ndarray, classes: int, counts: Counts, clients: int, seed: int) -> list[Share]:
    """As many images for each client as under `by_labels` (counts × half the classes), of any class.

    With ten classes `50+950` gives each client 250 + 4750 images, and `5+2` gives it 25 + 10, of which
    MNIST has enough for 2000 clients.
    """
    wants = np.broadcast_to(np.array(_totals(counts, classes)), (clients, 1, 2))
    try:
        dealt = _deal(np.zeros_like(y), wants, (seed, "iid"))
    except NotEnough as error:
        raise NotEnough(error.have, error.need, label=None) from None
    return [_share(seed, client, [part]) for client, part in enumerate(dealt)]


def dirichlet(
    y: np.ndarray, classes: int, counts: Counts, clients: int, alpha: float, seed: int
) -> list[Share]:
    """As many examples a client as under `iid`, in a mixture of classes that is drawn from Dirichlet(α) for it.

    Training and test set have the same mixture. When a class is used up, later clients take more of the others.
    """
    train, test = _totals(counts, classes)
    left = np.bincount(y, minlength=classes)
    if clients * (train + test) > len(y):
        raise NotEnough(len(y), clients * (train + test), label=None)
    wants = np.zeros((clients, classes, 2), np.int64)
    for client in range(clients):
        mixture = _generator(seed, "dirichlet", client).dirichlet([alpha] * classes)
        both = _portions(mixture, train + test, left)
        wants[client, :, 0] = _portions(both.astype(float), train, both)
        wants[client, :, 1] = both - wants[client, :, 0]
        left = left - both
    return [_share(seed, client, [part]) for client, part in enumerate(_deal(y, wants, (seed, "dirichlet")))]


def _totals(counts: Counts, classes: int) -> Counts:
    train, test = (count * max(1, classes // 2) for count in counts)
    return train, test


def _portions(weights: np.ndarray, total: int, limits: np.ndarray) -> np.ndarray:
    """`total` things in proportion to the weights, in whole numbers, none above its limit."""
    portions = np.zeros_like(limits)
    while (rest := total - int(portions.sum())) > 0:
        room = limits - portions
        share = np.where(room > 0, weights, 0.0)
        share = share if share.sum() > 0 else (room > 0).astype(float)  # only classes of weight 0 are left
        exact = rest * share / share.sum()
        step = np.floor(exact).astype(np.int64)
        step[np.argsort(step - exact, kind="stable")[: rest - int(step.sum())]] += 1  # the largest remainders
        portions += np.minimum(step, room)
    return portions


def rotated(y: np.ndarray, classes: int, counts: Counts, clients: int, groups: int, seed: int) -> list[Share]:
    """Groups of clients that see the images turned by 0°, 360°/groups, …; all classes, labels kept.

    Each group draws from the whole pool: its turned copy is a pool of its own.
    """
    shares = []
    for group, members in enumerate(_blocks(clients, groups)):
        wants = np.broadcast_to(np.array(counts), (len(members), classes, 2))
        for client, part in zip(members, _deal(y, wants, (seed, "rotated", group)), strict=True):
            shares.append(_share(seed, client, [part], group, quarter_turns=group * 4 // groups))
    return shares


def mixed(
    ys: tuple[np.ndarray, np.ndarray], classes: int, counts: Counts, clients: int, seed: int
) -> list[Share]:
    """Two groups on two data sets: the first holds 90 % of the first set and 10 % of the second per class
    number, the other group the reverse. Indices of the second set follow those of the first.
    """
    minor = np.array([(count + 5) // 10 for count in counts])
    major = np.array(counts) - minor
    shares = []
    for group, members in enumerate(_blocks(clients, 2)):
        parts = []
        for source, y in enumerate(ys):
            wants = np.broadcast_to(major if source == group else minor, (len(members), classes, 2))
            try:
                parts.append(_deal(y, wants, (seed, "mixed", group, source)))
            except NotEnough as error:
                raise NotEnough(error.have, error.need, error.label, source) from None
        for client, first, second in zip(members, *parts, strict=True):
            moved = (second[0] + len(ys[0]), second[1] + len(ys[0]))
            shares.append(_share(seed, client, [first, moved], group))
    return shares


def _deal(
    y: np.ndarray, wants: np.ndarray, words: tuple[int | str, ...]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Each client's (train, test) indices, where `wants[client, label]` is how many it takes of each.

    Class by class the pool is shuffled and the clients take consecutive blocks, so nothing is dealt twice.
    """
    clients, classes, _ = wants.shape
    pools = [np.flatnonzero(y == label) for label in range(classes)]
    # Python's integers: an absurd size must not wrap round to a small one.
    needs = [sum(wants[:, label].ravel().tolist()) for label in range(classes)]
    lacks = [need - len(pool) for need, pool in zip(needs, pools, strict=True)]
    worst = lacks.index(max(lacks))  # who follows the message is then not stopped by the next class
    if lacks[worst] > 0:
        raise NotEnough(len(pools[worst]), int(needs[worst]), worst)
    columns = []
    for label, pool in enumerate(pools):
        shuffled = _generator(*words, "class", label).permutation(pool)
        columns.append(np.split(shuffled, np.cumsum(wants[:, label])))  # train, test, train, test, …, rest
    return [
        (
            np.concatenate([column[2 * client] for column in columns]),
            np.concatenate([column[2 * client + 1] for column in columns]),
        )
        for client in range(clients)
    ]


def _share(
    seed: int,
    client: int,
    parts: Sequence[tuple[np.ndarray, np.ndarray]],
    group: int | None = None,
    quarter_turns: int = 0,
) -> Share:
    """The parts together, no longer sorted by class or data set."""
    generator = _generator(seed, "order", client)
    train = generator.permutation(np.concatenate([part[0] for part in parts]))
    test = generator.permutation(np.concatenate([part[1] for part in parts]))
    return Share(train, test, group, quarter_turns)


def _blocks(clients: int, groups: int) -> list[list[int]]:
    """Contiguous blocks of ⌈N/groups⌉ and then ⌊N/groups⌋ clients."""
    return [block.tolist() for block in np.array_split(np.arange(clients), groups)]


def _generator(*words: int | str) -> np.random.Generator:
    return np.random.default_rng(seed_of("layout", *words))
