"""What a study returns: the batch to evaluate, what the round cost, and what has been found."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from scalable_bo._packages import require
from scalable_bo.space.goal import Goal
from scalable_bo.space.quoting import count
from scalable_bo.space.space import Space
from scalable_bo.storage import shown
from scalable_bo.storage.rows import Rows

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Batch:
    """Points to evaluate.

    Attributes:
        ids: q numbers to ``tell`` the values by.
        params: q dicts of parameter values.
        X: (q, d) the same in the user's units, columns in the order of the space's names, choices
            by their position, float64.
        rows: where the points stand in the pool that they were chosen from, ``None`` for those that
            had been enqueued; ``None`` without a pool.
        outcomes: of points that are pending in a study of several outcomes, the values that have
            been told of each so far, by name; ``None`` otherwise.
    """

    ids: list[int]
    params: list[dict[str, Any]]
    X: Tensor
    rows: list[int | None] | None = None
    outcomes: list[dict[str, float]] | None = None

    def part(self, ids: Collection[int]) -> Batch:
        """Return the points that have these ids, to evaluate."""
        places = [place for place, id in enumerate(self.ids) if id in ids]
        params = [self.params[place] for place in places]
        return Batch([self.ids[place] for place in places], params, self.X[places])

    def to_dataframe(self) -> pd.DataFrame:
        """Return the parameters, a row for each point, by ``id``.

        Raises:
            ImportError: if pandas is not installed; the extra ``tables`` brings it.
        """
        require("pandas", extra="tables", user="A table of points")
        import pandas as pd

        return pd.DataFrame(self.params, index=pd.Index(self.ids, name="id"))

    def __repr__(self) -> str:
        if not self.ids:
            return "Batch(no points)"
        ids = f"id {self.ids[0]}" if len(self.ids) == 1 else f"ids {self.ids[0]} … {self.ids[-1]}"
        first = shown.describe_params(self.params[0])
        return f"Batch({count(self.ids, 'point')}, {ids}; the first: {first})"


@dataclass(frozen=True)
class FrontPoint:
    """A point whose outcomes no other's are as good as in all objectives and better in one.

    Attributes:
        params: its parameters.
        outcomes: its values, as observed, by name.
    """

    params: dict[str, Any]
    outcomes: dict[str, float]


@dataclass(frozen=True)
class LeastViolating:
    """The point that breaks the limits on outcomes least, where none keeps them all: by the sum of
    its excesses, each in standard deviations of its outcome.

    Attributes:
        params: its parameters.
        outcomes: its values, as observed, by name.
        excess: by how much it breaks each limit that it breaks, by the name of the outcome.
    """

    params: dict[str, Any]
    outcomes: dict[str, float]
    excess: dict[str, float]


@dataclass(frozen=True)
class Result:
    """What a study has found.

    Attributes:
        best_params: the parameters that are recommended: of the evaluated points, the one that is
            best even two posterior standard deviations to the worse side of its mean (of more than
            2000, by the mean) or, where noise is negligible, there is no surrogate yet or outcomes
            are constrained, the one with the best feasible value. Empty without a feasible point
            and for several objectives, which have a ``front`` in place of a best point.
        best_value: the value there, as observed.
        X: (n, d) all points with a value, in the user's units, in the order told.
        values: (n,) their values.
        num_failed: points told as failed.
        num_pending: points asked and not told.
        best_observed_params: the parameters of the best observed value.
        best_observed_value: that value.
        predicted_value: the surrogate's posterior mean at ``best_params``, without the noise; NaN
            before there is a surrogate.
        predicted_std: its standard deviation; NaN among more than 2000 values, where it takes a
            solve: see ``Study.predict``.
        outcomes: (n, m) all values of several outcomes, in the order of ``Study.outcomes``; of one,
            (n, 1).
        feasible: (n,) which points meet the constraints of the space and keep those on outcomes.
        front: of several objectives, the feasible points that are best in some way.
        least_violating: where no point is feasible, the one that is nearest to it: of those that
            meet the constraints of the space or, if none does, of all; ``None`` otherwise.
        goal: what is wanted of several outcomes; ``None`` of one.
    """

    best_params: dict[str, Any]
    best_value: float
    X: Tensor
    values: Tensor
    num_failed: int
    num_pending: int
    best_observed_params: dict[str, Any]
    best_observed_value: float
    predicted_value: float = math.nan
    predicted_std: float = math.nan
    outcomes: Tensor = field(default_factory=partial(torch.empty, 0, 1, device="cpu"))
    feasible: Tensor = field(default_factory=partial(torch.empty, 0, device="cpu"))
    front: tuple[FrontPoint, ...] = ()
    least_violating: LeastViolating | None = None
    goal: Goal | None = None

    @classmethod
    def of(cls, space: Space, rows: Rows, maximize: bool, goal: Goal | None = None) -> Self:
        """Return what the rows of a study have found.

        Raises:
            ValueError: if none has a finite value.
        """
        if not rows.observed:
            reasons = list(rows.reasons.values())
            last = reasons[-1].rstrip(".") if reasons else ""
            why = f", and {len(reasons)} failed, the last: {last}" if reasons else ""
            lacking = "no finite value has been told"
            if len(rows.partly_told):
                lacking = "no point has a value of every outcome"
            raise ValueError(f"There is no `result` yet: {lacking}{why}. Tell one, or add data.")
        X = rows.X[rows.observed]
        values = rows.values[rows.observed]
        wanted = Goal.of_one(maximize) if goal is None else goal
        Y = rows.outcomes(len(wanted.names))[rows.observed]
        allowed = rows.allowed_outcomes(space, len(wanted.names))[rows.observed]
        feasible = wanted.feasible(allowed)
        best = wanted.best(allowed)
        front: tuple[FrontPoint, ...] = ()
        if wanted.num_objectives > 1:
            on_front = wanted.front(allowed)
            pairs = zip(space.to_dicts(X[on_front]), Y[on_front].tolist(), strict=True)
            front = tuple(
                FrontPoint(params, dict(zip(wanted.names, y, strict=True))) for params, y in pairs
            )
        least = None
        if not feasible.any():
            row = wanted.least_violating(allowed if allowed.isfinite().any() else Y)
            excess = dict(zip(wanted.names, wanted.excess(Y)[row].tolist(), strict=True))
            least = LeastViolating(
                space.to_dicts(X[[row]])[0],
                dict(zip(wanted.names, Y[row].tolist(), strict=True)),
                {name: amount for name, amount in excess.items() if amount > 0},
            )
        params = {} if best is None else space.to_dicts(X[best : best + 1])[0]
        value = math.nan if best is None else float(values[best])
        counts = len(rows.reasons), len(rows) - rows.num_told
        found = cls(params, value, X, values, *counts, params, value)
        return replace(
            found, outcomes=Y, feasible=feasible, front=front, least_violating=least, goal=goal
        )

    def recommending(self, space: Space, best: int, predicted: tuple[float, float]) -> Self:
        """Return the same with this row recommended, its predicted value and deviation."""
        return replace(
            self,
            best_params=space.to_dicts(self.X[best : best + 1])[0],
            best_value=float(self.values[best]),
            predicted_value=predicted[0],
            predicted_std=predicted[1],
        )

    @cached_property
    def reference_point(self) -> dict[str, float]:
        """Where the hypervolume is measured from, by the names of the objectives: the limit of one
        that has a limit on its worse side, otherwise a tenth of the front's range beyond its worst
        value. Empty without a front.
        """
        if not self.front or self.goal is None:
            return {}
        point = self.goal.reference_point(self.outcomes[self.feasible])
        assert point is not None  # of a front
        return dict(zip(self.goal.objectives, point.tolist(), strict=True))

    @cached_property
    def hypervolume(self) -> float:
        """The volume that the front dominates, down to ``reference_point``; NaN without a front."""
        if not self.front or self.goal is None:
            return math.nan
        corner = self.outcomes.new_tensor(list(self.reference_point.values()))
        return self.goal.hypervolume(self.outcomes[self.feasible], corner)

    @property
    def num_observations(self) -> int:
        """Points with a value, n."""
        return len(self.values)

    def __repr__(self) -> str:
        best = f"{self.best_value:.6g} at {shown.describe_params(self.best_params)}"
        if not self.best_params:
            best = f"{count(self.front, 'point')} on the front" if self.front else "none feasible"
            if self.least_violating is not None:
                best += f", the nearest {shown.describe_excess(self.least_violating.excess)}"
        return (
            f"Result({best}; {count(self.num_observations, 'value')},"
            f" {self.num_failed} failed, {self.num_pending} pending)"
        )

    def _repr_html_(self) -> str:
        best: dict[str, Any] = {"value": self.best_value}
        if self.least_violating is not None:
            least = self.least_violating
            best = {"feasible points": "none", "the nearest": shown.describe_excess(least.excess)}
            best |= least.params
        elif self.front:
            best = {"points on the front": len(self.front), "hypervolume": self.hypervolume}
        best |= {} if math.isnan(self.predicted_value) else {"predicted": self.predicted_value}
        counts = {"values": self.num_observations, "failed": self.num_failed}
        rows = best | self.best_params | counts | {"pending": self.num_pending}
        return shown.html_table("Result", rows)


@dataclass(frozen=True)
class Round:
    """One round of ``optimize``.

    Attributes:
        number: of the ask, from 1.
        num_observations: with a value, after the round.
        best_value: so far; NaN if there is none.
        gain: the improvement of the best value by this round, at least 0; NaN in the first one.
        num_failed: evaluations of this round that failed.
        ask: what ``ask`` did; of an asynchronous round without one, its ``choice`` says so.
        seconds_objective: spent in the objective: in which at least one evaluation ran.
        peak_bytes: the largest memory of this process in the round.
    """

    number: int
    num_observations: int
    best_value: float
    gain: float
    num_failed: int
    ask: AskReport
    seconds_objective: float
    peak_bytes: int

    def __str__(self) -> str:
        parts = [f"n {self.num_observations}"]
        if not self.num_observations:
            parts.append("no value yet")
        elif not math.isnan(self.best_value):  # of several objectives, or where none is feasible
            parts.append(f"best {self.best_value:.6g}")
        if not math.isnan(self.gain):
            parts.append(f"gain {self.gain:.3g}")
        if self.num_failed:
            parts.append(f"{self.num_failed} failed")
        if self.ask.residual is None:
            parts.append(self.ask.choice or "initial design")
        else:
            parts.append(f"fit {self.ask.seconds_fit:.1f} s")
            missed = " (not solved)" if self.ask.converged is False else ""
            parts.append(f"solve {self.ask.seconds_solve:.1f} s to {self.ask.reached}{missed}")
            parts.append(f"search {self.ask.seconds_acquisition:.1f} s")
        parts.append(f"objective {self.seconds_objective:.1f} s")
        parts.append(f"memory {self.peak_bytes / 2**30:.1f} GiB")
        return ", ".join(parts)


@dataclass(frozen=True)
class AskReport:
    """What one ``ask`` cost; zeros and ``None`` for points of the initial design.

    Attributes:
        seconds_fit: fitting the hyperparameters, 0 where they were kept.
        seconds_solve: drawing the posterior paths.
        seconds_acquisition: maximising them.
        residual: worst relative residual of the solve.
        error: worst error of the mean and of the paths, in posterior standard deviations; ``None``
            where no solver tells it.
        converged: whether all of its columns reached the solver's tolerance; ``None`` where no
            system was solved, or by a version that did not note it.
        solver: of the linear systems, as text; empty for points of the initial design.
        choice: how the points were chosen and why, where the study chooses; empty where it does
            not, and for points of the initial design.
        time: when the points were handed out, in seconds since 1970; NaN if that was not kept.
    """

    seconds_fit: float = 0.0
    seconds_solve: float = 0.0
    seconds_acquisition: float = 0.0
    residual: float | None = None
    solver: str = ""
    converged: bool | None = None
    choice: str = ""
    error: float | None = None
    time: float = field(default=math.nan, compare=False)

    @property
    def reached(self) -> str:
        """How right the solve is: by its error where that is known, else by its residual."""
        if self.error is not None:
            return f"{self.error:.2g} posterior standard deviations"
        return f"residual {self.residual:.1e}"
