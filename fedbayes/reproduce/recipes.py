"""One recipe for each method and model, the same for every cell of a table: nothing is chosen cell by cell.

What is not written here has the default of pyproject.toml, which is the method's own paper's value or near it. Those of
the DNN were chosen by the NLL of validation data (four points a method, MNIST medium, 30 rounds: see
experiments/methods.py), but for pfedgp, pfedvem, local and the clustered methods other than cfedbayes, which have
defaults, and for the paper's own, which have rules (docs/algorithm.md, "Settings by rule"). Of the VGG's, the paper's
own were chosen on images that no client holds (docs/algorithm.md, "A prior that grows"); the others were not tuned.
"""

from dataclasses import dataclass

ROUNDS = {"dnn": 200, "vgg": 150}  # unless --rounds says otherwise; the paper's own runs have 800
EVAL_EVERY = {"dnn": 10, "vgg": 25}


@dataclass(frozen=True)
class Recipe:
    """What is added to `fedbayes run` for this method."""

    dnn: str = ""  # MNIST and FMNIST
    vgg: str = ""  # CIFAR-10 and SVHN


DNN = "zeta=auto personal-steps=auto lr-end=auto prior-decay=0.003"
VGG = "zeta=30 zeta-start=0.017 rho-init=-3.5 lr-global=0.002 prior-decay=0.003 aggregation=moments"
SPARSE = "zeta=auto personal-steps=auto prior-decay=0.003 rho-init=-3 lambda-init=0.5"  # and a target: see cells.py

# fmt: off
RECIPES = {  # one line a method
    # the paper's own methods
    "pfedbayes": Recipe(dnn=DNN, vgg=VGG),
    "sfedbayes": Recipe(dnn=SPARSE, vgg=VGG),
    "cfedbayes": Recipe(dnn=DNN, vgg=VGG),
    # the methods that it compares them with
    "fedavg": Recipe(dnn="optimizer=sgd lr-global=0.1", vgg="optimizer=adam lr-global=0.001"),
    "fedprox": Recipe(dnn="optimizer=sgd lr-global=0.1 proximal=0.001", vgg="optimizer=adam proximal=0.001"),
    # BNFed matches fully connected layers only.
    "bnfed": Recipe(dnn="bnfed.lr=0.1 bnfed.neuron-prior=10", vgg="bnfed.lr=0.1 bnfed.neuron-prior=10 model=dnn"),
    "fedpa": Recipe(dnn="fedpa.lr=0.1 fedpa.shrinkage=0.01", vgg="fedpa.lr=0.1"),
    "perfedavg": Recipe(dnn="perfedavg.lr=0.1 perfedavg.lr-adapt=0.01"),
    "pfedme": Recipe(dnn="pfedme.lr=0.05 pfedme.lr-personal=0.05"),
    "heurfedamp": Recipe(dnn="fedamp.penalty=0.05 heurfedamp.sharpness=25"),
    "pfedgp": Recipe(dnn="pfedgp.lr=0.05", vgg="pfedgp.lr=0.05"),
    "fesem": Recipe(dnn="clusters=2", vgg="clusters=2"),
    "fedcfl": Recipe(),
    "ifca": Recipe(dnn="clusters=2", vgg="clusters=2"),
    # methods that the paper does not have
    "local": Recipe(),
    "finetune": Recipe(dnn="optimizer=sgd lr-global=0.1"),
    "ditto": Recipe(dnn="ditto.penalty=1 lr-personal=0.001"),
    "apfl": Recipe(dnn="apfl.lr=0.1 apfl.mixture=0.25"),
    "fedper": Recipe(dnn="optimizer=sgd lr-global=0.1"),
    "fedrep": Recipe(dnn="optimizer=adam lr-global=0.003"),
    "fedamp": Recipe(dnn="fedamp.penalty=0.05 fedamp.sigma=10"),
    "pfedvem": Recipe(),
}
# fmt: on
