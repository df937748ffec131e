"""Measuring where there is no float64, as on a Mac's GPU."""

from types import SimpleNamespace

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bayes_core.networks import WithNoise
from bayes_core.predict.forecast import Forecast
from bayes_core.predict.metrics import tally_numbers
from client_app.measure import _forecast


class OnAMac:
    """Targets on such a GPU, as far as `wide` looks."""

    device = torch.device("mps")

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def cpu(self) -> Tensor:
        return self.held

    def double(self) -> Tensor:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")


def test_numbers_are_measured_on_a_device_without_float64() -> None:
    agreement = SimpleNamespace(target_scale=(10.0, 2.0))
    site = SimpleNamespace(data=SimpleNamespace(agreement=agreement))
    one = Forecast(torch.zeros(1, 2).double(), torch.ones(1, 2).double())
    model = SimpleNamespace(forecast=lambda *_: one)
    method = SimpleNamespace(stream=lambda *_: None, settings=SimpleNamespace(eval_samples=1))
    examples = None, OnAMac(torch.tensor([0.0, 1.0]))
    found = _forecast(method, site, model, examples, 1, "evaluate pm")  # type: ignore[arg-type]
    assert tally_numbers(*found)["squared_error"] == [4.0], "0 and 1 of a scale of 2"


class Devices(TorchDispatchMode):
    """The kinds of devices of all tensors that operations make."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        self.seen |= {made.device.type} if isinstance(made, Tensor) else set()
        return made


def test_a_fixed_noise_is_not_copied_from_the_host() -> None:
    network = WithNoise(torch.nn.Linear(3, 1), 0.5).to("meta")
    with Devices() as devices:
        found = network(torch.empty(4, 3, device="meta"))
    assert devices.seen == {"meta"} and found.shape == (4, 2)
    here = WithNoise(torch.nn.Linear(3, 1), 0.3)
    assert torch.equal(here(torch.ones(4, 3))[:, 1], here.log_noise.expand(4))
    assert here.state_dict().keys() == {"network.weight", "network.bias"} and not list(here.buffers())
