"""One round of pFedBayes with three clients: the mathematics alone, without Flower.

    python examples/one_round.py

A client holds a third of scikit-learn's scanned digits. It keeps a distribution q over the network's weights, which
never leaves it, and sends only w, its version of the common one. The server takes the mean of what was sent.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from bayes_core import ClientState, Gaussian, Recipe, client_update, extrapolate, mean, predictive
from bayes_core.flat import flatten

CLIENTS, TRAIN = 3, 400
RECIPE = Recipe(
    local_steps=60, personal_steps=1, batch_size=50, mc_samples=1,  # the paper's R, b = 50, a = 1
    zeta=1.0,  # the weight of KL(q ‖ w): how close a client stays to the others
    optimizer="adam", lr_personal=0.005, lr_global=0.005, lr_lambda=0.005, adam_beta2=0.99,
    compile=None,  # the steps in C, where there is a compiler
)  # fmt: skip


def main() -> None:
    torch.manual_seed(1)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images).float() / 8 - 1, torch.tensor(labels)
    shares = torch.randperm(len(x)).view(CLIENTS, -1)  # 599 digits each
    network = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))  # any nn.Module
    family = Gaussian()

    def accuracy(v: Tensor, test: Tensor) -> float:
        p = predictive(network, family, v, x[test], samples=10, generator=torch.Generator().manual_seed(0))
        return float((p.argmax(1) == y[test]).float().mean())

    w = family.init(flatten(network), rho_init=-2.5)  # μ: the network's own weights; σ = 0.08
    print(f"The server's distribution has {w.shape[1]} weights, each with a mean and a standard deviation.")
    uploads = []
    for number, share in enumerate(shares):
        train, test = share[:TRAIN], share[TRAIN:]
        state = ClientState.start(w, network, RECIPE.optimizer)  # a client without a past: q = w
        generator = torch.Generator().manual_seed(number)
        updated = client_update(network, family, state, w, x[train], y[train], RECIPE, generator)
        uploads.append(updated.w)
        q = updated.personal.q
        print(f"Client {number} knows {accuracy(q, test):.0%} of its test digits.", end=" ")
        print(f"Its q went {family.kl(q, w):.0f} nats from w and stays with it.")

    w_next = extrapolate(w, mean(uploads), beta=1.0)
    print(
        f"The server has averaged {len(uploads)} uploads, which moved its means by {(w_next - w)[0].std():.3f}."
    )
    for title, v in (("before", w), ("after", w_next)):
        right = accuracy(v, shares[:, TRAIN:].reshape(-1))
        print(f"The server's distribution {title} the round: {right:.0%} right on all test digits.")


if __name__ == "__main__":
    main()
