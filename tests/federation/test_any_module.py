"""Masks of −inf, complex buffers, shared and frozen weights, recurrence: from the first round to ONNX."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import networks_of_users
import numpy as np
import pytest
import torch
from harness import Outcome
from inprocess import InProcessGrid, sites
from safetensors.torch import load_file
from torch import nn

from bayes_core.fast.mirrored import mirrored_pair
from bayes_core.flat import buffers_of, fingerprint, flatten, frozen, shapes_of, trained
from bayes_core.inference.plain import nll_gradient
from bayes_core.likelihoods import categorical
from client_app import site
from fedbayes.errors import ModelError
from fedbayes.model.adapt import adapt
from fedbayes.model.export import export, read_pruned
from fedbayes.model.finished import Finished
from fedbayes.model.personal import PersonalModel
from fedbayes.protocol.agreement import Claim
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import Settings, defaults
from fedbayes.protocol.user_code import UserCodeError
from server_app.app import _network
from server_app.stored import RunError, read_config

Federate = Callable[..., Outcome]
NETWORKS = ["transformer", "tied", "recurrent", "half_frozen"]
METHODS = ["pfedbayes", "sfedbayes", "cfedbayes"]
SHORT = {"rounds": 2, "eval_every": 1, "local_steps": 2, "size": "3+3"}
WITHOUT_ONNX = {"transformer": "complex"}  # torch's exporter cannot turn such a tensor into a constant


@pytest.fixture(autouse=True)
def forget():
    yield
    site.forget()


def named(network: str) -> str:
    return f"networks_of_users:{network}"


def start_of(network: str) -> nn.Module:
    return build(named(network), (1, 8, 8), 10, seed=int(defaults()["seed"]))


def examples() -> torch.Tensor:
    return torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", NETWORKS)
def test_from_the_first_round_to_an_adapted_site(
    federate: Federate, tmp_path: Path, network: str, method: str
) -> None:
    run = federate(clients=3, model=named(network), method=method, **SHORT)
    fresh = start_of(network)
    assert run.state == "finished" and run.said("warning") == []
    assert {row["clients_failed"] for row in run.rows[1:]} == {"0"}
    w = next(tensor for name, tensor in run.tensors.items() if name in ("w", "u0"))
    assert w.shape[1] == len(flatten(fresh))
    assert not torch.equal(w[0], flatten(fresh)), "it was trained"
    assert (read_config(run.folder) or {})["layers"] == {
        name: shape.numel() for name, shape in shapes_of(fresh).items()
    }

    folder = tmp_path / "state" / run.folder.name / "1"
    assert sorted(path.name for path in folder.glob("*.safetensors")) == [
        "personal.safetensors",
        "previous.safetensors",
    ]
    personal = PersonalModel.load(folder, trust_code=True)
    found = personal.predict(examples()).probabilities
    torch.testing.assert_close(found.sum(-1).float(), torch.ones(5))
    for name, buffer in fresh.named_buffers():
        assert torch.equal(personal.buffers[name], buffer) and personal.buffers[name].dtype == buffer.dtype

    x, y = torch.rand(12, 1, 8, 8), torch.arange(12) % 10
    *_, last = adapt(Finished.open(run.folder, {"rounds": 2}), x, y, "new")
    assert last.personal().predict(examples()).probabilities.isfinite().all()
    assert last.file() is last.state, "the model is in the state already"


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_are_those_of_an_ordinary_backward_pass(network: str) -> None:
    one, x, y = start_of(network), examples()[:4], torch.arange(4)
    thetas = torch.stack([flatten(one), 0.5 * flatten(one)])
    pair = mirrored_pair(one, thetas, buffers_of(one), x)
    value, found = pair.nll_gradients(x, y, torch.tensor(3.0), categorical)
    expected, total = [], 0.0
    for theta, half in zip(thetas, (slice(0, 2), slice(2, 4)), strict=True):
        plain = start_of(network)
        torch.nn.utils.vector_to_parameters(theta, trained(plain).values())
        loss = categorical(plain(x[half]), y[half])
        loss.backward()
        expected += [3 * parameter.grad for parameter in trained(plain).values()]
        total += loss.item()
        _, gradient = nll_gradient(one, shapes_of(one), theta, buffers_of(one), x[half], y[half])
        torch.testing.assert_close(
            3 * gradient, torch.cat([part.view(-1) for part in expected[-len(trained(plain)) :]])
        )
    assert value.item() == pytest.approx(total, rel=1e-6) and len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", NETWORKS)
def test_sites_with_disks_of_their_own_get_the_figures_of_the_simulation(
    federate: Federate, tmp_path: Path, network: str, method: str
) -> None:
    words = SHORT | {"model": named(network), "method": method}
    deployed = federate("deployed", grid=sites(tmp_path, 3), **words)
    site.forget()
    assert deployed.metrics == federate("simulated", clients=3, **words).metrics
    PersonalModel.load(tmp_path / "disk-2" / "deployed" / "site-2", trust_code=True).predict(examples())


@pytest.mark.parametrize("method", ["pfedbayes", "sfedbayes"])
@pytest.mark.parametrize("network", NETWORKS)
def test_exported_networks_are_the_mean_network(
    federate: Federate, tmp_path: Path, network: str, method: str
) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    run = federate(clients=2, model=named(network), method=method, **SHORT)
    personal = PersonalModel.load(tmp_path / "state" / run.folder.name / "0", trust_code=True)
    out, x = tmp_path / "out", examples()
    expected = personal.point_probabilities(x)
    if network in WITHOUT_ONNX:
        with pytest.raises(
            ModelError, match=r"cannot be written as ONNX \(.+\); its state dict is beside network.onnx"
        ):
            export(personal, out)
    else:
        export(personal, out)
        theirs = onnxruntime.InferenceSession(str(out / "network.onnx")).run(None, {"x": x.numpy()})[0]
        np.testing.assert_allclose(theirs, expected, atol=1e-5)
    for weights in (load_file(out / "network.safetensors"), personal.state_dict()):
        plain = build(named(network), (1, 8, 8), 10, seed=5)  # with frozen weights of another start
        plain.load_state_dict(weights)
        torch.testing.assert_close(plain.eval()(x).softmax(-1).detach(), expected)
    if method == "sfedbayes":
        plain.load_state_dict(read_pruned(out / "pruned.safetensors"))


def test_frozen_weights_stay_as_they_are_and_count_in_the_fingerprint(
    federate: Federate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = federate(clients=2, model=named("half_frozen"), **SHORT)
    assert run.tensors["w"].shape == (2, 16 * 10 + 10)
    personal = PersonalModel.load(tmp_path / "state" / "run" / "0", trust_code=True)
    fresh = start_of("half_frozen")
    for name, constant in frozen(fresh).items():
        assert torch.equal(personal.state_dict()[name], constant)

    monkeypatch.setattr(networks_of_users, "half_frozen", networks_of_users.another_frozen)
    with pytest.raises(ModelError, match="has other parameters than the one that was trained"):
        PersonalModel.load(tmp_path / "state" / "run" / "0", trust_code=True)
    with pytest.raises(ModelError, match="has other parameters than the one of the run run"):
        next(adapt(Finished.open(run.folder), torch.rand(4, 1, 8, 8), torch.arange(4), "new"))


def test_a_coordinator_with_other_frozen_weights_is_named(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = InProcessGrid({}, 2)

    def interfere(number, message, reply):
        if number == 1:
            monkeypatch.setattr(networks_of_users, "half_frozen", networks_of_users.another_frozen)
        return reply

    grid.interfere = interfere
    with pytest.raises(RunError, match='The coordinator and site "0" have different models'):
        federate(grid=grid, model=named("half_frozen"), **SHORT)


def test_networks_with_nothing_to_learn_are_refused() -> None:
    with pytest.raises(UserCodeError, match=r"has only frozen parameters .* there is nothing to learn"):
        build(named("all_frozen"), (1, 8, 8), 10)


def test_frozen_weights_that_no_seed_repeats_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded = networks_of_users.half_frozen

    def unseeded(inputs: tuple[int, ...], classes: int) -> nn.Module:
        network = seeded(inputs, classes)
        with torch.no_grad():
            next(network.parameters()).copy_(torch.from_numpy(np.random.default_rng().normal(size=(16, 64))))
        return network

    monkeypatch.setattr(networks_of_users, "half_frozen", unseeded)
    with pytest.raises(UserCodeError, match="made two networks of different frozen parameters in two calls"):
        build(named("half_frozen"), (1, 8, 8), 10)


def test_another_start_has_the_same_frozen_weights_at_every_site() -> None:
    """K starts differ in what is trained; what is frozen is nobody's to send."""
    settings = Settings.parse(defaults() | {"model": named("half_frozen"), "run-name": "a"})
    here = fingerprint(start_of("half_frozen"))
    one = SimpleNamespace(
        input_shape=(1, 8, 8),
        classes=tuple("0123456789"),
        fingerprint=here,
        name="0",
        claim=Claim((), (), False),
    )
    first, other = _network(settings, one), _network(settings, one, "start", 1)
    assert flatten(first).shape == flatten(other).shape and not torch.equal(flatten(first), flatten(other))
