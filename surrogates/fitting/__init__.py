"""Hyperparameters from data."""

from surrogates.fitting.exact import fit_exact
from surrogates.fitting.variational import fit_variational

__all__ = ["fit_exact", "fit_variational"]
