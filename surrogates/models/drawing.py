"""Models that draw the paths of their posterior: one block solve for every data set, started from
the last one's mean.

Notation: X (n, d) training inputs, Σ noise variances, s paths, v and a their representer weights,
see :mod:`surrogates.functions.paths`.

From one round of an optimisation to the next, the mean's column starts from its last weights, and
paths are drawn afresh, from zero. What else was tried, by
``benchmarks/warm_starts.py`` (Matérn-3/2, d = 8, σ² = 1e-6, 2000 or 5000 points, rounds of 100
paths, residual 1e-2):

* Fresh paths that start from a coarse solve, by a Nyström approximation of n/10 columns or by a
  quarter of the points, take as many epochs as from zero, or some more. They start at a residual of
  0.6 to 1.5: nothing gained, and its evaluation is an epoch.
* Paths carried over, with their functions and noise, start at a residual of 0.08 to 0.14, which
  saves at most a seventh of the epochs. And the data were chosen by them, so that they are no
  longer draws of the posterior: after five rounds from 2000 points, a tenth of a lengthscale from
  the points that a path chose itself, it lies 0.29 ± 0.06 standard deviations too low with half of
  the variance (0.51 ± 0.08) at lengthscale 0.3, and 0.14 ± 0.06 too low at 0.5, as it is known to
  have its maximum there. At uniform points, and beside what other paths chose, it has the
  posterior's mean; the best values found agree within their errors.
"""

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from surrogates import memory
from surrogates.functions.features import PriorPaths
from surrogates.functions.paths import BatchPaths, SamplePaths
from surrogates.models.batches import DataSet, data_sets
from surrogates.models.conditioning import PathsState, join_solutions, solve_weights
from surrogates.models.covariances import Covariance, Solved
from surrogates.models.fresh import FreshGP
from surrogates.operators.differentiable import KernelBasis
from surrogates.operators.kernel_matrix import kernel_operator
from surrogates.solvers.auto import Auto
from surrogates.solvers.base import Callback, Solver
from surrogates.solvers.cholesky import Cholesky
from surrogates.solvers.run import Solution
from surrogates.systems.kernel import KernelSystem

DIRECT_SOLVE_UP_TO = 4096
# In the posterior's covariance: several feature draws average the features' own error out
PATHS_PER_DRAW = 32
COLUMNS_HELD = 13  # copies of an (n, s) matrix that the hungriest solver and the paths hold at once


class DrawingGP(FreshGP):
    """What :class:`PathwiseGP` draws and keeps; its subclasses say what else the weights solve,
    and where they are.
    """

    solver: Solver | None
    num_features: int
    num_paths: int
    seed: int
    memory_budget: int | None
    solution: Solution | None = None
    _warm_mean_weights: tuple[Tensor, ...] = ()  # of every data set
    # That the data sets had in the model that this is a subset of
    _stream_numbers: tuple[int, ...] | None = None

    def subset_output(self, idcs: list[int]) -> Self:
        """Return a copy of the outputs ``idcs``, with their hyperparameters and their paths, and
        the hyperparameters that all share.

        Raises:
            NotImplementedError: for a mean whose parameters cannot be told apart.
            ValueError: if there are no such outputs.
        """
        subset = super().subset_output(idcs)
        m = self.num_outputs
        if m == 1:
            return subset
        chosen = [
            first + t for first in range(0, self.train_targets.shape[:-1].numel(), m) for t in idcs
        ]
        subset._stream_numbers = tuple(self._numbers()[i] for i in chosen)
        if self._warm_mean_weights:
            subset._warm_mean_weights = tuple(self._warm_mean_weights[i] for i in chosen)
        if (
            not self.training
            and self._drop_stale_state() is not None
            and isinstance(self.prediction_strategy, PathsState)
        ):
            subset._keep([self.prediction_strategy.paths.parts[i] for i in chosen])
        return subset

    def warm_start(self, previous: "DrawingGP", *, scale: float = 1.0) -> Self:
        """Start the mean's next solve from ``previous``, a model of the first rows of the same
        data; return this model.

        Args:
            scale: one unit of its targets in the units of this model's, where the caller
                standardises them.
        Raises:
            ValueError: if the training inputs of ``previous`` are not the first of this model's.
        """
        self.eval()
        previous.eval()
        X = self.train_inputs[0]
        earlier = previous.train_inputs[0]
        k = earlier.shape[-2]
        if (
            earlier.shape[:-2] != X.shape[:-2]
            or k > X.shape[-2]
            or not torch.equal(earlier, X[..., :k, :])
        ):
            raise ValueError(
                f"`previous` must have been trained on the first rows of this model's data, got {k}"
                " other rows."
            )
        if len(previous._warm_mean_weights) == self.train_targets.shape[:-1].numel():
            ratios = scale * (previous._units.scale / self._units.scale).flatten()
            self._warm_mean_weights = tuple(
                ratio * weights
                for ratio, weights in zip(ratios, previous._warm_mean_weights, strict=True)
            )
        return self

    def start_from(self, mean_weights: Tensor) -> Self:
        """Start the mean's next solve from weights (k, 1) of the first k points, in standardised
        units; return this model.

        Raises:
            ValueError: if the model has several outputs or data sets, or the weights have another
                shape.
        """
        self.eval()
        n = self.train_inputs[0].shape[-2]
        if (
            self.train_inputs[0].ndim > 2
            or mean_weights.ndim != 2
            or mean_weights.shape[1] != 1
            or len(mean_weights) > n
        ):
            raise ValueError(
                f"`mean_weights` must have shape (k, 1) with k ≤ n = {n}, for a model of one"
                f" output, got {tuple(mean_weights.shape)}."
            )
        self._warm_mean_weights = (mean_weights,)
        return self

    def _numbers(self) -> tuple[int, ...]:
        """Return the number of every data set, in row-major order,
        which a subset of the outputs keeps.
        """
        return (
            tuple(range(self.train_targets.shape[:-1].numel()))
            if self._stream_numbers is None
            else self._stream_numbers
        )

    def _streams(self, generator: torch.Generator) -> list[torch.Generator]:
        """Return a source of randomness for every data set, which its number decides:
        a subset of the outputs has their paths.
        """
        if not self.train_targets.shape[:-1] and self._stream_numbers is None:
            return [generator]
        first = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        return [
            torch.Generator(generator.device).manual_seed(first + number)
            for number in self._numbers()
        ]

    def _draw_prior(
        self, data: DataSet, num_paths: int, num_draws: int, generator: torch.Generator
    ) -> PriorPaths:
        dim = data.X.shape[1]
        return PriorPaths.draw(
            data.kernel,
            dim,
            num_paths,
            num_features=self.num_features,
            num_draws=num_draws,
            generator=generator,
            like=data.X,
        )

    @torch.no_grad()
    def _draw(
        self,
        num_paths: int,
        num_draws: int,
        generator: torch.Generator,
        prior: PriorPaths | None = None,
        callback: Callback | None = None,
    ) -> list[SamplePaths]:
        """Return the paths of every data set, on transformed inputs and in standardised units;
        their prior draws are independent.
        """
        elements = data_sets(self)
        warm = (
            self._warm_mean_weights
            if len(self._warm_mean_weights) == len(elements)
            else (None,) * len(elements)
        )
        parts = []
        solutions = []
        for data, weights, stream in zip(elements, warm, self._streams(generator), strict=True):
            drawn = self._draw_prior(data, num_paths, num_draws, stream) if prior is None else prior
            paths, solution = self._condition(data, drawn, stream, weights, callback)
            parts.append(paths)
            solutions.append(solution)
        self.solution = join_solutions(solutions)
        self._warm_mean_weights = tuple(part.mean_weights for part in parts)
        return parts

    def _condition(
        self,
        data: DataSet,
        prior: PriorPaths,
        generator: torch.Generator,
        warm: Tensor | None,
        callback: Callback | None,
    ) -> tuple[SamplePaths, Solution | None]:
        """Return ``prior`` conditioned on ``data``, and the account of the solve if there was one;
        ``warm`` as in ``solve_weights``.
        """
        X = data.X
        s = prior.num_paths
        num_bytes = COLUMNS_HELD * len(X) * (s + 1) * X.element_size()
        memory.require(
            num_bytes,
            X.device,
            f"Solving for {s} paths at {len(X)} points",
            "Draw fewer paths at a time.",
        )
        centres = self._centres(data)
        solution = solve_weights(
            self._system(data),
            prior,
            X,
            data.residuals,
            data.noise,
            solver=self._solver_for(centres),
            warm=warm,
            generator=generator,
            callback=callback,
        )
        mean_weights = solution.value[:, :1].clone()
        paths = SamplePaths(
            prior=prior,
            data=KernelBasis(data.kernel, centres),
            weights=mean_weights - solution.value[:, 1:],
            mean_weights=mean_weights,
            prior_mean=data.mean_module,
        )
        return paths, solution

    def _centres(self, data: DataSet) -> Tensor:
        """Return the points that carry the weights, on transformed inputs."""
        return data.X

    def _system(self, data: DataSet) -> Any:
        """Return the :class:`LinearSystem` that the weights solve."""
        return KernelSystem(
            kernel_operator(data.kernel, self._centres(data), memory_budget=self.memory_budget),
            data.noise,
        )

    def _covariance(self, data: DataSet, paths: SamplePaths) -> Covariance:
        """Return the covariance of the posterior of ``data``, of which ``paths`` are."""
        return Solved(data, self._system(data), self._solver_for(data.X), self.seed)

    def _solver_for(self, centres: Tensor) -> Solver:
        return self.solver if self.solver is not None else self._default_solver(len(centres))

    def _default_solver(self, num_centres: int) -> Solver:
        """Return the solver of a model that was given none."""
        return default_solver(num_centres)

    def _posterior_paths(self) -> SamplePaths | BatchPaths:
        """Return the paths behind ``posterior``, kept until the model changes."""
        if self._drop_stale_state() is None:
            generator = torch.Generator().manual_seed(self.seed)
            self._keep(
                self._draw(self.num_paths, math.ceil(self.num_paths / PATHS_PER_DRAW), generator)
            )
        paths: SamplePaths | BatchPaths = self.prediction_strategy.paths
        return paths

    def _keep(self, parts: list[SamplePaths]) -> None:
        """Keep the paths of every data set as those of the present model."""
        batch_shape = self.train_targets.shape[:-1]
        self.prediction_strategy = PathsState(
            self._state_key().frozen(),
            BatchPaths(tuple(parts), batch_shape) if batch_shape else parts[0],
        )

    def _without_state(self) -> Self:
        weights = self._warm_mean_weights
        self._warm_mean_weights = ()
        try:
            return super()._without_state()
        finally:
            self._warm_mean_weights = weights

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Self:
        self._warm_mean_weights = ()
        return super()._apply(fn, *args, **kwargs)


def default_solver(n: int) -> Solver:
    """Return the solver of a model of n points that was given none."""
    return Cholesky() if n <= DIRECT_SOLVE_UP_TO else Auto()
