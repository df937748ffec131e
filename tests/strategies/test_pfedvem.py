"""pFedVEM by hand: the width of a client's prior, the server's step, and a client's round against autograd."""

import math
from typing import Any

import pytest
import torch
from by_hand import OneRound
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import cross_entropy, softplus
from toy import client

from bayes_core import Gaussian
from bayes_core.flat import flatten
from client_app.methods.pfedvem import spread
from strategies.pfedvem import PFedVEM
from strategies.rounds.replies import BadReply
from strategies.rounds.state import Came, State, Upload


def rho_of(sigma: float) -> float:
    return math.log(math.expm1(sigma))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))


def started(method: PFedVEM) -> State:
    """Of a network with one weight in its body and two in its head, all 0."""
    one = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False))
    for weight in one.parameters():
        nn.init.zeros_(weight)
    return method.init(lambda *words: method.weights_of(one))


@pytest.mark.parametrize("sigma", [0.3, 1.0])
def test_a_head_that_is_its_prior_is_as_wide(sigma: float) -> None:
    mu = torch.tensor([0.5, -2.0, 7.0])
    assert float(spread(Gaussian().init(mu, rho_of(sigma)), mu)) == pytest.approx(sigma, rel=1e-6)


def test_the_width_of_a_prior() -> None:
    """ρ² = [1 + 1 + (1 − 0)² + (3 − 0)²] / 2 = 6."""
    head = torch.tensor([[1.0, 3.0], [rho_of(1.0)] * 2])
    assert float(spread(head, torch.zeros(2))) == pytest.approx(6**0.5)


def test_the_servers_step() -> None:
    """The body by examples, 1 and 3; the head by 1/ρ²: 1 and ¼, so μ = (a + b/4)/(5/4)."""
    method = PFedVEM(beta=1.0)
    state = started(method)
    uploads = [
        Upload("a", 1, {"rho": 1.0}, parts={"w": torch.tensor([[1.0, 2.0, 3.0]])}),
        Upload("b", 3, {"rho": 2.0}, parts={"w": torch.tensor([[5.0, 7.0, -2.0]])}),
    ]
    came = Came(1, uploads=uploads)
    after = method.step(state, came)
    assert after.sent["w"].tolist() == [[4.0, 3.0, 2.0]]
    assert PFedVEM(beta=0.5).step(state, came).sent["w"].tolist() == [[2.0, 1.5, 1.0]]
    assert method.describe(after, came) == ({"mean_rho": 1.5}, {"a": {"rho": 1.0}, "b": {"rho": 2.0}})


def test_a_width_that_cannot_be_is_no_upload(one_round: OneRound) -> None:
    method = PFedVEM()
    state, upload = started(method), torch.tensor([[1.0, 2.0, 3.0]])
    assert (
        one_round(method, state, {"a": upload}, {"a": {"rho": 0.5}})[0].sent["w"].tolist() == upload.tolist()
    )
    for nonsense in (0.0, -1.0, 1e9, float("nan")):
        with pytest.raises(BadReply, match=r"instead of a number from 0.0001 to 10000"):
            one_round(method, state, {"a": upload}, {"a": {"rho": nonsense}})
    with pytest.raises(BadReply, match="ρ = None"):
        one_round(method, state, {"a": upload})


def test_a_clients_round_is_what_autograd_makes_of_its_two_objectives() -> None:
    """One step on the head, one on the body, with SGD, of four examples that are all in the batch."""
    torch.manual_seed(3)
    x, y, made = torch.randn(4, 2), torch.tensor([0, 1, 1, 0]), network()
    settings: dict[str, Any] = {"optimizer": "sgd", "lr_personal": 0.01, "lr_global": 0.1, "local_steps": 1}
    one = client(
        "pfedvem", made, x, y, pfedvem__head_steps=1, pfedvem__mc_samples=2, rho_init=-1.0, **settings
    )
    received = {"w": flatten(made)[None]}
    state = one.start(received)
    state["head"][0] += 0.1  # a client with a past
    trained = one.train(state, received, 5)

    body, mu, head = received["w"][0, :9], received["w"][0, 9:], state["head"].clone().requires_grad_()
    rho = (softplus(head[1]).square() + (head[0] - mu).square()).mean().sqrt().detach()
    assert trained.report["rho"] == pytest.approx(float(rho))
    noise, further = (
        [torch.empty(8).normal_(generator=generator) for _ in range(2)]
        for generator in (one.stream(5, "draws of the head"), one.stream(5, "draws for the body"))
    )

    def nll(body: Tensor, head: Tensor, g: Tensor) -> Tensor:
        draw = head[0] + softplus(head[1]) * g
        hidden = torch.tanh(x @ body[:6].view(3, 2).T + body[6:])
        return cross_entropy(hidden @ draw[:6].view(2, 3).T + draw[6:], y, reduction="sum")

    objective = sum(nll(body, head, g) for g in noise) / 2
    objective += kl_divergence(Normal(head[0], softplus(head[1])), Normal(mu, rho)).sum()
    (gradient,) = torch.autograd.grad(objective, head)
    new_head = (head - 0.01 * gradient).detach()
    torch.testing.assert_close(trained.state["head"], new_head)
    leaf = body.clone().requires_grad_()
    loss = sum(nll(leaf, new_head, g) for g in further) / 2 / 4
    new_body = leaf - 0.1 * torch.autograd.grad(loss, leaf)[0]
    torch.testing.assert_close(trained.uploads["w"][0], torch.cat([new_body, new_head[0]]).detach())
    assert trained.report["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)


def test_the_personal_model_is_the_received_body_with_ones_own_head() -> None:
    made = network()
    one = client("pfedvem", made, torch.randn(4, 2), torch.tensor([0, 1, 1, 0]))
    received = {"w": flatten(made)[None]}
    state = one.start(received)
    state["head"][0] = 0.25
    models = one.models(state, received)
    assert torch.equal(models["gm"].tensors()["model"], received["w"])
    mu, rho = models["pm"].tensors()["model"]
    assert torch.equal(mu[:9], received["w"][0, :9]) and mu[9:].tolist() == [0.25] * 8
    assert float(softplus(rho[:9]).max()) < 1e-8 and torch.allclose(rho[9:], torch.tensor(-2.5))
    again = type(one).restore(made, one.family, models["pm"].tensors())
    assert again is not None and torch.equal(again.tensors()["model"][0], mu)
    assert type(one).restore(made, one.family, state) is None, "a state has no body"


def test_a_head_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r'head: "classifier" is no part of the network'):
        client("pfedvem", network(), torch.randn(4, 2), torch.tensor([0, 1, 1, 0]), head="classifier")
    with pytest.raises(ValueError, match="it must know the head"):
        PFedVEM().init(lambda *words: torch.zeros(3))
