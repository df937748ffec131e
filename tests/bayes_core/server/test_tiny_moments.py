"""Moments of distributions with tiny and large σ and λ, against float64 without any trick."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from bayes_core.fast.compiled import library
from bayes_core.server.aggregate import DeepSum, Moments, inverse_softplus, moments

RHOS = torch.tensor([-20.0, -15, -10, -5, -2.5, 0, 2.5, 10, 20])
LAMBDAS = torch.tensor([1e-30, 1e-20, 1e-18, 1e-12, 1e-9, 1e-6, 1e-3, 0.5, 1])


def brute_force(uploads: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """μ_w and σ_w in float64, with the spread about μ_w itself."""
    mu, sigma = uploads[:, 0].double(), softplus(uploads[:, 1].double(), threshold=100)
    on = uploads[:, 2].double() if uploads.shape[1] == 3 else torch.ones_like(mu)
    on = on if weights is None else on * weights[:, None]
    share = on / on.sum(0)
    mean = (share * mu).sum(0)
    return mean, (share * (sigma.square() + (mu - mean).square())).sum(0).sqrt()


def grid(rows: int, count: int, spread: float) -> Tensor:
    """`count` uploads, each ρ with each λ, about μ = 0.3."""
    rho, on = (v.reshape(-1) for v in torch.meshgrid(RHOS, LAMBDAS, indexing="ij"))
    mu = 0.3 + spread * torch.randn(count, len(rho), generator=torch.Generator().manual_seed(0))
    uploads = torch.stack([mu, rho.expand(count, -1), on.expand(count, -1)], 1)
    return uploads[:, :rows]


def check(got: Tensor, uploads: Tensor, weights: Tensor | None = None) -> None:
    mean, sigma = brute_force(uploads, weights)
    torch.testing.assert_close(got[0].double(), mean, rtol=1e-6, atol=0)
    found = softplus(got[1].double(), threshold=100)
    torch.testing.assert_close(found, sigma, rtol=3e-6, atol=0)  # a float32 ρ of −20 has σ to 2e-6
    if uploads.shape[1] == 3:
        torch.testing.assert_close(got[2].double(), uploads[:, 2].double().mean(0), rtol=1e-6, atol=2e-12)


@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("distance", [0.0, 1e-6, 1e-3, 0.1])
def test_one_upload_comes_back_as_it_was(rows: int, distance: float) -> None:
    (upload,) = grid(rows, 1, 0.0)
    origin = upload.clone()
    origin[0] += distance
    total = Moments(origin)
    total.add(upload, weight=3.0)
    check(total.result(), upload[None])
    check(moments([upload]), upload[None])


@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e-2, 1.0])
def test_many_uploads(rows: int, spread: float) -> None:
    uploads = grid(rows, 7, spread)
    check(moments(list(uploads)), uploads)
    weights = torch.arange(1.0, 8.0, dtype=torch.float64)
    got = moments(list(uploads), weights.tolist())
    mean, sigma = brute_force(uploads, weights)
    torch.testing.assert_close(got[0].double(), mean, rtol=1e-6, atol=0)
    torch.testing.assert_close(softplus(got[1].double(), threshold=100), sigma, rtol=3e-6, atol=0)


def test_uploads_of_every_kind_together() -> None:
    """Each weight has another ρ and another λ in each upload; λ below 1e-12 count as that."""
    uploads = grid(3, 9, 0.1)
    generator = torch.Generator().manual_seed(1)
    for upload in uploads:
        upload[1:] = upload[1:, torch.randperm(upload.shape[1], generator=generator)]
    clamped = uploads.clone()
    clamped[:, 2].clamp_(min=1e-12)
    check(moments(list(uploads)), clamped)


@pytest.fixture
def no_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert isinstance(library(), str)


def summed(terms: Tensor, order: Tensor) -> DeepSum:
    total = DeepSum(torch.zeros(4, terms.shape[1] + 3, dtype=torch.float64))
    for i in order.tolist():
        total.add(3, terms[i], 1.0 + i)
    return total


@pytest.mark.usefixtures("compiler")
def test_a_deep_sum_has_the_same_bits_in_any_order_in_c_and_in_pytorch(
    request: pytest.FixtureRequest,
) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = 10 ** (32 * torch.rand(20, 2003, generator=generator, dtype=torch.float64) - 30)
    terms = sizes * torch.randn(20, 2003, generator=generator, dtype=torch.float64)
    forwards, backwards = summed(terms, torch.arange(20)), summed(terms, torch.arange(19, -1, -1))
    request.getfixturevalue("no_compiler")
    plain = summed(terms, torch.arange(20))
    assert torch.equal(forwards.grids, backwards.grids) and torch.equal(forwards.grids, plain.grids)
    weights = torch.arange(1.0, 21.0, dtype=torch.float64)[:, None]
    torch.testing.assert_close(plain.value()[3:], (terms * weights).sum(0), rtol=1e-12, atol=1e-13)
    assert not plain.value()[:3].any()
    tiny = DeepSum(torch.zeros(4, 1, dtype=torch.float64))
    for term in (1.0, 1e-30, -1.0):
        tiny.add(0, torch.tensor([term], dtype=torch.float64), 1.0)
    assert tiny.value().item() == pytest.approx(1e-30, rel=1e-6)


def test_the_inverse_of_softplus_at_both_ends() -> None:
    rho = torch.tensor([-20.0, -10, 0, 10, 20], dtype=torch.float64)
    torch.testing.assert_close(inverse_softplus(softplus(rho, threshold=100)), rho, rtol=1e-8, atol=1e-12)
