"""What goes into a client's round and what comes out of it: the recipe, the client's state, the result."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from bayes_core.flat import buffers_in, buffers_of, with_buffers
from bayes_core.inference.optimisers import OptimizerState


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The hyper-parameters of ClientUpdate, under the paper's names. A run's defaults stand in pyproject.toml alone."""

    local_steps: int  # R
    personal_steps: int  # steps on q before each step on w; the paper's is 1
    batch_size: int  # b
    mc_samples: int  # a
    zeta: float  # ζ, the weight of KL(q ‖ w)
    optimizer: str  # adam or sgd
    lr_personal: float  # η₁
    lr_global: float  # η₂
    lr_lambda: float  # of λ's logit, in q and in w
    adam_beta2: float
    compile: bool | None  # the update as one compiled pass; None: where that can be had

    @classmethod
    def of(cls, settings: object) -> "Recipe":
        """From anything that has fields of these names, such as a run's settings, whose `compile` may be "auto"."""
        values: dict[str, Any] = {field.name: getattr(settings, field.name) for field in fields(cls)}
        return cls(**values | {"compile": None if values["compile"] == "auto" else values["compile"]})


@dataclass(frozen=True)
class ClientState:
    """What a client keeps from round to round, and never sends.

    Attributes:
        q: the personal distribution (rows, T), in the family's unconstrained coordinates.
        q_optimizer: the optimiser's state for q …
        w_optimizer: … and for w, which go on in the next round.
        buffers: batch-norm statistics and the like, by name; empty only if the network has none.
    """

    q: Tensor
    q_optimizer: OptimizerState
    w_optimizer: OptimizerState
    buffers: dict[str, Tensor]

    @classmethod
    def start(cls, w: Tensor, network: nn.Module, optimizer: str) -> "ClientState":
        """A client without a past begins at the global distribution.

        Args:
            w: the global distribution (rows, T), in unconstrained coordinates.
            network: whose buffers it begins with.
            optimizer: "adam" or "sgd".
        """
        blank = OptimizerState.blank(w, optimizer)
        return cls(w.clone(), blank, blank, buffers_of(network))

    def state_dict(self) -> dict[str, Tensor]:
        """As named tensors, the form in which it is stored: q, q_moments, w_moments, steps (of both), buffer.NAME."""
        steps = torch.tensor([self.q_optimizer.steps, self.w_optimizer.steps])
        moments = {"q_moments": self.q_optimizer.moments, "w_moments": self.w_optimizer.moments}
        return with_buffers({"q": self.q, **moments, "steps": steps}, self.buffers)

    @classmethod
    def load_state_dict(cls, tensors: Mapping[str, Tensor]) -> "ClientState":
        """Back from `state_dict`; other tensors are passed over."""
        q_steps, w_steps = tensors["steps"].tolist()
        q_optimizer = OptimizerState(tensors["q_moments"], q_steps)
        w_optimizer = OptimizerState(tensors["w_moments"], w_steps)
        return cls(tensors["q"], q_optimizer, w_optimizer, buffers_in(tensors))


@dataclass(frozen=True)
class Updated:
    """The result of one client round."""

    personal: ClientState
    w: Tensor  # the localized global distribution, constrained (rows, T): the only thing uploaded
    loss: float  # mean −log p of a training example over the round
