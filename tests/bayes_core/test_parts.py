"""Only some weights with a distribution: which, and how the others learn."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bayes_core import ClientState, Gaussian, Recipe, client_update
from bayes_core.flat import flatten, frozen, shapes_of
from bayes_core.networks import ManyLabels, WithNoise
from bayes_core.parts import Beside, bayesian_part, hold, plain_in
from bayes_core.predict.predictor import WeightsPredictor


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


HEAD = {"3.weight", "3.bias"}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("head", HEAD),
        ("3", HEAD),
        ("1, 3.bias", {"1.weight", "1.bias", "3.bias"}),
        ("0.weight", {"0.weight"}),
    ],
)
def test_what_has_a_distribution(words: str, found: set[str]) -> None:
    split = bayesian_part(network(), words)
    assert split is not None and split.stays == found
    assert set(split.own_shapes) == found


def test_all_of_it_is_no_part() -> None:
    assert bayesian_part(network(), "all") is None
    assert bayesian_part(network(), "0,1,3") is None


def test_wrapped_networks_keep_the_names_that_their_user_gave() -> None:
    numbers = bayesian_part(WithNoise(network(), None), "head")
    assert numbers is not None and numbers.stays == {"network.3.weight", "network.3.bias", "noise"}
    labels = bayesian_part(ManyLabels(network()), "0")
    assert labels is not None and labels.stays == {"network.0.weight", "network.0.bias"}


def test_a_module_called_head_is_the_head() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.after = nn.Conv2d(1, 1, 3), nn.Linear(2, 2)

    split = bayesian_part(Named(), "head")
    assert split is not None and split.stays == {"head.weight", "head.bias"}


def test_unknown_and_frozen_names_are_told() -> None:
    one = network()
    one[0].requires_grad_(False)
    known = "all, head, or the beginning of 1.weight, 1.bias, 3.weight, 3.bias is taken"
    with pytest.raises(ValueError, match=f'"conv" is the beginning of no parameter; {known}'):
        bayesian_part(one, "conv")
    with pytest.raises(ValueError, match=f'"0" has only frozen parameters; {known}'):
        bayesian_part(one, "3,0")
    with pytest.raises(ValueError, match=r"has none that is learned; name one of 0\.weight"):
        bayesian_part(nn.Sequential(nn.Conv1d(1, 1, 1)), "head")


def test_held_weights_are_constants_that_follow_their_values() -> None:
    one, x = network().eval(), torch.randn(5, 3)
    split = bayesian_part(one, "head")
    assert split is not None
    body = 2 * split.shared(flatten(one))
    held = hold(one, split.named_shared(body))
    assert set(frozen(held)) == {"0.weight", "0.bias", "1.weight", "1.bias"} and set(shapes_of(held)) == HEAD
    assert held[3].weight is one[3].weight
    before = held(x)
    body.zero_()
    assert not torch.equal(held(x), before) and torch.equal(held[0].weight, torch.zeros(4, 3))
    with pytest.raises(ValueError, match="No parameter 7"):
        hold(one, {"7": body})


def test_plain_weights_take_the_step_of_the_mean_loss() -> None:
    """With σ of next to nothing the draws are μ: one SGD step is one of the plain network, by autograd."""
    one, family = network(), Gaussian()
    split = bayesian_part(one, "head")
    assert split is not None
    x, y = torch.randn(8, 3), torch.randint(2, (8,))
    theta = flatten(one)
    body, w = split.shared(theta)[None], family.init(split.own(theta), rho_init=-20.0)
    beside = Beside(one, split, body, "sgd", 0.5, 0.99)
    sizes = {"local_steps": 1, "personal_steps": 1, "batch_size": 8, "mc_samples": 1}
    rates = {"lr_personal": 0.1, "lr_global": 0.1, "lr_lambda": 0.1, "adam_beta2": 0.99}
    recipe = Recipe(**sizes, **rates, optimizer="sgd", zeta=0.0, compile=False)
    state = ClientState.start(w, one, "sgd")
    updated = client_update(
        one, family, state, w, x, y, recipe, torch.Generator().manual_seed(1), beside=beside
    )

    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    plain = network().train()  # batch norm sees each half of the batch for itself
    halves = zip(x[order].tensor_split(2), y[order].tensor_split(2), strict=True)
    (sum(cross_entropy(plain(a), b, reduction="sum") for a, b in halves) / 8).backward()  # type: ignore[union-attr]
    gradient = torch.cat([p.grad.reshape(-1) for p in plain.parameters()])  # type: ignore[union-attr]
    torch.testing.assert_close(beside.body[0], body[0] - 0.5 * split.shared(gradient))
    torch.testing.assert_close(
        updated.personal.q[0], w[0] - 0.1 * 8 * split.own(gradient), atol=1e-5, rtol=1e-4
    )
    assert torch.equal(body[0], split.shared(theta)), "what was received is not changed"


def test_a_predictor_keeps_its_plain_weights() -> None:
    one, family = network().eval(), Gaussian()
    split = bayesian_part(one, "head")
    assert split is not None
    theta = flatten(one)
    plain = split.named_shared(split.shared(theta))
    v, buffers = family.init(split.own(theta)), dict(one.named_buffers())
    model = WeightsPredictor(hold(one, plain), family, v, buffers, plain)
    kept = model.tensors()
    assert plain_in(kept).keys() == plain.keys()
    torch.testing.assert_close(model.outputs_of_mean(torch.ones(2, 3)), one(torch.ones(2, 3)))
    assert set(model.mean_network()) == set(one.state_dict())
