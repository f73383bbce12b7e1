"""Hyperparameters from data."""

from surrogates.fitting.account import FineStructureWarning, FitAccount, NoSignalWarning
from surrogates.fitting.choice import FitChoice, choose_fit, fit
from surrogates.fitting.exact import fit_exact
from surrogates.fitting.iterative import fit_iterative
from surrogates.fitting.minibatch import fit_minibatch
from surrogates.fitting.sample import fit_sample
from surrogates.fitting.subsets import fit_subsets
from surrogates.rules.finite_features_fit import fit_finite_features
from surrogates.rules.finite_objective import SCGD, Minimax
from surrogates.rules.variational_fit import fit_variational

__all__ = [
    "SCGD",
    "FineStructureWarning",
    "FitAccount",
    "FitChoice",
    "Minimax",
    "NoSignalWarning",
    "choose_fit",
    "fit",
    "fit_exact",
    "fit_finite_features",
    "fit_iterative",
    "fit_minibatch",
    "fit_sample",
    "fit_subsets",
    "fit_variational",
]
