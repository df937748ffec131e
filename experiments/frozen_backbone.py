"""A frozen backbone with a Bayesian head beside whole networks, on CIFAR-10 (docs/backbone.md).

    cd examples/backbone && python pretrain.py cifar10.npz
    PYTHONPATH=. OMP_NUM_THREADS=1 python ../../experiments/frozen_backbone.py

CIFAR-10 small: twenty clients with five of ten classes and 25 training images of each; of the test images 100 of each
class, since the ten samples of a network take longer than its training. 40 rounds of 10 steps with batches of 50. Times
are processor time of one client's round, the median of five, one thread. Whole Bayesian networks begin with little
noise, as every deep one here (docs/results.md).
"""

import statistics
import time

import torch

import fedbayes
from client_app.data import load
from fedbayes.model.finished import Finished
from fedbayes.protocol.settings import Settings, defaults

CLIENTS = 20
WORDS = {
    "dataset": "clients.npz",
    "size": "25+100",
    "rounds": 40,
    "eval_every": 40,
    "local_steps": 10,
    "batch_size": 50,
}
BAYES = {"method": "pfedbayes", "zeta": "auto"}
WHOLE = BAYES | {"rho_init": -4}
ROWS = {
    "frozen backbone, Bayesian head": BAYES | {"model": "backbone:frozen"},
    "backbone goes on as plain weights, Bayesian head": BAYES
    | {"model": "backbone:warm", "bayesian": "head"},
    "whole network Bayesian, from the backbone": WHOLE | {"model": "backbone:warm"},
    "whole network Bayesian, from nothing": WHOLE | {"model": "backbone:fresh"},
    "FedAvg, frozen backbone": {"method": "fedavg", "model": "backbone:frozen"},
    "FedAvg, from the backbone": {"method": "fedavg", "model": "backbone:warm"},
    "FedAvg, from nothing": {"method": "fedavg", "model": "backbone:fresh"},
}


def seconds_of_a_round(run: fedbayes.Result) -> float:
    """Processor time of one client's training."""
    torch.set_num_threads(1)
    settings = Settings.parse(defaults() | {"dataset": WORDS["dataset"], "size": WORDS["size"]})
    data, finished = load(settings, 0, CLIENTS), Finished.open(run.folder)
    method, received = finished.method(data.x_train, data.y_train, "0"), finished.received("0")
    state, took = method.start(received), []
    for number in range(1, 7):
        began = time.process_time()
        method.train(state, received, number)
        took.append(time.process_time() - began)
    return statistics.median(took[1:])


def main() -> None:
    titles = ("", "Bayesian", "plain", "frozen", "PM", "GM", "kB up a client round", "CPU s a client round")
    print("| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|")
    for number, (title, words) in enumerate(ROWS.items()):
        run = fedbayes.run(clients=CLIENTS, run_name=f"backbone-{number}", progress=False, **WORDS | words)
        last = run.rounds[-1] if isinstance(run.rounds, list) else run.rounds.iloc[-1]
        kinds = [f"{run.config['weights'][kind]:,}" for kind in ("bayesian", "plain", "frozen")]
        found = [float(last.get(f"{model}_accuracy") or "nan") for model in ("pm", "gm")]
        accuracies = [f"{100 * value:.1f}" if value == value else "–" for value in found]
        size = f"{int(last['bytes_up']) / CLIENTS / 1000:.0f}"
        print(
            "| " + " | ".join((title, *kinds, *accuracies, size, f"{seconds_of_a_round(run):.2f}")) + " |",
            flush=True,
        )


if __name__ == "__main__":
    main()
