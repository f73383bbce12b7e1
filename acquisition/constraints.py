"""The points that may be proposed: a box, with features fixed, linear constraints and nonlinear
ones, some of it discrete.

Notation: X (..., d) points, A X ≥ b linear inequalities, C X = c equalities, g(x) ≥ 0 nonlinear
inequalities; bounds (2, d).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Self

import torch
from botorch.optim.parameter_constraints import get_constraint_tolerance
from torch import Tensor

from surrogates import checks

LinearConstraint = tuple[Tensor, Tensor, float]
NonlinearConstraint = Callable[[Tensor], Tensor]


class TooFewPoints(ValueError):
    """There are fewer points than were asked for."""


class NoFeasiblePoint(TooFewPoints):
    """No point was found that meets the constraints."""


@dataclass(frozen=True, eq=False)
class FeasibleSet:
    """The points of a box that satisfy the constraints.

    Inequalities hold strictly in the arithmetic of the points' dtype, equalities up to BoTorch's
    tolerance, here relative to the largest term of a constraint.

    Attributes:
        bounds: (2, d), both equal for a fixed feature.
        scale: (d,) the sides of the whole box, 0 for a fixed feature: what distances are measured
            in when points are moved.
        inequalities: rows a (r, d) and their b (r,): a · x ≥ b.
        equalities: rows a (e, d) and their b (e,): a · x = b.
        nonlinear: maps of one point (d,) to a number, at least 0 where feasible.
        rounding: moves points (..., d) to where they would be evaluated; ``None`` if they stay.
        accepts: tells which of the points (n, d) may be evaluated, (n,), in place of a formula; met
            by rejection alone.
    """

    bounds: Tensor
    scale: Tensor
    inequalities: tuple[Tensor, Tensor]
    equalities: tuple[Tensor, Tensor]
    nonlinear: tuple[NonlinearConstraint, ...]
    rounding: Callable[[Tensor], Tensor] | None = None
    accepts: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def of(
        cls,
        bounds: Tensor,
        *,
        inequality_constraints: Sequence[LinearConstraint] | None = None,
        equality_constraints: Sequence[LinearConstraint] | None = None,
        nonlinear_inequality_constraints: Sequence[Any] | None = None,
        fixed_features: Mapping[int, float] | None = None,
        rounding: Callable[[Tensor], Tensor] | None = None,
        accepts: Callable[[Tensor], Tensor] | None = None,
    ) -> Self:
        """Return the set of BoTorch's constraints: ``Σ_i X[indices[i]] · coefficients[i] ≥ rhs``
        (or ``= rhs``), and ``g(x) ≥ 0``.

        Args:
            bounds: (2, d), a valid box.
            inequality_constraints: triples (indices, coefficients, rhs), on one point each.
            equality_constraints: the same.
            nonlinear_inequality_constraints: callables (d,) -> scalar of torch operations, called
                under ``torch.vmap``; a pair (callable, ``True``) is BoTorch's way to write one.
            fixed_features: values by index.
            rounding: as the attribute.
            accepts: as the attribute.

        Raises:
            TypeError, ValueError: naming the constraint.
        """
        d = bounds.shape[1]
        inequalities = _rows("inequality_constraints", inequality_constraints, bounds)
        equalities = _rows("equality_constraints", equality_constraints, bounds)
        nonlinear = tuple(_callables(nonlinear_inequality_constraints, bounds))
        narrowed = bounds.clone()
        for index, value in _fixed(fixed_features, bounds):
            narrowed[:, index] = value
        if (narrowed[0] == narrowed[1]).all():
            raise ValueError(f"`fixed_features` must leave a feature free, got all {d}. Omit one.")
        return cls(
            narrowed,
            narrowed[1] - narrowed[0],
            inequalities,
            equalities,
            nonlinear,
            rounding,
            accepts,
        )

    @property
    def constrained(self) -> bool:
        """Whether there is more to satisfy than the bounds."""
        return bool(
            len(self.inequalities[1]) or len(self.equalities[1]) or self.nonlinear or self.accepts
        )

    def rounded(self, X: Tensor) -> Tensor:
        """Return where the points X (..., d) would be evaluated."""
        return X if self.rounding is None else self.rounding(X)

    def within(self, box: Tensor) -> Self:
        """Return the part inside ``box`` (2, d); fixed features stay what they are."""
        return replace(self, bounds=torch.where(self.scale > 0, box, self.bounds))

    def contains(self, X: Tensor, slack: float = 0.0) -> Tensor:
        """Return which of X (..., d) are feasible, or miss inequalities by ``slack`` tolerances."""
        inside = self.meets(X, slack)
        if self.accepts is not None:
            inside[inside.clone()] = self.accepts(X[inside])
        return inside

    def meets(self, X: Tensor, slack: float = 0.0) -> Tensor:
        """Return which of X (..., d) lie in the box and meet the constraints with a formula."""
        inside = ((self.bounds[0] <= X) & (self.bounds[1] >= X)).all(-1)
        for a, b in zip(*self.inequalities, strict=True):
            inside = inside & (X @ a >= b - slack * self._margin(a, b))
        for a, b in zip(*self.equalities, strict=True):
            inside = inside & ((X @ a - b).abs() <= self._margin(a, b))
        for g in self.nonlinear:
            inside = inside & (_each(g, X) >= -slack * get_constraint_tolerance(X.dtype))
        return inside

    def nearby(self, X: Tensor, num_sweeps: int = 100) -> Tensor:
        """Move infeasible points X (..., d) to the feasible set by cyclic projections; some may
        stay infeasible.

        Each violated constraint in turn moves the point to its boundary, nonlinear ones to that of
        their linearisation; a coordinate at a bound is left out of a move that would take it
        further out, so that sliding along bounds needs few sweeps, and a single constraint one.
        """
        flat = torch.clamp(X.detach().reshape(-1, X.shape[-1]), self.bounds[0], self.bounds[1])
        for _ in range(num_sweeps):
            outside = ~self.meets(flat)
            if not outside.any():
                break
            flat[outside] = self._sweep(flat[outside])
        return flat.view_as(X)

    def advance(self, X: Tensor, target: Tensor) -> Tensor:
        """Return the furthest feasible point on the way from feasible X (..., d) to ``target``."""
        target = self.nearby(target)
        reached = X
        for fraction in (0.125, 0.25, 0.5, 1.0):
            point = torch.clamp(torch.lerp(X, target, fraction), self.bounds[0], self.bounds[1])
            reached = torch.where(self.meets(point).unsqueeze(-1), point, reached)
        return reached

    def tangent(self, X: Tensor, direction: Tensor, length: float) -> Tensor:
        """Return the part of ``direction`` (..., d), in units of the box's sides, in which a step
        of ``length`` from X stays feasible.

        Without it, an optimiser that scales coordinates would drift along a constraint that holds
        it back.
        """
        tiny = torch.finfo(X.dtype).tiny
        norm = torch.linalg.vector_norm(direction, dim=-1, keepdim=True).clamp_min(tiny)
        moved = self.nearby(X + length * self.scale * direction / norm)
        return (moved - X) / torch.where(self.scale > 0, self.scale, 1.0) * (norm / length)

    def candidates(
        self, draws: Iterator[Tensor], num_draws: int = 8, fewest_tried: int = 40_000
    ) -> Tensor:
        """Return at most as many feasible points as a draw has: by rejection of ``num_draws``, by
        moving the last, or by rejection until ``fewest_tried`` points have shown no feasible one.

        Raises:
            NoFeasiblePoint: if none is found.
        """
        kept = []
        count = 0
        tried = 0
        for drawn in (next(draws) for _ in range(num_draws)):
            kept.append(drawn[self.contains(drawn)])
            count += len(kept[-1])
            tried += len(drawn)
            if count >= len(drawn) or len(self.equalities[1]):  # which no random point meets
                break
        if count < len(drawn):
            moved = self.rounded(self.nearby(drawn))
            kept.append(moved[self.contains(moved)])
        points = torch.cat(kept)[: len(drawn)]
        while not len(points) and tried < fewest_tried:
            drawn = next(draws)
            points = drawn[self.contains(drawn)]
            tried = tried + len(drawn)
        if not len(points):
            raise NoFeasiblePoint(
                "The constraints must leave a feasible point inside `bounds`, got none among"
                f" {tried} candidates, nor by moving them. Widen `bounds`, or relax"
                " `inequality_constraints`, `equality_constraints`,"
                " `nonlinear_inequality_constraints` or `fixed_features`."
            )
        return points

    def _sweep(self, X: Tensor) -> Tensor:
        """Move each of X (p, d) to the boundary of every constraint that it violates, in turn."""
        for a, b in zip(*self.inequalities, strict=True):
            value = X @ a
            X = self._moved(X, a, torch.where(value < b, b + self._margin(a, b) - value, 0.0))
        for g in self.nonlinear:
            with torch.enable_grad():
                x = X.detach().requires_grad_()
                value = _each(g, x)
            if value.requires_grad:  # one without a gradient is met by rejection alone
                (slope,) = torch.autograd.grad(value.sum(), x)
                value = value.detach()
                margin = get_constraint_tolerance(X.dtype)
                X = self._moved(X, slope, torch.where(value < 0, margin - value, 0.0))
        for a, b in zip(*self.equalities, strict=True):
            X = self._moved(X, a, b - X @ a)
        return X

    def _moved(self, X: Tensor, a: Tensor, shortfall: Tensor) -> Tensor:
        """Move X (p, d) the shortest way, in units of the box, to raise a · x by ``shortfall``."""
        direction = self.scale.square() * a * shortfall.sign().unsqueeze(-1)
        blocked = ((self.bounds[0] >= X) & (direction < 0)) | (
            (self.bounds[1] <= X) & (direction > 0)
        )
        direction = torch.where(blocked, 0.0, direction)
        gain = (direction * a).sum(-1)
        step = torch.where(gain == 0, 0.0, shortfall / torch.where(gain == 0, 1.0, gain))
        return torch.clamp(X + step.unsqueeze(-1) * direction, self.bounds[0], self.bounds[1])

    def _margin(self, a: Tensor, b: Tensor) -> Tensor:
        largest = torch.maximum((a * self.bounds).abs().max(), b.abs())
        return get_constraint_tolerance(b.dtype) * largest.clamp_min(1.0)


def _each(g: NonlinearConstraint, X: Tensor) -> Tensor:
    return torch.vmap(g)(X.reshape(-1, X.shape[-1])).reshape(X.shape[:-1])


def _rows(
    name: str, constraints: Sequence[LinearConstraint] | None, bounds: Tensor
) -> tuple[Tensor, Tensor]:
    """Return constraints as rows (r, d) and right-hand sides (r,)."""
    d = bounds.shape[1]
    rows = bounds.new_zeros(len(constraints or ()), d)
    rhs = bounds.new_zeros(len(constraints or ()))
    for j, constraint in enumerate(constraints or ()):
        if not isinstance(constraint, tuple) or len(constraint) != 3:
            raise TypeError(
                f"`{name}[{j}]` must be a tuple (indices, coefficients, rhs), got {constraint!r}."
            )
        indices = torch.as_tensor(constraint[0], device=bounds.device)
        coefficients, value = (  # float32 would round a Python number
            torch.as_tensor(part, dtype=bounds.dtype, device=bounds.device)
            for part in constraint[1:]
        )
        if indices.ndim != 1 or indices.shape != coefficients.shape or not len(indices):
            raise ValueError(
                f"`{name}[{j}]` must have indices and coefficients of one shape (k,), got"
                f" {tuple(indices.shape)} and {tuple(coefficients.shape)}. Constraints between"
                " points of a batch are not supported."
            )
        if indices.is_floating_point() or not bool(((indices >= 0) & (indices < d)).all()):
            raise ValueError(
                f"`{name}[{j}]` must have integer indices from 0 to {d - 1}, got"
                f" {indices.tolist()}."
            )
        if value.numel() != 1 or not bool(
            torch.isfinite(coefficients).all() and torch.isfinite(value).all()
        ):
            raise ValueError(
                f"`{name}[{j}]` must have finite coefficients and one finite rhs, got"
                f" {coefficients.tolist()}, {value.tolist()}."
            )
        rows[j].index_add_(0, indices, coefficients)
        rhs[j] = value
        if not rows[j].any():
            raise ValueError(
                f"`{name}[{j}]` must have a coefficient that is not 0, got {coefficients.tolist()}."
                " Omit the constraint."
            )
    return rows, rhs


def _callables(constraints: Sequence[Any] | None, bounds: Tensor) -> Iterator[NonlinearConstraint]:
    for j, constraint in enumerate(constraints or ()):
        name = f"nonlinear_inequality_constraints[{j}]"
        if isinstance(constraint, tuple) and len(constraint) == 2 and constraint[1] is False:
            raise ValueError(
                f"`{name}` must constrain one point, got a constraint between the points of a"
                " batch. Write it for one point."
            )
        g = constraint[0] if isinstance(constraint, tuple) and len(constraint) == 2 else constraint
        if not callable(g):
            raise TypeError(
                f"`{name}` must be a callable, or a pair (callable, True), got"
                f" {type(constraint).__name__} {constraint!r}."
            )
        try:
            value = torch.vmap(g)(bounds)
        except Exception as error:
            raise ValueError(
                f"`{name}` must map a point ({bounds.shape[1]},) to a number by torch operations"
                f" that `torch.vmap` can follow, got {type(error).__name__}: {error}"
            ) from error
        if value.shape != (2,) or not value.is_floating_point():
            raise ValueError(
                f"`{name}` must map a point ({bounds.shape[1]},) to one floating-point number, got"
                f" {value.dtype} of shape {tuple(value.shape[1:])}. Write one callable for each"
                " constraint, ≥ 0 where feasible."
            )
        yield g


def _fixed(features: Mapping[int, float] | None, bounds: Tensor) -> Iterator[tuple[int, float]]:
    d = bounds.shape[1]
    if features is not None and not isinstance(features, Mapping):
        raise TypeError(
            "`fixed_features` must be a dict of values by the index of the input, got"
            f" {features!r:.80}. Try {{2: 1.0}}."
        )
    for index, value in (features or {}).items():
        if checks.integer("fixed_features", index, 0) >= d:
            raise ValueError(f"`fixed_features` must have keys from 0 to {d - 1}, got {index}.")
        lower, upper = bounds[:, index].tolist()
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(
                f"`fixed_features[{index}]` must be a number, got {type(value).__name__} {value!r}."
            )
        if not lower <= value <= upper:
            raise ValueError(
                f"`fixed_features[{index}]` must lie in `bounds`, [{lower:g}, {upper:g}], got"
                f" {value}. Widen the bounds."
            )
        yield int(index), float(value)
