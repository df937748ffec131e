"""Train a backbone on images that no client holds, and leave the other images to the clients.

    python pretrain.py cifar10.npz

The file has x (n, 32, 32, 3) of bytes and y, or x_train, y_train, x_test and y_test, as `dataset=` takes it. Of every
class the first 1000 images train the backbone, which is written to backbone.safetensors; the others go to clients.npz.
"""

import argparse
import time

import numpy as np
import torch
from backbone import Network
from safetensors.torch import save_file
from torch import Tensor, nn

EACH = 1000  # images of a class for the backbone
BATCH, RATE = 100, 1e-3


def split(file: str, each: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All images, their labels, and which of them are for the backbone."""
    with np.load(file) as stored:
        parts = [("x", "y")] if "x" in stored else [("x_train", "y_train"), ("x_test", "y_test")]
        x, y = (np.concatenate([stored[names[i]] for names in parts]) for i in (0, 1))
    mine = np.zeros(len(y), bool)
    for label in np.unique(y):
        mine[np.flatnonzero(y == label)[:each]] = True
    return x, y, mine


def as_inputs(x: np.ndarray) -> Tensor:
    """As the federation scales bytes of images."""
    return torch.from_numpy(x).permute(0, 3, 1, 2).float() / 127.5 - 1


def augmented(x: Tensor) -> Tensor:
    """Mirrored at random, and moved by up to three pixels."""
    x = torch.where((torch.rand(len(x)) < 0.5)[:, None, None, None], x.flip(-1), x)
    across, down = torch.randint(-3, 4, (2,)).tolist()
    return x.roll((across, down), (-1, -2))


def train(x: Tensor, y: Tensor, epochs: int) -> Network:
    torch.manual_seed(0)
    network = Network(tuple(x.shape[1:]), int(y.max()) + 1)
    adam = torch.optim.Adam(network.parameters(), RATE)
    pace = torch.optim.lr_scheduler.CosineAnnealingLR(adam, epochs)
    for epoch in range(epochs):
        began, total = time.process_time(), 0.0
        for batch in torch.randperm(len(x)).split(BATCH):
            adam.zero_grad()
            loss = nn.functional.cross_entropy(network(augmented(x[batch])), y[batch])
            loss.backward()
            adam.step()
            total += loss.item() * len(batch)
        pace.step()
        print(
            f"epoch {epoch + 1}: loss {total / len(x):.3f}, {time.process_time() - began:.1f} s", flush=True
        )
    return network


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("file")
    words.add_argument("--epochs", type=int, default=25)
    words.add_argument("--each", type=int, default=EACH)
    given = words.parse_args()
    torch.set_num_threads(1)
    x, y, mine = split(given.file, given.each)
    network = train(as_inputs(x[mine]), torch.from_numpy(y[mine]).long(), given.epochs)
    save_file(network.body.state_dict(), "backbone.safetensors")
    np.savez("clients.npz", x=x[~mine], y=y[~mine])
    print(f"{mine.sum()} images for backbone.safetensors, {(~mine).sum()} in clients.npz")


if __name__ == "__main__":
    main()
