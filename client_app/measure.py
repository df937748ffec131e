"""What a client measures: every model on its own test and validation data, from random streams of their own.

Tallies (bayes_core/predict/metrics.py) and binned counts: all that leaves a site of these data.
"""

import torch
from flwr.app import MetricRecord
from torch import Tensor

from bayes_core.families import wide
from bayes_core.flat import shapes_of
from bayes_core.predict.calibration import fit_temperature, scale
from bayes_core.predict.conformal import measured_intervals, measured_sets
from bayes_core.predict.forecast import Forecast
from bayes_core.predict.histograms import (
    answer_counts,
    confusion_counts,
    entropy_counts,
    label_counts,
    score_counts,
    value_counts,
)
from bayes_core.predict.metrics import tally, tally_numbers
from bayes_core.predict.predictor import Predictor, WeightsPredictor
from client_app.calibrate import promise, validated
from client_app.method import ClientMethod
from client_app.prepare import Pair
from client_app.site import Site
from fedbayes.protocol.columns import VALIDATION
from fedbayes.protocol.messages import CONFORMAL, COUNTS

Records = dict[str, MetricRecord]


MOST_CLASSES = 30  # of which single ones are told


def measure(
    method: ClientMethod,
    site: Site,
    models: dict[str, Predictor],
    server_round: int,
    tells_labels: bool = False,
) -> Records:
    """Records for the reply: a tally for each model and way of predicting, and what else is told of the models.

    `tells_labels`: how many examples of each class are here is no secret, nor how each class fares.
    """
    records: Records = {}
    nonzero: dict[str, float] = {}  # of sparse models
    temperatures: dict[str, float] = {}  # where they are fitted
    conformal: dict[str, dict[str, float]] = {title: {} for title in CONFORMAL}  # likewise
    counts: dict[str, list[int] | list[float]] = {}  # for the report
    for name, model in models.items():
        if site.data.classes:
            found, predicted, fitted = _classes(method, site, name, model, server_round)
            counts[f"{name}_entropy"] = entropy_counts(predicted)
            counts[f"{name}_answers"] = answer_counts(predicted, site.data.y_test.reshape(-1))
            records |= found
            if tells_labels and len(site.data.classes) <= MOST_CLASSES:
                counts[f"{name}_confusion"], counts[f"{name}_scores"] = _single(predicted, site)
            if fitted is not None:
                temperatures[name] = fitted
        else:
            test = site.data.x_test, site.data.y_test
            found_of_test = _forecast(method, site, model, test, server_round, f"evaluate {name}")
            records[name] = MetricRecord(dict(tally_numbers(*found_of_test)))
            counts[f"{name}_values"] = value_counts(*found_of_test, site.data.agreement.target_scale)
            if site.validation:
                held = _forecast(method, site, model, site.validation, server_round, "validate")
                records[name + VALIDATION] = MetricRecord(dict(tally_numbers(*held)))
        for title, number in _conformal(method, site, name, model, server_round).items():
            conformal[title][name] = number
        # The server has the weights of its own distribution; where examples are private, those of the personal one are.
        if name == "pm" and method.mechanism is not None:
            continue
        if name == "pm":
            network = model.network if isinstance(model, WeightsPredictor) else site.network
            counts |= model.weight_counts([shape.numel() for shape in shapes_of(network).values()])
        if (ratio := model.nonzero()) is not None:
            nonzero[name] = ratio
    for title, numbers in (("nonzero", nonzero), ("temperature", temperatures), *conformal.items()):
        if numbers:
            records[title] = MetricRecord(dict(numbers))
    records[COUNTS] = MetricRecord(counts)  # type: ignore[arg-type]  # a dict is invariant in its values
    return records


def _classes(
    method: ClientMethod, site: Site, name: str, model: Predictor, server_round: int
) -> tuple[Records, Tensor, float | None]:
    """Tallies of the predictive, of the posterior-mean network, of the predictive on validation data and, where it is
    asked for, at its temperature; the predictive's probabilities; and that temperature."""
    x, y, settings = (
        site.data.x_test,
        site.data.y_test.reshape(-1),
        method.settings,
    )  # of several labels, each
    stream = method.stream(server_round, f"evaluate {name}")
    found, of_mean = model.predict_both(x, settings.eval_samples, stream)
    tallies = {name: tally(found.probabilities, y, found.mutual_information)}
    if of_mean is not None:
        tallies[f"{name}_point"] = tally(of_mean, y)
    fitted = None
    if site.validation:
        held = validated(method, model, site.validation, server_round)
        told = site.validation[1].reshape(-1)
        tallies[name + VALIDATION] = tally(held, told)
        if settings.temperature_scaling:
            fitted = fit_temperature(held, told)
            tallies[f"{name}_scaled"] = tally(scale(found.probabilities, fitted), y)
    records = {title: MetricRecord(dict(sums)) for title, sums in tallies.items()}
    return records, found.probabilities, fitted


def _single(predicted: Tensor, site: Site) -> tuple[list[int], list[int]]:
    """How each class or label fares."""
    y = site.data.y_test
    if site.data.many:
        return label_counts(predicted, y)
    return confusion_counts(predicted, y), score_counts(predicted, y)


def _conformal(
    method: ClientMethod, site: Site, name: str, model: Predictor, server_round: int
) -> dict[str, float]:
    """Coverage on test data and the mean size of sets or width of intervals, where they are asked for."""
    if not method.settings.conformal or site.validation is None:
        return {}
    samples = method.settings.eval_samples
    x, y = site.data.x_test, site.data.y_test
    if not len(y):
        return {}

    def generator() -> torch.Generator:
        """The same draws for validation and test: the model treats both alike."""
        return method.stream(server_round, f"evaluate {name}")

    found = promise(method, model, site.validation, generator())
    if site.data.classes:
        measured = measured_sets(model.predict(x, samples, generator()).probabilities, y, found)
        return dict(zip((CONFORMAL[0], CONFORMAL[1]), measured, strict=True))
    covered, width = measured_intervals(model.forecast(x, samples, generator()), y, found)
    return {CONFORMAL[0]: covered, CONFORMAL[2]: width * site.data.agreement.target_scale[1]}


def _forecast(
    method: ClientMethod, site: Site, model: Predictor, examples: Pair, server_round: int, purpose: str
) -> tuple[Forecast, Tensor]:
    """The predictive of a regression, and the targets, in their own units."""
    (x, y), (mean, deviation) = examples, site.data.agreement.target_scale
    found = model.forecast(x, method.settings.eval_samples, method.stream(server_round, purpose))
    return found.unscaled(mean, deviation), wide(y) * deviation + mean
