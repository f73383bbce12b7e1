"""Where candidates come from: what models and data they gather around, and the part of the box they
are sought in; uniform over it, and near data points that did well.

Notation: X (n, d) data, y (n,) their values (larger is better), bounds (2, d).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Self

import torch
from botorch.models.model_list_gp_regression import ModelListGP
from torch import Tensor

from acquisition.constraints import FeasibleSet
from acquisition.outcomes import Outcome, Scalarisations
from acquisition.selection import DUPLICATE_DISTANCE
from acquisition.trust_region import TrustRegion
from surrogates import PathwiseGP, checks


def sampling_weights(y: Tensor) -> Tensor:
    """Return probabilities (n,) ∝ ``y − min(y)``; uniform if all values are equal."""
    weights = y - y.min()
    total = weights.sum()
    return weights / total if total > 0 else torch.full_like(y, 1.0 / len(y))


def propose(
    X: Tensor,
    y: Tensor,
    bounds: Tensor,
    num_candidates: int,
    *,
    uniform_fraction: float = 0.1,
    proposal_std: Tensor,
    weights: Callable[[Tensor], Tensor] = sampling_weights,
    center: Tensor | None = None,
    num_perturbed: int = 20,
    generator: torch.Generator,
) -> Tensor:
    """Return candidates (num_candidates, d): a share uniform over the box, the rest normal around
    data points drawn by their value.

    Args:
        proposal_std: (d,) standard deviation around a data point, in the units of X.
        uniform_fraction: share of uniform candidates, in [0, 1].
        weights: maps y to the probabilities of the data points, (n,).
        center: (d,) of a trust region. Each coordinate of a candidate then changes with probability
            ``num_perturbed`` / d only, at least one of them, from the centre or from its data
            point: where d is large, a point with all coordinates changed is far from everything.
        num_perturbed: coordinates that change on average, where there are more.

    References:
        Lin et al. (2023), "Sampling from Gaussian Process Posteriors using Stochastic Gradient
        Descent", App. A.3. Eriksson et al. (2019), "Scalable Global Optimization via Local Bayesian
        Optimization", Section 2, for the centre.
    """
    num_candidates = checks.positive_int("num_candidates", num_candidates)
    uniform_fraction = checks.fraction("uniform_fraction", uniform_fraction)
    search = Search(
        X,
        y,
        FeasibleSet.of(bounds),
        proposal_std,
        num_candidates,
        uniform_fraction,
        weights,
        center,
        num_perturbed,
    )
    return search.draw(generator)


@dataclass(frozen=True, eq=False)
class Search:
    """What rounds of candidates are drawn from."""

    X: Tensor  # (n, d), what candidates gather around
    y: Tensor  # (n,), larger is better
    feasible: FeasibleSet  # where candidates may lie
    proposal_std: Tensor  # (d,) standard deviation around X
    num_candidates: int  # a round
    uniform_fraction: float  # share of uniform candidates
    # Maps y to the probabilities of the data points that candidates lie around, (n,)
    weights: Callable[[Tensor], Tensor] = sampling_weights
    center: Tensor | None = None  # (d,) of the trust region; ``None`` without one
    num_perturbed: int = 20  # coordinates that change on average where there is a centre

    def within(self, trust_region: TrustRegion, bounds: Tensor, lengthscale: Tensor) -> Self:
        """Return the search in the trust region around the best data point among those inside."""
        X = torch.clamp(self.X, self.feasible.bounds[0], self.feasible.bounds[1])
        center = X[self.y.argmax()]
        box = trust_region.bounds(center, bounds, lengthscale)
        inside = torch.clamp(X, box[0], box[1]).eq(X).all(-1)
        return replace(
            self, X=X[inside], y=self.y[inside], feasible=self.feasible.within(box), center=center
        )

    def rounds(self, generator: torch.Generator) -> Iterator[Tensor]:
        """Return feasible candidates (num_candidates, d), without end; fewer where few are found.

        Raises:
            ValueError: if none is found.
        """
        draws = map(self.draw, repeat(generator))
        if self.feasible.rounding is not None:
            draws = map(self.feasible.rounding, draws)
        if self.feasible.constrained:
            draws = map(self.feasible.candidates, repeat(draws))
        return draws

    def draw(self, generator: torch.Generator) -> Tensor:
        """Return candidates (num_candidates, d) as :func:`propose` has them."""
        lower, upper = self.feasible.bounds
        num_uniform = round(self.uniform_fraction * self.num_candidates)
        num_near = self.num_candidates - num_uniform
        n, d = self.X.shape
        like: dict[str, Any] = {"generator": generator, "device": generator.device}

        def drawn(kind: Callable[..., Tensor], *size: int, dtype: torch.dtype) -> Tensor:
            return kind(*size, dtype=dtype, **like).to(self.X.device)

        uniform = torch.lerp(lower, upper, drawn(torch.rand, num_uniform, d, dtype=self.X.dtype))
        # By inversion: torch.multinomial is limited to 2²⁴ data points.
        quantiles = drawn(torch.rand, num_near, dtype=torch.float64)
        cumulative = self.weights(self.y.double()).cumsum(0)
        places = torch.searchsorted(cumulative, quantiles * cumulative[-1], right=True)
        around = self.X[places.clamp_max(n - 1)]
        steps = drawn(torch.randn, num_near, d, dtype=self.X.dtype)
        near = torch.clamp(around + self.proposal_std * steps, lower, upper)
        candidates = torch.cat([uniform, near])
        if self.center is None or d <= self.num_perturbed:
            return candidates
        base = torch.cat([self.center.expand(num_uniform, d), torch.clamp(around, lower, upper)])
        changed = torch.rand(self.num_candidates, d, **like) < self.num_perturbed / d
        one = torch.randint(d, (self.num_candidates, 1), **like)
        return torch.where(changed.scatter(1, one, True).to(self.X.device), candidates, base)


def model_list(model: Any) -> tuple[PathwiseGP, ...]:
    """Return the models in ``model``: one, a sequence of them, or a BoTorch ``ModelListGP``.

    Raises:
        TypeError, ValueError: if there are none, others than ``PathwiseGP``, models of different
            inputs, batches of data sets, or points that an input transform makes several of.
    """
    if isinstance(model, ModelListGP):
        model = list(model.models)
    models: tuple[PathwiseGP, ...] = tuple(model) if isinstance(model, list | tuple) else (model,)
    if not models:
        raise ValueError("`model` must hold a model or more, got an empty list.")
    for part in models:
        if not isinstance(part, PathwiseGP):
            raise TypeError(
                f"`model` must be a PathwiseGP, got {type(part).__name__}. Several go in a list or"
                " a ModelListGP."
            )
        if part.batch_shape:
            raise ValueError(
                f"`model` must hold one data set, got a batch of shape {tuple(part.batch_shape)}."
                " Take a model for each."
            )
        if getattr(getattr(part, "input_transform", None), "is_one_to_many", False):
            raise ValueError(
                "`model` must have an input transform that makes one point of each, got"
                f" {type(part.input_transform).__name__}. Leave it out to choose points."
            )
    inputs = [part.train_inputs[0] for part in models]
    kinds = [f"{X.shape[-1]} of {X.dtype} on {X.device}" for X in inputs]
    if len(set(kinds)) > 1:
        raise ValueError(
            f"`model` must hold models of the same inputs, of one dtype and device, got"
            f" {', '.join(kinds)}."
            " Convert them."
        )
    return models


def original_inputs(model: PathwiseGP) -> Tensor:
    """Return the training inputs (n, d) of ``model`` before its input transform."""
    X = model._given_inputs
    return X if X.ndim == 2 else X[0]  # the outputs of a model share them


def all_inputs(models: Sequence[PathwiseGP]) -> Tensor:
    """Return the training inputs of all models, each point once if they differ."""
    X, *others = [original_inputs(model) for model in models]
    if all(map(X.equal, others)):
        return X
    return torch.unique(torch.cat([X, *others]), dim=0)


def may_be_proposed(X: Tensor, feasible: FeasibleSet) -> Tensor:
    """Return which of the points X (n, d) are such as may be proposed, but for rounding: (n,)."""
    X = X.to(feasible.bounds)
    places = feasible.rounded(torch.clamp(X, feasible.bounds[0], feasible.bounds[1]))
    reach = DUPLICATE_DISTANCE * torch.where(feasible.scale > 0, feasible.scale, 1.0)
    return ((places - X).abs() <= reach).all(-1) & feasible.contains(places, slack=1.0)


def baseline(X: Tensor, feasible: FeasibleSet) -> tuple[Tensor, Tensor]:
    """Return the points (b, d) that a search improves on, and which of X (n, d) these are: those
    that may be proposed or, if none may, as before a task has data, those that can be moved there.
    """
    allowed = may_be_proposed(X, feasible)
    if not allowed.any():
        X = feasible.rounded(feasible.nearby(X.to(feasible.bounds))).to(X)
        allowed = feasible.contains(X.to(feasible.bounds))
    rows = allowed if allowed.any() else ~allowed
    return X[rows], rows


def check_bounds(bounds: Tensor, models: Sequence[PathwiseGP]) -> None:
    """Require bounds (2, d) of a box for points like the inputs of the models."""
    X = original_inputs(models[0])
    if checks.box(bounds).shape[1] != X.shape[1]:
        raise ValueError(
            f"`bounds` must have shape (2, {X.shape[1]}) for this model, got {tuple(bounds.shape)}."
        )
    checks.like("bounds", bounds, "train_X", X)


def default_proposal_std(model: PathwiseGP, width: Tensor) -> Tensor:
    """Return half the lengthscale (d,) in the inputs' units; a tenth of the box without one."""
    kernel = getattr(model.covar_module, "base_kernel", model.covar_module)
    on_all_inputs = kernel.active_dims is None and model.covar_module.active_dims is None
    if not kernel.has_lengthscale or not on_all_inputs or hasattr(model, "input_transform"):
        return 0.1 * width
    lengthscale = kernel.lengthscale.detach()
    # The shortest of all outputs
    return (0.5 * lengthscale.reshape(-1, lengthscale.shape[-1]).amin(0)).to(width).expand_as(width)


def finest_proposal_std(models: Sequence[PathwiseGP], width: Tensor) -> Tensor:
    """Return the smallest default of the models in each dimension, (d,)."""
    return torch.stack([default_proposal_std(model, width) for model in models]).amin(0)


def check_outcomes(
    models: Sequence[PathwiseGP], objective: Any, constraints: Any
) -> tuple[Outcome | None, tuple[Outcome, ...]]:
    """Return both if each maps (..., m) to (...); of one output, the objective may be left out."""
    num_outputs = sum(model.num_outputs for model in models)
    if objective is None and num_outputs > 1:
        raise ValueError(
            f"`objective` must be given for {num_outputs} outputs, got None. For the first, pass"
            " `lambda Y: Y[..., 0]`."
        )
    if constraints is not None and not isinstance(constraints, list | tuple):
        raise TypeError(
            f"`outcome_constraints` must be a list of callables, got {type(constraints).__name__}."
            " Put it in a list."
        )
    constraints = tuple(constraints or ())
    named = {f"outcome_constraints[{j}]": constraint for j, constraint in enumerate(constraints)}
    # One of each path takes the values of as many paths
    if objective is not None and not isinstance(objective, Scalarisations):
        named["objective"] = objective
    trial = models[0].train_targets.new_ones(1, 2, num_outputs)
    for name, outcome in named.items():
        if not callable(outcome):
            raise TypeError(
                f"`{name}` must be a callable, got {type(outcome).__name__} {outcome!r}."
            )
        value = outcome(trial)
        if not isinstance(value, Tensor) or value.shape != trial.shape[:-1]:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"`{name}` must map values (..., {num_outputs}) to (...), got {shape} for"
                f" {tuple(trial.shape)}. Reduce the last dimension."
            )
    return objective, constraints
