"""Other ways to ten samples of a predictive: what each takes, and how far its metrics scatter.

    python experiments/evaluation_draws.py [--data-dir DIR]

A distribution is trained on 2000 images of MNIST (without DIR of scikit-learn's digits) and measured on 2000 more,
thirty times with other noise. Time is processor time of one thread, best of ten in turn; the scatter is the standard
deviation of a metric over the thirty. "pairs" is the product's way.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import nll_loss, softplus

from bayes_core import ClientState, Gaussian, Recipe, client_update, predictive
from bayes_core.fast.mirrored import layers, outputs_of_all
from bayes_core.flat import flatten
from benchmarks.measure import interleaved

SAMPLES, TIMES, EXAMPLES = 10, 30, 2000
FAMILY = Gaussian()
RECIPE = Recipe(
    local_steps=200, personal_steps=1, batch_size=100, mc_samples=1, zeta=1.0, optimizer="adam",
    lr_personal=0.001, lr_global=0.001, lr_lambda=0.001, adam_beta2=0.99, compile=None,
)  # fmt: skip


def independent(
    network: nn.Sequential, v: Tensor, x: Tensor, generator: torch.Generator, samples: int
) -> Tensor:
    """As many draws, none the mirror of another."""
    g = torch.randn(samples, v.shape[1], generator=generator)
    return outputs_of_all(network, v[0] + softplus(v[1]) * g, x).softmax(-1).mean(0)


def apart(network: nn.Sequential, v: Tensor, x: Tensor, generator: torch.Generator, samples: int) -> Tensor:
    """Mirrored pairs that share nothing: every draw has its own first layer's product."""
    g = torch.stack([FAMILY.noise(v, generator).g for _ in range(samples // 2)])
    spread = softplus(v[1]) * g
    return outputs_of_all(network, torch.cat([v[0] + spread, v[0] - spread]), x).softmax(-1).mean(0)


def per_example(
    network: nn.Sequential, v: Tensor, x: Tensor, generator: torch.Generator, samples: int
) -> Tensor:
    """Draws of each layer's sums, not its weights: mirrored, others for each example (local reparametrisation)."""
    h = x.expand(samples, *x.shape)
    variances = layers(network, softplus(v[1:]).square())
    for number, ((mu, bias), (var, bias_var)) in enumerate(
        zip(layers(network, v[:1]), variances, strict=True)
    ):
        h = h.relu() if number else h[:1]
        mean = h @ mu[0].T + bias[0, :, 0]
        sd = (h.square() @ var[0].T + bias_var[0, :, 0]).sqrt_()
        g = torch.randn(samples // 2, *mean.shape[1:], generator=generator)
        h = mean + sd * torch.cat([g, -g])
    return h.softmax(-1).mean(0)


def half(network: nn.Sequential, v: Tensor, x: Tensor, generator: torch.Generator, samples: int) -> Tensor:
    """Mirrored pairs whose products are in bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        return predictive(network, FAMILY, v, x, samples, generator)


def pairs(network: nn.Sequential, v: Tensor, x: Tensor, generator: torch.Generator, samples: int) -> Tensor:
    return predictive(network, FAMILY, v, x, samples, generator)


def images(data_dir: str | None) -> tuple[Tensor, Tensor]:
    if data_dir is None:
        x, y = load_digits(return_X_y=True)
        return torch.tensor(x).float() / 8 - 1, torch.tensor(y)
    from client_app.data.sources import read_pool

    pool = read_pool(("mnist",), data_dir)
    chosen = torch.randperm(len(pool.inputs), generator=torch.Generator().manual_seed(0))[: 2 * EXAMPLES]
    return pool.scaled(chosen.numpy()).flatten(1), torch.from_numpy(pool.labels[0])[chosen]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir")
    x, y = images(parser.parse_args().data_dir)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(x.shape[1], 100), nn.ReLU(), nn.Linear(100, 10))
    cut = len(x) // 2
    w = FAMILY.init(flatten(network), rho_init=-2.5)
    state = ClientState.start(w, network, "adam")
    with torch.enable_grad():
        q = client_update(
            network, FAMILY, state, w, x[:cut], y[:cut], RECIPE, torch.Generator().manual_seed(1)
        ).personal.q
    x, y = x[cut:], y[cut:]
    ways = {f"{way.__name__}, {SAMPLES}": partial(way, samples=SAMPLES)
            for way in (pairs, apart, independent, per_example, half)}  # fmt: skip
    ways["pairs, 4"] = partial(pairs, samples=4)
    calls: dict[str, Callable[[], object]] = {
        name: partial(way, network, q, x, torch.Generator().manual_seed(0)) for name, way in ways.items()
    }
    times = interleaved(calls, 10, clock=time.process_time)
    exact = pairs(network, q, x, torch.Generator().manual_seed(99), 2000)
    print(f"2000 samples: NLL {float(nll_loss(exact.log(), y)):.4f}, accuracy {accuracy(exact, y):.4f}")
    for name, way in ways.items():
        found = [way(network, q, x, torch.Generator().manual_seed(seed)) for seed in range(TIMES)]
        nll = [float(nll_loss(p.float().log(), y)) for p in found]
        right = [accuracy(p, y) for p in found]
        print(
            f"{name:16} {1e3 * times[name].best:6.1f} ms, "
            f"NLL {statistics.mean(nll):.4f} ± {statistics.stdev(nll):.5f}, "
            f"accuracy {statistics.mean(right):.4f} ± {statistics.stdev(right):.5f}"
        )


def accuracy(p: Tensor, y: Tensor) -> float:
    return float((p.argmax(1) == y).float().mean())


if __name__ == "__main__":
    main()
