"""The hyper-parameters of a client's round."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

MOST_STEPS = 5
EXAMPLES_A_ZETA = 100  # the paper's ζ = 10 at its n = 1000 …
MOST_ZETA = 10.0  # … and no more of it for more examples


def zeta_for(n: int) -> float:
    """ζ = n/100 and at most 10, where nobody chose one.

    Ω/n is the mean −log p of an example and KL(q ‖ w)/100, so that the prior does not drown what few examples say. From
    the paper's 1000 examples on its ζ stays, as in Bayes' rule: what many examples say outweighs the prior.
    """
    return min(n / EXAMPLES_A_ZETA, MOST_ZETA)


def steps_for(n: int, batch_size: int) -> int:
    """Steps on q before each step on w, where nobody chose: one for every two batches of data, and at most five.

    Little data are soon learned by heart: with 20 × 5 steps a round, 250 examples are seen forty times in it.
    """
    return max(1, min(MOST_STEPS, n // (2 * batch_size)))


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
    def of(cls, settings: Mapping[str, Any]) -> "Recipe":
        """From a run's settings by their keys, such as `local-steps`; their `compile` may be "auto"."""
        values: dict[str, Any] = {field.name: settings[field.name.replace("_", "-")] for field in fields(cls)}
        return cls(**values | {"compile": None if values["compile"] == "auto" else values["compile"]})
