"""FedPA's recursion: against the explicit inverse, by hand, and where it leads quadratic clients."""

import pytest
import torch
from torch import Tensor

from bayes_core.inference.posterior_delta import PosteriorDelta


def recursion(w: Tensor, samples: Tensor, rho: float) -> Tensor:
    found = PosteriorDelta(w, rho)
    for sample in samples:
        found.add(sample)
    return found.result()


def explicit(w: Tensor, samples: Tensor, rho: float) -> Tensor:
    count, size = samples.shape
    share = 1 / (1 + (count - 1) * rho)
    covariance = torch.cov(samples.T) if count > 1 else torch.zeros(size, size).double()
    sigma = share * torch.eye(size).double() + (1 - share) * covariance
    return torch.linalg.solve(sigma, w - samples.mean(0))


@pytest.mark.parametrize("rho", [0.0, 0.01, 0.1, 1.0])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_it_is_the_explicit_inverse(count: int, rho: float) -> None:
    generator = torch.Generator().manual_seed(count)
    w = torch.randn(12, generator=generator, dtype=torch.float64)
    samples = torch.randn(count, 12, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(recursion(w, samples, rho), explicit(w, samples, rho), rtol=1e-9, atol=1e-10)


def test_by_hand() -> None:
    """Samples 0 and 2: mean 1, variance 2, ϱ = ½, Σ̂ = ½·1 + ½·2 = 1.5, Δ = (3 − 1)/1.5."""
    found = PosteriorDelta(torch.tensor([[3.0]]), 1.0)
    found.add(torch.tensor([[0.0]]))
    assert found.result().tolist() == [[3.0]] and found.correction() == 0
    found.add(torch.tensor([[2.0]]))
    assert found.result().tolist() == [[pytest.approx(4 / 3)]]
    assert found.correction() == pytest.approx(2 / 3), "ϱΔ is 2/3, and w − μ̂ is 2"


def test_without_shrinkage_it_is_the_distance_to_the_mean_and_never_longer_than_its_bound() -> None:
    generator = torch.Generator().manual_seed(0)
    w, samples = torch.randn(50, generator=generator), torch.randn(6, 50, generator=generator)
    plain = w - samples.mean(0)
    torch.testing.assert_close(recursion(w, samples, 0.0), plain)
    for rho in (0.1, 1.0, 10.0):
        assert recursion(w, samples, rho).norm() <= (1 + 5 * rho) * plain.norm()


def test_quadratic_clients_meet_at_the_product_of_their_posteriors_and_fedavg_elsewhere() -> None:
    """Posteriors N(m, 1/a): the server's fixed point is Σa·m/Σa; the mean of the means is another."""
    clients = []
    for mean, precision in ((0.0, 4.0), (3.0, 1.0)):
        far = (1 / (2 * precision)) ** 0.5  # two samples with the posterior's mean and variance
        clients.append(torch.tensor([[mean - far], [mean + far]], dtype=torch.float64))
    w = torch.zeros(1, dtype=torch.float64)
    for _ in range(200):
        w = w - 0.2 * torch.stack([recursion(w, samples, 1e6) for samples in clients]).mean(0)
    assert float(w) == pytest.approx(3 / 5, abs=1e-3)
    for _ in range(200):
        w = w - 0.2 * torch.stack([recursion(w, samples, 0.0) for samples in clients]).mean(0)
    assert float(w) == pytest.approx(1.5, abs=1e-3)
