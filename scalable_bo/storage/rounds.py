"""What a study returns: the batch to evaluate, what the round cost, and what has been found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from scalable_bo.space.space import Space
from scalable_bo.storage.rows import Rows


@dataclass(frozen=True)
class Batch:
    """Points to evaluate.

    Attributes:
        ids: q numbers to ``tell`` the values by.
        params: q dicts of parameter values.
        X: (q, d) the same in the user's units, columns in the order of the space's names, choices
            by their position, float64.
    """

    ids: list[int]
    params: list[dict[str, Any]]
    X: Tensor


@dataclass(frozen=True)
class Result:
    """What a study has found.

    Attributes:
        best_params: the parameters of the best observed value.
        best_value: that value, as observed.
        X: (n, d) all points with a value, in the user's units, in the order told.
        values: (n,) their values.
        num_failed: points told as failed.
        num_pending: points asked and not told.
    """

    best_params: dict[str, Any]
    best_value: float
    X: Tensor
    values: Tensor
    num_failed: int
    num_pending: int

    @classmethod
    def of(cls, space: Space, rows: Rows, maximize: bool) -> Self:
        """Return what the rows of a study have found.

        Raises:
            ValueError: if none has a finite value.
        """
        if not rows.observed:
            raise ValueError(
                "There is no `result` yet: no finite value has been told. Tell one, or add data."
            )
        X = rows.X[rows.observed]
        values = rows.values[rows.observed]
        best = int(values.argmax() if maximize else values.argmin())
        return cls(
            best_params=space.to_dicts(X[best : best + 1])[0],
            best_value=float(values[best]),
            X=X,
            values=values,
            num_failed=len(rows.reasons),
            num_pending=len(rows) - rows.num_told,
        )

    @property
    def num_observations(self) -> int:
        """Points with a value, n."""
        return len(self.values)


@dataclass(frozen=True)
class Round:
    """One round of ``optimize``.

    Attributes:
        number: of the ask, from 1.
        num_observations: with a value, after the round.
        best_value: so far; NaN if there is none.
        gain: the improvement of the best value by this round, at least 0; NaN in the first one.
        num_failed: evaluations of this round that failed.
        ask: what ``ask`` did.
        seconds_objective: spent in the objective.
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
        best = "no value yet" if math.isnan(self.best_value) else f"best {self.best_value:.6g}"
        parts = [f"n {self.num_observations}", best]
        if not math.isnan(self.gain):
            parts.append(f"gain {self.gain:.3g}")
        if self.num_failed:
            parts.append(f"{self.num_failed} failed")
        if self.ask.residual is None:
            parts.append("initial design")
        else:
            parts.append(f"fit {self.ask.seconds_fit:.1f} s")
            missed = " (not solved)" if self.ask.converged is False else ""
            parts.append(
                f"solve {self.ask.seconds_solve:.1f} s to residual {self.ask.residual:.1e}{missed}"
            )
            parts.append(f"ask {self.ask.seconds_acquisition:.1f} s")
        return ", ".join(
            [
                *parts,
                f"objective {self.seconds_objective:.1f} s",
                f"memory {self.peak_bytes / 2**30:.1f} GiB",
            ]
        )


@dataclass(frozen=True)
class AskReport:
    """What one ``ask`` cost; zeros and ``None`` for points of the initial design.

    Attributes:
        seconds_fit: fitting the hyperparameters, 0 where they were kept.
        seconds_solve: drawing the posterior paths.
        seconds_acquisition: maximising them.
        residual: worst relative residual of the solve.
        converged: whether all of its columns reached the solver's tolerance; ``None`` where no
            system was solved, or by a version that did not note it.
        solver: of the linear systems, as text; empty for points of the initial design.
        choice: how the points were chosen and why, where the study chooses; not kept on disk.
    """

    seconds_fit: float = 0.0
    seconds_solve: float = 0.0
    seconds_acquisition: float = 0.0
    residual: float | None = None
    solver: str = ""
    converged: bool | None = None
    choice: str = ""
