"""FedPer and FedRep: what is a head, who moves when, and FedRep's theory: the subspace is found geometrically."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from networks_of_users import half_frozen, recurrent, tied, transformer
from quadratic import client_of, settings_of
from torch import Tensor, nn

from bayes_core import mean
from bayes_core.flat import Split, flatten, shapes_of
from bayes_core.networks import WithNoise, dnn, mlp
from client_app.method import ClientMethod
from fedbayes.protocol.settings import SettingsError
from strategies.fedper import FedPer
from strategies.rounds.roster import StrategyError

NETWORKS = {
    "dnn": (dnn((1, 8, 8), 10), {"3.weight", "3.bias"}),
    "regression": (WithNoise(mlp((4,), 1), None), {"network.5.weight", "network.5.bias"}),
    "recurrent": (recurrent((1, 8, 8), 10), {"head.weight", "head.bias"}),
    "transformer": (transformer((1, 8, 8), 10), {"head.weight", "head.bias"}),
    "shared weights": (tied((1, 8, 8), 10), {"head.weight", "head.bias"}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_head_is_the_last_linear_layer(name: str) -> None:
    network, head = NETWORKS[name]
    split = Split.at_head(network)
    assert split.stays == head
    sent = FedPer().weights_of(network)
    assert len(sent) == sum(shape.numel() for part, shape in shapes_of(network).items() if part not in head)
    whole = flatten(network)[None]
    assert torch.equal(split.join(sent[None], split.own(whole)), whole)


def test_a_head_by_its_name() -> None:
    network = nn.Sequential(*(nn.Linear(2, 2) for _ in range(12)))
    assert Split.at_head(network, "1").stays == Split.at_head(network, "1.").stays == {"1.weight", "1.bias"}
    assert Split.at_head(network, "11.bias").stays == {"11.bias"}
    assert FedPer(head="3").weights_of(network).shape == (11 * 6,)


@pytest.mark.parametrize(
    ("network", "head", "words"),
    [
        (nn.Linear(2, 2), "", "head: the last nn.Linear is the whole of the network"),
        (half_frozen((1, 8, 8), 10), "", "head: the last nn.Linear is the whole of the network"),
        (nn.Conv1d(1, 1, 1), "", "head: the last nn.Linear is no part of the network"),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "neck", 'head: "neck" is no part of the network'),
    ],
)
def test_what_is_no_head_is_refused_at_both_ends(network: nn.Module, head: str, words: str) -> None:
    with pytest.raises(StrategyError, match=words):
        FedPer(head=head).weights_of(network)
    with pytest.raises(SettingsError, match=words):
        client_of(network, torch.ones(2, 2), torch.ones(2), "fedper", head=head)


def small(method: str, **words: Any) -> tuple[ClientMethod, Tensor]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))
    client = client_of(network, torch.randn(20, 4), torch.arange(20) % 3, method, **words)
    return client, flatten(network)[None]


def test_fedpers_round_is_one_of_fedavg_of_which_the_body_is_sent() -> None:
    client, w = small("fedper")
    plain, _ = small("fedavg")
    state, body = client.start({}), {"w": w[:, :15]}
    assert torch.equal(state["head"], w[:, 15:]), "all start from the common start"
    trained = client.train(state, body, 1)
    expected = plain.train({}, {"w": w}, 1).uploads["w"]
    assert torch.equal(trained.uploads["w"], expected[:, :15])
    assert torch.equal(trained.state["head"], expected[:, 15:])
    other = torch.randn(1, 15)
    (name, model), *more = client.models(trained.state, {"w": other}).items()
    assert name == "pm" and not more, "a mean of heads is not the method"
    assert torch.equal(model.v, torch.cat([other, expected[:, 15:]], 1)), "the received body, the own head"


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_fedrep_fits_the_head_first_and_then_the_body_to_that_head(optimizer: str) -> None:
    words = {"optimizer": optimizer, "lr_global": 0.05, "local_steps": 5, "batch_size": 20}
    client, w = small("fedrep", fedrep__head_steps=2, **words)
    trained = client.train(client.start({}), {"w": w[:, :15]}, 1)
    x, y = client.x, client.y
    body = [w[0, :12].view(3, 4), w[0, 12:15]]
    head = [w[0, 15:24].view(3, 3), w[0, 24:27]]
    body, head = ([part.clone().requires_grad_() for part in parts] for parts in (body, head))
    kinds = {
        "adam": lambda p: torch.optim.Adam(p, 0.05, (0.9, 0.99)),
        "sgd": lambda p: torch.optim.SGD(p, 0.05),
    }
    for parts, count in ((head, 2), (body, 3)):
        optimiser = kinds[optimizer](parts)
        for _ in range(count):
            optimiser.zero_grad()
            inside = nn.functional.linear(x, *body).tanh()
            nn.functional.cross_entropy(nn.functional.linear(inside, *head), y).backward()
            optimiser.step()
    flat = torch.cat([part.detach().view(-1) for part in (*body, *head)])[None]
    torch.testing.assert_close(trained.uploads["w"], flat[:, :15], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(trained.state["head"], flat[:, 15:], rtol=1e-4, atol=1e-5)


def test_half_of_the_steps_are_the_heads_unless_told_otherwise() -> None:
    half, w = small("fedrep", local_steps=6)
    told, _ = small("fedrep", local_steps=6, fedrep__head_steps=3)
    one, other = (client.train(client.start({}), {"w": w[:, :15]}, 1) for client in (half, told))
    assert torch.equal(one.uploads["w"], other.uploads["w"])
    for words in ({"local_steps": 1}, {"fedrep__head_steps": 20}):
        with pytest.raises(SettingsError, match="leave none for the body; make local-steps larger"):
            settings_of("fedrep", **words)


def distance(body: Tensor, truth: Tensor) -> float:
    """The sine of the largest angle between two subspaces, by their rows."""
    found, _ = torch.linalg.qr(body.T)
    right, _ = torch.linalg.qr(truth.T)
    return float(torch.linalg.matrix_norm(found - right @ (right.T @ found), 2))


def test_fedrep_finds_the_common_subspace_geometrically() -> None:
    """y = ⟨h_i, Bx⟩ with one B for all clients: the distance of the learned B falls by a factor in each round."""
    torch.manual_seed(0)
    inputs, width, clients = 8, 2, 8
    truth = torch.linalg.qr(torch.randn(inputs, width)).Q.T
    network = WithNoise(
        nn.Sequential(nn.Linear(inputs, width, bias=False), nn.Linear(width, 1, bias=False)), 1.0
    )
    words = {
        "optimizer": "sgd",
        "lr_global": 0.5,
        "batch_size": 100,
        "local_steps": 21,
        "fedrep__head_steps": 20,
    }
    sites = []
    for _ in range(clients):
        x = torch.randn(100, inputs)
        sites.append(client_of(network, x, x @ truth.T @ torch.randn(width), "fedrep", **words))
    w = FedPer().weights_of(network)[None]
    states = [site.start({}) for site in sites]
    distances = [distance(w.view(width, inputs), truth)]
    for number in range(1, 16):
        done = [site.train(state, {"w": w}, number) for site, state in zip(sites, states, strict=True)]
        states, w = [one.state for one in done], mean([one.uploads["w"] for one in done])
        distances.append(distance(w.view(width, inputs), truth))
    assert distances[0] > 0.9 and distances[15] < 1e-4
    ratios = [after / before for before, after in pairwise(distances[3:])]
    assert max(ratios) < 0.6, "by a factor, not by an amount"
