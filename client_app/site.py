"""Who this client is: its site id, its disk, its data, its network and its device."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import Context
from torch import Tensor, nn

from bayes_core.networks import build
from bayes_core.streams import stream
from client_app.data import ClientData, load
from client_app.discretion import SiteError
from client_app.prepare import hold_out, random_labels
from client_app.store import Store
from fedbayes.settings import NAME, RESERVED_RUN_NAMES, Settings

SIMULATED = "partition-id"  # Flower's simulation tells a client only this


@dataclass(frozen=True)
class Site:
    """One client of one run; kept between messages by processes that serve several."""

    name: str
    origin: str  # whose random numbers it draws: of its share of a data set that is cut up, else its own
    data: ClientData  # on `device`
    validation: tuple[Tensor, Tensor] | None  # held out from the training data: x and y, on `device`
    network: nn.Module
    device: torch.device
    states: Path
    durable: bool

    def store(self, run: str, uuid: str) -> Store:
        if not NAME.fullmatch(run) or run in RESERVED_RUN_NAMES:
            raise ValueError(f"{run[:40]!r} is no name of a run")
        return Store(self.states / run / self.name, uuid, self.durable)


def settings_of(said: Mapping[str, object]) -> Settings:
    """The run's settings as the server sends them; sets the number of threads that results depend on."""
    settings = Settings.parse(json.loads(str(said["settings"])))
    if torch.get_num_threads() != settings.threads:
        torch.set_num_threads(settings.threads)
    return settings


def is_real(context: Context) -> bool:
    """Whether this node is a site of its own, with an owner: a simulation names no site."""
    return "site-id" in context.node_config


def site_name(context: Context) -> str:
    """`site-id` from the node's own configuration, else its number in a simulation."""
    config = context.node_config
    name = str(config.get("site-id", config.get(SIMULATED, "")))
    if not NAME.fullmatch(name) or name in (".", ".."):
        raise SiteError(
            f"The node's configuration takes site-id of letters, digits, '.', '_' and '-', not {name!r}."
        )
    return name


def find_site(context: Context, settings: Settings) -> Site:
    """This client; DataError where its data cannot be had.

    What its owner has configured goes before the run's settings: a coordinator never chooses a folder here.
    """
    name = site_name(context)
    config = context.node_config
    states = config.get("state-dir")
    if is_real(context) and not states:
        raise SiteError("The node's configuration takes state-dir: a folder for the personal model.")
    partition = int(config.get(SIMULATED, -1))
    partitions = int(config.get("num-partitions", 0))
    if not 0 <= partition < partitions:
        raise SiteError(
            "The node's configuration takes partition-id and num-partitions: its share of the data."
        )
    changes: dict[str, object] = {"run_name": "", "resume": False, "rounds": 1, "eval_every": 1}
    if is_real(context):
        if settings.dataset.endswith(".npz"):
            raise SiteError("A run cannot choose a file at a site; its owner does, with data-path.")
        changes["data_dir"] = str(config.get("data-dir", Path(str(states)) / "data"))
    return _site(
        name,
        settings.model_copy(update=changes),
        partition,
        partitions,
        str(states) if states else str(Path(settings.out_dir) / "state"),
        states is not None,
    )


@lru_cache(maxsize=16)
def _site(name: str, settings: Settings, partition: int, partitions: int, states: str, durable: bool) -> Site:
    device = find_device(settings.device)
    data = load(settings, partition, partitions)
    x, y, origin = data.x_train, data.y_train, str(partition)
    if partition < settings.noisy_clients:
        y = random_labels(y, len(data.classes), stream(settings.seed, origin, "random labels"))
    kept, held = hold_out(x, y, settings.validation_fraction, stream(settings.seed, origin, "validation"))
    data = replace(data, x_train=kept[0], y_train=kept[1])
    validation = None if held is None else (held[0].to(device), held[1].to(device))
    network = build(settings.model, data.x_train.shape[1:], len(data.classes), settings.seed).to(device)
    return Site(name, origin, _moved(data, device), validation, network, device, Path(states), durable)


def _moved(data: ClientData, device: torch.device) -> ClientData:
    if device.type == "cpu":
        return data

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device)

    return ClientData(
        move(data.x_train), move(data.y_train), move(data.x_test), move(data.y_test), data.classes, data.group
    )


def find_device(wanted: str) -> torch.device:
    """`auto` is CUDA or MPS where there is one."""
    if wanted != "auto":
        return torch.device(wanted)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
