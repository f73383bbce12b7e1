"""What is maximised over several models: an objective of their joint draws, subject to constraints
on outcomes.

Notation: m outputs of all models, s joint draws, values Y (..., m) of the outputs at a point.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from surrogates import PathwiseGP, SamplePaths
from surrogates.functions.paths import BatchPaths

Outcome = Callable[[Tensor], Tensor]
Paths = SamplePaths | BatchPaths
# Maps points (..., q, d) to the probabilities (..., q) that evaluations there succeed
Success = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Demands:
    """What s paths demand of the probability that an evaluation succeeds.

    Args:
        success: the probability.
        least: (s,) what each path demands.
    """

    success: Success
    least: Tensor

    @classmethod
    def draw(
        cls, success: Success, num_paths: int, X: Tensor, generator: torch.Generator
    ) -> "Demands":
        """Return demands between half of the mean probability at points X (n, d) that succeeded and
        all of it, evenly: so the paths of a batch do not all go as far as the same edge.
        """
        shares = torch.rand(num_paths, generator=generator, dtype=torch.float64, device="cpu")
        with torch.no_grad():
            usual = success(X).mean()
        return cls(success, 0.5 * usual * (1.0 + shares.to(usual)))

    def shortfall(self, X: Tensor, num_dims: int) -> Tensor:
        """Return by how much points miss the demands, at least 0: (s, ..., q), of ``num_dims``
        dimensions, for X (..., q, d) that all demands apply to or X (s, ..., q, d), of which
        demand i applies to ``X[i]``.
        """
        return (self.least.view(-1, *[1] * (num_dims - 1)) - self.success(X)).clamp_min(0.0)


@dataclass(frozen=True, eq=False)
class Scalarisations:
    """An objective of each of s paths from k outputs of which larger is better: the augmented
    Chebyshev function −max_j w_j (1 − z_j) − ρ Σ_j w_j (1 − z_j), z the values in units in which
    the front so far reaches from 0 to 1. With weights drawn at random, a maximiser of each path
    spreads a batch over the front.

    A value beyond 1 gains next to nothing, so that such a batch fills the front and leaves its ends
    where they are. Every other path extends it: its units reach to the best values that the path
    itself has, see :meth:`extended`.

    Args:
        weights: (s, k), at least 0, their sum 1.
        lowest: (k,) the worst values on the front so far.
        highest: (k,) the best values so far, or (s, k) the best ones of each path.
        extends: (s,) whether a path is to extend the front; ``None`` if none is.
        augmentation: ρ.

    References:
        Knowles (2006), "ParEGO", Section III: the scalarisation, ρ = 0.05. Paria et al. (2020), "A
        Flexible Framework for Multi-Objective Bayesian Optimization using Random
        Scalarizations": a draw of it for every path. Differs: in half of the paths the ideal point
        is the path's own.
    """

    weights: Tensor
    lowest: Tensor
    highest: Tensor
    extends: Tensor | None = None
    augmentation: float = 0.05

    @classmethod
    def draw(cls, num_paths: int, front: Tensor, generator: torch.Generator) -> "Scalarisations":
        """Return scalarisations with weights uniform on the simplex, for a front (p, k) of values;
        a front of one point counts as one standard deviation wide.
        """
        shares = torch.rand(
            num_paths, front.shape[1], generator=generator, dtype=torch.float64, device="cpu"
        ).log()
        lowest = front.amin(0)
        highest = front.amax(0)
        width = highest - lowest
        narrowest = math.sqrt(torch.finfo(front.dtype).eps)  # differences below may be rounding
        lowest = highest - torch.where(width > narrowest, width, 1.0)
        weights = (shares / shares.sum(1, keepdim=True)).to(front)
        # Where each ask has a single path, about every other one extends the front
        alone = torch.randint(2, (), generator=generator, device=generator.device)
        first = alone if num_paths == 1 else torch.zeros_like(alone)
        extends = (torch.arange(num_paths, device=generator.device) + first) % 2 == 1
        return cls(weights, lowest, highest, extends.to(front.device))

    def part(self, paths: slice) -> "Scalarisations":
        """Return those of some of the paths."""
        extends = None if self.extends is None else self.extends[paths]
        return replace(self, weights=self.weights[paths], extends=extends)

    def extended(self, best: Tensor) -> "Scalarisations":
        """Return these where the units of the paths that extend the front reach to the ``best``
        values (s, k) that each path is known to have, if these are beyond the front.
        """
        if self.extends is None:
            return self
        beyond = torch.maximum(best, self.highest)
        return replace(self, highest=torch.where(self.extends.unsqueeze(1), beyond, self.highest))

    def __call__(self, Y: Tensor) -> Tensor:
        """Return the objective of each path at its values Y (s, ..., m): (s, ...)."""
        k = self.weights.shape[1]
        own = (len(self.weights), *[1] * (Y.ndim - 2), k)
        highest = self.highest.expand_as(self.weights).reshape(own)
        short = self.weights.view(own) * (highest - Y[..., :k]) / (highest - self.lowest)
        return -(short.amax(-1) + self.augmentation * short.sum(-1))

    def of_all(self, Y: Tensor) -> Tensor:
        """Return values (n,) that rank points with Y (n, m): how little they fall short of the best
        of them, where they do so least.
        """
        values = self(Y.expand(len(self.weights), *Y.shape))
        return (values - values.amax(1, keepdim=True)).amax(0)


@dataclass(frozen=True, eq=False)
class OutcomePaths:
    """s functions of which larger is better: the objective where draw i is feasible; where not,
    below all that, less the violation.

    Feasibility comes first: any point that meets the constraints by a draw exceeds any point that
    does not, and among those the one with the least total violation is the best.

    Args:
        parts: s paths of each model; draw i is path i of all of them.
        objective: maps Y (..., m) to (...).
        constraints: map Y (..., m) to (...), feasible where ≤ 0. Their violations are added up:
            give them comparable units.
        sign: 1 to maximise the objective, −1 to minimise it.
        demands: a further constraint of each path; ``None`` for none.

    References:
        Eriksson, Poloczek (2021), "Scalable Constrained Bayesian Optimization", Section 3: the
        order of the points.
    """

    parts: tuple[Paths, ...]
    objective: Outcome
    constraints: tuple[Outcome, ...] = ()
    sign: float = 1.0
    demands: Demands | None = None

    @property
    def num_samples(self) -> int:
        """The number of functions, s."""
        return self.parts[0].num_samples

    @property
    def is_constrained(self) -> bool:
        """Whether points may be infeasible."""
        return bool(self.constraints) or self.demands is not None

    def __call__(self, X: Tensor) -> Tensor:
        """Return every function at X (..., q, d): (s, ..., q)."""
        return self._merit(self._outputs([paths(X) for paths in self.parts]), X)

    def each(self, X: Tensor) -> Tensor:
        """Return function i at ``X[i]``: (s, q), for X (s, q, d)."""
        return self._merit(self._outputs([paths.each(X) for paths in self.parts]), X)

    @torch.no_grad()
    def extended(self, X: Tensor) -> "OutcomePaths":
        """Return these functions, of which those that extend a front reach for the best values that
        they have among X (n, d).
        """
        if not isinstance(self.objective, Scalarisations):
            return self
        k = self.objective.weights.shape[1]
        best = self._outputs([paths(X) for paths in self.parts])[..., :k].amax(1)
        return replace(self, objective=self.objective.extended(best))

    @torch.no_grad()
    def standing(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the points among X (n, d) that are best in the models' means, with values that
        rank them.

        These are the feasible ones with their objective or, if there are none, all with the
        negative violation.
        """
        Y = self._outputs([paths.mean(X) for paths in self.parts])
        objective = self.objective
        if isinstance(objective, Scalarisations):
            objective = objective.of_all
        value = self.sign * objective(Y)
        violation = self._violation(Y)
        feasible = violation <= 0
        return (X[feasible], value[feasible]) if feasible.any() else (X, -violation)

    def _outputs(self, values: list[Tensor]) -> Tensor:
        """Return the values of all parts as Y (..., m)."""
        several = [isinstance(paths, BatchPaths) and paths.several_outputs for paths in self.parts]
        return torch.cat(
            [Y if last else Y.unsqueeze(-1) for Y, last in zip(values, several, strict=True)],
            dim=-1,
        )

    def _merit(self, Y: Tensor, X: Tensor) -> Tensor:
        value = self.sign * self.objective(Y)
        if not self.is_constrained:
            return value
        violation = self._violation(Y)
        if self.demands is not None:
            violation = violation + self.demands.shortfall(X, violation.ndim)
        feasible = violation <= 0
        floor = torch.finfo(Y.dtype).max ** 0.5
        ranked = torch.where(feasible, value, -floor * (1.0 + violation)).detach()
        smooth = torch.where(feasible, value, -violation)
        # The values of the one, the gradients of the other
        return ranked + (smooth - smooth.detach())

    def _violation(self, Y: Tensor) -> Tensor:
        total = Y.new_zeros(Y.shape[:-1])
        for constraint in self.constraints:
            total = total + constraint(Y).clamp_min(0.0)
        return total


def check_outcomes(
    models: Sequence[PathwiseGP], objective: Any, constraints: Any
) -> tuple[Outcome | None, tuple[Outcome, ...]]:
    """Return objective and constraints if each maps values (..., m) to (...);
    the objective of one output may be left out.
    """
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
    trial = torch.ones(
        1,
        2,
        num_outputs,
        dtype=models[0].train_targets.dtype,
        device=models[0].train_targets.device,
    )
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


def only_output(Y: Tensor) -> Tensor:
    """Return the values (...) of a single output from Y (..., 1)."""
    return Y.squeeze(-1)
