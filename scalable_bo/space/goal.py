"""What is wanted of several outcomes of a point: objectives, and limits that others must keep.

Notation: m outcomes, the k objectives first; Y (n, m) their values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from botorch.utils.multi_objective.box_decompositions.dominated import DominatedPartitioning
from botorch.utils.multi_objective.hypervolume import infer_reference_point
from botorch.utils.multi_objective.pareto import is_non_dominated
from torch import Tensor

from scalable_bo.space.plain_values import finite
from scalable_bo.space.quoting import quote

DIRECTIONS = {"minimize": -1.0, "maximize": 1.0}
ONLY = "value"  # the name of an objective that has none
LIMITS = ("at_least", "at_most")
Limits = tuple[float | None, float | None]


@dataclass(frozen=True)
class Goal:
    """Objectives and constraints on outcomes, by name.

    Args:
        objectives: "minimize" or "maximize" for each.
        constraints: the lowest and the highest value allowed of outcomes, objectives or others;
            ``None`` for no limit. Or tables of ``at_least`` and ``at_most``.
    Attributes:
        names: of all outcomes, objectives first, in the order in which values are told.
    Raises:
        TypeError, ValueError: naming what is none of these.
    """

    objectives: Mapping[str, str]
    constraints: Mapping[str, Limits]

    def __post_init__(self) -> None:
        if not isinstance(self.objectives, Mapping) or not self.objectives:
            raise TypeError(
                "`objectives` must be a dict of directions by name, got"
                f" {quote(self.objectives)}. Try {{'cost': 'minimize', 'accuracy': 'maximize'}}."
            )
        for name, direction in self.objectives.items():
            if not isinstance(direction, str) or direction not in DIRECTIONS:
                raise ValueError(
                    f"`objectives[{quote(name)}]` must be 'minimize' or 'maximize', got"
                    f" {quote(direction)}."
                )
        if not isinstance(self.constraints, Mapping):
            raise TypeError(
                "`outcome_constraints` must be a dict of limits by name, got"
                f" {quote(self.constraints)}. Try {{'weight': (None, 10.0)}}."
            )
        limits = {name: _limits(name, pair) for name, pair in self.constraints.items()}
        object.__setattr__(self, "objectives", dict(self.objectives))
        object.__setattr__(self, "constraints", limits)

    @classmethod
    def of(cls, maximize: bool | None, objectives: Any, constraints: Any) -> Self | None:
        """Return the goal of a study's arguments; ``None`` for one objective without limits.

        Raises:
            TypeError, ValueError: if neither or both of ``maximize`` and ``objectives`` are given,
                or as ``Goal``.
        """
        if objectives is None:
            if not isinstance(maximize, bool):
                raise TypeError(
                    f"`maximize` must be True or False, got {quote(maximize)}. Of several"
                    " objectives, give `objectives`."
                )
            if constraints is None or (isinstance(constraints, Mapping) and not constraints):
                return None
            objectives = cls.of_one(maximize).objectives
        elif maximize is not None:
            raise ValueError(
                f"`maximize` must be None with `objectives`, which have directions of their own,"
                f" got {quote(maximize)}."
            )
        return cls(objectives, {} if constraints is None else constraints)

    @classmethod
    def of_one(cls, maximize: bool) -> Self:
        """Return the goal of one objective without a name and without limits."""
        return cls({ONLY: "maximize" if maximize else "minimize"}, {})

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all outcomes, objectives first."""
        return (*self.objectives, *(n for n in self.constraints if n not in self.objectives))

    @property
    def num_objectives(self) -> int:
        """The number of objectives, k."""
        return len(self.objectives)

    @cached_property
    def signs(self) -> tuple[float, ...]:
        """The factor 1 or −1 that makes each outcome one to maximise; 1 if it is no objective."""
        return tuple(DIRECTIONS[self.objectives.get(name, "maximize")] for name in self.names)

    def limits(self, name: str) -> list[float]:
        """Return the limits that an outcome has."""
        return [limit for limit in self.constraints.get(name, ()) if limit is not None]

    def to_dict(self) -> dict[str, Any]:
        """Return the goal as plain values."""
        return {
            "objectives": dict(self.objectives),
            "outcome_constraints": {
                name: {way: x for way, x in zip(LIMITS, pair, strict=True) if x is not None}
                for name, pair in self.constraints.items()
            },
        }

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Self:
        """Return the goal that ``to_dict`` has written."""
        return cls(table["objectives"], table["outcome_constraints"])

    @property
    def directions(self) -> str:
        """The objectives with their directions on one line, such as "minimize cost, maximize gain";
        of one objective without a name, its direction.
        """
        if list(self.objectives) == [ONLY]:
            return self.objectives[ONLY]
        return ", ".join(f"{way} {name}" for name, way in self.objectives.items())

    def describe(self) -> dict[str, str]:
        """Return the goal part by part as text for people."""
        parts = {f"objective `{name}`": way for name, way in self.objectives.items()}
        for name, (low, high) in self.constraints.items():
            lower = "" if low is None else f"{low:g} ≤ "
            upper = "" if high is None else f" ≤ {high:g}"
            parts[f"outcome `{name}`"] = f"{lower}{name}{upper}"
        return parts

    def excess(self, Y: Tensor) -> Tensor:
        """Return by how much values (n, m) break the limits, 0 where they keep them; NaN of NaN."""
        pairs = [self.constraints.get(name, (None, None)) for name in self.names]
        low, high = (
            Y.new_tensor([end if pair[side] is None else pair[side] for pair in pairs])
            for side, end in enumerate((-math.inf, math.inf))
        )
        return torch.maximum(low - Y, Y - high).clamp_min(0.0)

    def feasible(self, Y: Tensor) -> Tensor:
        """Return which values (n, m) keep the limits, (n,); NaN keeps none."""
        return Y.isfinite().all(-1) & (self.excess(Y) == 0).all(-1)

    def least_violating(self, Y: Tensor) -> int:
        """Return which finite values of (n, m) break the limits least, in deviations of each."""
        scale = Y[Y.isfinite().all(1)].std(0, correction=0)
        excess = self.excess(Y) / torch.where(scale > 0, scale, 1.0)
        return int(excess.sum(1).nan_to_num(math.inf).argmin())

    def front(self, Y: Tensor) -> Tensor:
        """Return which values (n, m) are feasible and no other's are as good in all objectives and
        better in one, (n,); with one objective, the best.
        """
        on_front = self.feasible(Y)
        on_front[on_front.clone()] = is_non_dominated(self.signed(Y[on_front]), deduplicate=False)
        return on_front

    def signed(self, Y: Tensor) -> Tensor:
        """Return the objectives (n, k) of values (n, m), signed to be maximised."""
        return Y[:, : self.num_objectives] * Y.new_tensor(self.signs[: self.num_objectives])

    def reference_point(self, Y: Tensor) -> Tensor | None:
        """Return where the hypervolume of the front among values (n, m) is measured from, (k,): the
        limit of an objective that has one on its worse side, otherwise a tenth of the front's range
        beyond its worst value; ``None`` without a front.

        References:
            Ishibuchi et al. (2011), "A many-objective test problem for visually examining diversity
            maintenance behavior in a decision space": a tenth of the range.
        """
        front = self.signed(Y[self.front(Y)]).unique(dim=0)
        if not len(front):
            return None
        sides = [self.constraints.get(name, (None, None)) for name in self.objectives]
        limits = [low if s > 0 else high for (low, high), s in zip(sides, self.signs, strict=False)]
        worst = Y.new_tensor([math.nan if limit is None else limit for limit in limits])
        # BoTorch would leave the limits out where no point is better than all of them
        return torch.where(worst.isnan(), self.signed(infer_reference_point(front)[None])[0], worst)

    def hypervolume(self, Y: Tensor, reference_point: Tensor) -> float:
        """Return the hypervolume of values (n, m) down to a reference point (k,)."""
        front = self.signed(Y[self.front(Y)])
        corner = self.signed(reference_point[None])[0]
        return float(DominatedPartitioning(corner, front).compute_hypervolume())

    def best(self, Y: Tensor) -> int | None:
        """Return which of values (n, m) is the best feasible one of a single objective, if any."""
        feasible = self.feasible(Y)
        if self.num_objectives > 1 or not feasible.any():
            return None
        return int(torch.where(feasible, self.signs[0] * Y[:, 0], -math.inf).argmax())


def _limits(name: str, pair: Any) -> Limits:
    if isinstance(pair, Mapping) and pair and set(pair) <= set(LIMITS):
        pair = [pair.get(way) for way in LIMITS]
    place = f"outcome_constraints[{quote(name)}]"
    if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
        raise TypeError(
            f"`{place}` must be a pair of limits, got {quote(pair)}. Try `(None, 10.0)`."
        )
    low, high = (None if limit is None else finite(place, limit) for limit in pair)
    if low is None and high is None:
        raise ValueError(f"`{place}` must have a limit, got none.")
    if low is not None and high is not None and low > high:
        raise ValueError(
            f"`{place}` must not have its limits reversed, got {low} and {high}. Swap them?"
        )
    return low, high
