"""What a client measures: every model on its own test and validation data, from random streams of their own.

Tallies (bayes_core/predict/metrics.py) and binned counts: all that leaves a site of these data.
"""

from flwr.app import MetricRecord
from torch import Tensor

from bayes_core.families import wide
from bayes_core.flat import shapes_of
from bayes_core.predict.calibration import fit_temperature, scale
from bayes_core.predict.histograms import confusion_counts, entropy_counts, score_counts
from bayes_core.predict.metrics import tally, tally_numbers
from bayes_core.predict.predictor import Predictor
from client_app.calibrate import validated
from client_app.method import ClientMethod
from client_app.prepare import Pair
from client_app.site import Site
from fedbayes.protocol.columns import VALIDATION
from fedbayes.protocol.messages import COUNTS

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
    counts: dict[str, list[int] | list[float]] = {}  # for the report
    sizes = [shape.numel() for shape in shapes_of(site.network).values()]
    for name, model in models.items():
        if site.data.classes:
            found, predicted, fitted = _classes(method, site, name, model, server_round)
            counts[f"{name}_entropy"] = entropy_counts(predicted)
            records |= found
            if tells_labels and not site.data.many and len(site.data.classes) <= MOST_CLASSES:
                counts[f"{name}_confusion"] = confusion_counts(predicted, site.data.y_test)
                counts[f"{name}_scores"] = score_counts(predicted, site.data.y_test)
            if fitted is not None:
                temperatures[name] = fitted
        else:
            records[name] = _numbers(method, site, name, model, server_round)
            if site.validation:
                held = _forecasts(method, site, model, site.validation, server_round, "validate")
                records[name + VALIDATION] = held
        if name == "pm":  # the server has the weights of its own distribution
            counts |= model.weight_counts(sizes)
        if (ratio := model.nonzero()) is not None:
            nonzero[name] = ratio
    for title, numbers in (("nonzero", nonzero), ("temperature", temperatures)):
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
    found = model.predict(x, settings.eval_samples, method.stream(server_round, f"evaluate {name}"))
    tallies = {name: tally(found.probabilities, y, found.mutual_information)}
    if (of_mean := model.point_probabilities(x)) is not None:
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


def _numbers(
    method: ClientMethod, site: Site, name: str, model: Predictor, server_round: int
) -> MetricRecord:
    """The predictive of a regression on test data."""
    test = site.data.x_test, site.data.y_test
    return _forecasts(method, site, model, test, server_round, f"evaluate {name}")


def _forecasts(
    method: ClientMethod, site: Site, model: Predictor, examples: Pair, server_round: int, purpose: str
) -> MetricRecord:
    """The predictive of a regression, in the target's own units."""
    (x, y), (mean, deviation) = examples, site.data.agreement.target_scale
    found = model.forecast(x, method.settings.eval_samples, method.stream(server_round, purpose))
    return MetricRecord(dict(tally_numbers(found.unscaled(mean, deviation), wide(y) * deviation + mean)))
