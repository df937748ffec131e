"""The same model with the layers of a public package, as far as it can express the step."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bayes_core import Recipe
from bayes_core.inference.update import minibatches


def bayesian_torch_round(network: nn.Sequential, x: Tensor, y: Tensor, recipe: Recipe) -> Callable[[], None]:
    """R steps on q: bayesian-torch has a fixed prior for every layer, no step on w, and no spike-and-slab."""
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    model = copy.deepcopy(network)
    dnn_to_bnn(
        model,
        {
            "prior_mu": 0.0,
            "prior_sigma": 0.08,
            "posterior_mu_init": 0.0,
            "posterior_rho_init": -2.5,
            "type": "Reparameterization",
            "moped_enable": False,
            "moped_delta": 0.5,
        },
    )
    weights = sum(parameter.numel() for parameter in network.parameters())
    optimiser = torch.optim.Adam(model.parameters(), lr=recipe.lr_personal)
    generator = torch.Generator().manual_seed(0)

    def run() -> None:
        for batch in minibatches(len(x), recipe.batch_size, recipe.local_steps, generator):
            nll = cross_entropy(model(x[batch]), y[batch], reduction="sum")
            optimiser.zero_grad()
            # its KL is a mean over each layer's weights
            (len(x) / recipe.batch_size * nll + recipe.zeta * weights * get_kl_loss(model)).backward()
            optimiser.step()

    return run
