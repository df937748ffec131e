"""Two classes by a Gaussian process, exact but for sampling: Pólya-Gamma augmentation.

Given ω_n ~ PG(1, f_n) the logistic likelihood is Gaussian in f (Polson, Scott, Windle 2013), so two draws alternate:

    ω | f ~ PG(1, f)        f | ω ~ N(Σ̃κ, Σ̃),  κ = y − ½,  Σ̃ = K − K(K + Ω⁻¹)⁻¹K
    f* | ω ~ N(k*ᵀ(K + Ω⁻¹)⁻¹Ω⁻¹κ,  k** − k*ᵀ(K + Ω⁻¹)⁻¹k*)

and P(y* = 1) is the mean of E[σ(f*)] over chains. All of it is on the CPU, where the ω are drawn, and in float64; the
matrices are small. In place of K + Ω⁻¹, B = I + Ω^½KΩ^½ is factored, whose eigenvalues are 1 and more.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SCALE, JITTER = (
    8.0,
    1e-3,
)  # of the kernel, which is fixed: k(x, x′) = 8·exp(−‖x − x′‖²/2), and 1e-3 on the diagonal of K
SMALLEST = 1e-16  # of an ω
LOCATIONS, WEIGHTS = (torch.from_numpy(v) for v in np.polynomial.hermite.hermgauss(20))  # Gauss–Hermite


def require_polyagamma() -> Any:
    """The package's sampler; ImportError in a sentence where it is not installed."""
    try:
        from polyagamma import random_polyagamma
    except ImportError:
        raise ImportError(
            "Pólya-Gamma numbers take the package polyagamma; install it with `pip install polyagamma`."
        ) from None
    return random_polyagamma


def draw_omega(f: Tensor, rng: np.random.Generator) -> Tensor:
    """ω ~ PG(1, f), of f's shape."""
    drawn: NDArray[Any] = require_polyagamma()(1, f.numpy(), random_state=rng)
    return torch.from_numpy(drawn).clamp_min_(SMALLEST)


def kernel(a: Tensor, b: Tensor) -> Tensor:
    """(n, m) for points (n, d) and (m, d)."""
    squares = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
    return SCALE * torch.exp(-squares.clamp_min(0) / 2)


def gram(x: Tensor) -> Tensor:
    return kernel(x, x) + JITTER * torch.eye(len(x), dtype=x.dtype)


@torch.no_grad()
def gibbs(x: Tensor, y: Tensor, chains: int, steps: int, rng: np.random.Generator) -> Tensor:
    """The last ω (chains, n) of chains that start from the prior.

    Args:
        x: points (n, d), float64 on the CPU.
        y: 1 or 0 for each.
        chains: how many.
        steps: draws of f given ω in each of them.
        rng: the stream of all random numbers.
    """
    k = gram(x)
    factor, kappa = torch.linalg.cholesky(k), y.double() - 0.5

    def normal() -> Tensor:
        return torch.from_numpy(rng.standard_normal((chains, len(x))))

    omega = draw_omega(normal() @ factor.T, rng)
    for _ in range(steps):
        # Matheron's rule: a draw of the prior, moved by what it gets wrong of the observations Ω⁻¹κ with noise Ω⁻¹.
        prior, root = normal() @ factor.T, omega.sqrt()
        wrong = kappa / root - root * prior - normal()
        f = prior + (root * _solve(_factor(k, root), wrong)) @ k
        omega = draw_omega(f, rng)
    return omega


class Posterior:
    """Of f given each chain's ω; factored once, whatever is asked of it. Gradients go through x, not through ω."""

    def __init__(self, x: Tensor, y: Tensor, omega: Tensor) -> None:
        kappa = y.double() - 0.5
        self.x, self.root = x, omega.sqrt()
        self.factor = _factor(gram(x), self.root)
        self.weights = self.root * _solve(self.factor, kappa / self.root)

    def at(self, new: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of f* at new points (m, d): (chains, m) both."""
        between = kernel(self.x, new)
        explained = torch.linalg.solve_triangular(self.factor, self.root[:, :, None] * between, upper=False)
        return self.weights @ between, (SCALE - explained.square().sum(1)).clamp_min(1e-12)


def predictive(x: Tensor, y: Tensor, omega: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of f* at new points, by a posterior that nothing else is asked of."""
    return Posterior(x, y, omega).at(new)


def expected_sigmoid(mean: Tensor, variance: Tensor) -> Tensor:
    """E[σ(f)] for f ~ N(mean, variance), by quadrature; not exp(E[log σ(f)]), which is less."""
    f = mean[..., None] + (2 * variance).sqrt()[..., None] * LOCATIONS
    return (torch.sigmoid(f) * WEIGHTS).sum(-1) / math.sqrt(math.pi)


def _factor(k: Tensor, root: Tensor) -> Tensor:
    """The Cholesky factor of I + Ω^½KΩ^½, (chains, n, n)."""
    b = root[:, :, None] * k * root[:, None, :] + torch.eye(len(k), dtype=k.dtype)
    factor: Tensor = torch.linalg.cholesky(b)
    return factor


def _solve(factor: Tensor, v: Tensor) -> Tensor:
    found: Tensor = torch.cholesky_solve(v[..., None], factor)
    return found[..., 0]
