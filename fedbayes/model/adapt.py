"""`fedbayes adapt`: a personal model for a site that took no part in a run, without anyone else being online.

The site trains as a client of the run would, with a server that stands still: the run's distribution (of K clusters the
one under which its training data are likeliest) is its prior in every round.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bayes_core.parts import hold
from bayes_core.predict.metrics import summarise
from bayes_core.predict.predictor import Predictor, WeightsPredictor
from client_app.calibrate import calibration, require_enough
from client_app.card import Card
from client_app.data.errors import DataError
from client_app.prepare import hold_out
from client_app.store import LATEST, Store, holds
from fedbayes.cli.tables import new_table
from fedbayes.errors import CommandError, ModelError
from fedbayes.model.finished import Finished
from fedbayes.model.inputs import labels, scaled, scaled_by_itself
from fedbayes.model.personal import PersonalModel
from fedbayes.protocol.columns import TITLES
from fedbayes.protocol.messages import CLUSTER
from fedbayes.protocol.streams import reseed, stream
from server_app.rows import NONE, SHARES, wilson

ROUNDS = 20  # of `local-steps` steps each, unless the user says otherwise


@dataclass(frozen=True)
class Adapted:
    """A site after some rounds on its own: what its file will hold, its model, and the one it started from."""

    card: Card
    state: dict[str, Tensor]
    model: Predictor
    prior: Predictor | None
    cluster: int | None

    def personal(self) -> PersonalModel:
        """As its file will give it."""
        return PersonalModel.of(self.card, {name: tensor.cpu() for name, tensor in self.file().items()})

    def start(self) -> PersonalModel | None:
        if not isinstance(self.prior, WeightsPredictor):
            return None
        buffers = {name: buffer.cpu() for name, buffer in self.prior.buffers.items()}
        plain = {name: value.cpu() for name, value in self.prior.plain.items()}
        network = hold(self.card.network(), plain)
        weights = replace(self.prior, network=network, v=self.prior.v.cpu(), buffers=buffers, plain=plain)
        return PersonalModel(self.card, weights)

    def file(self) -> dict[str, Tensor]:
        """The state, with the model where that is made from what the server sends."""
        made = self.model.tensors()
        return self.state if holds(self.state, made) else self.state | made


def adapt(run: Finished, x: Tensor, y: Tensor, site: str) -> Iterator[Adapted]:
    """The site after each round of training on its own data, which are in their own units."""
    settings, agreement = run.settings, run.agreement
    if settings.scale == "site":
        agreement = scaled_by_itself(agreement, x, y)
    x = scaled(x, run.inputs, agreement)
    if not agreement.classes:
        mean, deviation = agreement.target_scale
        y = (y - mean) / deviation
    torch.set_num_threads(settings.threads)
    (x, y), validation = hold_out(
        x, y, settings.validation_fraction, stream(settings.seed, site, "validation")
    )
    try:
        require_enough(settings, validation, agreement.many)
    except DataError as error:
        raise ModelError(str(error)) from None
    received = run.received(site)
    method = run.method(x, y, site, agreement)
    if validation is not None:
        validation = validation[0].to(method.device), validation[1].to(method.device)
    state = method.start(received)
    if "pm" not in method.models(state, received):
        raise ModelError(
            f"The run {settings.run_name} used {settings.method}, which has no personal models to adapt."
        )
    card = Card.of(method, settings.run_name, site, agreement)
    for number in range(1, settings.rounds + 1):
        reseed(method.device, settings.seed, site, number, "network")  # dropout and the like
        prior = method.models(state, received).get("gm")
        trained = method.train(state, received, number)
        state, cluster = trained.state, trained.report.get(CLUSTER)
        model = method.models(state, received)["pm"]
        kept = state | calibration(method, model, validation, number)
        yield Adapted(card, kept, model, prior, None if cluster is None else int(cluster))


def adapt_files(run: Finished, data: str, test: str | None, out: Path, site: str, console: Console) -> None:
    """Train on the examples of `data`, write OUT/personal.safetensors, and say what it is worth on `test`."""
    if (out / LATEST).exists():
        raise CommandError(f"{out / LATEST} is there already; take another --out.")
    examples, tested = run.read(data), run.read(test) if test else None
    y, y_test = labels(examples), labels(tested) if tested else None
    *_, last = adapt(run, examples.x, y, site)
    settings = run.settings
    Store(out, run.uuid, durable=True, card=last.card.write()).save(settings.rounds, last.file(), None)
    prior = "the global distribution" if last.cluster is None else f"cluster {last.cluster}"
    steps = settings.rounds * settings.local_steps
    console.print(
        f"{len(y)} training examples, {steps} local steps, {prior} as the prior: {out / LATEST}",
        highlight=False,
        soft_wrap=True,
    )
    if tested and y_test is not None:
        console.print(_comparison(last, tested.x, y_test))


def _comparison(adapted: Adapted, x: Tensor, y: Tensor) -> Table:
    """The new model beside the distribution it started from."""
    table = new_table(f"{len(y)} test examples")
    models = (adapted.personal(), adapted.start())
    figures = [summarise(model.tally(x, y)) if model else {} for model in models]
    for metric in (metric for metric in TITLES if metric in figures[0]):
        table.add_row(TITLES[metric], *(f"{figure[metric]:.4f}" if figure else NONE for figure in figures))
        if metric in SHARES:
            spreads = (wilson(figure[metric], len(y)) if figure else None for figure in figures)
            cells = ("{:.4f} – {:.4f}".format(*spread) if spread else NONE for spread in spreads)
            table.add_row("95 % interval of it", *cells)
    return table
