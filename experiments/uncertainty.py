"""Calibration and the unknown on MNIST, small, five of ten labels per client: the tables of docs/uncertainty.md.

    python experiments/uncertainty.py --data-dir DIR [--out-dir runs/uncertainty]

Runs what has not been run yet (each line of RUNS is one `fedbayes run`), then reads run folders and clients' stores:

1. NLL and ECE of the personal (PM) and the global models (GM) in the last round, before and after temperature scaling
   (fitted on a fifth of the training data, which no method trains on);
2. how NLL and ECE depend on the number of draws, on ζ and on the round, and whether a model is too sure or not sure
   enough;
3. AUROC of each model's uncertainty for a client's own test digits against digits of classes it never saw, and against
   Fashion-MNIST, mean over the ten clients; and how many of the digits it never saw a model gets right.
"""

import argparse
from pathlib import Path

import torch
from tables import measured, run
from torch import Tensor

from bayes_core.predict.metrics import add, summarise, tally
from bayes_core.predict.uncertainty import auroc
from client_app.data import load
from fedbayes import PersonalModel
from fedbayes.model.finished import Finished
from fedbayes.protocol.settings import Settings, defaults

CLIENTS = 10
DRAWS = (0, 2, 10, 50)  # 0: the posterior-mean network
SCORES = ("confidence", "entropy", "mutual_information")
EXAMPLES = 2000  # of each kind and client
MNIST = "dataset=mnist size=small rounds=60 eval-every=20 validation-fraction=0.2 temperature-scaling=true"
RUNS = {
    "pfedbayes": ("pFedBayes", f"{MNIST} personal-steps=5 eval-every=10"),
    "pfedbayes-zeta1": ("pFedBayes, ζ = 1", f"{MNIST} personal-steps=5 zeta=1"),
    "sfedbayes": ("sFedBayes, λ_init = 0.5", f"{MNIST} personal-steps=5 method=sfedbayes"),
    "fedavg": ("FedAvg (Adam 0.001)", f"{MNIST} method=fedavg"),
    "fedavg-sgd": ("FedAvg (SGD 0.01)", f"{MNIST} method=fedavg optimizer=sgd lr-global=0.01"),
    "local": ("local (Adam 0.001)", f"{MNIST} method=local"),
}


def calibration(out_dir: Path) -> str:
    lines = [
        "| | model | accuracy | NLL | NLL, scaled | ECE | ECE, scaled | mean T |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, (title, _) in RUNS.items():
        for model in ("pm", "gm"):
            columns = ("accuracy", "nll", "scaled_nll", "ece", "scaled_ece", "temperature")
            found = [measured(out_dir / name, f"{model}_{column}") for column in columns]
            if found[0]:
                cells = [f"{values[-1][1]:.4f}" for values in found]
                lines.append(f"| {title} | {model.upper()} | {' | '.join(cells)} |")
    return "\n".join(lines)


def over_rounds(out_dir: Path) -> str:
    """ECE of the personal models in every measured round but the first."""
    rounds = [1, *range(20, 61, 20)]
    found = {title: dict(measured(out_dir / name, "pm_ece")) for name, (title, _) in RUNS.items()}
    lines = [f"| ECE of PM after round | {' | '.join(map(str, rounds))} |", f"|---|{'---|' * len(rounds)}"]
    for title, points in found.items():
        if points:
            lines.append(f"| {title} | {' | '.join(f'{points[at]:.4f}' for at in rounds)} |")
    return "\n".join(lines)


def over_draws(data_dir: str, out_dir: Path) -> str:
    """All clients' test digits, as in `rounds.csv`, with more and fewer draws; no temperature."""
    settings = Settings.parse(defaults() | {"dataset": "mnist", "data-dir": data_dir})
    clients = [load(settings, number, CLIENTS) for number in range(CLIENTS)]
    lines = [
        "| | model | draws | accuracy | NLL | ECE | confidence − accuracy |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in ("pfedbayes", "pfedbayes-zeta1", "sfedbayes"):
        for model in ("PM", "GM"):
            for samples in DRAWS:
                tallies = []
                for site, data in enumerate(clients):
                    personal = models(name, out_dir, site)[model]
                    personal.temperature = 1.0
                    found = personal.predict(data.x_test, samples or 1)
                    p = found.probabilities if samples else personal.point_probabilities(data.x_test)
                    tallies.append(tally(p, data.y_test))
                total = add(tallies)
                figures = summarise(total)
                excess = (sum(total["bin_confidence"]) - total["correct"][0]) / total["n"][0]
                cells = [f"{figures[metric]:.4f}" for metric in ("accuracy", "nll", "ece")]
                draws = str(samples) if samples else "mean network"
                lines.append(f"| {RUNS[name][0]} | {model} | {draws} | {' | '.join(cells)} | {excess:+.4f} |")
    return "\n".join(lines)


def models(name: str, out_dir: Path, site: int) -> dict[str, PersonalModel]:
    """The personal and the global model of a client, as far as the run has them."""
    found = {}
    if name not in ("fedavg", "fedavg-sgd"):
        found["PM"] = PersonalModel.load(out_dir / "state" / name / str(site))
    if name != "local":
        found["GM"] = Finished.open(out_dir / name).model()
    return found


def unknown(data_dir: str, site: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A client's own test digits, digits of classes it never saw (other clients' test data) with their labels, and
    clothing."""
    settings = Settings.parse(defaults() | {"dataset": "mnist", "data-dir": data_dir})
    clients = [load(settings, number, CLIENTS) for number in range(CLIENTS)]
    own = clients[site]
    seen = torch.zeros(10, dtype=torch.bool).index_fill_(0, own.y_train.unique(), True)
    digits = torch.cat([other.x_test[~seen[other.y_test]] for other in clients])
    labels = torch.cat([other.y_test[~seen[other.y_test]] for other in clients])
    clothing = load(settings.model_copy(update={"dataset": "fmnist"}), site, CLIENTS).x_test
    generator = torch.Generator().manual_seed(site)
    kinds = (own.x_test, digits, clothing)
    chosen = [torch.randperm(len(x), generator=generator)[:EXAMPLES] for x in kinds]
    own_x, digits_x, clothing_x = (x[places] for x, places in zip(kinds, chosen, strict=True))
    return own_x, digits_x, labels[chosen[1]], clothing_x


def detection(data_dir: str, out_dir: Path) -> str:
    """One line a model: what it gets right of the unseen, then AUROC by each score; means over clients."""
    found: dict[tuple[str, str], list[list[float]]] = {}
    for site in range(CLIENTS):
        x_own, x_digits, labels, x_clothing = unknown(data_dir, site)
        for name, (title, _) in RUNS.items():
            for model, personal in models(name, out_dir, site).items():
                own, digits, clothing = (personal.predict(x) for x in (x_own, x_digits, x_clothing))
                values = [float((digits.labels == labels).float().mean())]
                for other in (digits, clothing):
                    for score in SCORES:
                        sign = -1 if score == "confidence" else 1
                        values.append(auroc(sign * getattr(own, score), sign * getattr(other, score)))
                found.setdefault((title, model), []).append(values)
    names = " | ".join(score.replace("_", " ") for score in SCORES)
    lines = [
        f"| | model | right on unseen digits | unseen: {names} | Fashion-MNIST: {names} |",
        f"|---|---|{'---|' * (1 + 2 * len(SCORES))}",
    ]
    for (title, model), rows in found.items():
        mean, sd = torch.tensor(rows).mean(0), torch.tensor(rows).std(0)
        cells = [f"{100 * mean[0]:.1f} %"]
        for place in range(1, len(mean)):
            spread = f" ± {sd[place]:.3f}" if SCORES[(place - 1) % len(SCORES)] == "entropy" else ""
            # one network's mutual information is 0 everywhere
            cells.append("–" if float(sd[place]) == 0 else f"{mean[place]:.3f}{spread}")
        lines.append(f"| {title} | {model} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--out-dir", type=Path, default=Path("runs/uncertainty"))
    arguments = parser.parse_args()
    out_dir = arguments.out_dir.resolve()
    for name, (_, words) in RUNS.items():
        run(name, words, arguments.data_dir, out_dir)
    print(calibration(out_dir), "\n")
    print(over_rounds(out_dir), "\n")
    print(over_draws(arguments.data_dir, out_dir), "\n", flush=True)
    print(detection(arguments.data_dir, out_dir))


if __name__ == "__main__":
    main()
