"""Gaussian processes whose posterior is a set of sample paths, as BoTorch and GPyTorch models.

Notation: X (n, d) training inputs, y (n,) targets, Σ noise variances, H = k(X, X) + Σ, F random features, S or s paths.
"""

import math
import warnings
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Self

import gpytorch
import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.warnings import InputDataWarning
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.transformed import TransformedPosterior
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.constraints import GreaterThan
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import Mean
from torch import Tensor

from surrogates import checks, memory
from surrogates.features import PriorPaths, standard_normal
from surrogates.operators import KernelBasis, kernel_operator
from surrogates.paths import SamplePaths
from surrogates.posterior import affine_posterior, path_distribution
from surrogates.solvers import Auto, Callback, Cholesky, Solution, Solver
from surrogates.systems import KernelSystem, LinearSystem, Targets

DIRECT_SOLVE_UP_TO = 4096
DEFAULT_NUM_FEATURES = 2048
DEFAULT_NUM_PATHS = 256
PATHS_PER_DRAW = 32  # in the posterior's covariance: several feature draws average the features' own error out
COLUMNS_HELD = 11  # copies of an (n, s) matrix that the hungriest solver and the paths hold at once


class PathwiseGP(SingleTaskGP):
    """A single-output Gaussian process that scales: its posterior is a set of functions, from iterative solves in place of a Cholesky.

    A drop-in for BoTorch's ``SingleTaskGP``, with its defaults: RBF kernel with dimension-scaled priors, constant mean, standardised
    outcomes, inferred noise. ``posterior(X)`` has the exact mean (to the solver's tolerance) and the covariance of ``num_paths``
    paths; ``paths(s)`` returns s functions. float32 and float64; duplicate points are fine.

    Args:
        train_X: (n, d).
        train_Y: (n, 1).
        train_Yvar: (n, 1) known noise variances; ``None`` for one inferred σ².
        likelihood: Gaussian; see :func:`gaussian_likelihood` for a given σ².
        covar_module: a GPyTorch kernel without batch shape; paths need random features: RBF or Matérn, alone or in ``ScaleKernel``.
        mean_module: any GPyTorch mean; constant if ``None``.
        outcome_transform: ``Standardize(m=1)`` (the default) or ``None``.
        input_transform: as in ``SingleTaskGP``.
        solver: ``None`` for ``Cholesky()`` up to 4096 points and ``Auto()`` beyond.
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

    prediction_strategy: Any  # GPyTorch's slot for what `train()` and `set_train_data` must reset: here the paths

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
            _check_noise(train_Yvar, train_Y)
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
        with warnings.catch_warnings(), gpytorch.settings.min_fixed_noise(float_value=0.0, double_value=0.0):
            # BoTorch recommends double precision; here float32 is a choice, and the solvers report the residual that it allows.
            warnings.filterwarnings("ignore", "The model inputs are of type", InputDataWarning)
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
            ValueError: if ``num_samples`` is below 1, the kernel has no random features, or ``prior`` does not fit.
            MemoryError: if the solve cannot fit in free memory.
        """
        checks.positive_int("num_samples", num_samples)
        generator = torch.Generator().manual_seed(self.seed) if generator is None else generator
        self.eval()
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
        """Return the joint posterior at X (..., q, d): the exact mean and the covariance of ``num_paths`` paths about it.

        Args:
            output_indices: ``None`` or ``[0]``: there is one output.
            observation_noise: add the likelihood's noise (``True``) or the given variances, in standardised units.
        """
        if output_indices not in (None, [0]):
            raise ValueError(f"`output_indices` must be None or [0], this model has one output, got {output_indices}.")
        self.eval()
        X = self.transform_inputs(X)
        distribution = self(X)
        if isinstance(observation_noise, Tensor):
            distribution = self.likelihood(distribution, X, noise=observation_noise.squeeze(-1))
        elif observation_noise:
            distribution = self.likelihood(distribution, X)
        posterior = affine_posterior(distribution, *self._outcome_affine())
        return posterior if posterior_transform is None else posterior_transform(posterior=posterior, X=X)

    def __call__(self, *inputs: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Return the prior at the training inputs in training mode, the posterior in standardised units in evaluation mode."""
        if self.training or gpytorch.settings.prior_mode.on():
            return super().__call__(*inputs, **kwargs)
        return path_distribution(self._posterior_paths(), inputs[0])

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

    @property
    def noise(self) -> Tensor:
        """The noise variances: a scalar, or (n,) with ``train_Yvar``; in standardised units."""
        noise = self.likelihood.noise.detach()
        return noise.reshape(()) if noise.numel() == 1 else noise.reshape(-1)

    def get_fantasy_model(self, inputs: Tensor, targets: Tensor, **kwargs: Any) -> "PathwiseGP":
        raise NotImplementedError(
            "PathwiseGP is not conditioned in place: build a new PathwiseGP on the appended data and call `warm_start(previous)`."
        )

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

        residuals = (y - mean_module(X)).unsqueeze(1)
        noise_draw = self.noise.sqrt().unsqueeze(-1) * standard_normal((n, s), X, generator)
        targets = Targets(
            torch.cat([residuals, prior(X).T], dim=1),
            torch.cat([torch.zeros_like(residuals), noise_draw], dim=1),
        )
        system = self._system(kernel)
        initial = None
        if self._warm_mean_weights is not None:
            initial = X.new_zeros(system.n, s + 1)
            initial[:, :1] = self._warm_mean_weights
        solver = self.solver if self.solver is not None else self._default_solver()
        rhs = targets if solver.splits_targets else system.rhs(targets)
        del targets, noise_draw  # many columns: only one copy of them is kept
        self.solution = solver.solve(system, rhs, initial=initial, generator=generator, callback=callback)
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

    def _posterior_paths(self) -> SamplePaths:
        """Return the paths behind ``posterior``, kept until the data or a hyperparameter changes."""
        # Compared by value: GPyTorch's setters write through `.data`, past every version counter.
        key = (*self.parameters(), *self.buffers(), self.noise, *self.train_inputs, self.train_targets)
        state = self.prediction_strategy
        if not isinstance(state, _PosteriorState) or not state.belongs_to(key):
            generator = torch.Generator().manual_seed(self.seed)
            prior = self._draw_prior(self.num_paths, math.ceil(self.num_paths / PATHS_PER_DRAW), generator)
            state = self.prediction_strategy = _PosteriorState(tuple(t.detach().clone() for t in key), self._condition(prior, generator))
        return state.paths

    def _outcome_affine(self) -> tuple[float, float]:
        """Return (offset, scale) with ``outcome = offset + scale · standardised``."""
        transform = getattr(self, "outcome_transform", None)
        return (0.0, 1.0) if transform is None else (transform.means.item(), transform.stdvs.item())

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        self.prediction_strategy = None
        self._warm_mean_weights = None
        return super()._apply(*args, **kwargs)


@dataclass(frozen=True, eq=False)
class _PosteriorState:
    key: tuple[Tensor, ...]
    paths: SamplePaths

    def belongs_to(self, key: tuple[Tensor, ...]) -> bool:
        return len(key) == len(self.key) and all(map(torch.equal, key, self.key))


def default_solver(n: int) -> Solver:
    """Return the solver of a model of n points that was given none."""
    return Cholesky() if n <= DIRECT_SOLVE_UP_TO else Auto()


def gaussian_likelihood(noise: float) -> GaussianLikelihood:
    """Return a Gaussian likelihood with the variance ``noise`` = σ², however small (GPyTorch's own refuses σ² < 1e-4).

    Raises:
        ValueError: if ``noise`` is not finite and above 0.
    """
    noise = checks.positive_float("noise", noise, "Use a small value such as 1e-6 for exact data.")
    likelihood = GaussianLikelihood(noise_constraint=GreaterThan(min(1e-8, 0.5 * noise)))
    likelihood.noise = noise
    return likelihood


def _check_noise(train_Yvar: Any, train_Y: Tensor) -> None:
    checks.floating_tensor("train_Yvar", train_Yvar)
    if train_Yvar.shape != train_Y.shape:
        raise ValueError(f"`train_Yvar` must have the shape of `train_Y`, {tuple(train_Y.shape)}, got {tuple(train_Yvar.shape)}.")
    checks.like("train_Yvar", train_Yvar, "train_Y", train_Y)
    if not (train_Yvar > 0).all():
        raise ValueError(f"`train_Yvar` must be above 0, got {train_Yvar.min().item():g}. Use a small value such as 1e-6 for exact data.")
