"""BNFed: the server matches what clients trained from starts of their own, and gives each its neurons back."""

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import MetricRecord, RecordDict
from torch import Tensor, nn
from toy import client

from bayes_core.flat import flatten
from bayes_core.networks import vgg
from bayes_core.server.matching import pack, part_of, unpack
from fedbayes.launch.methods import checked
from fedbayes.protocol.agreement import Claim
from fedbayes.protocol.codec import Wire
from fedbayes.protocol.settings import Settings, SettingsError, defaults
from strategies.bnfed import BNFed
from strategies.rounds.intake import Intake
from strategies.rounds.replies import read_reply
from strategies.rounds.roster import Site
from strategies.rounds.state import Came, State

WIDTHS = [3, 4, 2]


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def started(method: BNFed) -> State:
    return method.init(lambda *words: method.weights_of(network()))


def permuted(v: Tensor, order: list[int]) -> Tensor:
    layers = unpack(v.double().numpy(), WIDTHS)
    return torch.from_numpy(pack(part_of(layers, [np.array(order)]))).float()[None]


def site(name: str, labels: tuple[int, ...] | None) -> Site:
    return Site(name, 0, 8, 8, (3,), ("0", "1"), Claim((3,), ("0", "1"), True), "", None, 2, labels)


def one_round(method: BNFed, state: State, uploads: dict[str, Tensor], **labels: Any) -> tuple[State, Came]:
    """Through the real intake, each upload as a change of what its site was sent."""
    codec, sites = Wire(method.family), {name: site(name, labels.get(name)) for name in uploads}
    intake = Intake(method, state, codec, [], 1, len(uploads), sites)
    for name, upload in uploads.items():
        own = method.send(state, name).get("own")
        records: dict[str, Any] = {"report": MetricRecord({}), "w": codec.leave(upload, own)}
        intake.take(name, 8, read_reply(RecordDict(records)))
    came = intake.close()
    return method.step(state, came), came


def test_permuted_networks_are_one_and_each_site_gets_its_own_order_back() -> None:
    method = BNFed(prior=1e6, variance=1e-3, mass=1e-3)
    truth = flatten(network(7))
    uploads = {"a": permuted(truth, [2, 0, 3, 1]), "b": permuted(truth, [1, 3, 0, 2])}
    state, came = one_round(method, started(method), uploads)
    assert state.sent["widths"].tolist() == WIDTHS and method.describe(state, came) == ({"neurons": 4}, {})
    for name, upload in uploads.items():
        sent = method.send(state, name)
        torch.testing.assert_close(sent["own"], upload, rtol=1e-4, atol=1e-5)
        assert sent["w"] is state.sent["w"], "encoded once"
        part = method.expects(state, name, {})["w"]
        assert part.base is not None and torch.equal(part.base, sent["own"])
    assert "own" not in method.send(state, "new"), "a site that comes later starts as all did"
    assert method.expects(state, "new", {})["w"].shape == (1, 26)
    again, _ = one_round(method, state, uploads)
    assert again.facts["places"] == state.facts["places"], "the next matching goes on from this one"


def test_before_the_first_round_all_have_the_common_network_to_measure() -> None:
    method = BNFed()
    state = started(method)
    assert torch.equal(state.sent["w"][0], flatten(network())) and set(method.send(state, "a")) == {
        "w",
        "widths",
    }
    with pytest.raises(ValueError, match="it must know the layers"):
        BNFed().init(lambda *words: torch.zeros(26))


def test_a_site_without_a_class_has_no_say_in_it_where_all_sites_tell() -> None:
    truth = flatten(network(7))
    other = truth.clone()
    other[-10:-2] += 0.01  # the output weights
    uploads = {"a": truth[None], "b": other[None]}
    method = BNFed(mass=1e-9)
    told, came = one_round(method, started(method), uploads, a=(8, 0), b=(0, 8))
    assert method.shares(came, 2).tolist() == [[1, 0], [0, 1]]
    ours = unpack(method.send(told, "a")["own"][0].numpy(), WIDTHS)[1][0]
    np.testing.assert_allclose(ours[0], truth[-10:-6] / 2, rtol=1e-5)
    np.testing.assert_allclose(ours[1], other[-6:-2] / 2, rtol=1e-5)
    _, came = one_round(method, started(method), uploads, a=(8, 0))
    assert method.shares(came, 2).tolist() == [[1, 1], [1, 1]], "one of them does not tell"
    _, came = one_round(method, started(method), uploads, a=(8, 0), b=(8, 0))
    assert method.shares(came, 2).tolist() == [[0.5, 0], [0.5, 0]], "a class that nobody has"


def made(name: str = "a", **settings: Any) -> Any:
    torch.manual_seed(2)
    return client("bnfed", network(), torch.randn(6, 3), torch.tensor([0, 1] * 3), name, **settings)


def test_a_client_begins_from_weights_of_its_own() -> None:
    method = BNFed()
    received = dict(method.send(started(method), "a"))
    first, again, other = (made(name).train({}, received, 1) for name in ("a", "a", "b"))
    assert torch.equal(first.uploads["w"], again.uploads["w"]) and not first.bases and not first.state
    start = made("a").own_start()
    assert start.shape == (1, 26) and not torch.equal(start, made("b").own_start())
    assert not torch.equal(start[0], flatten(network())), "not the common one"
    assert not torch.equal(first.uploads["w"], other.uploads["w"])


def test_later_it_goes_on_from_its_neurons_with_sgd() -> None:
    one = made(local_steps=1, bnfed__lr=0.25)
    own = flatten(network(5))[None]
    trained = one.train({}, {"own": own, "w": own, "widths": torch.tensor([3.0, 4.0, 2.0])}, 3)
    assert trained.bases == {"w": "own"}
    copied = network(5)
    loss = nn.functional.cross_entropy(copied(one.x), one.y)
    gradient = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, list(copied.parameters()))])
    torch.testing.assert_close(trained.uploads["w"][0], own[0] - 0.25 * gradient)
    torch.testing.assert_close(one.model_of(trained, {}).v, trained.uploads["w"])


def test_the_global_model_is_as_wide_as_it_is() -> None:
    one, wide = made(), nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 2))
    models = one.models({}, {"w": flatten(wide)[None], "widths": torch.tensor([3.0, 7.0, 2.0])})
    assert set(models) == {"gm"}
    torch.testing.assert_close(models["gm"].outputs_of_mean(one.x), wide(one.x).detach())


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"the layer 0 of the network \(Conv2d\) is not fully connected"):
        client("bnfed", vgg((3, 32, 32), 2), torch.zeros(2, 3, 32, 32), torch.tensor([0, 1]))
    settings = Settings.parse(defaults() | {"method": "bnfed"})
    assert checked(settings)
    for change, words in (
        ({"clients_per_round": 2}, "needs every site in every round"),
        ({"aggregation_confidence": "weight"}, "aggregation-confidence weighs what is averaged"),
        ({"lr_global": 0.1}, r"takes plain SGD steps at rates of its own \(bnfed.lr\)"),
    ):
        with pytest.raises(SettingsError, match=words):
            checked(settings.model_copy(update=change))
    with pytest.raises(SettingsError, match='method=bnfed does not use the setting "beta"'):
        checked(Settings.parse(defaults() | {"method": "bnfed", "beta": 0.5}))
