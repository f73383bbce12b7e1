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
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.transformed import TransformedPosterior
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import Mean
from torch import Tensor

from surrogates import checks, memory
from surrogates.conditioning import PathsState, check_observations, solve_weights
from surrogates.features import PriorPaths
from surrogates.fresh import FreshGP, as_given
from surrogates.noise import check_noise
from surrogates.operators import KernelBasis, kernel_operator
from surrogates.paths import SamplePaths
from surrogates.posterior import affine_posterior, path_distribution
from surrogates.solvers import Auto, Callback, Cholesky, Solution, Solver
from surrogates.systems import KernelSystem, LinearSystem

EXACT_UP_TO = 2000  # beyond, the exact covariance at 20 × 4 points, with gradients, costs more than that of 256 paths
DIRECT_SOLVE_UP_TO = 4096
DEFAULT_NUM_FEATURES = 2048
DEFAULT_NUM_PATHS = 256
PATHS_PER_DRAW = 32  # in the posterior's covariance: several feature draws average the features' own error out
COLUMNS_HELD = 11  # copies of an (n, s) matrix that the hungriest solver and the paths hold at once


class PathwiseGP(FreshGP):
    """A single-output Gaussian process that scales: its posterior is a set of functions, from iterative solves in place of a Cholesky.

    A drop-in for BoTorch's ``SingleTaskGP``, with its defaults: RBF kernel with dimension-scaled priors, constant mean, standardised
    outcomes, inferred noise. Up to 2000 points, and with ``solver=Cholesky()`` for any number, ``posterior(X)`` is exact: that of
    ``SingleTaskGP``. Otherwise it has the exact mean (to the solver's tolerance) and the covariance of ``num_paths`` paths.
    ``paths(s)`` returns s functions. float32 and float64; duplicate points are fine. Hyperparameters, data and settings may be changed
    at any time: the next posterior is that of a model built with the new ones.

    Args:
        train_X: (n, d).
        train_Y: (n, 1).
        train_Yvar: (n, 1) known noise variances; ``None`` for one inferred σ².
        likelihood: Gaussian; see :func:`gaussian_likelihood` for a given σ².
        covar_module: a GPyTorch kernel without batch shape; paths need random features, see :class:`RandomFeatures`.
        mean_module: any GPyTorch mean; constant if ``None``.
        outcome_transform: ``Standardize(m=1)`` (the default) or ``None``.
        input_transform: as in ``SingleTaskGP``.
        solver: ``Cholesky()`` for the exact posterior, others for that of paths; ``None`` for the exact posterior up to 2000 points, for
            paths beyond, which ``Cholesky()`` solves up to 4096 points and ``Auto()`` from there.
        num_features: F, even. Paths that share features deviate from the exact covariance by O(F^-1/2).
        num_paths: S, the paths behind ``posterior(X)``; standard deviations have a relative error of about (2 S)^-1/2.
        seed: of the features, paths and batches; the same seed gives the same posterior.
        memory_budget: bytes a kept kernel matrix may take; ``None`` for 2 GiB, or a quarter of a CUDA device's memory. Beyond it,
            tiles are evaluated anew for every product.

    Attributes:
        solution: account of the last solve (residuals, epochs, seconds); ``None`` before.

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
        if not isinstance(outcome_transform, Standardize | _DefaultType | None):
            raise TypeError(f"`outcome_transform` must be Standardize(m=1) or None, got {type(outcome_transform).__name__}.")
        if covar_module is not None and covar_module.batch_shape:
            raise ValueError(f"`covar_module` must have no batch shape, got {tuple(covar_module.batch_shape)}.")
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
        self._warm_mean_weights: Tensor | None = None

    def paths(
        self,
        num_samples: int,
        *,
        generator: torch.Generator | None = None,
        prior: PriorPaths | None = None,
        callback: Callback | None = None,
    ) -> SamplePaths:
        """Draw ``num_samples`` functions from the posterior, in one block solve with the mean.

        Args:
            num_samples: s.
            generator: source of all randomness; one seeded with the model's ``seed`` if ``None``.
            prior: the s prior functions to condition, on the model's (transformed) inputs; drawn if ``None``.
            callback: receives the solve's :class:`Progress`.

        Raises:
            ValueError: if ``num_samples`` is below 1, the kernel has no random features, ``prior`` does not fit, or the model holds
                a batch of fantasies.
            MemoryError: if the solve cannot fit in free memory.
        """
        checks.positive_int("num_samples", num_samples)
        generator = torch.Generator().manual_seed(self.seed) if generator is None else generator
        self.eval()
        if self.train_inputs[0].ndim != 2:
            raise ValueError(
                f"`paths` must be drawn from a model of one data set, got train_X of shape {tuple(self.train_inputs[0].shape)}. "
                "Condition a model for each fantasy."
            )
        if prior is None:
            prior = self._draw_prior(num_samples, num_draws=1, generator=generator)
        elif prior.num_paths != num_samples or prior.dim != self.train_inputs[0].shape[-1]:
            raise ValueError(
                f"`prior` must hold {num_samples} functions of {self.train_inputs[0].shape[-1]} inputs, "
                f"got {prior.num_paths} of {prior.dim}."
            )
        offset, scale = self._outcome_affine()
        input_transform = deepcopy(getattr(self, "input_transform", None))
        return replace(self._condition(prior, generator, callback), input_transform=input_transform, offset=offset, scale=scale)

    def posterior(  # type: ignore[override]  # BoTorch's own overrides of it disagree with one another
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> GPyTorchPosterior | TransformedPosterior:
        """Return the joint posterior at X (..., q, d): exact, or the exact mean and the covariance of ``num_paths`` paths about it.

        Args:
            output_indices: ``None`` or ``[0]``: there is one output.
            observation_noise: add the likelihood's noise (``True``; its mean, where it is known for each point) or the given variances
                (..., q, 1), in standardised units.
        """
        if output_indices not in (None, [0]):
            raise ValueError(f"`output_indices` must be None or [0], this model has one output, got {output_indices}.")
        self.eval()
        if self._is_exact:
            return super().posterior(X, observation_noise=observation_noise, posterior_transform=posterior_transform)
        X = self.transform_inputs(X)
        distribution = self._apply_noise(X, self(X), observation_noise)
        posterior = affine_posterior(distribution, *self._outcome_affine())
        return posterior if posterior_transform is None else posterior_transform(posterior=posterior, X=X)

    def __call__(self, *inputs: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Return the prior at the training inputs in training mode, the posterior in standardised units in evaluation mode."""
        if self.training or gpytorch.settings.prior_mode.on():
            return super().__call__(*inputs, **kwargs)
        if not self._is_exact:
            return path_distribution(self._posterior_paths(), inputs[0])
        return self._exact_distribution(*inputs, **kwargs)

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any) -> Self:
        """Return a new model that has seen Y (k, 1) at X (k, d), too; the hyperparameters and the transforms stay as they are.

        The mean's next solve starts from this model's. Exact models take batches, Y (..., k, 1) at X (..., k, d), as BoTorch's
        ``fantasize`` makes them; posteriors of paths do not.

        Args:
            X: in the units of ``train_X``.
            Y: in the units of ``train_Y``.
            noise: variances of the shape of Y, in standardised units, needed where ``train_Yvar`` was given and unused elsewhere.

        Raises:
            TypeError, ValueError: for data that are not finite or of the wrong shape, dtype or device, and for missing noise.
        """
        self.eval()
        if self._is_exact:
            with as_given():
                self(self.train_inputs[0][..., :1, :])  # GPyTorch updates what it has kept
                given = {} if noise is None else {"noise": noise}
                conditioned: Self = super().condition_on_observations(X, Y, **given, **kwargs)  # type: ignore[assignment]
                return conditioned
        known_noise = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        check_observations(X, Y, noise, like=self.train_inputs[0], known_noise=known_noise)
        offset, scale = self._outcome_affine()
        model = self._without_state()
        model.set_train_data(
            torch.cat([self._given_inputs, X]), torch.cat([self.train_targets, (Y.squeeze(1) - offset) / scale]), strict=False
        )
        if known_noise:
            with as_given():
                model.likelihood = self.likelihood.get_fantasy_likelihood(noise=noise.squeeze(1))  # type: ignore[union-attr]
        return model.warm_start(self)

    def get_fantasy_model(self, inputs: Tensor, targets: Tensor, **kwargs: Any) -> Self:
        if not self._is_exact:
            raise NotImplementedError(
                "`get_fantasy_model` needs the exact posterior of `solver=Cholesky()`. Use `condition_on_observations(X, Y)`."
            )
        return super().get_fantasy_model(inputs, targets, **kwargs)

    def warm_start(self, previous: "PathwiseGP") -> Self:
        """Start the mean's next solve from ``previous``, a model of the first rows of the same data; return this model.

        Raises:
            ValueError: if the training inputs of ``previous`` are not the first of this model's.
        """
        self.eval()
        previous.eval()
        X, earlier = self.train_inputs[0], previous.train_inputs[0]
        if len(earlier) > len(X) or not torch.equal(earlier, X[: len(earlier)]):
            raise ValueError(f"`previous` must have been trained on the first rows of this model's data, got {len(earlier)} other rows.")
        weights = previous._warm_mean_weights
        if weights is not None:
            self._warm_mean_weights = weights.new_zeros(len(self._centres), 1)
            self._warm_mean_weights[: len(weights)] = weights * (previous._outcome_affine()[1] / self._outcome_affine()[1])
        return self

    def _draw_prior(self, num_paths: int, num_draws: int, generator: torch.Generator) -> PriorPaths:
        X = self.train_inputs[0]
        return PriorPaths.draw(
            self.covar_module,
            X.shape[-1],
            num_paths,
            num_features=self.num_features,
            num_draws=num_draws,
            generator=generator,
            like=X,
        )

    @torch.no_grad()
    def _condition(self, prior: PriorPaths, generator: torch.Generator, callback: Callback | None = None) -> SamplePaths:
        """Return ``prior`` conditioned on the data, on transformed inputs and in standardised units."""
        X, y = self.train_inputs[0], self.train_targets
        n, s = len(X), prior.num_paths
        num_bytes = COLUMNS_HELD * n * (s + 1) * X.element_size()
        memory.require(num_bytes, X.device, f"Solving for {s} paths at {n} points", "Draw fewer paths at a time.")
        kernel = deepcopy(self.covar_module).requires_grad_(False)
        mean_module = deepcopy(self.mean_module).requires_grad_(False)

        self.solution = solve_weights(
            self._system(kernel),
            prior,
            X,
            y - mean_module(X),
            self.noise,
            solver=self.solver if self.solver is not None else self._default_solver(),
            warm=self._warm_mean_weights,
            generator=generator,
            callback=callback,
        )
        mean_weights = self.solution.value[:, :1].clone()
        self._warm_mean_weights = mean_weights
        return SamplePaths(
            prior=prior,
            data=KernelBasis(kernel, self._centres),
            weights=mean_weights - self.solution.value[:, 1:],
            mean_weights=mean_weights,
            prior_mean=mean_module,
        )

    @property
    def _centres(self) -> Tensor:
        """The points that carry the weights, on transformed inputs."""
        return self.train_inputs[0]

    def _system(self, kernel: Kernel) -> LinearSystem:
        """Return the system that the weights solve."""
        return KernelSystem(kernel_operator(kernel, self._centres, memory_budget=self.memory_budget), self.noise)

    def _default_solver(self) -> Solver:
        """Return the solver of a model that was given none."""
        return default_solver(len(self._centres))

    @property
    def _is_exact(self) -> bool:
        """Whether ``posterior`` is GPyTorch's own; a batch of fantasies stays what it was made as."""
        if not self.has_exact_posterior:
            return False
        X = self.train_inputs[0]
        return isinstance(self.solver, Cholesky) or (self.solver is None and X.shape[-2] <= EXACT_UP_TO) or X.ndim > 2

    def _state_settings(self) -> tuple[Any, ...]:
        return self.solver, self.num_features, self.num_paths, self.seed, self.memory_budget, self._is_exact

    def _posterior_paths(self) -> SamplePaths:
        """Return the paths behind ``posterior``, kept until the model changes."""
        if self._drop_stale_state() is None:
            generator = torch.Generator().manual_seed(self.seed)
            prior = self._draw_prior(self.num_paths, math.ceil(self.num_paths / PATHS_PER_DRAW), generator)
            key = self._state_key().frozen()
            self.prediction_strategy = PathsState(key, self._condition(prior, generator))
        paths: SamplePaths = self.prediction_strategy.paths
        return paths

    def _without_state(self) -> Self:
        weights, self._warm_mean_weights = self._warm_mean_weights, None
        try:
            return super()._without_state()
        finally:
            self._warm_mean_weights = weights

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Self:
        self._warm_mean_weights = None
        return super()._apply(fn, *args, **kwargs)


def default_solver(n: int) -> Solver:
    """Return the solver of a model of n points that was given none."""
    return Cholesky() if n <= DIRECT_SOLVE_UP_TO else Auto()
