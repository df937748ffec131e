"""A predictor of weights says what the functions say; one without weights need not say more than it can."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from bayes_core.families import Family, Gaussian, Point, SpikeSlab
from bayes_core.flat import buffers_in, buffers_of, flatten
from bayes_core.networks import WithNoise
from bayes_core.predict.forecast import Forecast, forecast
from bayes_core.predict.histograms import weight_counts
from bayes_core.predict.predictive import point_probabilities
from bayes_core.predict.predictor import Predictor, WeightsPredictor
from bayes_core.predict.uncertainty import Prediction, predict

X = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model(family: Family, outputs: int = 3) -> WeightsPredictor:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, outputs))
    buffers = {name: buffer + 1 for name, buffer in buffers_of(network).items()}
    v = family.unconstrain(family.init(flatten(network), -1.0, 0.7))
    return WeightsPredictor(network, family, v, buffers)


@pytest.mark.parametrize(
    "family", [Point(), Gaussian(), SpikeSlab()], ids=["point", "gaussian", "spike-slab"]
)
def test_weights_say_what_the_functions_say(family: Family) -> None:
    one = model(family)
    common = one.network, family, one.v
    got, expected = one.predict(X, 4, seeded()), predict(*common, X, 4, seeded(), one.buffers)
    assert torch.equal(got.probabilities, expected.probabilities) and torch.equal(
        got.entropy, expected.entropy
    )
    assert torch.equal(one.point_probabilities(X), point_probabilities(*common, X, one.buffers))
    both, of_mean = one.predict_both(X, 4, seeded())
    assert torch.equal(both.probabilities, expected.probabilities) and torch.equal(
        both.entropy, expected.entropy
    )
    assert of_mean is not None and torch.equal(of_mean, one.point_probabilities(X))
    assert one.nonzero() == (pytest.approx(0.7) if family.gated else None)
    sizes = [20, 5, 5, 5, 15, 3]
    assert one.weight_counts(sizes) == weight_counts(family, family.constrain(one.v), sizes)


def test_numbers_as_well() -> None:
    one = model(Gaussian(), 1)
    noisy = WithNoise(one.network, 0.5)
    found = replace(one, network=noisy, buffers=buffers_of(noisy)).forecast(X, 4, seeded())
    expected = forecast(noisy, Gaussian(), one.v, X, 4, seeded())
    assert torch.equal(found.means, expected.means) and found.means.shape == (4, 9)


def test_the_mean_network_is_an_ordinary_one() -> None:
    one = model(SpikeSlab())
    copy = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).eval()
    copy.load_state_dict(one.mean_network())
    torch.testing.assert_close(copy(X).detach(), one.outputs_of_mean(X))
    torch.testing.assert_close(copy(X).softmax(-1).detach(), one.point_probabilities(X))
    torch.testing.assert_close(flatten(copy), 0.7 * one.v[0])


def test_its_tensors_restore_it() -> None:
    one = model(Gaussian())
    tensors = one.tensors()
    names = {"model", "buffer.1.running_mean", "buffer.1.running_var", "buffer.1.num_batches_tracked"}
    assert tensors.keys() == names
    again = WeightsPredictor(one.network, one.family, tensors["model"], buffers_in(tensors))
    assert torch.equal(again.predict(X, 3, seeded()).entropy, one.predict(X, 3, seeded()).entropy)


class Even(Predictor):
    """Knows nothing and says so."""

    def predict(self, x: Tensor, samples: int, generator: torch.Generator) -> Prediction:
        return Prediction(torch.full((len(x), 2), 0.5), torch.ones(len(x)), torch.zeros(len(x)))

    def forecast(self, x: Tensor, samples: int, generator: torch.Generator) -> Forecast:
        raise AssertionError("nobody asks for numbers here")

    def tensors(self) -> dict[str, Tensor]:
        return {}


def test_a_model_without_weights_has_no_mean_network() -> None:
    one = Even()
    assert one.outputs_of_mean(X) is None and one.point_probabilities(X) is None
    assert one.mean_network() is None and one.nonzero() is None and one.weight_counts([1]) == {}
