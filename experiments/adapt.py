"""`fedbayes adapt` for sites that took no part in a run, against training alone (docs/uncertainty.md).

    python experiments/adapt.py --data-dir DIR [--out-dir runs/uncertainty]

Takes the runs `pfedbayes` and `fedavg` of experiments/uncertainty.py (or makes them). Three new sites hold five
consecutive digits each, with 5, 20 or 50 images per class, and are tested on 200 further ones; no client of the
run has trained on any of these images. Accuracy after k local steps, mean ± sd over the sites.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from tables import run
from torch import Tensor
from uncertainty import CLIENTS, RUNS

from bayes_core import Gaussian
from bayes_core.flat import flatten
from bayes_core.predict.metrics import summarise, tally
from client_app.card import Card
from client_app.data import load
from fedbayes.model.finished import Finished
from fedbayes.model.personal import PersonalModel
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import Settings, defaults
from strategies.rounds.state import State

IMAGES, TESTED = (5, 20, 50), 200
ROUNDS = (1, 5, 20)  # of 20 local steps
SITES = (0, 3, 6)  # the first of a site's five digits


def site_data(data_dir: str, first: int, images: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images of a new site: from the test images of the run's clients, which nobody trained on."""
    settings = Settings.parse(defaults() | {"dataset": "mnist", "data-dir": data_dir})
    clients = [load(settings, number, CLIENTS) for number in range(CLIENTS)]
    x, y = torch.cat([one.x_test for one in clients]), torch.cat([one.y_test for one in clients])
    generator = torch.Generator().manual_seed(first)
    train, test = [], []
    for label in ((first + step) % 10 for step in range(5)):
        places = (y == label).nonzero()[:, 0]
        places = places[torch.randperm(len(places), generator=generator)]
        train.append(places[:images])
        test.append(places[-TESTED:])
    chosen, tested = torch.cat(train), torch.cat(test)
    return x[chosen], y[chosen], x[tested], y[tested]


def trained(start: Finished, x: Tensor, y: Tensor) -> Iterator[PersonalModel]:
    """The site's model after each round; what `fedbayes adapt` does, for methods without a prior too."""
    method = start.method(x, y, "new")
    state = method.start(start.tensors)
    card = Card.of(method, start.settings.run_name, "new", start.agreement)
    for number in range(1, ROUNDS[-1] + 1):
        state = method.train(state, start.tensors, number).state
        yield PersonalModel.of(card, state)


def starts(out_dir: Path) -> dict[str, Finished]:
    """Title of a line → what a site starts from."""
    federated, fedavg = Finished.open(out_dir / "pfedbayes"), Finished.open(out_dir / "fedavg")
    weights = flatten(build("dnn", federated.inputs, 10, federated.settings.seed))
    alone = fedavg.settings.model_copy(update={"method": "local"})
    one = federated.settings.model_copy(update={"zeta": 1.0})
    rho_init = float(one.as_config()["rho-init"])
    return {
        "`fedbayes adapt`, ζ = 10": federated,
        "`fedbayes adapt zeta=1`": replace(federated, settings=one),
        "FedAvg's network, trained on": replace(fedavg, settings=alone),
        "alone: plain network": replace(fedavg, settings=alone, state=State({"w": weights[None]})),
        "alone: Bayesian, untrained prior, ζ = 1": replace(
            federated, settings=one, state=State({"w": Gaussian().init(weights, rho_init)})
        ),
    }


def accuracy(personal: PersonalModel, x: Tensor, y: Tensor) -> float:
    return summarise(tally(personal.predict(x).probabilities, y))["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--out-dir", type=Path, default=Path("runs/uncertainty"))
    arguments = parser.parse_args()
    out_dir, data_dir = arguments.out_dir.resolve(), arguments.data_dir
    torch.set_num_threads(1)
    for name in ("pfedbayes", "fedavg"):
        run(name, RUNS[name][1], data_dir, out_dir)
    titles = [f"{20 * rounds} steps" for rounds in ROUNDS]
    print(f"| images per class | | before | {' | '.join(titles)} |\n|---|---|---|{'---|' * len(titles)}")
    for images in IMAGES:
        for title, start in starts(out_dir).items():
            figures = []
            for first in SITES:
                x, y, x_test, y_test = site_data(data_dir, first, images)
                models = [model for number, model in enumerate(trained(start, x, y), 1) if number in ROUNDS]
                before = PersonalModel.of(models[0].card, start.method(x, y, "new").start(start.tensors))
                figures.append([accuracy(model, x_test, y_test) for model in (before, *models)])
            values = torch.tensor(figures)
            cells = [f"{mean:.3f} ± {sd:.3f}" for mean, sd in zip(values.mean(0), values.std(0), strict=True)]
            print(f"| {images} | {title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
