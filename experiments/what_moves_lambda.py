"""What moves λ in sFedBayes: its learning rate, the temperature τ, and ζ.

    python experiments/what_moves_lambda.py --data-dir DIR [--rounds 20] [--clients 4]

MNIST medium, λ_init = 0.5, 5 personal steps, in a plain loop without Flower. One setting is changed at a time.
"""

import argparse

import torch

from bayes_core.flat import flatten
from bayes_core.predict.predictive import predictive
from bayes_core.server.aggregate import Mean
from client_app.data import ClientData, load
from client_app.methods.sfedbayes import SFedBayes
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import Settings, defaults
from fedbayes.protocol.streams import stream

CASES: list[dict[str, object]] = [
    {},
    {"lr-lambda": 0.001},
    {"lr-lambda": 0.01},
    {"temperature": 0.1},
    {"temperature": 2.0},
    {"zeta": 1.0},
    {"zeta": 50.0},
]


def found(data: list[ClientData], settings: Settings, rounds: int) -> str:
    network = build("dnn", data[0].x_train.shape[1:], 10, settings.seed)
    cpu = torch.device("cpu")
    methods = [
        SFedBayes(settings, network, one.x_train, one.y_train, str(number), cpu)
        for number, one in enumerate(data)
    ]
    family, options = methods[0].family, methods[0].options
    w = family.init(flatten(network), options.rho_init, options.lambda_init)
    states = [method.start({"w": w}) for method in methods]
    for server_round in range(1, rounds + 1):
        mean = Mean(w)
        for number, method in enumerate(methods):
            trained = method.train(states[number], {"w": w}, server_round)
            states[number] = trained.state
            mean.add(trained.uploads["w"])
        w = mean.result()

    right = total = 0
    on, decided = [], []
    for number, (one, state) in enumerate(zip(data, states, strict=True)):
        generator = stream(settings.seed, str(number), rounds, "evaluate")
        probabilities = predictive(network, family, state["q"], one.x_test, 10, generator)
        right += int((probabilities.argmax(1) == one.y_test).sum())
        total += len(one.y_test)
        inclusion = family.constrain(state["q"])[2]
        on.append(float(inclusion.mean()))
        decided.append(float(((inclusion < 0.1) | (inclusion > 0.9)).float().mean()))
    return f"{sum(on) / len(on):.1%} | {sum(decided) / len(decided):.1%} | {right / total:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    common = {"method": "sfedbayes", "dataset": "mnist", "size": "medium", "personal-steps": 5}
    print("| changed | non-zero | gates that have decided (λ < 0.1 or > 0.9) | PM |\n|---|---|---|---|")
    for case in CASES:
        settings = Settings.parse(defaults() | common | {"data-dir": arguments.data_dir} | case)
        data = [load(settings, number, arguments.clients) for number in range(arguments.clients)]
        words = ", ".join(f"`{name}={value}`" for name, value in case.items()) or "nothing"
        print(f"| {words} | {found(data, settings, arguments.rounds)} |", flush=True)


if __name__ == "__main__":
    main()
