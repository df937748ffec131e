"""`dp-example-noise` at a site: how single examples are hidden, and what such a run cannot have."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from bayes_core.flat import statistics_of
from bayes_core.inference.private import Mechanism, Uniform, system_uniform
from bayes_core.privacy import Normal, system_normal
from fedbayes.protocol.settings import Settings, SettingsError

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


def require_private_network(network: nn.Module, settings: Settings) -> None:
    """Likewise of the network, whose statistics would mix examples or leave without noise."""
    mixing = (_BatchNorm, _InstanceNorm)
    if any(isinstance(module, mixing) and module.track_running_stats for module in network.modules()):
        _refuse(
            settings,
            "batch norm mixes the examples of a batch; take a network without, such as with group norm.",
        )
    if settings.buffers == "shared" and statistics_of(network):
        _refuse(settings, "this network's buffers would leave a site without noise; take buffers=local.")


def _refuse(settings: Settings, words: str) -> None:
    raise SettingsError(f"dp-example-noise={settings.dp_example_noise:g}: {words}")
