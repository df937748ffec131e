"""softplus and its inverse of elementary operations, against float64."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus as of_pytorch

from bayes_core.fast.softplus import inverse_softplus, softplus


def units(got: Tensor, exact: Tensor) -> Tensor:
    """The error in units of float32's last place."""
    return (got.double() - exact).abs() / torch.from_numpy(np.spacing(exact.float().numpy())).double()


def test_two_units_of_the_last_place_wherever_float32_has_numbers() -> None:
    x = torch.cat(
        [torch.linspace(-103.9, 103.9, 400_001), torch.linspace(-3, 3, 100_001), torch.tensor([3e38])]
    )
    assert units(softplus(x), of_pytorch(x.double(), threshold=1000)).max() < 2


def test_the_ends_are_those_of_pytorch() -> None:
    x = torch.tensor(
        [0.0, -0.0, -1e-30, 20.5, 88.0, 1e4, -103.5, -104.5, -1e30, math.inf, -math.inf, math.nan]
    )
    torch.testing.assert_close(softplus(x), of_pytorch(x), rtol=2e-7, atol=1e-45, equal_nan=True)


def test_the_inverse_gives_sigma_back() -> None:
    sigma = torch.cat([10 ** torch.linspace(-11, 6, 100_001), torch.linspace(0.3, 3, 10_001)])
    exact = sigma.double() + torch.log(-torch.expm1(-sigma.double()))
    got = inverse_softplus(sigma)
    # half a unit of ρ, whose own last place is all that float32 has, and two of σ
    slope = torch.sigmoid(exact) / sigma.double()
    allowed = (torch.from_numpy(np.spacing(exact.abs().float().numpy())).double() * slope) + 3 * 2.0**-24
    assert ((got.double() - exact).abs() * slope <= allowed).all()
    assert inverse_softplus(torch.tensor([math.inf, math.nan])).tolist()[0] == math.inf
    assert inverse_softplus(torch.tensor([math.nan])).isnan().all()
