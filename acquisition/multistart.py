"""Maximise many functions at once: screen many points, ascend from the best few, among many data
most of the way on functions of few terms that agree with the paths where these are good.

Notation: s functions, k starts for each, points (s, k, d).
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from acquisition.constraints import FeasibleSet
from surrogates import SamplePaths, memory
from surrogates.operators.differentiable import KernelBasis
from surrogates.operators.linalg import CHEAP_FACTOR_UP_TO
from surrogates.systems.system import Rows

LAST_RATE = 0.1  # of the learning rate, at the end of an ascent
# Starts from which a path itself is ascended at least. After an ascent on functions of few terms it
# goes on from as many of the best points, and has others choose among them.
FEWEST_STARTS = 10
CHECKED_EVERY = 8  # rounds of starts, of which no start is a centre of functions of few terms
OWN_STEPS = 10  # of the paths themselves, at the end


class Preferences(Protocol):
    """A set of s functions that rank points."""

    @property
    def num_samples(self) -> int:
        """The number of functions s."""

    def __call__(self, X: Tensor) -> Tensor:
        """Return every function at X (c, d): (s, c)."""


class Functions(Preferences, Protocol):
    """A set of s functions to maximise, such as :class:`surrogates.SamplePaths`."""

    def each(self, X: Tensor) -> Tensor:
        """Return function i at its own points ``X[i]``, differentiably: (s, k), for X (s, k, d)."""


@dataclass(frozen=True, eq=False)
class FunctionOfPoints:
    """One function of points, as one of the :class:`Functions` that are maximised."""

    of_points: Callable[[Tensor], Tensor]  # from (k, d) to (k,), in float64
    num_samples: int = 1

    @torch.no_grad()
    def __call__(self, X: Tensor) -> Tensor:
        """Return its values at X (c, d): (1, c)."""
        parts = X.unsqueeze(0).split(memory.part_size(CHEAP_FACTOR_UP_TO), dim=1)
        return torch.cat(list(map(self.each, parts)), dim=1)

    def mean(self, X: Tensor) -> Tensor:
        """Return its values at X (k, d): (k,)."""
        return self(X).squeeze(0)

    def each(self, X: Tensor) -> Tensor:
        """Return its values at X (1, k, d): (1, k)."""
        return self.of_points(X.double().squeeze(0)).unsqueeze(0).to(X)


@dataclass(frozen=True, eq=False)
class SharedFunctions:
    """s functions, of which every process has some: each evaluates its own, and all get all values.
    All processes evaluate them at the same points.
    """

    own: Functions  # those of this process
    rows: Rows  # who has which

    @property
    def num_samples(self) -> int:
        return self.rows.n

    def __call__(self, X: Tensor) -> Tensor:
        """Return every function at X (c, d): (s, c)."""
        return self.rows.gather(self.own(X))

    def each(self, X: Tensor) -> Tensor:
        """Return function i at its points ``X[i]``: (s, k) for X (s, k, d); once differentiable."""
        return _Each.apply(X, self)


class _Each(torch.autograd.Function):
    """The values of functions at their own points, and the gradients, found by who has them."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, functions: SharedFunctions) -> Tensor:
        with torch.enable_grad():
            points = X[functions.rows.own].detach().requires_grad_()
            values = functions.own.each(points)
            (slopes,) = torch.autograd.grad(values.sum(), points)
        ctx.save_for_backward(functions.rows.gather(slopes))
        return functions.rows.gather(values.detach())

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        (slopes,) = ctx.saved_tensors
        return cotangent.unsqueeze(-1) * slopes, None


def screen(
    paths: Functions,
    rounds: Iterable[Tensor],
    *,
    sign: float = 1.0,
    after_round: Callable[[], None] | None = None,
) -> Tensor:
    """Return each path's best candidate of every round: (s, number of rounds, d). Rounds are
    evaluated together as far as their values take little memory.

    Args:
        rounds: tensors (c, d) of candidates, shared by all paths.
        sign: 1 to maximise, −1 to minimise.
    """
    best: list[Tensor] = []
    most = memory.part_size(paths.num_samples, torch.float32, num_bytes=2**22)
    for group in _together(rounds, most):
        if len(group) > 1:
            values = (sign * paths(torch.cat(group))).split([len(part) for part in group], dim=1)
            best += [part[one.argmax(1)] for part, one in zip(group, values, strict=True)]
        else:
            found = [(sign * paths(part)).max(dim=1) for part in group[0].split(most)]
            number = torch.stack([value for value, _ in found]).argmax(0)
            index = torch.stack([place for _, place in found]).gather(0, number.unsqueeze(0))
            best.append(group[0][number * most + index.squeeze(0)])
        if after_round is not None:
            for _ in group:
                after_round()
    return torch.stack(best, dim=1)


def _together(rounds: Iterable[Tensor], most: int) -> Iterator[list[Tensor]]:
    """Yield rounds one by one, those together that have at most ``most`` candidates in all."""
    group: list[Tensor] = []
    for candidates in rounds:
        if group and sum(map(len, group)) + len(candidates) > most:
            yield group
            group = []
        group.append(candidates)
    yield group


def ascend(
    paths: Functions,
    starts: Tensor,
    bounds: Tensor,
    *,
    num_steps: int = 100,
    learning_rate: float | Tensor = 1e-3,
    prune: bool = False,
    sign: float = 1.0,
    feasible_set: FeasibleSet | None = None,
    unit_gradients: bool = False,
    after_step: Callable[[], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Ascend every path from its starts by Adam, inside the box; return the best points visited (s,
    k, d) and their values (s, k).

    All gradients of a step come from one tiled computation. Coordinates are scaled to the unit cube
    for the steps. Among constraints, gradients are projected to the directions that stay feasible,
    and steps to the feasible set. Where points are rounded, the values and gradients are those of
    the rounded points, and the steps go on from the others: small ones add up until they reach the
    next value.

    Most starts lead to lesser maxima, and show it soon: with ``prune``, stage i of the ascent has a
    share ∝ i of the steps, each path leaves all but the best third of its starts behind after a
    stage, and the learning rate falls linearly to a tenth. The long first steps pass over small
    maxima, the short last ones settle.

    Args:
        starts: (s, k, d), feasible.
        bounds: (2, d); a feature whose two bounds are equal stays fixed.
        learning_rate: of Adam, in units of the box's sides, a number or (d,).
        prune: go on from fewer and fewer starts; with it, the points of a path are returned with
            its best at the stages' ends first.
        sign: 1 to maximise, −1 to minimise; the values returned are those of the paths.
        feasible_set: constraints beyond the bounds, within which every point returned lies, and how
            points are rounded; ``None`` for none of either.
        unit_gradients: scale each gradient to norm 1, for functions of pieces in different units.

    References:
        Kingma, Ba (2015), "Adam: A Method for Stochastic Optimization".
    """
    num_starts = starts.shape[1]
    counts = starts_kept(num_starts, num_steps) if prune else [num_starts] * (num_steps + 1)
    feasible = FeasibleSet.of(bounds) if feasible_set is None else feasible_set
    rate = torch.as_tensor(learning_rate, dtype=bounds.dtype, device=bounds.device)
    ascent = _Ascent(starts.detach(), bounds, rate, feasible, unit_gradients)
    for step, count in enumerate(counts):
        ascent.keep(count)
        last = step == num_steps
        with torch.enable_grad():
            X = ascent.X if feasible.rounding is None else feasible.rounding(ascent.X)
            X = X.detach().requires_grad_(not last)
            values = sign * paths.each(X)
            gradient = None if last else torch.autograd.grad(values.sum(), X)[0]
        ascent.note(X.detach(), values.detach())
        if gradient is None:
            break
        ascent.move(gradient, 1.0 - (1.0 - LAST_RATE) * step / num_steps if prune else 1.0)
        if after_step is not None:
            after_step()
    points, best_values = ascent.best()
    return points, sign * best_values


def condensed(
    paths: Functions,
    starts: Tensor,
    reach: Tensor,
    num_centres: int = CHEAP_FACTOR_UP_TO,
    largest_error: float = 0.25,
) -> SamplePaths | None:
    """Return functions of few terms that agree with ``paths`` at ``starts`` (s, k, d) of their
    ascents, and around these where they are fewer: combinations of the kernel at centres, without
    random features. ``None`` where they gain nothing: among few data or starts, and where some of
    the starts, or points beside those that are centres, show that so few terms do not do.

    Args:
        reach: (d,) the standard deviation of centres around starts, such as the length of a first
            step: what ascents are to climb is the slope, too.
        num_centres: c.
        largest_error: a share of the deviation of a path's values from start to start.
    """
    k = starts.shape[1]
    if not isinstance(paths, SamplePaths) or not isinstance(paths.data, KernelBasis):
        return None
    if _are_few(len(paths.weights), k, num_centres):
        return None
    is_checked = torch.zeros(k, dtype=torch.bool, device=starts.device)
    is_checked[::CHECKED_EVERY] = True
    centres = _around(starts[:, ~is_checked], num_centres, reach)
    functions = paths.condensed(centres)
    checked = _beside(starts[:, is_checked], centres, reach)
    values = paths.each(checked)
    error = (functions.each(checked) - values).square().mean()
    agree = bool(error <= largest_error**2 * values.var(dim=1).mean())
    return functions if agree else None


class _Ascent:
    """Where an ascent stands: X (s, k, d), what the first k of the K starts of each function have
    led to.
    """

    def __init__(
        self,
        starts: Tensor,
        bounds: Tensor,
        rate: Tensor,
        feasible: FeasibleSet,
        unit_gradients: bool,
    ) -> None:
        self.lower, self.upper = bounds
        self.width = self.upper - self.lower
        self.side = torch.where(self.width > 0, self.width, 1.0)
        self.rate = rate
        self.longest = float(rate.max())
        self.feasible = feasible
        self.constrained = feasible.constrained
        self.unit_gradients = unit_gradients
        self.X = starts
        self.points = (starts - self.lower) / self.side  # X on the unit cube
        self.num_moves = 0
        self.first = torch.zeros_like(starts)  # Adam's moments
        self.second = torch.zeros_like(starts)
        self.best_points = starts.clone()
        self.best_values = torch.full_like(starts[..., 0], -math.inf)
        # Points that may be evaluated: the starts, then the best at the end of a stage
        self.accepted_points = starts
        self.accepted_values = self.best_values

    def keep(self, count: int) -> None:
        """Go on from the ``count`` starts that have led furthest."""
        if count == self.X.shape[1]:
            return
        best = self.best()
        order = self._ranking(best[1])
        self.accepted_points, self.accepted_values = _ordered(order, *best)
        self.best_points, self.best_values = _ordered(order, *best)
        self.X, self.points, self.first, self.second = _ordered(
            order[:, :count], self.X, self.points, self.first, self.second
        )

    def note(self, X: Tensor, values: Tensor) -> None:
        """Note the values (s, k) of the points that were evaluated, (s, k, d)."""
        best_values = self.best_values[:, : X.shape[1]]
        best_points = self.best_points[:, : X.shape[1]]
        better = values > best_values
        if self.constrained and self.feasible.rounding is not None:
            # The others are feasible by the way they were reached
            better &= self.feasible.meets(X)
        best_values.copy_(torch.where(better, values, best_values))
        best_points.copy_(torch.where(better.unsqueeze(-1), X, best_points))
        if self.num_moves == 0:
            self.accepted_values = self.best_values.clone()

    def move(self, gradient: Tensor, share: float) -> None:
        """Take a step of Adam along the gradients, at a share of the learning rate."""
        gradient = self.width * gradient
        if self.unit_gradients:
            gradient = torch.nn.functional.normalize(
                gradient, dim=-1, eps=torch.finfo(gradient.dtype).tiny
            )
        if self.constrained:
            gradient = self.feasible.tangent(self.X, gradient, share * self.longest)
        self.num_moves += 1
        decays, epsilon = (0.9, 0.999), 1e-8  # as published
        self.first.lerp_(gradient, 1.0 - decays[0])
        self.second.lerp_(gradient.square(), 1.0 - decays[1])
        corrected = self.first / (1.0 - decays[0] ** self.num_moves)
        variance = self.second / (1.0 - decays[1] ** self.num_moves)
        change = share * self.rate * corrected / (variance.sqrt() + epsilon)
        self.points = (self.points + change).clamp(0.0, 1.0)
        previous = self.X
        # exact at both ends; lower + width · points may round past upper
        self.X = torch.lerp(self.lower, self.upper, self.points)
        if self.constrained:
            self.X = self.feasible.advance(previous, self.X)
            self.points = (self.X - self.lower) / self.side

    def best(self) -> tuple[Tensor, Tensor]:
        """Return the best points (s, K, d) that may be evaluated, and their values (s, K)."""
        if self.feasible.accepts is None:
            return self.best_points, self.best_values
        accepted = self.feasible.contains(self.best_points)
        return (
            torch.where(accepted.unsqueeze(-1), self.best_points, self.accepted_points),
            torch.where(accepted, self.best_values, self.accepted_values),
        )

    def _ranking(self, values: Tensor) -> Tensor:
        """Return the order (s, K) of starts by the values they led to, those left behind last."""
        count = self.X.shape[1]
        behind = torch.arange(count, values.shape[1], device=values.device).expand(len(values), -1)
        return torch.cat([values[:, :count].argsort(dim=1, descending=True), behind], dim=1)


def starts_kept(
    num_starts: int, num_steps: int, share: float = 1 / 3, fewest: int = 4
) -> list[int]:
    """Return how many of its starts a path goes on from, for every step and the evaluation after
    the last: from stage to stage a ``share`` of them, until there are ``fewest``.
    """
    stages = [num_starts]
    while stages[-1] > fewest:
        stages.append(math.ceil(share * stages[-1]))
    parts = len(stages) * (len(stages) + 1) / 2
    ends = [max(1, round(num_steps * i * (i + 1) / 2 / parts)) for i in range(1, len(stages))]
    ends.append(num_steps + 1)
    return [
        next(count for count, end in zip(stages, ends, strict=True) if step < end)
        for step in range(num_steps + 1)
    ]


def terms_ascended(num_data: int, num_starts: int, num_steps: int) -> int:
    """Return how many terms the evaluations of a path have in all in an ascent that prunes: by
    functions of few terms, as most paths allow, where :func:`condensed` may find some.
    """
    evaluations = sum(starts_kept(num_starts, num_steps))
    if _are_few(num_data, num_starts, CHEAP_FACTOR_UP_TO) or num_steps <= OWN_STEPS:
        return num_data * evaluations
    own = sum(starts_kept(FEWEST_STARTS, OWN_STEPS))
    checks = math.ceil(num_starts / CHECKED_EVERY)
    return CHEAP_FACTOR_UP_TO * evaluations + num_data * (own + checks)


def _are_few(num_data: int, num_starts: int, num_centres: int) -> bool:
    return num_data < 4 * num_centres or num_starts < FEWEST_STARTS


def _ordered(order: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return entries ``order`` (s, k) of tensors (s, K) or (s, K, d)."""
    return tuple(
        tensor.take_along_dim(order if tensor.ndim == 2 else order.unsqueeze(-1), dim=1)
        for tensor in tensors
    )


def _around(points: Tensor, count: int, reach: Tensor) -> Tensor:
    """Return ``count`` of the points (s, k, d), each once, drawn at random; where there are fewer,
    all of them and others around them, normally distributed with standard deviations ``reach``
    (d,): (count, d).
    """
    generator = torch.Generator().manual_seed(0)
    distinct = points.flatten(0, 1).unique(dim=0)
    order = torch.randperm(len(distinct), generator=generator, device=generator.device)
    order = order.to(points.device)
    chosen = distinct[order[:count]]
    index = torch.arange(count - len(chosen), device=points.device) % len(chosen)
    moves = torch.randn(
        len(index), points.shape[-1], generator=generator, dtype=points.dtype, device="cpu"
    )
    return torch.cat([chosen, chosen[index] + reach * moves.to(points.device)])


def _beside(points: Tensor, centres: Tensor, reach: Tensor) -> Tensor:
    """Return the points (s, k, d), of those that are centres (c, d) others near by, normally
    distributed with standard deviations ``reach`` (d,).
    """
    exact = "donot_use_mm_for_euclid_dist"
    is_centre = (torch.cdist(points, centres, compute_mode=exact) == 0.0).any(-1, keepdim=True)
    generator = torch.Generator().manual_seed(1)
    moves = torch.randn(points.shape, generator=generator, dtype=points.dtype, device="cpu")
    return torch.where(is_centre, points + reach * moves.to(points.device), points)
