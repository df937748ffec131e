"""The Gaussian process of two classes against integration: three points, two new ones, 80³ Gauss–Hermite nodes."""

import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from bayes_core.predict.polya_gamma import (
    draw_omega,
    expected_sigmoid,
    gibbs,
    gram,
    kernel,
    predictive,
    require_polyagamma,
)

X = torch.tensor([[0.0], [0.7], [2.0]], dtype=torch.float64)
Y = torch.tensor([1, 0, 1])
NEW = torch.tensor([[0.3], [1.5]], dtype=torch.float64)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def integrated() -> tuple[Tensor, Tensor, Tensor]:
    """E f at the three points; P(y* = 1) at the new ones; and exp(E log σ(f*)), which is no probability."""
    nodes, weights = (torch.from_numpy(v) for v in np.polynomial.hermite_e.hermegauss(80))
    weights = weights / weights.sum()
    grid = torch.cartesian_prod(nodes, nodes, nodes)
    prior = torch.cartesian_prod(weights, weights, weights).prod(1)
    f = grid @ torch.linalg.cholesky(gram(X)).T
    posterior = prior * torch.sigmoid((2 * Y - 1) * f).prod(1)
    posterior = posterior / posterior.sum()
    inverse, between = torch.linalg.inv(gram(X)), kernel(X, NEW)
    mean = f @ inverse @ between
    sd = (kernel(NEW, NEW).diagonal() - (between * (inverse @ between)).sum(0)).sqrt()
    new = torch.sigmoid(mean[:, :, None] + sd[:, None] * nodes)
    right = torch.einsum("i,ijk,k->j", posterior, new, weights)
    lower = torch.einsum("i,ijk,k->j", posterior, new.log(), weights).exp()
    return posterior @ f, right, lower


def test_pg_mean() -> None:
    """E ω = tanh(c/2)/2c, and ¼ at 0."""
    c = torch.tensor([0.0, 0.5, 2.0, -6.0], dtype=torch.float64)
    drawn = draw_omega(c.expand(100_000, 4).clone(), rng())
    expected = [0.25, *(np.tanh(one / 2) / (2 * one) for one in (0.5, 2.0, 6.0))]
    assert drawn.mean(0).tolist() == pytest.approx(expected, rel=0.01)
    assert float(drawn.min()) > 0


def test_the_predictive_is_the_integral() -> None:
    mean, right, lower = integrated()
    assert mean.tolist() == pytest.approx([0.607, -0.179, 1.298], abs=1e-3)
    assert right.tolist() == pytest.approx([0.5311, 0.5760], abs=1e-4)
    assert lower.tolist() == pytest.approx([0.427, 0.454], abs=1e-3), (
        "what public code takes: the decision flips"
    )
    omega = gibbs(X, Y, chains=4000, steps=5, rng=rng())
    found = expected_sigmoid(*predictive(X, Y, omega, NEW)).mean(0)
    assert found.tolist() == pytest.approx(right.tolist(), abs=0.008)


def test_the_chains_draw_from_the_posterior() -> None:
    """At the points themselves, f* is f."""
    omega = gibbs(X, Y, chains=4000, steps=20, rng=rng())
    found, _ = predictive(X, Y, omega, X)
    assert found.mean(0).tolist() == pytest.approx(integrated()[0].tolist(), abs=0.06)


def test_the_predictive_is_the_formula_with_an_explicit_inverse() -> None:
    omega = torch.tensor([[0.2, 0.1, 0.25], [0.05, 0.3, 0.15]], dtype=torch.float64)
    mean, variance = predictive(X, Y, omega, NEW)
    k, between = gram(X), kernel(X, NEW)
    for chain, one in enumerate(omega):
        inverse = torch.linalg.inv(k + torch.diag(1 / one))
        torch.testing.assert_close(mean[chain], between.T @ inverse @ ((Y - 0.5) / one))
        torch.testing.assert_close(variance[chain], 8.0 - torch.diagonal(between.T @ inverse @ between))


def test_expected_sigmoid() -> None:
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    assert float(expected_sigmoid(zero, 9 * one)) == pytest.approx(0.5)
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    fine = float((weights / weights.sum() / (1 + np.exp(-(1 + 2 * nodes)))).sum())
    assert float(expected_sigmoid(one, 4 * one)) == pytest.approx(fine, abs=1e-5)
    both = expected_sigmoid(one, 4 * one) + expected_sigmoid(-one, 4 * one)
    assert float(both) == pytest.approx(1.0), "the other class has the rest"


def test_gradients_go_through_points_and_not_through_omega() -> None:
    omega = gibbs(X, Y, chains=3, steps=2, rng=rng())
    assert not omega.requires_grad

    def loss(points: Tensor, new: Tensor) -> Tensor:
        return expected_sigmoid(*predictive(points, Y, omega, new)).mean()

    leaves = (X.clone().requires_grad_(), NEW.clone().requires_grad_())
    assert torch.autograd.gradcheck(loss, leaves)


def test_one_seed_is_one_result() -> None:
    one, again = (gibbs(X, Y, chains=3, steps=2, rng=rng()) for _ in range(2))
    assert torch.equal(one, again)


def test_without_the_package_a_sentence_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polyagamma", None)
    with pytest.raises(ImportError, match=r"install it with `pip install polyagamma`"):
        require_polyagamma()
