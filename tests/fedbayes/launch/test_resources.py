"""CPUs and GPUs shared among simulated clients."""

from types import SimpleNamespace
from typing import Any

import pytest

from fedbayes.launch import resources
from fedbayes.protocol.settings import Settings, defaults

NOSET = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}


def pretend(monkeypatch: pytest.MonkeyPatch, machine: tuple[int, int]) -> None:
    """A machine with so many CPUs and so many GPUs of 16 GiB."""
    import torch

    monkeypatch.setattr(resources, "cpus", lambda: machine[0])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: machine[1])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: machine[1] > 0)
    sixteen = SimpleNamespace(total_memory=16 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: sixteen)


@pytest.mark.parametrize(
    ("machine", "clients", "settings", "config", "variables"),
    [
        ((8, 0), 10, {}, (1, 8, None, None), {}),
        ((8, 0), 3, {}, (1, 3, None, None), {}),  # no more workers than clients
        ((2, 0), 10, {"threads": 4}, (4, 4, None, None), {}),  # one worker must fit
        ((8, 2), 10, {}, (1, 8, 0.25, 2), {}),  # eight workers, four on each GPU
        ((7, 3), 10, {}, (1, 7, 0.3333, 3), {}),  # never more than a whole GPU
        ((2, 4), 10, {}, (1, 2, 1, 4), {}),
        ((64, 1), 100, {}, (1, 64, 0.125, 1), {}),  # 16 GiB hold eight workers
        ((64, 1), 100, {"gpu-share": 0.5}, (1, 64, 0.5, 1), {}),
        ((64, 1), 100, {"gpu-share": 0.02}, (1, 64, 0.02, 1), {}),
        ((8, 2), 10, {"device": "cpu"}, (1, 8, None, None), {}),
        ((64, 2), 100, {"device": "cuda:1"}, (1, 8, None, None), NOSET),  # all on one of 16 GiB
        ((64, 2), 100, {"device": "cuda:1", "gpu-share": 0.5, "threads": 2}, (2, 4, None, None), NOSET),
        ((8, 2), 10, {"device": "cuda:7"}, (1, 8, None, None), NOSET),  # which clients will miss
    ],
)  # fmt: skip
def test_resources(
    monkeypatch: pytest.MonkeyPatch,
    machine: tuple[int, int],
    clients: int,
    settings: dict[str, Any],
    config: tuple[float | None, ...],
    variables: dict[str, str],
) -> None:
    pretend(monkeypatch, machine)
    keys = (
        "client-resources-num-cpus",
        "init-args-num-cpus",
        "client-resources-num-gpus",
        "init-args-num-gpus",
    )
    found = resources.client_resources(Settings.parse(defaults() | settings), clients)
    wanted = {key: value for key, value in zip(keys, config, strict=True) if value is not None}
    assert found == (wanted, variables)


@pytest.mark.parametrize(
    ("machine", "clients", "settings", "visible", "devices"),
    [
        ((8, 0), 10, {}, None, [""] * 8),
        ((8, 0), 3, {}, None, [""] * 3),
        ((2, 0), 10, {"threads": 4}, None, [""]),
        ((4, 2), 10, {}, None, ["0", "1", "0", "1"]),
        ((4, 2), 10, {}, "5,GPU-abc", ["5", "GPU-abc", "5", "GPU-abc"]),
        ((64, 1), 100, {}, None, ["0"] * 8),
        ((64, 2), 100, {"gpu-share": 1}, None, ["0", "1"]),
        ((64, 1), 100, {"gpu-share": 0.1}, None, ["0"] * 10),
        ((8, 2), 10, {"device": "cpu"}, None, [""] * 8),
        ((64, 2), 100, {"device": "cuda:1"}, None, [""] * 8),
        ((64, 2), 100, {"device": "cuda:1", "gpu-share": 0.5, "threads": 2}, None, [""] * 2),
        ((8, 2), 10, {"device": "cuda:7"}, None, [""] * 8),
    ],
)
def test_the_workers_of_the_embedded_engine(
    monkeypatch: pytest.MonkeyPatch,
    machine: tuple[int, int],
    clients: int,
    settings: dict[str, Any],
    visible: str | None,
    devices: list[str],
) -> None:
    """As many as Ray would start, on the same devices."""
    pretend(monkeypatch, machine)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert resources.devices_of_workers(Settings.parse(defaults() | settings), clients) == devices
