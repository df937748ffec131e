"""Small networks of kinds that users bring: each reads a digit as eight rows of eight pixels, one after the other."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from bayes_core import low_rank

WIDTH, ROWS = 8, 8


class Attention(nn.Module):
    """Causal: its mask is a buffer with −inf. Positions are turns in the complex plane, a complex buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inwards, self.outwards = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.full((ROWS, ROWS), -torch.inf).triu(1))
        angles = torch.outer(torch.arange(ROWS), 10.0 ** -torch.arange(WIDTH // 2))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))
        self.register_buffer("unsaved", self.turns.conj().resolve_conj(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.inwards(x).chunk(3, -1)
        key = self.turned(key, self.unsaved.conj().resolve_conj())
        return self.outwards(
            scaled_dot_product_attention(self.turned(query, self.turns), key, value, self.mask)
        )

    @staticmethod
    def turned(x: Tensor, turns: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(-2)


class Transformer(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.attention, self.norm = Attention(), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1, 2)
        return self.head(self.norm(x + self.attention(x)).mean(1))


class Tied(nn.Module):
    """The same weights into the network and out of it."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(64, 12), nn.Linear(64, 12)
        self.out.weight = self.into.weight
        self.head = nn.Linear(12, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.into(x.flatten(1)).relu() + self.out(-x.flatten(1)))


class Recurrent(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(WIDTH, 6, batch_first=True), nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x.flatten(1, 2))[0][:, -1])


def transformer(inputs: tuple[int, ...], classes: int) -> nn.Module:
    return Transformer(classes)


def tied(inputs: tuple[int, ...], classes: int) -> nn.Module:
    return Tied(classes)


def recurrent(inputs: tuple[int, ...], classes: int) -> nn.Module:
    return Recurrent(classes)


def half_frozen(inputs: tuple[int, ...], classes: int) -> nn.Module:
    """A chain of linear layers, of which the first is a fixed random projection."""
    first = nn.Linear(64, 16).requires_grad_(False)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(16, classes))


def adapted(inputs: tuple[int, ...], classes: int) -> nn.Module:
    """A network as if it were trained, that learns in adapters of rank 2 and a head of its own."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes))
    return low_rank(network, rank=2, learn=["3."])


def another_frozen(inputs: tuple[int, ...], classes: int) -> nn.Module:
    """The same shapes with another projection."""
    first = nn.Linear(64, 16).requires_grad_(False)
    with torch.no_grad():
        first.weight.mul_(2)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(16, classes))


def all_frozen(inputs: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes)).requires_grad_(False)


def normed(inputs: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, classes)
    )
