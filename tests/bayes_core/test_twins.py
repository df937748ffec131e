"""Both gradients at once against the plain module, one after the other."""

import torch
from torch import Tensor, nn

from bayes_core.flat import buffers_of, flatten, shapes_of
from bayes_core.likelihoods import categorical
from bayes_core.twins import Twins
from bayes_core.update import nll_gradient


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
    batches = [(torch.randn(5, 3), torch.arange(5) % 2), (torch.randn(4, 3), torch.arange(4) % 2)]
    expected, kept = [], buffers_of(network)
    torch.manual_seed(1)  # dropout's stream
    for theta, (x, y) in zip(thetas, batches, strict=True):
        expected.append(nll_gradient(network, shapes_of(network), theta, kept, x, y))

    buffers = buffers_of(network)
    twins = Twins(network, thetas, buffers)
    for _ in range(2):  # what was drawn before does not matter
        for name, buffer in buffers_of(network).items():
            buffers[name].copy_(buffer)
        torch.manual_seed(1)
        value, gradients = twins.nll_gradients(batches, torch.tensor(3.0), categorical)
        torch.testing.assert_close(value, expected[0][0] + expected[1][0])
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        torch.testing.assert_close(flat, 3 * torch.cat([gradient for _, gradient in expected]))
        torch.testing.assert_close(buffers, kept)
    assert torch.equal(flatten(network), before) and network.norm.num_batches_tracked == 0


def test_writing_a_draw_is_all_it_takes() -> None:
    network = nn.Linear(1, 1, bias=False)
    thetas = torch.zeros(2, 1)
    twins = Twins(network, thetas, {})
    x, y = torch.tensor([[2.0]]), torch.tensor([[0.0]])
    for pair in ([1.0, 3.0], [-2.0, 0.5]):
        thetas.copy_(torch.tensor(pair)[:, None])
        # ½(2θ)² has the gradient 4θ
        value, gradients = twins.nll_gradients(
            [(x, y), (x, y)], torch.tensor(1.0), lambda output, y: 0.5 * (output - y).square().sum()
        )
        assert [gradient.item() for gradient in gradients] == [4 * theta for theta in pair]
        assert value.item() == sum(2 * theta**2 for theta in pair)
