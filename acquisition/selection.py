"""Which maximisers make the batch: each function's own, moved by the least that makes it distinct
from the points that are known already and from those that other functions have taken.

Notation: s functions, k points for each, points (s, k, d), bounds (2, d).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from acquisition.constraints import FeasibleSet, TooFewPoints
from acquisition.multistart import Functions
from surrogates import memory
from surrogates.operators.tiles import spans

DUPLICATE_DISTANCE = 1e-6  # in units of the box's sides
REACH = 1.01 * DUPLICATE_DISTANCE  # along a direction, rounding included


@dataclass(eq=False, repr=False)
class TooFewCandidates(TooFewPoints):
    """A pool holds fewer points than were asked for."""

    q: int  # how many were asked for
    num_found: int  # how many of them were found
    num_rows: int  # how many rows the pool has
    num_infeasible: int  # how many of these break a constraint or lie outside the bounds

    def __post_init__(self) -> None:
        super().__init__(self.q, self.num_found, self.num_rows, self.num_infeasible)

    def __str__(self) -> str:
        why = f", of which {self.num_infeasible} are infeasible" if self.num_infeasible else ""
        if self.num_infeasible < self.num_rows:
            why += (
                ". Points count as one where they are within"
                f" {DUPLICATE_DISTANCE:g} of the box's sides of each other"
            )
        return (
            f"The pool must hold q = {self.q} distinct points that are feasible, neither pending"
            f" nor in the training data, got {self.num_found} among {self.num_rows} rows{why}. Add"
            " candidates, or lower `q`."
        )


class KnownPoints:
    """Points X (p, d) that are not to be proposed again, and with them whatever lies within
    ``DUPLICATE_DISTANCE`` of one.

    Points are sorted along one direction: what is near is near there, too, and few others are.
    """

    def __init__(self, X: Tensor, bounds: Tensor):
        self.lower, upper = bounds.double()
        self.width = upper - self.lower
        generator = torch.Generator().manual_seed(0)
        direction = torch.randn(X.shape[1], generator=generator, dtype=torch.float64, device="cpu")
        self.direction = (direction / direction.norm()).to(X.device)
        scaled = self._scaled(X)
        self.places, order = (scaled @ self.direction).sort()
        self.points = scaled[order]

    def near(self, X: Tensor) -> Tensor:
        """Return which of the points X (..., d) are known: (...)."""
        near = torch.zeros(X.shape[:-1].numel(), dtype=torch.bool, device=X.device)
        scaled = self._scaled(X.reshape(-1, X.shape[-1]))
        places = scaled @ self.direction
        first = torch.searchsorted(self.places, places - REACH)
        count = torch.searchsorted(self.places, places + REACH) - first
        rows = torch.arange(len(near), device=X.device).repeat_interleave(count)
        # The place of the known one, in pairs of a point and a known one
        others = torch.arange(len(rows), device=X.device) - (count.cumsum(0) - count - first)[rows]
        for part in spans(len(rows), memory.part_size(X.shape[-1])):
            gaps = scaled[rows[part]] - self.points[others[part]]
            close = torch.linalg.vector_norm(gaps, dim=1) <= DUPLICATE_DISTANCE
            near[rows[part][close]] = True
        return near.reshape(X.shape[:-1])

    def _scaled(self, X: Tensor) -> Tensor:
        return (X.detach().double() - self.lower) / self.width


class Moves:
    """Points beside the maximisers of functions: the least steps that lead to a free one.

    Steps go along the coordinates and, where the set is constrained, along its boundary and towards
    other points of the same function. Of the free points at one distance the function takes the one
    where its slope says that it loses least.

    Args:
        functions: whose maximisers are moved.
        feasible: where they may go; a step that is rounded back leads nowhere.
        sign: 1 for maximisers, −1 for minimisers.
    """

    def __init__(self, functions: Functions, feasible: FeasibleSet, sign: float = 1.0):
        self.functions = functions
        self.feasible = feasible
        self.sign = sign
        self.duplicate = DUPLICATE_DISTANCE * torch.where(feasible.scale > 0, feasible.scale, 1.0)
        # Far from the origin, floating-point numbers are further apart than that
        spacing = torch.finfo(feasible.bounds.dtype).eps * feasible.bounds.abs().amax(0)
        self.step = (2.0 * self.duplicate).maximum(4.0 * spacing)
        self.slopes: Tensor | None = None  # (s, d), of each function at its best point, uphill
        self.nearest: dict[tuple[int, ...], int] = {}  # distance that still had a free point

    def beside(self, i: int, ranked: Tensor, free: Callable[[Tensor], Tensor]) -> Tensor | None:
        """Return the free point (d,) nearest to ``ranked[i, 0]``; ``None`` if there is none.

        Args:
            i: the function.
            ranked: (s, k, d), each function's points, the best first.
            free: tells which of the points (c, d) are free, (c,).
        """
        x = ranked[i, 0]
        if self.slopes is None:
            with torch.enable_grad():
                points = ranked[:, :1].detach().requires_grad_()
                total = self.functions.each(points).sum()
            (gradient,) = torch.autograd.grad(total, points)
            self.slopes = self.sign * gradient.squeeze(1)
        steps = self._steps(x, ranked[i])
        # A thirtieth of a side; farther away, points of a grid are compared by value
        furthest = 2**14 if self.feasible.rounding is None else 2**6
        cell = tuple((x / self.duplicate).round().long().tolist())
        distance = self.nearest.get(cell, 1)
        while distance <= furthest:
            reached = self._reached(x, distance * steps)
            candidates = reached[free(reached)]
            if len(candidates):
                self.nearest[cell] = distance
                return candidates[((candidates - x) @ self.slopes[i]).argmax()]
            # Where all points are taken the next are a step away; where a constraint or rounding
            # leaves none, they may be anywhere
            distance = distance + 1 if len(reached) else 2 * distance
        self.nearest[cell] = distance
        return None

    def _steps(self, x: Tensor, points: Tensor) -> Tensor:
        """Return the steps (number of ways, d) from x that are tried, each of the least length."""
        axes = torch.diag(self.step)[self.feasible.scale > 0]
        steps = torch.cat([axes, -axes])
        if not self.feasible.constrained:
            return steps
        # From the corner of a convex set all other points of it are seen
        ways = (torch.cat([points, points.mean(0, keepdim=True)]) - x) / self.step
        length = torch.linalg.vector_norm(ways, dim=1, keepdim=True)
        far = length.squeeze(1) > 1.0
        return torch.cat([steps, self.step * (ways / length)[far]])

    def _reached(self, x: Tensor, steps: Tensor) -> Tensor:
        """Return the feasible points but x that steps lead to, or that those are led back to."""
        points = x + steps
        if self.feasible.constrained:
            points = torch.cat([points, self.feasible.nearby(points)])
        points = self.feasible.rounded(points)
        points = points[((points - x).abs() > self.duplicate).any(dim=1)]
        return points[self.feasible.contains(points)] if len(points) else points


def best_first(points: Tensor, values: Tensor) -> Tensor:
    """Return the points (s, k, d) of each function in the order of their values (s, k)."""
    order = values.argsort(dim=1, descending=True)
    return points.take_along_dim(order.unsqueeze(-1), dim=1)


def distinct_best(
    ranked: Tensor, bounds: Tensor, known: KnownPoints | None = None, moves: Moves | None = None
) -> tuple[Tensor, Tensor]:
    """Return a point for each function, one after the other, that is not known and that no earlier
    one has taken: (s, d).

    A function whose best point is not free gets the one that ``moves`` finds beside it; without
    that, its next best, but where points are rounded: there the next best may be one that the
    function has not visited. A function without a free point keeps its best; the second tensor (s,)
    tells which functions have found theirs.

    Args:
        ranked: (s, k, d), the points of each function, the best first.
    """
    width = bounds[1] - bounds[0]
    chosen = ranked[:, 0].clone()
    scaled = chosen / width
    found = torch.ones(len(ranked), dtype=torch.bool, device=ranked.device)
    is_known = torch.zeros_like(found) if known is None else known.near(chosen)
    rounded = moves is not None and moves.feasible.rounding is not None

    def untaken(X: Tensor, i: int) -> Tensor:
        distances = torch.cdist(X / width, scaled[:i], compute_mode="donot_use_mm_for_euclid_dist")
        return (distances > DUPLICATE_DISTANCE).all(dim=1)

    def free(X: Tensor, i: int) -> Tensor:
        return untaken(X, i) if known is None else untaken(X, i) & ~known.near(X)

    for i in range(len(ranked)):
        if not is_known[i] and untaken(chosen[i : i + 1], i):
            continue
        moved = None if moves is None else moves.beside(i, ranked, partial(free, i=i))
        if moved is None and not rounded:
            others = ranked[i, free(ranked[i], i)]
            moved = others[0] if len(others) else None
        if moved is None:
            found[i] = False
            continue
        chosen[i] = moved
        scaled[i] = moved / width
    return chosen, found


def grid_neighbours(X: Tensor, feasible: FeasibleSet, num_distances: int = 7) -> Tensor:
    """Return feasible points (c, d) around X (p, d) after rounding: the next along each coordinate,
    whatever the distance of a grid's points, and the other choices, where one of several inputs is
    at its upper bound and the others are at their lower ones.

    Args:
        num_distances: tried, from a side on, each a third of the last; one of them is nearest to
            the next point of a grid.
    """
    distances = 3.0 ** -torch.arange(num_distances, dtype=X.dtype, device=X.device)
    steps = torch.diag(feasible.scale)[feasible.scale > 0]
    steps = (distances[:, None, None] * torch.cat([steps, -steps])).flatten(0, 1)
    distinct = X.unique(dim=0)
    moved = torch.cat(
        [(distinct.unsqueeze(1) + steps).flatten(0, 1), _exchanged(distinct, feasible)]
    )
    rounded = feasible.rounded(torch.clamp(moved, feasible.bounds[0], feasible.bounds[1]))
    rounded = rounded.unique(dim=0)
    return rounded[feasible.contains(rounded)]


def _exchanged(X: Tensor, feasible: FeasibleSet) -> Tensor:
    """Return X (p, d): inputs at an upper and a lower bound exchanged, for each pair of such."""
    lower, upper = feasible.bounds
    free = feasible.scale > 0
    at_upper = (upper == X) & free
    at_lower = (lower == X) & free
    rows, down, up = (at_upper.unsqueeze(2) & at_lower.unsqueeze(1)).nonzero().unbind(1)
    exchanged = X[rows]
    pairs = torch.arange(len(rows), device=X.device)
    exchanged[pairs, down] = lower[down]
    exchanged[pairs, up] = upper[up]
    return exchanged
