"""Optimise a black box: ask for points, tell their values, or let ``optimize`` do both.

Notation: N rows asked or added so far, n of them with a finite value; ``U (N, d)`` on the unit cube,
``X (N, d)`` in the user's units.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from gpytorch.kernels import Kernel
from torch import Tensor

from acquisition import ParallelThompsonSampling
from scalable_bo.progress import RoundProgress
from scalable_bo.space import Space
from surrogates import PathwiseGP, Solver, checks, fit_exact

# Hyperparameters are fitted to at most so many observations, drawn anew each time: O(n³) a likelihood evaluation.
MAX_FIT_POINTS = 1000
# They are fitted again when the observations are this many times those of the last fit.
REFIT_GROWTH = 1.5
# A tenth of the published 50 000 a screening round, which the acquisition's own default is: that takes 20 s for 20 paths.
NUM_CANDIDATES = 5000


@dataclass(frozen=True)
class Batch:
    """Points to evaluate.

    Attributes:
        ids: q numbers to ``tell`` the values by.
        params: q dicts of parameter values.
        X: (q, d) the same in the user's units, columns in the order of the space's names, float64.
    """

    ids: list[int]
    params: list[dict[str, float]]
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

    best_params: dict[str, float]
    best_value: float
    X: Tensor
    values: Tensor
    num_failed: int
    num_pending: int


@dataclass(frozen=True)
class Round:
    """One round of ``optimize``.

    Attributes:
        number: from 1.
        num_observations: with a value, after the round.
        best_value: so far; NaN if there is none.
        gain: the improvement of the best value by this round, at least 0; NaN in the first one.
        ask: what ``ask`` did.
        seconds_objective: spent in the objective.
    """

    number: int
    num_observations: int
    best_value: float
    gain: float
    ask: AskReport
    seconds_objective: float

    def __str__(self) -> str:
        gain = "" if math.isnan(self.gain) else f"gain {self.gain:.3g}, "
        line = f"n {self.num_observations}, best {self.best_value:.6g}, {gain}"
        if self.ask.residual is None:
            return line + f"initial design, objective {self.seconds_objective:.1f} s"
        return line + (
            f"fit {self.ask.seconds_fit:.1f} s, solve {self.ask.seconds_solve:.1f} s to residual "
            f"{self.ask.residual:.1e}, ask {self.ask.seconds_acquisition:.1f} s, objective {self.seconds_objective:.1f} s"
        )


@dataclass(frozen=True)
class AskReport:
    """What one ``ask`` cost; zeros and ``None`` for points of the initial design.

    Attributes:
        seconds_fit: fitting the hyperparameters, 0 where they were kept.
        seconds_solve: drawing the posterior paths.
        seconds_acquisition: maximising them.
        residual: worst relative residual of the solve.
    """

    seconds_fit: float = 0.0
    seconds_solve: float = 0.0
    seconds_acquisition: float = 0.0
    residual: float | None = None


class Study:
    """Maximise or minimise a black box by parallel Thompson sampling on a Gaussian process.

    The first points are a scrambled Sobol design. Then each ``ask(q)`` draws q functions from the posterior given all
    values told so far and returns a maximiser of each. Points that are asked and not told need no special treatment:
    each batch is its own set of functions; the same point is not asked twice while its value is out or if it failed.

    Args:
        space: a ``Space``, or BoTorch's bounds (2, d), which name the parameters ``x0, x1, …``.
        maximize: whether larger values are better; ``False`` to minimise.
        seed: of everything random here; the same seed, data and calls give the same points.
        path: a folder to keep the study in. Studies are in memory only, so anything but ``None`` is refused.
        num_initial: values to have before the surrogate takes over; ``None`` for 2 (d + 1).
        solver: of the surrogate's linear systems; ``None`` for the model's default.
        kernel: on the unit cube, its hyperparameters fitted; ``None`` for BoTorch's default, RBF with dimension-scaled priors.
        sampler: makes the acquisition of a model, bounds and ``seed``, such as
            ``partial(ParallelThompsonSampling, num_candidates=50_000)``; ``None`` for 5000 candidates a screening round.
        dtype: of the surrogate.
        device: of the surrogate.
    Raises:
        TypeError: if an argument has the wrong kind.
        ValueError: if an argument is out of range, or a ``path`` is given.

    ```python
    study = Study(Space(x=Float(-5, 10), y=Float(0, 15)), maximize=False, seed=0)
    result = study.optimize(lambda params: cost(params["x"], params["y"]), rounds=10, batch=20)
    ```
    """

    def __init__(
        self,
        space: Space | Any,
        *,
        maximize: bool,
        seed: int = 0,
        path: str | None = None,
        num_initial: int | None = None,
        solver: Solver | None = None,
        kernel: Kernel | None = None,
        sampler: Callable[..., ParallelThompsonSampling] | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        if path is not None:
            raise ValueError(f"`path` must be None, got {path!r}. Studies are kept in memory only; save `result` instead.")
        if not isinstance(maximize, bool):
            raise TypeError(f"`maximize` must be True or False, got {maximize!r}.")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"`seed` must be an int, got {seed!r}.")
        if seed < 0:
            raise ValueError(f"`seed` must be at least 0, got {seed}.")
        if solver is not None and not isinstance(solver, Solver):
            raise TypeError(f"`solver` must be a Solver, got {solver!r}. Try `CG()`.")
        if dtype not in (torch.float32, torch.float64):
            raise TypeError(f"`dtype` must be torch.float32 or torch.float64, got {dtype}.")
        self.space = space if isinstance(space, Space) else Space.from_bounds(space)
        self.maximize = maximize
        self.num_initial = checks.positive_int("num_initial", 2 * (self.space.dim + 1) if num_initial is None else num_initial)
        self._solver = solver
        self._kernel = get_covar_module_with_dim_scaled_prior(ard_num_dims=self.space.dim) if kernel is None else deepcopy(kernel)
        self._sampler = sampler or partial(ParallelThompsonSampling, num_candidates=NUM_CANDIDATES)
        self._dtype, self._device = dtype, torch.device(device or "cpu")
        self._generator = torch.Generator().manual_seed(seed)
        self._design = torch.quasirandom.SobolEngine(self.space.dim, scramble=True, seed=seed)
        self._U = torch.empty(0, self.space.dim, dtype=torch.float64)
        self._values = torch.empty(0, dtype=torch.float64)  # NaN where pending or failed
        self._told = torch.empty(0, dtype=torch.bool)
        self._observed: list[int] = []  # ids with a finite value, in the order told
        self._model: PathwiseGP | None = None
        self._num_fitted = 0
        self._last_ask = AskReport()

    @property
    def num_observations(self) -> int:
        """The number of finite values told or added, n."""
        return len(self._observed)

    @property
    def model(self) -> PathwiseGP | None:
        """The surrogate behind the last batch: unit-cube inputs, standardised outputs to be maximised; ``None`` before."""
        return self._model

    @property
    def last_ask(self) -> AskReport:
        """What the last ``ask`` cost."""
        return self._last_ask

    @property
    def result(self) -> Result:
        """The best observed value so far, and all data.

        Raises:
            ValueError: if no finite value has been told.
        """
        if not self._observed:
            raise ValueError("There is no `result` yet: no finite value has been told. Tell one, or add data.")
        X, values = self.space.unnormalize(self._U[self._observed]), self._values[self._observed]
        best = int(values.argmax() if self.maximize else values.argmin())
        failed = self._told & self._values.isnan()
        return Result(
            best_params=self.space.to_dicts(X[best : best + 1])[0],
            best_value=float(values[best]),
            X=X,
            values=values,
            num_failed=int(failed.sum()),
            num_pending=int((~self._told).sum()),
        )

    def ask(self, q: int) -> Batch:
        """Return ``q`` points to evaluate next.

        Raises:
            TypeError, ValueError: if ``q`` is not an int of at least 1.
        """
        checks.positive_int("q", q)
        if self.num_observations < self.num_initial:
            U, report = self._draw_design(q), AskReport()
        else:
            U, report = self._draw_thompson(q)
        U = self._replace_repeated(U)
        ids = self._append(U)
        self._last_ask = report
        X = self.space.unnormalize(U)
        return Batch(ids, self.space.to_dicts(X), X)

    def tell(self, ids: Sequence[int], values: Sequence[float] | Tensor) -> None:
        """Record the values of asked points; NaN and infinite values mean that the evaluation failed.

        Failed points are kept, never given to the surrogate and not asked again. Nothing is recorded on an error.

        Args:
            ids: from ``Batch.ids``, any subset in any order.
            values: one for each id.
        Raises:
            TypeError: if ``values`` are not numbers.
            ValueError: if the lengths differ, or an id is unknown, repeated or already told.
        """
        ids, numbers = [int(number) for number in ids], self._vector(values, "values")
        if len(ids) != len(numbers):
            raise ValueError(f"`values` must have one entry for each of the {len(ids)} `ids`, got {len(numbers)}.")
        if unknown := [number for number in ids if not 0 <= number < len(self._told)]:
            raise ValueError(f"`ids` must have been asked, got unknown {_few(unknown)}.")
        if len(set(ids)) < len(ids):
            raise ValueError(f"`ids` must be distinct, got {_few(sorted(n for n in set(ids) if ids.count(n) > 1))} twice.")
        if told := [number for number in ids if self._told[number]]:
            raise ValueError(f"`ids` must not have been told before, got {_few(told)}.")
        self._record(ids, numbers)

    def add_data(self, X: Any, y: Any) -> None:
        """Add points that were evaluated elsewhere.

        Args:
            X: (n, d) in the user's units, columns in the order of ``space.names``.
            y: (n,) or (n, 1) values, finite.
        Raises:
            TypeError: if these are not numbers.
            ValueError: if the shapes do not fit, a point lies outside the space, or a value is not finite.
        """
        U, numbers = self.space.normalize(X), self._vector(y, "y")
        if len(U) != len(numbers):
            raise ValueError(f"`X` and `y` must have the same length, got {len(U)} and {len(numbers)}.")
        if not numbers.isfinite().all():
            rows = (~numbers.isfinite()).nonzero().flatten().tolist()
            raise ValueError(f"`y` must be finite, got {numbers[rows[0]]} in row {rows[0]} ({len(rows)} in all). Drop them.")
        self._record(self._append(U), numbers)

    def optimize(
        self,
        objective: Callable[..., Any],
        rounds: int,
        batch: int,
        *,
        vectorized: bool = False,
        callbacks: Sequence[Callable[[Study, Round], None]] = (),
        progress: bool = True,
    ) -> Result:
        """Ask, evaluate and tell for a number of rounds.

        Interrupted, or with an exception from the objective, the study keeps every value told so far: call
        ``optimize`` again to go on.

        Args:
            objective: maps a dict of parameters to a number, NaN for a failed evaluation; called point by point.
            rounds: how many rounds.
            batch: points a round.
            vectorized: call ``objective(X)`` with all points of a round, (q, d) in the user's units, for (q,) values.
            callbacks: each called with the study and the ``Round`` at the end of a round.
            progress: show a bar on a terminal, one plain line a round elsewhere, on stderr.
        Returns:
            ``result``.
        Raises:
            TypeError, ValueError: if an argument is out of range, or the objective returns something else than numbers.
        """
        checks.positive_int("rounds", rounds)
        checks.positive_int("batch", batch)
        with RoundProgress(rounds, enabled=progress) as bar:
            for number in range(1, rounds + 1):
                before = self._best_value()
                bar.status(f"round {number}: asking for {batch} points")
                points = self.ask(batch)
                bar.status(f"round {number}: evaluating {batch} points")
                start = time.perf_counter()
                if vectorized:
                    self.tell(points.ids, objective(points.X))
                else:
                    for identity, params in zip(points.ids, points.params, strict=True):
                        self.tell([identity], [objective(params)])
                seconds = time.perf_counter() - start
                best = self._best_value()
                gain = abs(best - before)
                report = Round(number, self.num_observations, best, gain, self.last_ask, seconds)
                bar.finish_round(f"round {number}/{rounds}: {report}")
                for callback in callbacks:
                    callback(self, report)
        return self.result

    def _best_value(self) -> float:
        return self.result.best_value if self._observed else math.nan

    def _draw_design(self, q: int) -> Tensor:
        return self._design.draw(q, dtype=torch.float64)

    def _draw_thompson(self, q: int) -> tuple[Tensor, AskReport]:
        start = time.perf_counter()
        model = self._build_model()
        fitted = time.perf_counter()
        paths = model.paths(q, generator=self._generator)
        solved = time.perf_counter()
        solution = model.solution
        assert solution is not None  # paths() has just made it
        unit_cube = torch.tensor([[0.0], [1.0]], dtype=self._dtype, device=self._device).repeat(1, self.space.dim)
        seed = int(torch.randint(2**62, (), generator=self._generator))
        new = self._sampler(model, unit_cube, seed=seed).generate(q, paths=paths)
        self._model = model
        return new.detach().to("cpu", torch.float64).clamp(0, 1), AskReport(
            seconds_fit=fitted - start,
            seconds_solve=solved - fitted,
            seconds_acquisition=time.perf_counter() - solved,
            residual=float(solution.residual.max()),
        )

    def _training_data(self) -> tuple[Tensor, Tensor]:
        """Return inputs on the unit cube (n, d) and standardised values (n, 1) of which the largest is best."""
        values = self._values[self._observed] * (1.0 if self.maximize else -1.0)
        std = values.std() if len(values) > 1 else torch.tensor(0.0)
        y = (values - values.mean()) / (std if std > 0 else 1.0)
        return self._U[self._observed], y[:, None]

    def _build_model(self) -> PathwiseGP:
        """Return the surrogate of all data; its hyperparameters are fitted again when the data have grown enough."""
        U, y = self._training_data()
        previous = self._model
        if previous is None or len(U) >= REFIT_GROWTH * self._num_fitted:
            subset = torch.randperm(len(U), generator=self._generator)[:MAX_FIT_POINTS]
            # In float64 whatever the surrogate's dtype: the optimiser's line search fails on float32 gradients.
            fitted = PathwiseGP(U[subset], y[subset], covar_module=deepcopy(self._kernel), outcome_transform=None)
            hyperparameters = fit_exact(fitted)
            self._num_fitted = len(U)
            previous = None
        else:
            hyperparameters = previous
        model = PathwiseGP(
            U.to(self._device, self._dtype),
            y.to(self._device, self._dtype),
            likelihood=hyperparameters.likelihood,
            covar_module=hyperparameters.covar_module,
            mean_module=hyperparameters.mean_module,
            outcome_transform=None,
            solver=self._solver,
        ).eval()
        if previous is not None:
            model.warm_start(previous)
        return model

    def _replace_repeated(self, U: Tensor) -> Tensor:
        """Replace points that are already asked for, or failed, or occur twice in ``U``, by points of the design."""
        unusable = {tuple(row) for row in self._U[self._values.isnan()].tolist()}
        rows = U.tolist()
        for index, row in enumerate(rows):
            while tuple(row) in unusable:
                row = rows[index] = self._draw_design(1)[0].tolist()
            unusable.add(tuple(row))
        return torch.tensor(rows, dtype=torch.float64)

    def _append(self, U: Tensor) -> list[int]:
        first = len(self._told)
        self._U = torch.cat([self._U, U])
        self._values = torch.cat([self._values, U.new_full((len(U),), math.nan)])
        self._told = torch.cat([self._told, torch.zeros(len(U), dtype=torch.bool)])
        return list(range(first, len(self._told)))

    def _record(self, ids: list[int], values: Tensor) -> None:
        finite = values.isfinite()
        self._values[ids] = torch.where(finite, values, math.nan)
        self._told[ids] = True
        self._observed.extend(number for number, ok in zip(ids, finite.tolist(), strict=True) if ok)

    @staticmethod
    def _vector(values: Any, argument: str) -> Tensor:
        try:
            numbers = torch.as_tensor(values, dtype=torch.float64).detach().cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"`{argument}` must be numbers, got {values!r:.80}. Use NaN for a failed evaluation.") from error
        if numbers.ndim == 2 and numbers.shape[1] == 1:
            numbers = numbers[:, 0]
        if numbers.ndim != 1:
            raise ValueError(f"`{argument}` must have shape (n,), got {tuple(numbers.shape)}.")
        return numbers


def _few(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:5]))
    return f"{shown}, …" if len(numbers) > 5 else shown
