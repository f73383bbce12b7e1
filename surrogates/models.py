"""Gaussian processes whose posterior is a set of sample paths, as BoTorch and GPyTorch models.

Notation: X (n, d) training inputs, y (n,) targets, Σ noise variances, H = k(X, X) + Σ, F random features, S or s paths.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar, Self

import gpytorch
import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils import gpt_posterior_settings
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.transformed import TransformedPosterior
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import Mean
from torch import Tensor

from surrogates import checks, memory
from surrogates.batches import DataSet, data_sets
from surrogates.conditioning import PathsState, check_observations, join_solutions, solve_weights
from surrogates.features import PriorPaths
from surrogates.fresh import FreshGP, as_given
from surrogates.noise import check_noise
from surrogates.operators import KernelBasis, kernel_operator
from surrogates.paths import BatchPaths, SamplePaths
from surrogates.posterior import affine, joint, path_distribution, transformed
from surrogates.solvers import Auto, Callback, Cholesky, Solution, Solver
from surrogates.systems import KernelSystem, LinearSystem

EXACT_UP_TO = 2000  # beyond, the exact covariance at 20 × 4 points, with gradients, costs more than that of 256 paths
DIRECT_SOLVE_UP_TO = 4096
DEFAULT_NUM_FEATURES = 2048
DEFAULT_NUM_PATHS = 256
PATHS_PER_DRAW = 32  # in the posterior's covariance: several feature draws average the features' own error out
COLUMNS_HELD = 11  # copies of an (n, s) matrix that the hungriest solver and the paths hold at once


class PathwiseGP(FreshGP):
    """A Gaussian process that scales: its posterior is a set of functions, from iterative solves in place of a Cholesky.

    A drop-in for BoTorch's ``SingleTaskGP``, with its defaults: RBF kernel with dimension-scaled priors, constant mean, standardised
    outcomes, inferred noise. Up to 2000 points, and with ``solver=Cholesky()`` for any number, ``posterior(X)`` is exact: that of
    ``SingleTaskGP``. Otherwise it has the exact mean (to the solver's tolerance) and the covariance of ``num_paths`` paths.
    ``paths(s)`` returns s functions. float32 and float64; duplicate points are fine. Hyperparameters, data and settings may be changed
    at any time: the next posterior is that of a model built with the new ones.

    Several outputs are independent Gaussian processes, and so are the data sets of a batch: each is solved by itself, with
    hyperparameters of its own or, where a module has no batch shape, those of all.

    Args:
        train_X: (n, d), or (*batch, n, d).
        train_Y: (n, m), or (*batch, n, m).
        train_Yvar: known noise variances of the shape of ``train_Y``; ``None`` for an inferred σ².
        likelihood: Gaussian; see :func:`gaussian_likelihood` for a given σ².
        covar_module: a GPyTorch kernel; paths need random features, see :class:`RandomFeatures`. Its batch shape is empty or, like those
            of the mean and the likelihood, (*batch, m), without m for one output.
        mean_module: any GPyTorch mean; constant if ``None``.
        outcome_transform: ``Standardize(m=m, batch_shape=batch)`` if not given, ``None`` for none. After others the posterior is as
            ``SingleTaskGP`` has it, and the mean of paths is the transformed mean.
        input_transform: as in ``SingleTaskGP``.
        solver: ``Cholesky()`` for the exact posterior, others for that of paths; ``None`` for the exact posterior up to 2000 points, for
            paths beyond, which ``Cholesky()`` solves up to 4096 points and ``Auto()`` from there.
        num_features: F, even. Paths that share features deviate from the exact covariance by O(F^-1/2).
        num_paths: S, the paths behind ``posterior(X)``; standard deviations have a relative error of about (2 S)^-1/2.
        seed: of the features, paths and batches; the same seed gives the same posterior.
        memory_budget: bytes a kept kernel matrix may take; ``None`` for 2 GiB, or a quarter of a CUDA device's memory. Beyond it,
            tiles are evaluated anew for every product.

    Attributes:
        solution: account of the last solve (residuals, epochs, seconds), over the columns of all outputs and data sets; ``None`` before.

    Raises:
        TypeError, ValueError: for data that are not finite, of wrong shape, of different dtypes or devices, and for noise ≤ 0.
    """

    has_exact_posterior: ClassVar[bool] = True  # no approximation but the paths: a direct solve gives what SingleTaskGP gives

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        likelihood: GaussianLikelihood | FixedNoiseGaussianLikelihood | None = None,
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        *,
        solver: Solver | None = None,
        num_features: int = DEFAULT_NUM_FEATURES,
        num_paths: int = DEFAULT_NUM_PATHS,
        seed: int = 0,
        memory_budget: int | None = None,
    ) -> None:
        checks.training_data(train_X, train_Y)
        if train_Yvar is not None:
            check_noise(train_Yvar, train_Y)
        if solver is not None and not isinstance(solver, Solver):
            raise TypeError(f"`solver` must be a Solver such as CG(), SDD() or Cholesky(), got {type(solver).__name__} {solver!r}.")
        if not isinstance(outcome_transform, OutcomeTransform | _DefaultType | None):
            raise TypeError(
                "`outcome_transform` must be an OutcomeTransform such as Standardize(m=1), or None, "
                f"got {type(outcome_transform).__name__}."
            )
        if covar_module is not None:
            check_batch_shape(covar_module, train_X, train_Y)
        checks.positive_int("num_features", num_features)
        checks.positive_int("num_paths", num_paths)
        checks.integer("seed", seed, 0)
        if memory_budget is not None:
            checks.integer("memory_budget", memory_budget, 0)
        with as_given():
            super().__init__(
                train_X=train_X,
                train_Y=train_Y,
                train_Yvar=train_Yvar,
                likelihood=likelihood,
                covar_module=covar_module,
                mean_module=mean_module,
                outcome_transform=outcome_transform,
                input_transform=input_transform,
            )
        self.solver = solver
        self.num_features = num_features
        self.num_paths = num_paths
        self.seed = seed
        self.memory_budget = memory_budget
        self.solution: Solution | None = None
        self._warm_mean_weights: tuple[Tensor, ...] = ()

    @classmethod
    def construct_inputs(cls, training_data: SupervisedDataset, **options: Any) -> dict[str, Any]:
        """Return the constructor's arguments for BoTorch's ``training_data``, with ``options``, further ones such as ``solver``."""
        return {**super().construct_inputs(training_data), **options}

    @property
    def custom_fit(self) -> Callable[..., Any]:
        """What ``fit_gpytorch_mll`` calls beyond 4096 points; up to there it is missing, and BoTorch fits as it fits a ``SingleTaskGP``."""
        from surrogates.fitting.exact import EXACT_FIT_UP_TO
        from surrogates.fitting.hook import custom_fit

        if self.train_targets.shape[-1] <= EXACT_FIT_UP_TO:
            raise AttributeError("`custom_fit` is for models of more points.")
        return custom_fit

    def paths(
        self,
        num_samples: int,
        *,
        generator: torch.Generator | None = None,
        prior: PriorPaths | None = None,
        callback: Callback | None = None,
    ) -> SamplePaths | BatchPaths:
        """Draw ``num_samples`` functions from the posterior, in one block solve with the mean (one for every output and data set).

        Args:
            num_samples: s.
            generator: source of all randomness; one seeded with the model's ``seed`` if ``None``.
            prior: the s prior functions to condition, on the model's (transformed) inputs; drawn if ``None``.
            callback: receives the solve's :class:`Progress`.

        Returns:
            :class:`SamplePaths` of one output and one data set, with values (s, ..., q); else :class:`BatchPaths`, whose values have the
            batch before q and several outputs after it.

        Raises:
            ValueError: if ``num_samples`` is below 1, the kernel has no random features, or ``prior`` does not fit.
            MemoryError: if the solve cannot fit in free memory.
        """
        checks.positive_int("num_samples", num_samples)
        generator = torch.Generator().manual_seed(self.seed) if generator is None else generator
        self.eval()
        batch_shape, dim = self.train_targets.shape[:-1], self.train_inputs[0].shape[-1]
        if prior is not None and batch_shape:
            raise ValueError(f"`prior` must be None for a batch of posteriors, here of shape {tuple(batch_shape)}: each draws its own.")
        if prior is not None and (prior.num_paths != num_samples or prior.dim != dim):
            raise ValueError(f"`prior` must hold {num_samples} functions of {dim} inputs, got {prior.num_paths} of {prior.dim}.")
        parts = self._draw(num_samples, 1, generator, prior, callback)
        units, input_transform = deepcopy(self._units), deepcopy(getattr(self, "input_transform", None))
        offsets, scales = units.offset.flatten().tolist(), units.scale.flatten().tolist()
        parts = [replace(part, offset=o, scale=c) for part, o, c in zip(parts, offsets, scales, strict=True)]
        if not batch_shape and not units.others:
            return replace(parts[0], input_transform=input_transform)
        return BatchPaths(tuple(parts), batch_shape, self.num_outputs > 1, input_transform, units if units.others else None)

    def posterior(  # type: ignore[override]  # BoTorch's own overrides of it disagree with one another
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> GPyTorchPosterior | TransformedPosterior:
        """Return the joint posterior at X (..., q, d): exact, or the exact mean and the covariance of ``num_paths`` paths about it.

        Args:
            output_indices: which of several outputs; all if ``None``.
            observation_noise: add the likelihood's noise (``True``; its mean, where it is known for each point) or the given variances
                (..., q, m), in standardised units.
        """
        self.eval()
        if self.num_outputs == 1:  # BoTorch's lists of models may ask for it by its number in the list
            output_indices = None
        if self._is_exact and output_indices is None:
            return super().posterior(X, observation_noise=observation_noise, posterior_transform=posterior_transform)
        X = self.transform_inputs(X)
        with gpt_posterior_settings():
            distribution = self(X.unsqueeze(-3) if self.num_outputs > 1 else X)
        return self._posterior_of(distribution, X, output_indices, observation_noise, posterior_transform)

    def __call__(self, *inputs: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Return the prior at the training inputs in training mode, the posterior in standardised units in evaluation mode."""
        if self.training or gpytorch.settings.prior_mode.on():
            return super().__call__(*inputs, **kwargs)
        if not self._is_exact:
            return path_distribution(self._posterior_paths(), inputs[0].to(self.train_inputs[0].dtype))
        return self._exact_distribution(*inputs, **kwargs)

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any) -> Any:
        """Return a new model that has seen Y (k, m) at X (k, d), too; the hyperparameters and the transforms stay as they are.

        The mean's next solve starts from this model's. X and Y may have the model's batch shape in front. With other batches, Y (..., k, m)
        at X (..., k, d) as BoTorch's ``fantasize`` makes them, exact models return a batch model, those of paths a :class:`FantasyGP`.

        Args:
            X: in the units of ``train_X``.
            Y: in the units of ``train_Y``.
            noise: variances of the shape of Y, in standardised units, needed where ``train_Yvar`` was given and unused elsewhere.

        Raises:
            TypeError, ValueError: for data that are not finite or of the wrong shape, dtype or device, and for missing noise.
            NotImplementedError: for batches of fantasies of other models than a ``PathwiseGP`` of one data set.
        """
        self.eval()
        if self._is_exact:
            with as_given():
                self(self.train_inputs[0][..., :1, :])  # GPyTorch updates what it has kept
                given = {} if noise is None else {"noise": noise}
                conditioned: Self = super().condition_on_observations(X, Y, **given, **kwargs)  # type: ignore[assignment]
                return conditioned
        if isinstance(Y, Tensor) and Y.ndim > 2 and Y.shape[:-2] != self.batch_shape:
            from surrogates.fantasies import FantasyGP  # which needs this module

            return FantasyGP(self, X, Y, noise)
        known_noise = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        shape = (*self.batch_shape, -1, self.num_outputs)
        check_observations(X, Y, noise, like=self.train_inputs[0], shape=shape, known_noise=known_noise)
        if hasattr(self, "outcome_transform"):
            Y, _ = self.outcome_transform(Y, X=self.transform_inputs(X))
        X, Y, noise = self._transform_tensor_args(X, Y, noise if known_noise else None)
        model = self._without_state()
        model.set_train_data(torch.cat([self._given_inputs, X], -2), torch.cat([self.train_targets, Y], -1), strict=False)
        if known_noise:
            with as_given():
                model.likelihood = self.likelihood.get_fantasy_likelihood(noise=noise)
        return model.warm_start(self)

    def get_fantasy_model(self, inputs: Tensor, targets: Tensor, **kwargs: Any) -> Self:
        if not self._is_exact:
            raise NotImplementedError(
                "`get_fantasy_model` needs the exact posterior of `solver=Cholesky()`. Use `condition_on_observations(X, Y)`."
            )
        return super().get_fantasy_model(inputs, targets, **kwargs)

    def warm_start(self, previous: "PathwiseGP", *, scale: float = 1.0) -> Self:
        """Start the mean's next solve from ``previous``, a model of the first rows of the same data; return this model.

        Args:
            scale: one unit of its targets in the units of this model's, where the caller standardises them.
        Raises:
            ValueError: if the training inputs of ``previous`` are not the first of this model's.
        """
        self.eval()
        previous.eval()
        X, earlier = self.train_inputs[0], previous.train_inputs[0]
        k = earlier.shape[-2]
        if earlier.shape[:-2] != X.shape[:-2] or k > X.shape[-2] or not torch.equal(earlier, X[..., :k, :]):
            raise ValueError(f"`previous` must have been trained on the first rows of this model's data, got {k} other rows.")
        if len(previous._warm_mean_weights) == self.train_targets.shape[:-1].numel():
            ratios = scale * (previous._units.scale / self._units.scale).flatten()
            self._warm_mean_weights = tuple(ratio * weights for ratio, weights in zip(ratios, previous._warm_mean_weights, strict=True))
        return self

    def start_from(self, mean_weights: Tensor) -> Self:
        """Start the mean's next solve from weights (k, 1) of the first k points, in standardised units; return this model.

        Raises:
            ValueError: if the model has several outputs or data sets, or the weights have another shape.
        """
        self.eval()
        n = self.train_inputs[0].shape[-2]
        if self.train_inputs[0].ndim > 2 or mean_weights.ndim != 2 or mean_weights.shape[1] != 1 or len(mean_weights) > n:
            raise ValueError(
                f"`mean_weights` must have shape (k, 1) with k ≤ n = {n}, for a model of one output, got {tuple(mean_weights.shape)}."
            )
        self._warm_mean_weights = (mean_weights,)
        return self

    def _posterior_of(
        self,
        distribution: MultivariateNormal,
        X: Tensor,
        output_indices: list[int] | None,
        observation_noise: bool | Tensor,
        posterior_transform: PosteriorTransform | None,
    ) -> GPyTorchPosterior | TransformedPosterior:
        """Return BoTorch's posterior of a ``distribution`` (..., q), or (..., m, q), at transformed X in standardised units."""
        outputs = list(range(self.num_outputs)) if output_indices is None else output_indices
        if not outputs or not set(outputs) <= set(range(self.num_outputs)):
            raise ValueError(f"`output_indices` must be None or outputs below {self.num_outputs}, got {output_indices}.")
        points = X.unsqueeze(-3) if self.num_outputs > 1 else X
        units = self._units
        distribution = affine(self._apply_noise(points, distribution, observation_noise), units.offset, units.scale)
        posterior = joint(distribution, outputs) if self.num_outputs > 1 else GPyTorchPosterior(distribution)
        return transformed(units.untransform_posterior(posterior, X, output_indices), posterior_transform, X)

    def _draw_prior(self, data: DataSet, num_paths: int, num_draws: int, generator: torch.Generator) -> PriorPaths:
        dim = data.X.shape[1]
        return PriorPaths.draw(
            data.kernel, dim, num_paths, num_features=self.num_features, num_draws=num_draws, generator=generator, like=data.X
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
        """Return the paths of every data set, on transformed inputs and in standardised units; their prior draws are independent."""
        elements = data_sets(self)
        warm = self._warm_mean_weights if len(self._warm_mean_weights) == len(elements) else (None,) * len(elements)
        parts, solutions = [], []
        for data, weights in zip(elements, warm, strict=True):
            drawn = self._draw_prior(data, num_paths, num_draws, generator) if prior is None else prior
            paths, solution = self._condition(data, drawn, generator, weights, callback)
            parts.append(paths)
            solutions.append(solution)
        self.solution = join_solutions(solutions)
        self._warm_mean_weights = tuple(part.mean_weights for part in parts)
        return parts

    def _condition(
        self, data: DataSet, prior: PriorPaths, generator: torch.Generator, warm: Tensor | None, callback: Callback | None
    ) -> tuple[SamplePaths, Solution | None]:
        """Return ``prior`` conditioned on ``data``, and the account of the solve if there was one; ``warm`` as in ``solve_weights``."""
        X, s = data.X, prior.num_paths
        num_bytes = COLUMNS_HELD * len(X) * (s + 1) * X.element_size()
        memory.require(num_bytes, X.device, f"Solving for {s} paths at {len(X)} points", "Draw fewer paths at a time.")
        centres = self._centres(data)
        system, solver = self._system(data), self._solver_for(centres)
        solution = solve_weights(
            system, prior, X, data.residuals, data.noise, solver=solver, warm=warm, generator=generator, callback=callback
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

    def _system(self, data: DataSet) -> LinearSystem:
        """Return the system that the weights solve."""
        return KernelSystem(kernel_operator(data.kernel, self._centres(data), memory_budget=self.memory_budget), data.noise)

    def _solve_with(self, data: DataSet) -> Callable[[Tensor], Tensor]:
        """Return what applies the inverse of the system's matrix to (n, s) right-hand sides."""
        system, solver = self._system(data), self._solver_for(data.X)

        def solve(B: Tensor) -> Tensor:
            return solver.solve(system, B, generator=torch.Generator().manual_seed(self.seed)).value

        return solve

    def _solver_for(self, centres: Tensor) -> Solver:
        return self.solver if self.solver is not None else self._default_solver(len(centres))

    def _default_solver(self, num_centres: int) -> Solver:
        """Return the solver of a model that was given none."""
        return default_solver(num_centres)

    @property
    def _supports_cache_root(self) -> bool:
        """Whether BoTorch's acquisition functions may extend a Cholesky factor of the posterior: that of paths has a root already."""
        return self._is_exact

    @property
    def _is_exact(self) -> bool:
        """Whether ``posterior`` is GPyTorch's own."""
        if not self.has_exact_posterior:
            return False
        small = self.train_inputs[0].shape[-2] <= EXACT_UP_TO or self._stays_exact
        return isinstance(self.solver, Cholesky) or (self.solver is None and small)

    def _state_settings(self) -> tuple[Any, ...]:
        return self.solver, self.num_features, self.num_paths, self.seed, self.memory_budget, self._is_exact

    def _posterior_paths(self) -> SamplePaths | BatchPaths:
        """Return the paths behind ``posterior``, kept until the model changes."""
        if self._drop_stale_state() is None:
            key, generator = self._state_key().frozen(), torch.Generator().manual_seed(self.seed)
            parts = self._draw(self.num_paths, math.ceil(self.num_paths / PATHS_PER_DRAW), generator)
            batch_shape = self.train_targets.shape[:-1]
            self.prediction_strategy = PathsState(key, BatchPaths(tuple(parts), batch_shape) if batch_shape else parts[0])
        paths: SamplePaths | BatchPaths = self.prediction_strategy.paths
        return paths

    def _without_state(self) -> Self:
        weights, self._warm_mean_weights = self._warm_mean_weights, ()
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


def check_batch_shape(kernel: Kernel, train_X: Tensor, train_Y: Tensor) -> None:
    """Require a kernel whose batch shape is that of the data, or broadcasts to it.

    Raises:
        ValueError: naming both.
    """
    expected = train_X.shape[:-2] + (train_Y.shape[-1:] if train_Y.shape[-1] > 1 else ())
    own = kernel.batch_shape
    if len(own) > len(expected) or any(size not in (1, wanted) for size, wanted in zip(own[::-1], expected[::-1], strict=False)):
        raise ValueError(f"`covar_module` must have no batch shape or that of the data and outputs, {tuple(expected)}, got {tuple(own)}.")
