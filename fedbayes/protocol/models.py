"""The network of a run: one of the paper's, or a user's own, the same for the same seed everywhere."""

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from bayes_core.flat import fingerprint, shapes_of, trained
from bayes_core.networks import INPUT, NETWORKS, ManyLabels, NoiseKind, WithNoise
from fedbayes.protocol.streams import seed_of
from fedbayes.protocol.user_code import UserCodeError, find, problem


def build(
    model: str,
    inputs: Sequence[int],
    classes: int,
    seed: int = 0,
    noise: NoiseKind = None,
    many: bool = False,
) -> nn.Module:
    """The network for so many classes; for none of them, a regression: one number with its noise (None = learned).

    Where the noise depends on the input, the network has two outputs: the number, and the logarithm of its noise.

    `many`: an example may be of several classes at once, or of none.
    """
    if many:
        return ManyLabels(_plain(model, inputs, classes, seed))
    if classes:
        return _plain(model, inputs, classes, seed)
    return WithNoise(_plain(model, inputs, 2 if noise == INPUT else 1, seed), noise)


def _plain(model: str, inputs: Sequence[int], classes: int, seed: int) -> nn.Module:
    """The named network, or that of a user's `package.module:function(inputs=…, classes=…)`.

    PyTorch's own initialisation, the same for the same seed.
    """
    if model in NETWORKS:
        try:
            return _seeded(NETWORKS[model], inputs, classes, seed)
        except ValueError as error:  # inputs that it does not take
            raise UserCodeError(str(error)) from None
        except (RuntimeError, MemoryError, OverflowError) as error:  # more weights than memory has room for
            size = f"inputs of shape {tuple(inputs)} and {classes} classes"
            raise UserCodeError(f"model={model} cannot be made for {size}: {problem(error)}.") from None
    factory = find(model)
    try:
        network, again = (_seeded(factory, inputs, classes, seed) for _ in range(2))
    except Exception as error:  # whatever the user's code raises
        call = f"inputs={tuple(inputs)}, classes={classes}"
        raise UserCodeError(f"model={model} called with {call} failed with {problem(error)}.") from error
    if not isinstance(network, nn.Module) or not isinstance(again, nn.Module):
        raise UserCodeError(f"model={model} returned {type(network).__name__}; it takes a torch.nn.Module.")
    parameters = [*network.parameters(), *again.parameters()]
    if any(isinstance(parameter, UninitializedParameter) for parameter in parameters):
        raise UserCodeError(
            f"model={model} has lazy layers, whose shapes are not known yet; give their sizes."
        )
    learned = list(trained(network).values())
    if parameters and not learned:
        raise UserCodeError(
            f"model={model} has only frozen parameters (requires_grad=False): there is nothing to learn."
        )
    if not learned or not all(parameter.is_floating_point() for parameter in learned):
        raise UserCodeError(f"model={model} has no parameters, or some that are no floating-point numbers.")
    if fingerprint(network) != fingerprint(again):
        what = "frozen parameters" if shapes_of(network) == shapes_of(again) else "shapes"
        raise UserCodeError(
            f"model={model} made two networks of different {what} in two calls; all sites need the same one."
        )
    _require_outputs(network, model, inputs, classes)
    return network


def _seeded(factory: Callable[..., nn.Module], inputs: Sequence[int], classes: int, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "network"))
        return factory(inputs=tuple(inputs), classes=classes)


@torch.no_grad()
def _require_outputs(network: nn.Module, model: str, inputs: Sequence[int], classes: int) -> None:
    """One number a class for each example of a batch."""
    network.eval()
    try:
        shape = _tried(network, inputs)
    except Exception as error:  # whatever the user's network raises
        raise UserCodeError(
            f"model={model} failed on two examples of {tuple(inputs)}: {problem(error)}."
        ) from error
    finally:
        network.train()
    if shape != (2, classes):
        raise UserCodeError(f"model={model} gives {shape} for two examples, not (2, {classes}).")


def _tried(network: nn.Module, inputs: Sequence[int]) -> tuple[int, ...]:
    """The shape of what it gives for two examples: of numbers, or, where it takes none, of tokens."""
    try:
        return tuple(network(torch.zeros(2, *inputs)).shape)
    except Exception:
        try:
            return tuple(network(torch.zeros(2, *inputs, dtype=torch.int64)).shape)
        except Exception:  # what was wrong with numbers is the better story
            return tuple(network(torch.zeros(2, *inputs)).shape)
