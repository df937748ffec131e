"""What round 0 of cFedBayes finds on MNIST: the number of clusters, and how well they fit the true groups.

    python experiments/clusters_found.py --data-dir DIR

Trains every client once from the common start, as the first exchange of `fedbayes run method=cfedbayes` does (the same
random streams, so the same figures), and stops there.
"""

import argparse

import torch
from sklearn.metrics import adjusted_rand_score

from bayes_core import symmetric_kl_matrix
from bayes_core.flat import flatten, shapes_of
from bayes_core.server.clustering import choose_k_with_evidence, clusters_asked_for, symmetric_kl_to
from bayes_core.server.moves import compare_learned, layers_of
from client_app.data import load
from client_app.methods.cfedbayes import CFedBayes
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import Settings, defaults
from fedbayes.protocol.streams import seed_of

CASES = [  # clients, seeds, settings
    (10, (1, 2, 3, 4, 5), {"layout": "rotated"}),
    (20, (1, 2, 3), {"layout": "rotated", "groups": 4}),
    (10, (1, 2, 3, 4, 5), {"layout": "iid"}),
    (10, (1, 2, 3), {"layout": "rotated", "family": "spike-slab"}),
    (20, (1,), {"layout": "rotated", "groups": 4, "family": "spike-slab"}),
    (10, (1, 2, 3), {"layout": "iid", "family": "spike-slab"}),
]


def found(clients: int, seed: int, data_dir: str, words: dict[str, object]) -> str:
    settings = Settings.parse(
        defaults()
        | {"method": "cfedbayes", "dataset": "mnist", "size": "small", "data-dir": data_dir, "seed": seed}
        | words
    )
    data = [load(settings, number, clients) for number in range(clients)]
    network = build("dnn", data[0].x_train.shape[1:], 10, seed)
    cpu = torch.device("cpu")
    methods = [
        CFedBayes(settings, network, one.x_train, one.y_train, str(number), cpu)
        for number, one in enumerate(data)
    ]
    family, options = methods[0].family, methods[0].options
    w = family.init(flatten(network), options.rho_init, options.lambda_init)
    uploads = [
        method.train(method.start({"w": w}), {"w": w}, 0).uploads["w"] for method in methods
    ]  # as in a run
    psi = symmetric_kl_matrix(torch.stack(uploads), family)
    start = symmetric_kl_to(w, uploads, family)
    learned = compare_learned(uploads, w, family, layers_of(shapes_of(network).values()))
    choice = choose_k_with_evidence(*learned)
    groups = [one.group or 0 for one in data]
    asked = clusters_asked_for(psi, len(set(groups)), seed_of(seed, "clusters"), start)
    scores = [adjusted_rand_score(groups, labels) for labels in (choice.kinds.labels, asked)]
    sure = "yes" if choice.kinds.sure else "no"
    return f"| {choice.k} | {sure} | {choice.kinds.uneven:.0%} | {scores[0]:.1f} | {scores[1]:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", default="data")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| clients | layout | seed | K found | sure | varies by | ARI | ARI with K given |")
    print("|---|---|---|---|---|---|---|---|")
    for clients, seeds, words in CASES:
        layout = ", ".join(f"{key}={value}" for key, value in words.items())
        for seed in seeds:
            print(
                f"| {clients} | {layout} | {seed} {found(clients, seed, arguments.data_dir, words)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
