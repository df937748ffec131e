"""The mathematics of fedbayes: torch, numpy and scikit-learn; no Flower, no files."""

from bayes_core.aggregate import extrapolate, mean, moments
from bayes_core.families import Family, Gaussian, Point
from bayes_core.predict import predictive
from bayes_core.update import Personal, Recipe, client_update

__all__ = [
    "Family",
    "Gaussian",
    "Personal",
    "Point",
    "Recipe",
    "client_update",
    "extrapolate",
    "mean",
    "moments",
    "predictive",
]
