"""What BoTorch's ``fit_gpytorch_mll`` does to a model of ours: importing this module gives
:class:`PathwiseGP` and its subclasses the ``custom_fit`` that it looks for.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import botorch.fit
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood

from surrogates.callers import warn
from surrogates.fitting.choice import fit
from surrogates.models.pathwise import PathwiseGP
from surrogates.operators.linalg import DIRECT_SOLVE_UP_TO
from surrogates.restoring import restoring

MLL = TypeVar("MLL", bound=ExactMarginalLogLikelihood)


def custom_fit(
    model: SingleTaskGP, mll: MLL, closure: Callable[..., Any] | None = None, **settings: Any
) -> MLL:
    """Fit ``mll.model``, and return ``mll`` in evaluation mode: up to 4096 points as BoTorch fits a
    ``SingleTaskGP``; beyond by :func:`fit`, which never factorises the matrix of all its data.

    Args:
        model: that of ``mll``.
        closure: beyond 4096 points ``None``: it would evaluate the likelihood of all data.
        settings: of BoTorch's optimisers, which take no part beyond; those that are not ``None``
            are named in a warning.

    Raises:
        ModelFittingError: if BoTorch fails; the model is then as it was.
        TypeError: if ``mll`` is not the exact marginal log likelihood of many points.
        ValueError: if a closure is given for many points, or a constraint has bounds of its own for
            every output, which BoTorch's optimisers cannot take.
    """
    n = model.train_targets.shape[-1]
    if n <= DIRECT_SOLVE_UP_TO:
        num_batch = model.train_targets.ndim - 1
        for name, parameter, constraint in mll.model.named_parameters_and_constraints():
            for bound in () if constraint is None else constraint:
                if bound.shape[: max(0, num_batch + bound.ndim - parameter.ndim)].numel() > 1:
                    raise ValueError(
                        f"`{name}` must have the same bounds for all outputs and data sets to be"
                        f" fitted, got bounds of shape {tuple(bound.shape)}. Fit a model for each,"
                        " and take them together as a ModelListGP."
                    )
        # What `fit_gpytorch_mll` goes on with where a model has no `custom_fit`
        with restoring(mll):
            fitted: MLL = botorch.fit._fit_fallback(mll=mll, closure=closure, **settings)
        return fitted
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
        warn(
            f"{', '.join(unused)} of fit_gpytorch_mll do nothing for {n} points, which BoTorch's"
            " optimisers cannot fit. Omit them, or call a fitting function of this package with"
            " settings of its own."
        )
    fit(model)
    return mll.eval()


PathwiseGP.custom_fit = custom_fit  # which models, below `fit`, cannot import
