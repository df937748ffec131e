"""Coverage of 90 % intervals where the noise depends on the input (docs/uncertainty.md).

    python experiments/heteroscedastic.py [--seeds 3]

Five clients observe y = f_i(x) + s(x)·ε on [−1, 1]: f_i has a wave that all share and one of its own, and s(x) rises
from 0.05 at −1 to 0.6 at 1. 240 examples a client train (conformal runs hold out a quarter of them); 1000 are asked.
The test examples are cut in thirds by their true noise and by the model's predicted one; shares are of all clients
together, mean over the seeds with the lowest seed in brackets.
"""

import argparse
import tempfile
from statistics import fmean

import numpy as np
import torch

import fedbayes

CLIENTS, TRAIN, TEST = 5, 240, 1000
WORDS = {"model": "mlp", "rounds": 60, "eval_every": 60, "personal_steps": 3, "zeta": 1.0, "batch_size": 60}
WORDS |= {"task": "regression", "lr_personal": 0.005, "lr_global": 0.005, "eval_samples": 20}
HELD = {"validation_fraction": 0.25, "conformal": 0.9}


def spread(x: np.ndarray) -> np.ndarray:
    return 0.05 + 0.55 * ((x + 1) / 2) ** 2


def truth(x: np.ndarray, client: int, seed: int) -> np.ndarray:
    common, own = (np.random.default_rng([seed, who]).uniform(0, 2 * np.pi) for who in (CLIENTS, client))
    return np.cos(np.pi * x + common) + 0.5 * np.cos(2 * np.pi * x + own)


def observe(client: int, n: int, seed: int, part: str) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng([seed, client, len(part)])
    x = draw.uniform(-1, 1, n)
    return x[:, None], truth(x, client, seed) + spread(x) * draw.normal(size=n)


def thirds(order: np.ndarray, held: np.ndarray) -> list[float]:
    """The share that is held among the lowest, middle and highest of `order`."""
    return [float(held[part].mean()) for part in np.array_split(np.argsort(order), 3)]


def one_run(noise: str, conformal: bool, seed: int, out: str) -> dict[str, list[float]]:
    data = [(*observe(i, TRAIN, seed, "train"), *observe(i, TEST, seed, "held")) for i in range(CLIENTS)]
    words = WORDS | (HELD if conformal else {})
    run = fedbayes.run(
        dataset=data, noise=noise, seed=seed, out_dir=out, progress=False,
        run_name=f"{noise}-{conformal}-{seed}", **words,
    )  # fmt: skip
    found: dict[str, list[np.ndarray]] = {"true": [], "said": [], "held": [], "width": []}
    for client, (_, _, x, y) in enumerate(data):
        personal = run.personal(client)
        forecast = personal.forecast(torch.as_tensor(x, dtype=torch.float32))
        low, high = personal.interval(forecast) if conformal else forecast.interval()
        found["held"].append(((low.numpy() <= y) & (y <= high.numpy())).astype(float))
        found["width"].append((high - low).numpy())
        found["true"].append(spread(x[:, 0]))
        found["said"].append(forecast.noise.numpy())
    all_of = {key: np.concatenate(parts) for key, parts in found.items()}
    return {
        "by true noise": thirds(all_of["true"], all_of["held"]),
        "by predicted noise": thirds(all_of["said"], all_of["held"]),
        "width": [float(all_of["width"].mean()), float(all_of["held"].mean())],
    }


def shown(values: list[float]) -> str:
    return f"{fmean(values):.3f} ({min(values):.3f})"


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--seeds", type=int, default=3)
    seeds = range(1, words.parse_args().seeds + 1)
    heads = [
        f"{third} third by {by} noise"
        for by in ("true", "predicted")
        for third in ("least", "middle", "most")
    ]
    titles = ["", *heads, "all", "mean width"]
    print("| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|")
    with tempfile.TemporaryDirectory() as out:
        for noise in ("learned", "input"):
            for conformal in (False, True):
                runs = [one_run(noise, conformal, seed, out) for seed in seeds]
                cells = [
                    shown([run[by][third] for run in runs])
                    for by in ("by true noise", "by predicted noise")
                    for third in range(3)
                ]
                cells += [
                    shown([run["width"][1] for run in runs]),
                    f"{fmean(run['width'][0] for run in runs):.2f}",
                ]
                title = f"`noise={noise}`" + (", `conformal=0.9`" if conformal else "")
                print("| " + " | ".join([title, *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
