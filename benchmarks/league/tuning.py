"""Hyperparameters of scikit-learn's models on data that it brings, to be chosen by
cross-validation: mixed spaces of floats, integers and categories.

Notation: X (n, d) points in the user's units.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer, StandardScaler
from sklearn.svm import SVC
from torch import Tensor

from scalable_bo.space.space import Categorical, Float, Int, Space


@dataclass(frozen=True, eq=False)
class Tuning:
    """A model, data, and the hyperparameters to choose.

    Attributes:
        load: returns inputs and targets, as scikit-learn's loaders do.
        scoring: of the cross-validation, larger is better.
    """

    space: Space
    load: Callable[..., Any]
    model: Callable[..., Any]
    scoring: str
    num_folds: int = 3

    def evaluate(self, X: Tensor) -> Tensor:
        """Return the scores (n,), negated so that the smallest is best."""
        data = self.load(return_X_y=True)
        folds = KFold(self.num_folds, shuffle=True, random_state=0)
        with warnings.catch_warnings(action="ignore"):  # some settings must be poor, and warn
            scores = [
                cross_val_score(self.model(**params), *data, scoring=self.scoring, cv=folds)
                for params in self.space.to_dicts(X)
            ]
        return torch.tensor([-float(np.mean(score)) for score in scores], dtype=torch.float64)


def _vectors(**settings: Any) -> Any:
    return make_pipeline(StandardScaler(), SVC(**settings))


def _ridge(**settings: Any) -> TransformedTargetRegressor:
    inner = make_pipeline(StandardScaler(), KernelRidge(**settings))
    return TransformedTargetRegressor(inner, transformer=StandardScaler())


def _splines(alpha: float, **knots: Any) -> Any:
    spline = SplineTransformer(extrapolation="constant", **knots)
    return make_pipeline(spline, StandardScaler(), Ridge(alpha=alpha))


TUNING_TASKS: Mapping[str, Tuning] = {
    "tune-digits": Tuning(
        Space(
            C=Float(1e-3, 1e3, log=True),
            gamma=Float(1e-5, 1.0, log=True),
            kernel=Categorical(["rbf", "poly", "sigmoid"]),
            degree=Int(2, 5),
        ),
        load_digits,
        _vectors,
        "accuracy",
    ),
    "tune-cancer": Tuning(
        Space(
            n_estimators=Int(5, 60, log=True),
            max_depth=Int(1, 12),
            max_features=Float(0.05, 1.0),
            min_samples_leaf=Int(1, 20),
            criterion=Categorical(["gini", "entropy"]),
        ),
        load_breast_cancer,
        partial(RandomForestClassifier, random_state=0),
        "neg_log_loss",
    ),
    "tune-diabetes": Tuning(
        Space(
            alpha=Float(1e-4, 1e2, log=True),
            gamma=Float(1e-3, 1e2, log=True),
            kernel=Categorical(["rbf", "laplacian", "polynomial"]),
            degree=Int(1, 4),
        ),
        load_diabetes,
        _ridge,
        "neg_root_mean_squared_error",
    ),
    "tune-splines": Tuning(
        Space(
            alpha=Float(0.1, 1e5, log=True),
            n_knots=Int(2, 16),
            degree=Int(1, 4),
            knots=Categorical(["uniform", "quantile"]),
        ),
        load_diabetes,
        _splines,
        "neg_root_mean_squared_error",
    ),
}
