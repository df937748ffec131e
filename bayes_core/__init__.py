"""The mathematics of fedbayes: torch, numpy and scikit-learn; no Flower, no files."""

from bayes_core.aggregate import extrapolate, mean, moments
from bayes_core.clustering import choose_k, spectral_clusters, symmetric_kl_matrix
from bayes_core.families import Family, Gaussian, Point, SpikeSlab, build_family
from bayes_core.predict import predictive
from bayes_core.update import Personal, Recipe, client_update

__all__ = [
    "Family",
    "Gaussian",
    "Personal",
    "Point",
    "Recipe",
    "SpikeSlab",
    "build_family",
    "choose_k",
    "client_update",
    "extrapolate",
    "mean",
    "moments",
    "predictive",
    "spectral_clusters",
    "symmetric_kl_matrix",
]
