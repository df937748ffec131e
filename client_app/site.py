"""Who this client is: its site id, its disk, its data, its network and its device."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayes_core.networks import NoiseKind, in_bfloat16
from client_app import method as methods
from client_app.calibrate import require_enough
from client_app.card import Card
from client_app.data import NAMES, ClientData, Split, load, load_site, simulated_sites
from client_app.data import forget as forget_data
from client_app.prepare import hold_out, random_labels
from client_app.redact import SiteError
from client_app.stages import Stage, stages_of
from fedbayes.protocol.agreement import Agreement, Claim
from fedbayes.protocol.budget import Budget
from fedbayes.protocol.codec import Wire
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import DATASET_NAME, DEVICE, FUNCTION, NAME, RESERVED_RUN_NAMES, Settings
from fedbayes.protocol.streams import stream

SIMULATED = "partition-id"  # Flower's simulation tells a client only this


@dataclass(frozen=True)
class Site:
    """One client of one run; kept between messages by processes that serve several."""

    name: str
    origin: str  # whose random numbers it draws: of its share of a data set that is cut up, else its own
    claim: Claim  # what it brings into the agreement of all sites
    data: ClientData  # as agreed, on `device`
    validation: tuple[Tensor, Tensor] | None  # held out from the training data: x and y, on `device`
    network: nn.Module
    device: torch.device
    states: Path
    durable: bool
    data_print: str  # of its own data as they were found; nothing for a share of a data set that all know


@dataclass(frozen=True)
class Participant:
    """A site in one run: what it is asked with every message, and what does not change between them."""

    settings: Settings
    site: Site
    method: methods.ClientMethod
    stages: list[Stage]
    codec: Wire
    card: str  # what its files say about themselves
    folder: Path  # for its personal state
    real: bool  # a site of its own, not one of a simulation
    tells_labels: bool  # how many examples of each class are here is no secret
    data_changed: bool  # its owner knows that its data are not those that the run began with
    budget: Budget | None  # of its owner, for what leaves in all runs together


NodeConfig = tuple[tuple[str, str | int | float | bool], ...]


@lru_cache(maxsize=16)
def participant(config: NodeConfig, settings_text: str, agreed: str | None) -> Participant:
    """This node in the run with these settings and, once there is one, this agreement, as messages carry them.

    The node's own configuration as pairs: processes that serve several nodes, or several messages, ask once for each.
    """
    settings = Settings.parse(json.loads(settings_text))
    require_allowed_code(dict(config), settings)
    run = settings.run_name
    if run and (not NAME.fullmatch(run) or run in RESERVED_RUN_NAMES):
        raise ValueError(f"{run[:40]!r} is no name of a run")
    site = find_site(dict(config), settings, Agreement.read(agreed) if agreed else None)
    if settings.dp_example_noise:
        from client_app.examples import require_private_data

        require_private_data(site.data, settings)
    found = methods.load(settings.method)
    method = found(settings, site.network, site.data.x_train, site.data.y_train, site.origin, site.device)
    card = Card.of(method, run, site.name, site.data.agreement).write()
    folder = site.states / run / site.name
    real = is_real(dict(config))
    changed = dict(config).get("data-changed", False if real else settings.data_changed) in (True, "true")
    return Participant(
        settings,
        site,
        method,
        stages_of(method),
        method.codec,
        card,
        folder,
        real,
        shares_labels(dict(config)),
        changed,
        owners_budget(dict(config), settings),
    )


def is_real(config: Mapping[str, object]) -> bool:
    """Whether the node of this configuration is a site of its own, with an owner: a simulation names no site."""
    return "site-id" in config


def installed_version() -> str:
    """Of fedbayes as its owner has installed it here; the run's own code comes from the coordinator."""
    try:
        return metadata.version("fedbayes")
    except metadata.PackageNotFoundError:
        return ""


def place_of(config: Mapping[str, Any], settings: Settings) -> tuple[Path, str]:
    """This site's folder for a run, and its name, without a look at its data."""
    name, states = site_name(config, settings), config.get("state-dir")
    if is_real(config) and not states:
        raise SiteError("The node's configuration takes state-dir: a folder for the personal model.")
    return Path(str(states) if states else Path(settings.out_dir) / "state") / settings.run_name / name, name


def site_name(config: Mapping[str, Any], settings: Settings | None = None) -> str:
    """`site-id` from the node's own configuration; in a simulation its number, or the name of its file."""
    name = str(config.get("site-id", config.get(SIMULATED, "")))
    if settings and not is_real(config) and (names := simulated_sites(settings.dataset)):
        number = int(config.get(SIMULATED, -1))
        name = names[number] if 0 <= number < len(names) else name
    if not NAME.fullmatch(name) or name in (".", ".."):
        raise SiteError(
            f"The node's configuration takes site-id of letters, digits, '.', '_' and '-', not {name!r}."
        )
    return name


def require_allowed_code(config: Mapping[str, object], settings: Settings) -> None:
    """SiteError where a run names code of this machine that its owner has not opened to runs.

    `own-code` in the node's configuration: packages, with commas between. Where it is missing, all are open.
    """
    if "own-code" not in config:
        return
    opened = [package for package in str(config["own-code"]).split(",") if package]
    named = [settings.model] if FUNCTION.fullmatch(settings.model) else []
    named += [settings.method] if settings.is_foreign else []
    for name in named:
        module = name.partition(":")[0]
        if not any(module == package or module.startswith(f"{package}.") for package in opened):
            raise SiteError(
                f"A run cannot choose code at a site; its owner lets it use {name[:60]} with "
                f"`fedbayes site --allow-code {module.partition('.')[0][:40]}`."
            )


def owners_budget(config: Mapping[str, object], settings: Settings) -> Budget | None:
    """`dp-budget` of the node's configuration; SiteError where a run would pass it by having no noise at all."""
    if "dp-budget" not in config:
        return None
    try:
        budget = Budget.read(str(config["dp-budget"]))
    except ValueError:
        raise SiteError("The node's configuration takes dp-budget: ε such as 8, or ε@δ.") from None
    if not settings.dp_example_noise:
        raise SiteError(
            "The owner of this site has set a privacy budget, and a run without dp-example-noise keeps to none."
        )
    return budget


def shares_labels(config: Mapping[str, object]) -> bool:
    """Whether the server may learn how many examples of each class are here.

    `share-labels` in the node's configuration decides; where it says nothing, only a simulation tells.
    """
    return config.get("share-labels", not is_real(config)) in (True, "true")


def find_site(config: Mapping[str, Any], settings: Settings, agreement: Agreement | None = None) -> Site:
    """This client; DataError where its data cannot be had. Without an agreement it speaks for itself alone.

    What its owner has configured goes before the run's settings: a coordinator never chooses a file or folder here.
    """
    name = site_name(config, settings)
    states = config.get("state-dir")
    changes: dict[str, object] = {"run_name": "", "resume": False, "rounds": 1, "eval_every": 1}
    changes["data_changed"] = False
    if "device" in config:
        changes["device"] = str(config["device"])
        if not DEVICE.fullmatch(str(config["device"])):
            raise SiteError("The node's configuration takes device: auto, cpu, cuda, cuda:N or mps.")
    if is_real(config):
        if not states:
            raise SiteError("The node's configuration takes state-dir: a folder for the personal model.")
        if "data-path" not in config and not DATASET_NAME.fullmatch(settings.dataset):
            raise SiteError(
                "A run cannot choose a file or a function at a site; its owner does, with data-path."
            )
        changes["data_dir"] = str(config.get("data-dir", Path(str(states)) / "data"))
    share = int(config.get(SIMULATED, -1)), int(config.get("num-partitions", 0))
    if "data-path" not in config and not 0 <= share[0] < share[1]:
        raise SiteError(
            "The node's configuration takes data-path, its own data, or partition-id and num-partitions: "
            "its share of the run's data."
        )
    return _site(
        name,
        settings.model_copy(update=changes),
        str(config.get("data-path", "")),
        share,
        str(states) if states else str(Path(settings.out_dir) / "state"),
        states is not None,
        agreement,
    )


@lru_cache(maxsize=16)
def _site(
    name: str,
    settings: Settings,
    data_path: str,
    share: tuple[int, int],
    states: str,
    durable: bool,
    agreement: Agreement | None,
) -> Site:
    device = find_device(settings.device)
    if device.type == "cuda" and settings.gpu_share:
        torch.cuda.set_per_process_memory_fraction(settings.gpu_share, device)
    found = load_site(data_path, Split.of(settings), name) if data_path else load(settings, *share)
    # Whoever has data of its own draws random numbers of its own, here and in a simulation of the same files.
    origin = str(share[0]) if DATASET_NAME.fullmatch(settings.dataset) and not data_path else name
    claim = found.claim(settings.scale)
    data = found.agreed(agreement or Agreement.of({name: claim}), settings.scale)
    x, y = data.x_train, data.y_train
    if 0 <= share[0] < settings.noisy_clients:
        y = random_labels(y, len(data.classes), stream(settings.seed, origin, "random labels"))
    kept, held = hold_out(x, y, settings.validation_fraction, stream(settings.seed, origin, "validation"))
    require_enough(settings, held, data.many)
    data = replace(data, x_train=kept[0], y_train=kept[1])
    validation = None if held is None else (held[0].to(device), held[1].to(device))
    shape, outputs = tuple(data.x_train.shape[1:]), len(data.classes)
    noise = data.agreement.scaled_noise(settings.noise_level)
    many = data.many
    network = _network(settings.model, shape, outputs, settings.seed, noise, device, settings.precision, many)
    seen = "" if settings.dataset in NAMES and not data_path else found.fingerprint()
    return Site(
        name, origin, claim, _moved(data, device), validation, network, device, Path(states), durable, seen
    )


@lru_cache(maxsize=2)
def _network(
    model: str,
    shape: tuple[int, ...],
    outputs: int,
    seed: int,
    noise: NoiseKind,
    device: torch.device,
    precision: str,
    many: bool,
) -> nn.Module:
    """All clients of a run start from the same network, and none keeps anything in it."""
    network = build(model, shape, outputs, seed, noise, many).to(device)
    return in_bfloat16(network) if precision == "bfloat16" else network


def _moved(data: ClientData, device: torch.device) -> ClientData:
    if device.type == "cpu":
        return data
    names = ("x_train", "y_train", "x_test", "y_test")
    return replace(data, **{name: getattr(data, name).to(device) for name in names})


def forget() -> None:
    """What this process keeps of sites, their data and networks."""
    for kept in (participant, _site, _network):
        kept.cache_clear()
    forget_data()


def find_device(wanted: str) -> torch.device:
    """`auto` is CUDA or MPS where there is one."""
    if wanted != "auto":
        return torch.device(wanted)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
