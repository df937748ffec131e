"""Which of a network's weights have a distribution, and what becomes of the others: `bayesian = head` and the like.

The others are plain weights, trained and averaged as FedAvg does: a tensor (1, P) beside the distribution of the rest.
To whatever draws, predicts or measures, they are constants of the network as frozen parameters are: `hold` does it.
"""

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from bayes_core.flat import Split, frozen, shapes_of, trained
from bayes_core.inference.optimisers import Optimiser, OptimizerState
from bayes_core.networks import ManyLabels, WithNoise

ALL, HEAD = "all", "head"
PLAIN = "plain."  # what the stored names of plain weights begin with


def bayesian_part(network: nn.Module, words: str) -> Split | None:
    """Body (plain) and head (with a distribution) of a network; None where all weights have one.

    `words`: all, head (the last `nn.Linear`), or beginnings of parameters' names with commas between. The noise of a
    regression's targets is always among those with a distribution. ValueError names what there is.
    """
    if words == ALL:
        return None
    wrapped = isinstance(network, WithNoise | ManyLabels)
    inner = network.network if isinstance(network, WithNoise | ManyLabels) else network
    names = list(trained(inner))
    chosen: set[str] = set()
    for word in (word.strip().rstrip(".") for word in words.split(",")):
        if word == HEAD and not any(_begins(name, HEAD) for name in names):
            chosen |= _last_linear(inner)
            continue
        found = {name for name in names if word and _begins(name, word)}
        if not found:
            fixed = any(_begins(name, word) for name in frozen(inner))
            what = "has only frozen parameters" if fixed and word else "is the beginning of no parameter"
            raise ValueError(
                f'bayesian: "{word}" {what}; all, head, or the beginning of {", ".join(names)} is taken.'
            )
        chosen |= found
    if len(chosen) == len(names):
        return None
    prefix = "network." if wrapped else ""
    noise = {name for name in trained(network) if wrapped and not name.startswith(prefix)}
    return Split.of(shapes_of(network), {prefix + name for name in chosen} | noise)


def _begins(name: str, word: str) -> bool:
    return f"{name}.".startswith(f"{word}.")


def _last_linear(network: nn.Module) -> set[str]:
    """What is learned of the last `nn.Linear` of which anything is."""
    names = {id(parameter): name for name, parameter in trained(network).items()}
    each = [module.parameters() for module in network.modules() if isinstance(module, nn.Linear)]
    found = [here for one in each if (here := {names[id(p)] for p in one if id(p) in names})]
    if not found:
        raise ValueError(
            "bayesian: head is the last nn.Linear, and this network has none that is learned; "
            f"name one of {', '.join(names.values())}."
        )
    return found[-1]


def hold(network: nn.Module, values: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the network in which these parameters are constants, views of the values; all else is the network's."""
    held = {name: nn.Parameter(value, requires_grad=False) for name, value in values.items()}
    known = dict(network.named_parameters())
    if unknown := sorted(set(held) - set(known)):
        raise ValueError(f"No parameter {', '.join(unknown)}; there are {', '.join(known)}.")
    same: dict[int, Tensor] = {id(one): held.get(name, one) for name, one in known.items()}
    return copy.deepcopy(network, same | {id(buffer): buffer for buffer in network.buffers()})


def plain_in(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The plain weights among named tensors, by their own names."""
    return {name.removeprefix(PLAIN): value for name, value in tensors.items() if name.startswith(PLAIN)}


class Beside:
    """The plain weights of one client round: FedAvg's steps on the mean loss, under draws of the other weights.

    Args:
        network: the whole one.
        split: its plain weights and the others.
        body: the plain weights (1, P) to begin with; they are not changed.
        optimizer: "adam" or "sgd", new in every round …
        lr: … at this rate …
        beta2: … and, of Adam, with this memory.
    """

    def __init__(
        self, network: nn.Module, split: Split, body: Tensor, optimizer: str, lr: float, beta2: float
    ) -> None:
        self.body = body.clone()
        self.optimiser = Optimiser(
            self.body, OptimizerState.blank(self.body, optimizer), optimizer, lr, beta2=beta2
        )
        views = split.named_shared(self.body[0])
        self.network = hold(network, views)  # follows every step, since its constants are views
        inside = dict(self.network.named_parameters())
        self.leaves = [inside[name] for name in views]
        self.gradient = torch.zeros_like(self.body)

    def add(self, gradients: Sequence[Tensor]) -> None:
        """Of −log p of all examples, by each of the leaves."""
        self.gradient += torch.cat([one.reshape(-1) for one in gradients])

    def step(self, examples: int) -> None:
        """On the mean over so many examples, with all that was added since the last one."""
        self.optimiser.step(self.gradient.div_(examples))
        self.gradient.zero_()
