"""What a client measures: every model on its own test data, from random streams of their own.

Tallies (bayes_core/predict/metrics.py) and binned counts: all that leaves a site of its test data.
"""

from flwr.app import MetricRecord
from torch import Tensor

from bayes_core.flat import shapes_of
from bayes_core.predict.calibration import scale
from bayes_core.predict.forecast import forecast
from bayes_core.predict.histograms import entropy_counts, weight_counts
from bayes_core.predict.metrics import tally, tally_numbers
from bayes_core.predict.predictive import point_probabilities
from bayes_core.predict.uncertainty import predict
from client_app.confidence import temperature
from client_app.method import ClientMethod, Tensors, buffers_in
from client_app.site import Site

Records = dict[str, MetricRecord]


def measure(
    method: ClientMethod, site: Site, state: Tensors, received: Tensors, server_round: int
) -> Records:
    """Records for the reply: a tally for each model and way of predicting, and what else is told of the models."""
    family = method.family
    records: Records = {}
    nonzero: dict[str, float] = {}  # of sparse models
    temperatures: dict[str, float] = {}  # where they are fitted
    counts: dict[str, list[int] | list[float]] = {}  # for the report
    sizes = [shape.numel() for shape in shapes_of(site.network).values()]
    for name, v in method.models(state, received).items():
        if site.data.classes:
            found, counts[f"{name}_entropy"], fitted = _classes(
                method, site, name, v, buffers_in(state), server_round
            )
            records |= found
            if fitted is not None:
                temperatures[name] = fitted
        else:
            records[name] = _numbers(method, site, name, v, buffers_in(state), server_round)
        if name == "pm":  # the server has the weights of its own distribution
            counts |= weight_counts(family, family.constrain(v), sizes)
        if (ratio := family.nonzero(family.constrain(v))) is not None:
            nonzero[name] = ratio
    for title, numbers in (("nonzero", nonzero), ("temperature", temperatures)):
        if numbers:
            records[title] = MetricRecord(dict(numbers))
    records["counts"] = MetricRecord(counts)  # type: ignore[arg-type]  # a dict is invariant in its values
    return records


def _classes(
    method: ClientMethod, site: Site, name: str, v: Tensor, buffers: Tensors, server_round: int
) -> tuple[Records, list[int], float | None]:
    """Tallies of the predictive, of the posterior-mean network and, where it is asked for, of the predictive at its
    temperature; binned entropies; and that temperature."""
    x, y, settings = site.data.x_test, site.data.y_test, method.settings
    generator = method.stream(server_round, f"evaluate {name}")
    found = predict(site.network, method.family, v, x, settings.eval_samples, generator, buffers)
    tallies = {
        name: tally(found.probabilities, y, found.mutual_information),
        f"{name}_point": tally(point_probabilities(site.network, method.family, v, x, buffers), y),
    }
    fitted = None
    if settings.temperature_scaling and site.validation:
        fitted = temperature(method, v, site.validation, buffers, server_round)
        tallies[f"{name}_scaled"] = tally(scale(found.probabilities, fitted), y)
    records = {title: MetricRecord(dict(sums)) for title, sums in tallies.items()}
    return records, entropy_counts(found.probabilities), fitted


def _numbers(
    method: ClientMethod, site: Site, name: str, v: Tensor, buffers: Tensors, server_round: int
) -> MetricRecord:
    """The predictive of a regression, in the target's own units."""
    generator = method.stream(server_round, f"evaluate {name}")
    samples, (mean, deviation) = method.settings.eval_samples, site.data.agreement.target_scale
    found = forecast(site.network, method.family, v, site.data.x_test, samples, generator, buffers)
    y = site.data.y_test.double() * deviation + mean
    return MetricRecord(dict(tally_numbers(found.unscaled(mean, deviation), y)))
