"""Moments of distributions with tiny and large σ and λ, against float64 without any trick."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from bayes_core.fast.compiled import library
from bayes_core.fast.moments import HELD
from bayes_core.fast.softplus import softplus as softplus_of
from bayes_core.server.aggregate import inverse_softplus, mean, moments
from bayes_core.server.moments import Moments, value

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


def hard(rows: int) -> tuple[Tensor, list[float]]:
    """Nineteen uploads whose terms differ by 30 powers of ten, some beyond the first grid, and their weights."""
    generator = torch.Generator().manual_seed(0)
    uploads = torch.randn(19, rows, 403, generator=generator)
    uploads[:, 0] *= 10 ** (12 * torch.rand(19, 403, generator=generator) - 10)
    uploads[:, 1] = 40 * torch.rand(19, 403, generator=generator) - 30
    uploads[:, 1, 300:] /= 10  # a part without large terms
    uploads[:, 2:] = 10 ** (-14 * torch.rand(19, rows - 2, 403, generator=generator))
    for begin, power in ((0, 10), (20, 43), (40, 91), (60, 139)):  # halfway between two numbers of a grid
        uploads[:, 0, begin : begin + 20] = torch.randint(-3, 4, (19, 20), generator=generator) * 2.0**-power
    uploads[:, 2:, :80] = 1
    return uploads, (1000 * torch.rand(19, generator=generator, dtype=torch.float64)).tolist()


def added(uploads: Tensor, weights: list[float], order: Sequence[int]) -> Moments:
    total = Moments(torch.zeros_like(uploads[0]))
    for i in order:
        total.add(uploads[i], weights[i])
    total.result()
    return total


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_sums_are_exact_in_any_order_in_c_and_in_pytorch(
    request: pytest.FixtureRequest, rows: int, weighted: bool
) -> None:
    uploads, weights = hard(rows)
    weights = weights if weighted else [1.0] * 19
    forwards, backwards = (added(uploads, weights, order) for order in (range(19), range(18, -1, -1)))
    request.getfixturevalue("no_compiler")
    plain = added(uploads, weights, range(19))
    found = value(forwards.totals)
    assert torch.equal(found, value(backwards.totals)) and torch.equal(found, value(plain.totals))
    assert torch.equal(forwards.result(), plain.result()) and torch.equal(
        forwards.result(), backwards.result()
    )
    mu, sigma = uploads[:, 0].double(), softplus_of(uploads[:, 1]).double()
    on = torch.tensor(weights, dtype=torch.float64)[:, None]
    on = on * uploads[:, 2].double().clamp_min(1e-12) if rows == 3 else on.expand_as(mu)
    for got, terms in zip(found, (on * mu, on * mu * mu, on * sigma * sigma, on), strict=False):
        exact = torch.tensor([math.fsum(column) for column in terms.T.tolist()], dtype=torch.float64)
        bound = 1e-15 * terms.abs().sum(0) + 19 * 2.0 ** (-91 if rows == 2 else -139)
        assert ((got - exact).abs() <= bound).all()


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("rows", [2, 3])
def test_as_many_as_are_held_stay_within_every_grid(rows: int) -> None:
    """What is left of each term on one grid is the most there can be, and all of one sign on the next."""
    mu = torch.tensor([power * (1 - less) for power in (2.0**-43, 2.0**-91) for less in (0, 2.0**-24)])
    upload = torch.stack([torch.cat([mu, -mu]), torch.full((8,), -2.5), torch.ones(8)])[:rows]
    total = Moments(torch.zeros_like(upload))
    for _ in range(HELD):
        total.add(upload)
    found, exact = value(total.totals)[0], HELD * upload[0].double()
    kept = (
        slice(None) if rows == 3 else torch.tensor([0, 1, 4, 5])
    )  # without gates no grid is as fine as 2^-91
    assert not total.waiting and torch.equal(found[kept], exact[kept])


@pytest.mark.parametrize("compiled", [True, False])
def test_uploads_of_any_layout_and_precision_and_of_no_other_shape(
    request: pytest.FixtureRequest, compiled: bool
) -> None:
    request.getfixturevalue("compiler" if compiled else "no_compiler")
    upload = torch.tensor([[7.0, -7.0, 0.5], [-2.5, 2.0, -20.0]])
    expected = moments([upload])
    for one in (upload.double(), upload.bfloat16(), upload.T.contiguous().T):
        assert torch.equal(moments([one]), expected)
    total = Moments(torch.zeros_like(upload))
    with pytest.raises(ValueError, match="An upload of the shape"):
        total.add(upload[:, :2])


def test_a_long_sum_moves_to_the_first_grid() -> None:
    """More than 512 in the sum of terms of which none is large."""
    upload = torch.tensor([[7.0, -7.0, 1e-9], [-2.5, 2.0, -20.0]])
    total = Moments(torch.zeros_like(upload))
    for _ in range(13 * HELD):
        total.add(upload)
    assert total.wide and not total.waiting
    assert value(total.totals)[0].tolist() == [1456.0, -1456.0, 208 * float(upload[0, 2])]
    check(total.result(), upload[None])


@pytest.mark.parametrize("aggregation", [mean, moments])
def test_what_is_not_a_number_stays_so(aggregation) -> None:
    upload = torch.tensor([[1.0, math.nan, 1.0, math.inf], [-2.5, -2.5, math.nan, -2.5]])
    got = aggregation([upload, torch.zeros(2, 4)])
    assert got[:, 0].isfinite().all() and not got[0, 1].isfinite() and not got[1, 2].isfinite()
    assert not got[0, 3].isfinite()


def test_the_inverse_of_softplus_at_both_ends() -> None:
    rho = torch.tensor([-20.0, -10, 0, 10, 20], dtype=torch.float64)
    torch.testing.assert_close(inverse_softplus(softplus(rho, threshold=100)), rho, rtol=1e-8, atol=1e-12)
