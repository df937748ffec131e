"""Something that predicts: what is measured, calibrated and stored, whatever it is made of.

Most predictors are weights of a family (`WeightsPredictor`); a method may bring another, such as a Gaussian process.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bayes_core.families import Family
from bayes_core.flat import around, state_dict_of, with_buffers
from bayes_core.parts import PLAIN
from bayes_core.predict import forecast, histograms, predictive, uncertainty
from bayes_core.predict.forecast import Forecast
from bayes_core.predict.uncertainty import Prediction


class Predictor(ABC):
    """What may be asked of a model. What a model need not have is None or empty by default."""

    @abstractmethod
    def predict(self, x: Tensor, samples: int, generator: torch.Generator) -> Prediction:
        """Classes of the examples x (n, …), from `samples` draws where the model draws at all."""

    @abstractmethod
    def forecast(self, x: Tensor, samples: int, generator: torch.Generator) -> Forecast:
        """Numbers, likewise, in the scale in which the model was trained."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What a file must hold to restore it."""

    def outputs_of_mean(self, x: Tensor) -> Tensor | None:
        """What the posterior-mean network says, (n, outputs); None where there is no such network."""
        return None

    def point_probabilities(self, x: Tensor) -> Tensor | None:
        """The posterior-mean network's class probabilities (n, classes); None where there is no such network."""
        outputs = self.outputs_of_mean(x)
        return None if outputs is None else outputs.softmax(-1)

    def predict_both(
        self, x: Tensor, samples: int, generator: torch.Generator
    ) -> tuple[Prediction, Tensor | None]:
        """`predict` and `point_probabilities`, which may cost less together."""
        return self.predict(x, samples, generator), self.point_probabilities(x)

    def mean_network(self) -> dict[str, Tensor] | None:
        """The posterior-mean network's weights and buffers under their PyTorch names; None where there is none."""
        return None

    def nonzero(self) -> float | None:
        """The share of weights that are on; None where all are, or there are none."""
        return None

    def weight_counts(self, sizes: Sequence[int]) -> dict[str, list[int] | list[float]]:
        """Binned counts for the report (histograms.py); `sizes` are the layers' numbers of weights."""
        return {}


@dataclass(frozen=True)
class WeightsPredictor(Predictor):
    """A distribution over a network's weights.

    Attributes:
        network: the module that the weights are for.
        family: of the distribution.
        v: the distribution (rows, T), in unconstrained coordinates.
        buffers: the network's buffers by name.
        plain: weights beside the distribution by name; in `network` they are constants.
    """

    network: nn.Module
    family: Family
    v: Tensor
    buffers: Mapping[str, Tensor]
    plain: Mapping[str, Tensor] = field(default_factory=dict)

    def predict(self, x: Tensor, samples: int, generator: torch.Generator) -> Prediction:
        return uncertainty.predict(self.network, self.family, self.v, x, samples, generator, self.buffers)

    def predict_both(self, x: Tensor, samples: int, generator: torch.Generator) -> tuple[Prediction, Tensor]:
        common = self.network, self.family, self.v, x, samples, generator, self.buffers
        found = (outputs.softmax(-1) for outputs in predictive.draw_outputs(*common, mean=True))
        of_mean = next(found)
        return uncertainty.of_draws(found), of_mean

    def forecast(self, x: Tensor, samples: int, generator: torch.Generator) -> Forecast:
        return forecast.forecast(self.network, self.family, self.v, x, samples, generator, self.buffers)

    def tensors(self) -> dict[str, Tensor]:
        """`model`, the distribution, plain.NAME and buffer.NAME."""
        plain = {PLAIN + name: value for name, value in self.plain.items()}
        return with_buffers({"model": self.v, **plain}, self.buffers)

    def outputs_of_mean(self, x: Tensor) -> Tensor:
        return predictive.outputs(self.network, self.family.centre(self.v), x, self.buffers)

    def mean_network(self) -> dict[str, Tensor]:
        return state_dict_of(around(self.network, self.family.centre(self.v), self.buffers))

    def nonzero(self) -> float | None:
        return self.family.nonzero(self.family.constrain(self.v))

    def weight_counts(self, sizes: Sequence[int]) -> dict[str, list[int] | list[float]]:
        return histograms.weight_counts(self.family, self.family.constrain(self.v), sizes)
