"""pFedGP: a client's steps by hand, what it cannot learn from, and what is refused."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from toy import client

from bayes_core.flat import flatten
from bayes_core.predict.gp_tree import TreePredictor, embed, embedding, stratified, tree_loss, tree_of
from client_app.methods.pfedgp import PFedGP
from fedbayes.protocol.settings import SettingsError
from strategies.pfedgp import PFedGP as Server


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4))


def made(y: list[int], **settings: Any) -> Any:
    torch.manual_seed(1)
    return client("pfedgp", network(), torch.randn(len(y), 2), torch.tensor(y), **settings)


def received() -> dict[str, torch.Tensor]:
    return {"w": Server().init(lambda *words: Server().weights_of(network())).sent["w"]}


def test_what_is_shared_is_what_lies_below_the_last_layer() -> None:
    assert torch.equal(received()["w"][0], flatten(network())[:9])


def test_two_steps_of_a_client() -> None:
    """v ← 0.9·v + ∇ + 0.001·φ; φ ← φ − η·v, on the tree of the received embedding."""
    one = made([0, 1, 2] * 4, pfedgp__inner_steps=2, pfedgp__lr=0.1, pfedgp__gp_chains=3)
    w = received()["w"]
    trained = one.train(one.start(received()), received(), 4)
    rng, losses = one.numbers(4, "train"), []
    nodes = tree_of(embedding(one.body, w[0], {}, one.x), one.y)
    velocity = torch.zeros_like(w)
    for _ in range(2):
        leaf = w.clone().requires_grad_()
        some = stratified(one.y, 250, rng)
        loss = tree_loss(nodes, embed(one.body, leaf[0], {}, one.x[some]), one.y[some], 3, rng)
        assert loss is not None
        (gradient,) = torch.autograd.grad(loss, leaf)
        velocity = 0.9 * velocity + gradient + 0.001 * w
        w = w - 0.1 * velocity
        losses.append(float(loss.detach()))
    torch.testing.assert_close(trained.uploads["w"], w)
    assert trained.report["loss"] == pytest.approx(sum(losses) / 2) and not trained.state


def test_a_client_of_one_class_has_nothing_to_learn_and_is_sure() -> None:
    one = made([2] * 6)
    trained = one.train({}, received(), 1)
    assert torch.equal(trained.uploads["w"], received()["w"]) and trained.report["loss"] == 0
    found = one.models({}, received())["pm"].predict(one.x, 1, torch.Generator().manual_seed(0))
    assert found.labels.tolist() == [2] * 6 and float(found.confidence.min()) > 0.9999


def test_the_personal_model_is_of_training_data_in_the_received_embedding() -> None:
    one = made([0, 1, 3] * 4, pfedgp__gp_points=3)
    tree = one.models({}, received())["pm"]
    assert tree.classes == 4 and sorted(tree.y.tolist()) == [0, 0, 1, 1, 3, 3], "twice as many points"
    everything = embedding(one.body, received()["w"][0], {}, one.x)
    assert all((everything == row).all(1).any() for row in tree.z)
    assert isinstance(PFedGP.restore(network(), one.family, tree.tensors()), TreePredictor)
    assert PFedGP.restore(network(), one.family, {}) is None


def test_without_the_package_a_site_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polyagamma", None)
    with pytest.raises(SettingsError, match=r"polyagamma; install it with `pip install polyagamma`"):
        made([0, 1])


def test_the_extra_is_there() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    assert 'gp = ["polyagamma' in text


def test_a_network_without_a_head() -> None:
    with pytest.raises(SettingsError, match=r"head: the last nn.Linear is the whole of the network"):
        client("pfedgp", nn.Sequential(nn.Linear(2, 3)), torch.randn(2, 2), torch.tensor([0, 1]))
