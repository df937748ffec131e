"""Both gradients at once against the plain module, one after the other."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from bayes_core.fast.mirrored import Abreast, Copies, mirrored_pair
from bayes_core.flat import buffers_of, flatten, shapes_of
from bayes_core.inference.plain import nll_gradient
from bayes_core.likelihoods import Likelihood, categorical


class Everything(nn.Module):
    """Batch norm, dropout, a weight that two layers share, and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout, self.unused = nn.BatchNorm1d(3), nn.Dropout(0.3), nn.Linear(2, 2)
        self.one, self.two, self.out = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.dropout(torch.relu(self.two(torch.relu(self.one(self.norm(x)))))))


def test_gradients_and_buffers_are_those_of_one_after_the_other() -> None:
    torch.manual_seed(0)
    network = Everything().train()
    before = flatten(network)
    thetas = torch.stack([before + 0.1, before - 0.1])
    x, y = torch.randn(9, 3), torch.arange(9) % 2
    expected, kept = [], buffers_of(network)
    torch.manual_seed(1)  # dropout's stream
    for theta, half in zip(thetas, (slice(5), slice(5, 9)), strict=True):
        expected.append(nll_gradient(network, shapes_of(network), theta, kept, x[half], y[half]))

    buffers = buffers_of(network)
    pair = mirrored_pair(network, thetas, buffers, x)
    for _ in range(2):  # what was drawn before does not matter
        for name, buffer in buffers_of(network).items():
            buffers[name].copy_(buffer)
        torch.manual_seed(1)
        value, gradients = pair.nll_gradients(x, y, torch.tensor(3.0), categorical)
        torch.testing.assert_close(value, expected[0][0] + expected[1][0])
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        torch.testing.assert_close(flat, 3 * torch.cat([gradient for _, gradient in expected]))
        torch.testing.assert_close(buffers, kept)
    assert torch.equal(flatten(network), before) and network.norm.num_batches_tracked == 0


def test_writing_a_draw_is_all_it_takes() -> None:
    network = nn.Linear(1, 1, bias=False)
    thetas = torch.zeros(2, 1)
    x, y = torch.tensor([[2.0]]), torch.tensor([[0.0]])
    pair = mirrored_pair(network, thetas, {}, x)
    for weights in ([1.0, 3.0], [-2.0, 0.5]):
        thetas.copy_(torch.tensor(weights)[:, None])
        # ½(2θ)² has the gradient 4θ
        value, gradients = pair.nll_gradients(
            x, y, torch.tensor(1.0), lambda output, y: 0.5 * (output - y).square().sum()
        )
        assert [gradient.item() for gradient in gradients] == [4 * theta for theta in weights]
        assert value.item() == sum(2 * theta**2 for theta in weights)


SMALL = """
import sys, torch
from bayes_core.fast.mirrored import Copies
from bayes_core.likelihoods import categorical, value_and_gradient
network = torch.nn.Linear(3, 2)
pair = Copies(network, torch.zeros(2, 8), {})
pair.nll_gradients(torch.randn(4, 3), torch.arange(4) % 2, torch.tensor(3.0), categorical)
value_and_gradient(lambda out, y: out.square().sum(), torch.randn(4, 2), torch.arange(4), torch.tensor(3.0))
assert "sympy" not in sys.modules
"""


def test_a_process_that_trains_needs_no_sympy() -> None:
    """PyTorch imports it for gradients that are given some: 35 MB at every site."""
    subprocess.run([sys.executable, "-c", SMALL], check=True)


CHAINS = {
    "images": (nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), (8, 1, 2, 3)),
"vectors": (nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), (8, 6)),
    "one layer": (nn.Sequential(nn.Linear(6, 3)), (4, 6)),
    "an odd batch": (nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), (9, 2, 3)),
}  # fmt: skip


@pytest.mark.parametrize("likelihood", [categorical, lambda output, y: (output.square().sum(1) * y).sum()])
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_abreast_gives_what_its_copies_give(name: str, likelihood: Likelihood) -> None:
    network, shape = CHAINS[name]
    thetas = torch.randn(2, flatten(network).numel(), generator=torch.Generator().manual_seed(0))
    x, y = torch.randn(shape, generator=torch.Generator().manual_seed(1)), torch.arange(shape[0]) % 3
    abreast = mirrored_pair(network, thetas, {}, x)
    assert isinstance(abreast, Abreast)
    thetas *= 0.5  # written after the pair was made
    value, gradients = abreast.nll_gradients(x, y, torch.tensor(3.0), likelihood)
    expected, copies = Copies(network, thetas, {}).nll_gradients(x, y, torch.tensor(3.0), likelihood)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.cat(list(gradients)), torch.cat([part.reshape(-1) for part in copies]))


def shared() -> nn.Module:
    network = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    network[2].weight = network[0].weight
    return network


def hooked() -> nn.Module:
    network = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    network[1].register_forward_hook(lambda module, inputs, output: 2 * output)
    return network


class Own(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (shared(), (8, 6)),
        (hooked(), (8, 6)),
        (Own(nn.Linear(6, 6)), (8, 6)),
        (nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), (8, 6)),
        (nn.Sequential(nn.Linear(6, 6), nn.ReLU()), (8, 6)),
        (nn.Sequential(nn.Linear(6, 6, bias=False)), (8, 6)),
        (nn.Sequential(nn.Linear(6, 6)), (8, 2, 6)),  # an image row by row
        (nn.Sequential(nn.Flatten(2), nn.Linear(6, 6)), (8, 2, 2, 3)),
        (nn.Sequential(nn.Linear(6, 6)), (2, 6)),
    ],
)
def test_anything_else_goes_through_copies(network: nn.Module, shape: tuple[int, ...]) -> None:
    thetas = flatten(network).repeat(2, 1)
    assert isinstance(mirrored_pair(network, thetas, buffers_of(network), torch.zeros(shape)), Copies)
