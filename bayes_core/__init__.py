"""The mathematics of fedbayes: torch, numpy and scikit-learn; no Flower, no files."""

from bayes_core.adapters import low_rank
from bayes_core.families import Family, Gaussian, Point, SpikeSlab, build_family
from bayes_core.inference.recipe import Recipe
from bayes_core.inference.update import ClientState, client_update
from bayes_core.predict.predictive import predictive
from bayes_core.server.aggregate import extrapolate, mean, moments
from bayes_core.server.clustering import choose_k, spectral_clusters, symmetric_kl_matrix

Personal = ClientState  # its earlier name

__all__ = [
    "ClientState",
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
    "low_rank",
    "mean",
    "moments",
    "predictive",
    "spectral_clusters",
    "symmetric_kl_matrix",
]
