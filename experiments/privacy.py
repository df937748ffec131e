"""What privacy costs, and what it keeps from an attacker: the tables and the picture of docs/privacy.md.

    python experiments/privacy.py --data-dir DIR [--out-dir runs/privacy]

runs what is missing (each line of `RUNS` is one `fedbayes run`) and prints the first table; docs/results.md and
docs/methods.md have its rows without privacy. Then it carries out a membership attack on global models: is this example
one of those that a site trained on? An attacker who has the model says so where its loss is low, or low in comparison
with that under models of other people's data (shadow models: the same with other seeds). docs/privacy.md says
how the settings were chosen.
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bayes_core.flat import flatten, shapes_of, unflatten  # noqa: E402
from bayes_core.inference.plain import Weights, train_weights  # noqa: E402
from bayes_core.inference.private import Mechanism  # noqa: E402
from client_app.data import ClientData, load  # noqa: E402
from fedbayes.protocol.models import build  # noqa: E402
from fedbayes.protocol.settings import Settings, defaults  # noqa: E402
from fedbayes.protocol.streams import stream  # noqa: E402
from server_app.stored import read_config, read_rows  # noqa: E402

MNIST = "dataset=mnist size=medium eval-every=20"
STEPS = "rounds=80 local-steps=4 personal-steps=5 zeta=0.00001 rho-init=-5"
MANY = (
    "dataset=mnist size=50+50 eval-every=15 --clients 100 model=experiments.linear:linear method=fedavg rounds=30 "
    "optimizer=sgd lr-global=0.1"
)
RUNS = {  # name: (title, what is added to `fedbayes run`)
    "eight": ("single examples, ε = 8", f"{MNIST} {STEPS} dp-example-noise=10.74 dp-example-epsilon=8"),
    "three": ("single examples, ε = 3", f"{MNIST} {STEPS} dp-example-noise=24.88 dp-example-epsilon=3"),
    "many-plain": ("100 clients, linear, no privacy", MANY),
    "many-eight": (
        "100 clients, linear, whole clients, ε = 8",
        f"{MANY} dp-noise=3.3 dp-clip=0.5 dp-epsilon=8",
    ),
    "many-both": (
        "100 clients, linear, whole clients, ε = 8, the coordinator sees only sums",
        f"{MANY} dp-noise=3.3 dp-clip=0.5 dp-epsilon=8 secure-sum=true",
    ),
}
# The attack is on FedAvg alone, without Flower: ten sites with 100 clothes each, which a network soon knows by heart.
FEW = {"dataset": "fmnist", "size": "20+80", "layout": "labels"}
SITES, SHADOWS, ROUNDS = 10, 8, 30
ATTACKED = {"no privacy": None, "ε = 8": Mechanism(noise=6.58, clip=1.0)}  # 4 steps a round with all examples


def run(name: str, words: str, data_dir: str, out_dir: Path) -> Path:
    """The run's folder, where it is finished."""
    folder, config = out_dir / name, read_config(out_dir / name)
    if not (config and config["state"] == "finished"):
        where = [f"run-name={name}", f"out-dir={out_dir}", f"data-dir={data_dir}"]
        start = ["--resume", str(folder)] if config else [*shlex.split(words), *where]
        subprocess.run([sys.executable, "-m", "fedbayes.cli", "run", *start], check=True, cwd=ROOT)
    return folder


def table(out_dir: Path) -> str:
    lines = ["| | ε | GM | PM | `fedbayes run …` |", "|---|---|---|---|---|"]
    for name, (title, words) in RUNS.items():
        rows = read_rows(out_dir / name / "rounds.csv")
        last = rows[-1]
        spent = last.get("epsilon_examples") or last.get("epsilon")
        cells = [
            f"{float(last[column]):.3f}" if last.get(column) else "–"
            for column in ("gm_accuracy", "pm_accuracy")
        ]
        lines.append(f"| {title} | {float(spent):.2f} | " if spent else f"| {title} | – | ")
        lines[-1] += f"{' | '.join(cells)} | `{words}` |"
    return "\n".join(lines)


def trained(data: list[ClientData], seed: int, mechanism: Mechanism | None) -> torch.Tensor:
    """The global weights (1, T) after all rounds of FedAvg."""
    network = build("dnn", tuple(data[0].x_train.shape[1:]), 10, seed)
    w = flatten(network)[None]
    for number in range(ROUNDS):
        uploads = []
        for site, one in enumerate(data):
            private = {"steps": 4, "batch_size": len(one.x_train), "optimizer": "sgd", "lr": 1.0}
            usual = {"steps": 20, "batch_size": 100, "optimizer": "adam", "lr": 0.001}
            given: dict[str, Any] = (private if mechanism else usual) | {
                "private": mechanism,
                "adam_beta2": 0.99,
            }
            start = Weights.start(w, network, given["optimizer"])
            x, y, batches = one.x_train, one.y_train, stream(seed, str(site), number, "train")
            uploads.append(train_weights(network, start, x, y, generator=batches, **given)[0].v)
        w = torch.stack(uploads).mean(0)
    return w


def losses(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    """−log p of each example."""
    network = build("dnn", tuple(x.shape[1:]), 10, 1)
    with torch.no_grad():
        outputs = functional_call(network, unflatten(w[0], shapes_of(network)), (x,))
        return cross_entropy(outputs, y, reduction="none").double().numpy()


def attack(
    mechanism: Mechanism | None, data_dir: str
) -> tuple[float, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """The global model's accuracy; and of each attack, how much members and others look like members to it."""
    models, shares = [], []
    for seed in range(1, SHADOWS + 2):
        settings = Settings.parse(defaults() | FEW | {"data-dir": data_dir, "seed": seed})
        shares.append([load(settings, number, SITES) for number in range(SITES)])
        models.append(trained(shares[-1], seed, mechanism))
    scores: dict[str, list[np.ndarray]] = {"its loss": [], "its loss against shadow models": []}
    for part in ("train", "test"):
        x = torch.cat([getattr(one, f"x_{part}") for one in shares[0]])
        y = torch.cat([getattr(one, f"y_{part}") for one in shares[0]])
        own, *others = (losses(w, x, y) for w in models)
        scores["its loss"].append(-own)
        scores["its loss against shadow models"].append(np.mean(others, 0) - own)
    network = build("dnn", tuple(x.shape[1:]), 10, 1)
    right = functional_call(network, unflatten(models[0][0], shapes_of(network)), (x,)).argmax(1) == y
    return float(right.float().mean()), {name: (members, rest) for name, (members, rest) in scores.items()}


def roc(members: np.ndarray, rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """False and true positives of every threshold."""
    thresholds = np.sort(np.concatenate([members, rest]))[::-1]
    false = 1 - np.searchsorted(np.sort(rest), thresholds) / len(rest)
    true = 1 - np.searchsorted(np.sort(members), thresholds) / len(members)
    return false, true


def auc(members: np.ndarray, rest: np.ndarray) -> float:
    """How often a member looks more like one than a non-member does."""
    ranks = np.argsort(np.argsort(np.concatenate([members, rest]), kind="stable"), kind="stable") + 1
    m, n = len(members), len(rest)
    return float((ranks[:m].sum() - m * (m + 1) / 2) / (m * n))


def interval(members: np.ndarray, rest: np.ndarray, draws: int = 1000) -> tuple[float, float]:
    """95 % of the AUC by the bootstrap: members and others drawn again, for one and the same model."""
    random = np.random.default_rng(1)
    areas = [auc(random.choice(members, len(members)), random.choice(rest, len(rest))) for _ in range(draws)]
    low, high = np.quantile(areas, [0.025, 0.975])
    return float(low), float(high)


def at_false(members: np.ndarray, rest: np.ndarray, share: float) -> float:
    """True positives where so many non-members are taken for members."""
    return float((members > np.quantile(rest, 1 - share)).mean())


def membership(data_dir: str, picture: Path) -> str:
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), constrained_layout=True, sharey=True)
    lines = ["| global model | right | an example is a member by | AUC | found at 1 % false alarms |"]
    lines += ["|---|---|---|---|---|"]
    grid = np.logspace(-3, 0, 200)
    for axis, (title, mechanism) in zip(axes, ATTACKED.items(), strict=True):
        right, found = attack(mechanism, data_dir)
        for (name, (members, rest)), colour in zip(found.items(), ("C0", "C1"), strict=True):
            area, caught = auc(members, rest), at_false(members, rest, 0.01)
            axis.plot(*roc(members, rest), colour, label=f"by {name}: AUC {area:.3f}")
            told = (
                f"{caught:.1%}" if caught else "–"
            )  # where too many losses are exactly 0 to tell 1 % of them
            low, high = interval(members, rest)
            lines.append(f"| {title} | {right:.3f} | {name} | {area:.3f} ({low:.3f} … {high:.3f}) | {told} |")
        axis.plot(grid, grid, "k:", label="by a guess")
        axis.set(title=f"{title}: {right:.1%} right", xlabel="others taken for members", xscale="log")
        axis.set(yscale="log", xlim=(1e-3, 1), ylim=(1e-3, 1.1))
        axis.grid(alpha=0.3)
        axis.legend(loc="lower right", fontsize=8)
    axes[0].set_ylabel("members found")
    figure.savefig(picture, dpi=150)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--out-dir", type=Path, default=Path("runs/privacy"))
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "images" / "membership.png")
    parser.add_argument("--only", default="", help="names of runs with commas between")
    asked = parser.parse_args()
    out_dir = asked.out_dir.resolve()
    wanted = asked.only.split(",") if asked.only else list(RUNS)
    for name in wanted:
        if name in RUNS:
            run(name, RUNS[name][1], asked.data_dir, out_dir)
    if not asked.only:
        print(table(out_dir))
    if not asked.only or "membership" in wanted:
        print(membership(asked.data_dir, asked.picture))


if __name__ == "__main__":
    main()
