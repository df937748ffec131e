"""`augment`: which methods see changed images, with whose random numbers, and who refuses."""

from functools import partial

import pytest
import torch
from quadratic import client_of, settings_of
from torch import Tensor

import strategies
from bayes_core.inference.augment import FlipCrop
from bayes_core.networks import dnn
from client_app.method import Tensors
from fedbayes.launch.app_bundle import methods
from fedbayes.protocol.settings import SettingsError
from strategies.rounds.method import sent_to

FEW = {"local_steps": 2, "batch_size": 10}
NETWORK = dnn((1, 8, 8), 3)


def data(shape: tuple[int, ...] = (1, 8, 8)) -> tuple[Tensor, Tensor]:
    return torch.rand(30, *shape, generator=torch.Generator().manual_seed(2)), torch.arange(30) % 3


def trained(method: str, **words: object) -> Tensors:
    """What a client's first round sends and keeps."""
    client = client_of(NETWORK, *data(), method, **FEW, **words)
    found = strategies.load(method)
    server = found(found.reads.parse(client.settings.as_config()))
    state = server.init(lambda *_: server.weights_of(NETWORK))
    received = sent_to(server, state, "site")
    result = client.train(client.start(received), received, 1)
    return {**result.state, **result.uploads}


@pytest.mark.parametrize("method", [name for name in methods() if name != "pfedgp"])
def test_every_method_that_takes_batches_learns_from_changed_images(method: str) -> None:
    plain, changed, again = (trained(method, augment=how) for how in ("none", "flip-crop", "flip-crop"))
    assert any(not torch.equal(plain[name], changed[name]) for name in plain)
    assert all(torch.equal(changed[name], again[name]) for name in changed)


def test_batches_and_noise_are_those_of_a_run_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its random numbers come from a stream of their own: where nothing is changed, nothing moves."""
    plain = trained("pfedbayes")
    monkeypatch.setattr("client_app.method.FlipCrop", lambda _stream, _fill: partial(torch.mul, other=1.0))
    same = trained("pfedbayes", augment="flip-crop")
    assert all(torch.equal(plain[name], same[name]) for name in plain)


def test_the_darkest_value_fills_the_margin() -> None:
    client = client_of(NETWORK, *data(), "fedavg", augment="flip-crop")
    assert client.augmentation is not None
    augment = client.augmentation(1)
    assert isinstance(augment, FlipCrop) and augment.fill == float(client.x.min())


def test_what_cannot_be_augmented_is_refused() -> None:
    with pytest.raises(
        SettingsError, match=r"augment=flip-crop changes images, but the inputs are no images"
    ):
        client_of(dnn((5,), 3), *data((5,)), "fedavg", augment="flip-crop")
    with pytest.raises(SettingsError, match=r"changes batches, which method=pfedgp does not take"):
        settings_of("pfedgp", augment="flip-crop")
    with pytest.raises(SettingsError, match=r'The setting "augment" takes none or flip-crop, not "mirror"'):
        settings_of("fedavg", augment="mirror")
