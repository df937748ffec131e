"""What pruning a sparse model buys on this machine: weights, bytes, accuracy and time (docs/uncertainty.md).

    python experiments/sparse_inference.py --data-dir DIR [--out-dir runs/tables]

Takes the run `sparse-target-0.2` of experiments/tables.py (or makes it): MNIST medium, 100 rounds of sFedBayes
with a fifth of the weights wanted. Prunes every client's posterior-mean network at several thresholds of λ. Time is
one thread's processor time, the best of many calls, for the first client's network: dense; with `torch.sparse_csr`
matrices; and dense again without the inputs and hidden units that have no weights left.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import torch
from safetensors.torch import save
from tables import TABLES, run
from torch import Tensor

from bayes_core.flat import shapes_of, unflatten
from bayes_core.predict.metrics import summarise, tally
from bayes_core.predict.predictive import outputs
from bayes_core.predict.pruning import pack, prune
from client_app.data import load
from fedbayes import PersonalModel
from fedbayes.protocol.settings import Settings, defaults

CLIENTS = 10
NAME = "sparse-target-0.2"
THRESHOLDS = (0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)
BATCHES = (1, 100, 1000)


def best(call: Callable[[], object], seconds: float = 0.3) -> float:
    """Microseconds of processor time of the fastest of many calls: others use this machine too."""
    found, until = float("inf"), time.thread_time() + seconds
    while time.thread_time() < until:
        start = time.thread_time()
        call()
        found = min(found, time.thread_time() - start)
    return 1e6 * found


def dense(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    return torch.addmm(b2, torch.addmm(b1, x, w1.T).relu_(), w2.T)


def times(theta: Tensor, personal: PersonalModel, x: Tensor) -> list[float]:
    """Dense, sparse and shrunk, of a 784-100-10 network."""
    w1, b1, w2, b2 = unflatten(theta, shapes_of(personal.network)).values()
    x = x.flatten(1)
    s1, s2 = w1.to_sparse_csr(), w2.to_sparse_csr()
    inputs, hidden = (w1 != 0).any(0), (w2 != 0).any(0)
    small, u1, c1, u2 = (
        x[:, inputs],
        w1[hidden][:, inputs].contiguous(),
        b1[hidden],
        w2[:, hidden].contiguous(),
    )

    def sparse() -> Tensor:
        return (s2 @ (s1 @ x.T + b1[:, None]).relu_() + b2[:, None]).T

    expected = dense(x, w1, b1, w2, b2)
    for other in (sparse(), dense(small, u1, c1, u2, b2)):
        torch.testing.assert_close(other, expected, rtol=1e-3, atol=1e-4)
    calls = (lambda: dense(x, w1, b1, w2, b2), sparse, lambda: dense(small, u1, c1, u2, b2))
    return [best(call) for call in calls]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--out-dir", type=Path, default=Path("runs/tables"))
    arguments = parser.parse_args()
    out_dir = arguments.out_dir.resolve()
    torch.set_num_threads(1)
    run(NAME, TABLES["sparse"][NAME][1], arguments.data_dir, out_dir)

    settings = Settings.parse(
        defaults() | {"dataset": "mnist", "size": "medium", "data-dir": arguments.data_dir}
    )
    models = [PersonalModel.load(out_dir / "state" / NAME / str(site)) for site in range(CLIENTS)]
    tests = [load(settings, site, CLIENTS) for site in range(CLIENTS)]
    drawn = fmean(
        summarise(tally(model.predict(data.x_test).probabilities, data.y_test))["accuracy"]
        for model, data in zip(models, tests, strict=True)
    )
    print(f"Monte-Carlo predictive of all weights: {drawn:.4f}\n")
    columns = " | ".join(f"{kind}, {n}" for n in BATCHES for kind in ("dense", "CSR", "shrunk"))
    print(
        f"| λ above | weights kept | bytes | accuracy | {columns} |\n|---|---|---|---|{'---|' * 3 * len(BATCHES)}"
    )
    for threshold in THRESHOLDS:
        kept, size, accuracy = [], [], []
        for model, data in zip(models, tests, strict=True):
            theta = prune(model.family, model.v, threshold)
            weights = unflatten(theta, shapes_of(model.network))
            kept.append(float((theta != 0).float().mean()))
            size.append(len(save(pack(weights) if threshold else dict(weights))))
            p = outputs(model.network, theta, data.x_test, model.buffers).softmax(-1)
            accuracy.append(summarise(tally(p, data.y_test))["accuracy"])
        first = prune(models[0].family, models[0].v, threshold)
        speed = [each for n in BATCHES for each in times(first, models[0], tests[0].x_test[:n])]
        cells = [
            f"{fmean(kept):.1%}",
            f"{fmean(size):,.0f}",
            f"{fmean(accuracy):.4f}",
            *(f"{one:.0f}" for one in speed),
        ]
        print(f"| {threshold:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
