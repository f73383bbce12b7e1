"""What BoTorch's ``fit_gpytorch_mll`` does to a model of many points."""

import warnings
from typing import Any, TypeVar

from gpytorch.mlls import ExactMarginalLogLikelihood

from surrogates.fitting.choice import fit

MLL = TypeVar("MLL", bound=ExactMarginalLogLikelihood)


def custom_fit(mll: MLL, *, closure: Any = None, **settings: Any) -> MLL:
    """Fit ``mll.model`` by :func:`fit`, which never factorises the matrix of all its data, and
    return ``mll`` in evaluation mode.

    Args:
        closure: must be ``None``: it would evaluate the likelihood of all data.
        settings: of BoTorch's optimisers, which take no part; those that are not ``None`` are named
            in a warning.

    Raises:
        TypeError: if ``mll`` is not the exact marginal log likelihood.
        ValueError: if a closure is given.
    """
    model = mll.model
    n = model.train_targets.shape[-1]
    if type(mll) is not ExactMarginalLogLikelihood:  # other likelihoods are subclasses
        raise TypeError(
            f"`mll` must be an ExactMarginalLogLikelihood for {n} points, got {type(mll).__name__}."
            " Fit a model of fewer."
        )
    if closure is not None:
        raise ValueError(
            f"`closure` must be None for {n} points, got {closure!r}: it would factorise a matrix"
            " of that size. Omit it."
        )
    unused = [f"`{name}`" for name, value in settings.items() if value is not None]
    if unused:
        warnings.warn(
            f"{', '.join(unused)} of fit_gpytorch_mll do nothing for {n} points, which BoTorch's"
            " optimisers cannot fit. Omit them, or call a fitting function of this package with"
            " settings of its own.",
            stacklevel=3,
        )
    fit(model)
    return mll.eval()
