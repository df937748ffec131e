"""`dp-example-noise` at a site: how single examples are hidden, and what such a run cannot have."""

from typing import NoReturn

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from bayes_core.flat import statistics_of
from bayes_core.inference.private import Mechanism, Uniform, system_uniform
from bayes_core.privacy import Normal, system_normal
from client_app.data import ClientData
from client_app.data.tables.table import Table
from fedbayes.protocol.settings import Settings, SettingsError
from fedbayes.protocol.tables import BOOLEAN, CATEGORY

NORMAL: Normal = system_normal
UNIFORM: Uniform = system_uniform


def mechanism_of(settings: Settings) -> Mechanism:
    poisson = settings.dp_example_sampling == "poisson"
    return Mechanism(settings.dp_example_noise, settings.dp_example_clip, poisson, NORMAL, UNIFORM)


def require_private(settings: Settings, can: bool) -> None:
    """SettingsError where data would leave a site by another way than clipped and noised gradients."""
    words = settings.as_config()
    if not can:
        _refuse(settings, f"method={settings.method} has no private training; pfedbayes, sfedbayes, fedavg, "
                "fedprox and finetune have.")  # fmt: skip
    if settings.augment != "none":
        _refuse(settings, f"augment={settings.augment} looks at all of a site's images; leave it out.")
    if settings.class_weights != "none":
        _refuse(
            settings, "class-weights count a site's labels, and one example would move all; leave them out."
        )
    if settings.aggregation_confidence != "off":
        _refuse(settings, "what a site says of its certainty has no noise; leave aggregation-confidence out.")
    if words.get("bayesian", "all") != "all" and settings.method in ("pfedbayes", "sfedbayes"):
        _refuse(
            settings, f"with bayesian={words['bayesian']} plain weights would leave without noise; take all."
        )


def require_private_data(data: ClientData, settings: Settings) -> None:
    """Likewise of the data: every example becomes the network's inputs by itself, whatever the others are.

    A mean that is taken off all of them, or stands for what is missing, has each of them in it: taking one out would
    move every gradient, and a clip of single ones bounds nothing. Bytes of images have a scale of their own.
    """
    if settings.scale != "none" and (data.measured or not data.classes):
        what = "inputs" if data.measured else "targets"
        _refuse(
            settings,
            f"scale={settings.scale} brings {what} to a scale made of all examples, and one would move all; bring "
            "them to one that is known without these data, and take scale=none.",
        )
    if data.tables:
        _require_private_table(data.tables[0], settings)


def _require_private_table(table: Table, settings: Settings) -> None:
    for column in table.columns:
        if column.absent.any():
            _refuse(
                settings,
                f'what stands for missing values of the column "{column.name}" is made of all examples; fill them '
                "with what is known without these data.",
            )
        if column.kind in (BOOLEAN, CATEGORY) and column.name not in table.reading.categories:
            _refuse(
                settings,
                f'which words the column "{column.name}" has, and how often, is told of all examples; name them, '
                f"such as categories={column.name}:yes|no, or write numbers.",
            )


def require_private_network(network: nn.Module, settings: Settings) -> None:
    """Likewise of the network, whose statistics would mix examples or leave without noise."""
    if any(map(_mixes, network.modules())):
        _refuse(
            settings,
            "batch norm mixes the examples of a batch; take a network without, such as with group norm.",
        )
    if settings.buffers == "shared" and statistics_of(network):
        _refuse(settings, "this network's buffers would leave a site without noise; take buffers=local.")


def _mixes(module: nn.Module) -> bool:
    """Whether what it makes of an example depends on others, in its batch or before."""
    return isinstance(module, _BatchNorm) or (
        isinstance(module, _InstanceNorm) and module.track_running_stats
    )


def _refuse(settings: Settings, words: str) -> NoReturn:
    raise SettingsError(f"dp-example-noise={settings.dp_example_noise:g}: {words}")
