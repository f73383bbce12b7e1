"""Hyperparameters from data."""

from surrogates.fitting.exact import fit_exact

__all__ = ["fit_exact"]
