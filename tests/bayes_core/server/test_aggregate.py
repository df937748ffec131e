"""The server's arithmetic on numbers made by hand, and against a numeric optimiser."""

import itertools
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import softplus

from bayes_core.fast.compiled import library
from bayes_core.server import blocks
from bayes_core.server.aggregate import (
    Aggregate,
    Mean,
    Sum,
    extrapolate,
    inverse_softplus,
    mean,
    moments,
)
from bayes_core.server.blocks import BLOCK
from bayes_core.server.moments import Moments

UPLOADS = [torch.tensor([[1.0, 2.0], [-2.0, -1.0]]), torch.tensor([[3.0, 6.0], [-4.0, -2.0]])]


def test_mean_by_hand() -> None:
    assert mean(UPLOADS).tolist() == [[2.0, 4.0], [-3.0, -1.5]]
    assert mean(UPLOADS, [3, 1]).tolist() == [[1.5, 3.0], [-2.5, -1.25]]
    assert mean(UPLOADS, [0, 5]).tolist() == UPLOADS[1].tolist()
    assert mean(UPLOADS).dtype == torch.float32


def test_moments_by_hand() -> None:
    # σ = 3 and 4 at μ = 0 and 2: σ_w² = (9 + 16)/2 + 1 = 13.5
    rho = inverse_softplus(torch.tensor([3.0, 4.0]))
    got = moments([torch.stack([torch.tensor([mu]), rho[i : i + 1]]) for i, mu in enumerate((0.0, 2.0))])
    assert got[0].item() == 1.0
    assert softplus(got[1]).item() ** 2 == pytest.approx(13.5, rel=1e-6)


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 3.0, 4.0]])
def test_moments_minimise_the_sum_of_kls(weights: list[float] | None) -> None:
    torch.manual_seed(0)
    uploads = [torch.stack([torch.randn(3), torch.randn(3) - 1]) for _ in range(4)]
    w = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([w], max_iter=200, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def objective() -> torch.Tensor:
        search.zero_grad()
        target = Normal(w[0], softplus(w[1]))
        kls = [kl_divergence(Normal(u[0].double(), softplus(u[1].double())), target).sum() for u in uploads]
        total = sum(a * kl for a, kl in zip(weights or [1.0] * 4, kls, strict=True))
        total.backward()
        return total

    search.step(objective)
    torch.testing.assert_close(moments(uploads, weights).double(), w.detach(), rtol=0, atol=1e-4)


def test_extrapolate_by_hand() -> None:
    w, target = torch.tensor([[1.0, -2.0]]), torch.tensor([[3.0, -3.0]])
    assert extrapolate(w, target, 0.5).tolist() == [[2.0, -2.5]]
    assert extrapolate(w, target, 1.5).tolist() == [[4.0, -3.5]]


def test_extrapolate_is_exact_at_zero_and_one() -> None:
    w, target = torch.randn(2, 2, 1000, generator=torch.Generator().manual_seed(0))
    target = target * 1e-6  # far apart in size: 1·(target − w) + w would lose target's digits
    assert torch.equal(extrapolate(w, target, 0.0), w)
    assert torch.equal(extrapolate(w, target, 1.0), target)


def test_inverse_softplus_round_trip() -> None:
    sigma = torch.tensor([1e-4, 1e-2, 0.5, 1.0, 19.0, 21.0, 50.0, 1e4])
    torch.testing.assert_close(softplus(inverse_softplus(sigma)), sigma, rtol=2e-6, atol=0)
    torch.testing.assert_close(softplus(inverse_softplus(sigma.double())), sigma.double(), rtol=1e-8, atol=0)
    assert inverse_softplus(torch.tensor(1.0)).item() == pytest.approx(0.541324854612918, rel=1e-6)


@pytest.mark.parametrize("aggregation", [mean, moments])
def test_the_order_of_uploads_does_not_matter(aggregation) -> None:
    torch.manual_seed(0)
    uploads = [torch.stack([0.1 * torch.randn(50), -2.5 + 0.1 * torch.randn(50)]) for _ in range(4)]
    results = [aggregation(list(order)) for order in itertools.permutations(uploads)]
    assert all(torch.equal(result, results[0]) for result in results)


def test_the_order_does_not_matter_where_float64_alone_would_show_it() -> None:
    # 1 + 2^-24 lies halfway between two float32 numbers. 2^-53 twice decides; float64 loses it next to the 1
    terms = [torch.tensor([[value]]) for value in (1.0, 2.0**-24, 2.0**-53, 2.0**-53)]
    in_float64 = {
        torch.stack(order).double().cumsum(0)[-1].float().item() for order in itertools.permutations(terms)
    }
    assert in_float64 == {1.0, 1.0 + 2.0**-23}, "the example is a hard one"
    results = {(mean(list(order)) * 4).item() for order in itertools.permutations(terms)}
    assert results == {1.0 + 2.0**-23}, "the exact sum, rounded once"


@pytest.mark.parametrize("aggregate", [Mean, Moments])
@pytest.mark.parametrize("rows", [2, 3])
def test_large_small_and_weighted_uploads_in_any_order(aggregate: type[Aggregate], rows: int) -> None:
    generator = torch.Generator().manual_seed(1)
    size = BLOCK + 100  # more than one block
    uploads = 10.0 ** (6 * torch.rand(30, rows, size, generator=generator) - 5)
    uploads[:, 1] = -2.5 + uploads[:, 1] / 10
    uploads[:, 2:] /= 10
    weights = (1000 * torch.rand(30, generator=generator, dtype=torch.float64)).tolist()
    results = []
    for seed in range(4):
        total = aggregate(uploads[0])
        for i in torch.randperm(30, generator=generator.manual_seed(seed)).tolist():
            total.add(uploads[i], weights[i])
        results.append(total.result())
    assert all(torch.equal(result, results[0]) for result in results)
    if aggregate is Mean:
        exact = (uploads.double() * torch.tensor(weights, dtype=torch.float64).view(-1, 1, 1)).sum(0) / sum(
            weights
        )
        torch.testing.assert_close(results[0].double(), exact, rtol=1e-7, atol=0)


@pytest.fixture
def no_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert isinstance(library(), str)


def summed(terms: Tensor, weights: list[float]) -> Sum:
    total = Sum(terms.shape[1] + 3)
    for term, weight in zip(terms, weights, strict=True):
        total.add(3, term, weight)
    return total


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_same_bits_in_c_and_in_pytorch(request: pytest.FixtureRequest, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    terms = 10 ** (6 * torch.rand(20, 2003) - 5) * torch.randn(20, 2003).sign()
    terms = terms.to(dtype).T.contiguous().T  # of no single piece
    weights = (1000 * torch.rand(20, dtype=torch.float64)).tolist()
    assert not isinstance(library(), str)
    in_c = summed(terms, weights)
    request.getfixturevalue("no_compiler")
    plain = summed(terms, weights)
    assert torch.equal(in_c.coarse, plain.coarse) and torch.equal(in_c.fine, plain.fine)
    exact = (terms.double() * torch.tensor(weights, dtype=torch.float64)[:, None]).sum(0)
    torch.testing.assert_close(in_c.value()[3:], exact, rtol=1e-12, atol=1e-11)
    assert in_c.value()[:3].tolist() == [0, 0, 0]


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("rows", [2, 3])
def test_moments_have_the_same_bits_in_c_in_threads_and_in_pytorch(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(blocks, "ENOUGH", BLOCK)
    size = 2 * BLOCK + 11
    uploads = (
        torch.rand(11, rows, size) * torch.tensor([3.0, -9.0, 1.0][:rows])[:, None]
    )  # more than are held
    weights, threads = (1000 * torch.rand(11)).tolist(), torch.get_num_threads()

    def result(order: Sequence[int]) -> Tensor:
        total = Moments(uploads[0])
        for number in order:
            total.add(uploads[number], weights[number])
        return total.result()

    torch.set_num_threads(3)
    try:
        in_c = result(range(11))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(in_c, result(range(10, -1, -1)))
    request.getfixturevalue("no_compiler")
    assert torch.equal(in_c, result(range(11)))


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_nothing_stays_in_memory() -> None:
    total = Sum(5)
    total.add(0, torch.ones(5), 1.0)
    gone = weakref.ref(total)
    del total
    assert gone() is None


@pytest.mark.parametrize("terms", [torch.zeros(5), torch.zeros(2, 2), torch.tensor(1.0)])
def test_terms_that_do_not_fit_are_refused(terms: Tensor) -> None:
    with pytest.raises(ValueError, match="Terms of the shape"):
        Sum(4).add(0, terms, 1.0)


@pytest.mark.parametrize("rows", [2, 3])
def test_moments_about_any_origin_are_the_same(rows: int) -> None:
    torch.manual_seed(0)
    uploads = torch.rand(5, rows, 40)
    uploads[:, 0] += 100  # σ of 1 around means of 100: squares about 0 would still hold 12 digits
    totals = [Moments(origin) for origin in (uploads[3], uploads.mean(0), torch.zeros_like(uploads[0]))]
    for upload in uploads:
        for total in totals:
            total.add(upload)
    for total in totals:
        torch.testing.assert_close(total.result(), moments(list(uploads)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("aggregation", [mean, moments])
def test_what_cannot_be_aggregated_is_said(aggregation) -> None:
    with pytest.raises(ValueError, match="no uploads"):
        aggregation([])
    for weights in ([1.0], [1.0, -1.0], [0.0, 0.0]):
        with pytest.raises(ValueError, match="Weights"):
            aggregation(UPLOADS, weights)


@pytest.mark.parametrize("aggregation", [mean, moments])
def test_uploads_are_not_changed(aggregation) -> None:
    for uploads in (UPLOADS, [upload.double() for upload in UPLOADS]):
        before = [upload.clone() for upload in uploads]
        aggregation(uploads, [1.0, 2.0])
        assert all(torch.equal(now, then) for now, then in zip(uploads, before, strict=True))
