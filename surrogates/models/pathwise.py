"""Gaussian processes whose posterior is a set of sample paths, as BoTorch and GPyTorch models.

Notation: X (n, d) training inputs, y (n,) targets, Σ noise variances, H = k(X, X) + Σ, F random
features, S or s paths.
"""

import os
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import wraps
from inspect import Parameter, Signature, signature
from itertools import takewhile
from pathlib import Path
from typing import Any, Self

import gpytorch
import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils import add_output_dim, gpt_posterior_settings
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.transformed import TransformedPosterior
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import _GaussianLikelihoodBase
from gpytorch.means import Mean
from torch import Tensor

from surrogates import checks
from surrogates.functions.features import PriorPaths
from surrogates.functions.paths import BatchPaths, SamplePaths
from surrogates.models.data import (
    check_kernel,
    check_likelihood,
    check_noise,
    check_noise_of_values,
    known_noise,
)
from surrogates.models.fantasies import FantasyGP, imagined, outputs_last
from surrogates.models.fresh import FreshGP, as_given, direct_algebra, ordinary_tensors
from surrogates.models.posterior import assemble, constant, fine, path_distribution
from surrogates.models.stored import load_model, save_model
from surrogates.rules.rule import Rule
from surrogates.rules.solved import AllData
from surrogates.solvers.solver import Callback, Solver
from surrogates.systems.processes import require_same, shares

STORED_SETTINGS = ("num_features", "num_paths", "seed", "memory_budget")


class PathwiseGP(FreshGP):
    """A Gaussian process that scales: its posterior is a set of functions, from iterative solves in
    place of a Cholesky.

    A drop-in for BoTorch's ``SingleTaskGP``, with its defaults: RBF kernel with dimension-scaled
    priors, constant mean, standardised outcomes, inferred noise. Up to 2000 points, and with
    ``solver=Cholesky()`` for any number, ``posterior(X)`` is exact: that of ``SingleTaskGP``, for
    float32 data by float64 arithmetic. Otherwise it has the exact mean (to the solver's tolerance)
    and the covariance of ``num_paths`` paths. Such a posterior needs a kernel with random features,
    has gradients in X alone, and ``fantasize`` returns a :class:`FantasyGP`. ``paths(s)`` returns s
    functions. float32 and float64; duplicate points are fine. Hyperparameters, data and settings
    may be changed at any time: the next posterior is that of a model built with the new ones.

    Several outputs are independent Gaussian processes, and so are the data sets of a batch: each is
    solved by itself, with hyperparameters of its own or, where a module has no batch shape, those
    of all. No q × q matrix is factorised for them, as BoTorch does in a ``ModelListGP`` of one
    model an output.

    Args:
        train_X: (n, d), or (*batch, n, d).
        train_Y: (n, m), or (*batch, n, m).
        train_Yvar: known noise variances of the shape of ``train_Y``; ``None`` for an inferred σ².
            Those of exact data, 0, become GPyTorch's least, 1e-6 (1e-4 in float32) in standardised
            units, as in ``SingleTaskGP``; all others are taken as they are.
        likelihood: ``GaussianLikelihood``, ``FixedNoiseGaussianLikelihood`` or, for a σ² of each
            task, ``HadamardGaussianLikelihood``; see :func:`gaussian_likelihood` for a given σ².
        covar_module: a GPyTorch kernel; paths need random features, see :class:`RandomFeatures`.
            Its batch shape is empty or, like those of the mean and the likelihood, (*batch, m),
            without m for one output.
        mean_module: any GPyTorch mean; constant if ``None``.
        outcome_transform: ``Standardize(m=m, batch_shape=batch)`` if not given, ``None`` for none.
            After others the posterior is as ``SingleTaskGP`` has it, and the mean of paths is the
            transformed mean.
        input_transform: as in ``SingleTaskGP``.
        solver: ``Cholesky()`` for the exact posterior, others for that of paths; ``None`` for the
            exact posterior up to 2000 points, for paths beyond, which ``Cholesky()`` solves up to
            4096 points and ``Auto()`` from there.
        num_features: F, even. Paths that share features deviate from the exact covariance by
            O(F^-1/2); with the default their average variance is within a few per cent.
        num_paths: S, the paths behind ``posterior(X)``; the standard deviation at a point has a
            relative error of about (2 S)^-1/2.
        seed: of the features, paths and batches; the same seed gives the same posterior.
        memory_budget: bytes a kept kernel matrix may take; ``None`` for 2 GiB, or a quarter of a
            CUDA device's memory. Beyond it, tiles are evaluated anew for every product.

    Attributes:
        solution: account of the last solve (residuals, whether they are within the tolerance,
            epochs, seconds), over the columns of all outputs and data sets; ``None`` before.

    Raises:
        TypeError, ValueError: for data that are not finite (BoTorch's ``InputDataError``, too), of
            wrong shape, of different dtypes or devices, for noise below 0, and for a likelihood
            without noise variances of its own.
    """

    custom_fit: Callable[..., Any]  # for `fit_gpytorch_mll`, see `fitting.hook`
    _may_cache_root: bool = True

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        likelihood: _GaussianLikelihoodBase | None = None,
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        *,
        solver: Solver | None = None,
        num_features: int = 2048,
        num_paths: int = 256,
        seed: int = 0,
        memory_budget: int | None = None,
    ) -> None:
        checks.inputs_and_targets(train_X, train_Y)
        if train_Yvar is not None:
            check_noise(train_Yvar, train_Y)
        if solver is not None and not isinstance(solver, Solver):
            raise TypeError(
                "`solver` must be a Solver such as CG(), SDD() or Cholesky(), got"
                f" {type(solver).__name__} {solver!r}."
            )
        if not isinstance(outcome_transform, OutcomeTransform | _DefaultType | None):
            raise TypeError(
                "`outcome_transform` must be an OutcomeTransform such as Standardize(m=1), or"
                f" None, got {type(outcome_transform).__name__}."
            )
        if likelihood is not None:
            check_likelihood(likelihood, train_X, train_Y, input_transform)
        if covar_module is not None:
            check_kernel(covar_module, train_X, train_Y, input_transform, solver)
        num_features = checks.positive_int("num_features", num_features)
        num_paths = checks.positive_int("num_paths", num_paths)
        seed = checks.integer("seed", seed, 0)
        memory_budget = checks.optional(checks.integer, "memory_budget", memory_budget, 0)
        # Modules follow PyTorch's default device, which costs a little to change
        is_there = torch.get_default_device() == train_X.device
        with as_given(), nullcontext() if is_there else train_X.device:
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
        if train_Yvar is not None and likelihood is None:
            variances = self.likelihood.noise_covar
            variances.noise = known_noise(variances.noise)
        self.solver = solver
        self.num_features = num_features
        self.num_paths = num_paths
        self.seed = seed
        self.memory_budget = memory_budget

    @classmethod
    def construct_inputs(cls, training_data: SupervisedDataset, **options: Any) -> dict[str, Any]:
        """Return the constructor's arguments for BoTorch's ``training_data``, with ``options``,
        further ones such as ``solver``.
        """
        return {**super().construct_inputs(training_data), **options}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a safetensors file: data, hyperparameters with their constraints and
        priors, transforms and settings; the solver is an argument of :meth:`load`.

        Raises:
            TypeError: for kernels, means, likelihoods, transforms, constraints and priors other
                than the common ones of GPyTorch and BoTorch, and for subclasses of this model.
            OSError: if it cannot be written.
        """
        if type(self) is not PathwiseGP:
            raise TypeError(f"A file holds a PathwiseGP, got {type(self).__name__}.")
        inputs = self._given_inputs
        if self.num_outputs > 1:
            inputs = inputs[..., 0, :, :]
        settings = {name: getattr(self, name) for name in STORED_SETTINGS}
        save_model(self, inputs, settings, Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, solver: Solver | None = None) -> Self:
        """Return the model that :meth:`save` has written, on the CPU: with the same solver, its
        paths and posteriors are the same.

        Raises:
            OSError: if the file cannot be read.
            ValueError: if it is no such file, is damaged, or of a newer version.
        """
        model: Self = load_model(Path(path)).build(cls, solver=solver)
        return model

    @property
    def rule(self) -> Rule:
        return AllData(self.solver, self.num_features, self.memory_budget, self.seed)

    def paths(
        self,
        num_samples: int,
        *,
        generator: torch.Generator | None = None,
        prior: PriorPaths | None = None,
        shared: bool = False,
        callback: Callback | None = None,
    ) -> SamplePaths | BatchPaths:
        """Draw ``num_samples`` functions from the posterior, in one block solve with the mean (one
        for every output and data set).

        They are differentiable in their points alone: hyperparameters count as constants, and data
        that require gradients are refused unless gradients are off.

        Args:
            num_samples: s.
            generator: source of all randomness; one seeded with the model's ``seed`` if ``None``.
            prior: the s prior functions to condition, on the model's (transformed) inputs; drawn if
                ``None``.
            shared: draw them in all processes of ``torch.distributed`` together, and return this
                one's share, about equally many. All processes have the same data and call this in
                the same way. Iterative solvers share the rows of the data; each process then holds
                all points and the weights of its own paths, which it evaluates alone. Any number of
                processes draws the same paths, but for rounding.
            callback: receives the solve's :class:`Progress`.

        Returns:
            :class:`SamplePaths` of one output and one data set, with values (s, ..., q); else
            :class:`BatchPaths`, whose values have the batch before q and several outputs after it.

        Raises:
            ValueError: if ``num_samples`` is below 1, the kernel has no random features,
                ``prior`` does not fit, the data require gradients, or there are fewer shared paths
                than processes, or not as many in all.
            MemoryError: if the solve cannot fit in free memory.
            ConnectionError: of shared paths, if another process ended, or was not heard of in time.

        Warns:
            UnsolvedWarning: here and in ``posterior``, if the solver missed its tolerance; it is a
                warning whether or not the budget was spent on purpose.
        """
        if shared:
            shape = tuple(self.train_targets.shape)
            require_same({"num_samples": num_samples, "train_Y.shape": shape})
        num_samples = checks.positive_int("num_samples", num_samples)
        generator = torch.Generator().manual_seed(self.seed) if generator is None else generator
        self.eval()
        self._check_constant_data("Paths have")
        batch_shape = self.train_targets.shape[:-1]
        dim = self.train_inputs[0].shape[-1]
        if prior is not None and batch_shape:
            raise ValueError(
                "`prior` must be None for a batch of posteriors, here of shape"
                f" {tuple(batch_shape)}: each draws its own."
            )
        if prior is not None and (prior.num_paths != num_samples or prior.dim != dim):
            raise ValueError(
                f"`prior` must hold {num_samples} functions of {dim} inputs, got {prior.num_paths}"
                f" of {prior.dim}."
            )
        own = shares("num_samples", num_samples) if shared else None
        parts = self._draw(num_samples, generator, own=own, prior=prior, callback=callback)
        units = deepcopy(self._units)
        input_transform = deepcopy(getattr(self, "input_transform", None))
        for transform in (input_transform, *units.others):
            if transform is not None:
                transform.requires_grad_(False)
        offsets = units.offset.flatten().tolist()
        scales = units.scale.flatten().tolist()
        parts = [
            replace(part, offset=o, scale=c)
            for part, o, c in zip(parts, offsets, scales, strict=True)
        ]
        others = units if units.others else None
        if not batch_shape and others is None:
            return replace(parts[0], input_transform=input_transform)
        return BatchPaths(tuple(parts), batch_shape, self.num_outputs > 1, input_transform, others)

    def posterior(  # type: ignore[override]  # BoTorch's own overrides of it disagree with one another
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> GPyTorchPosterior | TransformedPosterior:
        """Return the joint posterior at X (..., q, d): exact, or the exact mean and the covariance
        of ``num_paths`` paths about it.

        It is differentiable in X, any number of times; an exact one also in data that require
        gradients and, under ``botorch.settings.propagate_grads(True)``, in hyperparameters, unless
        the model comes from ``condition_on_observations`` or ``fantasize``. Such a call factorises
        anew. Hyperparameters, inferred noise and the parameters of transforms otherwise count as
        constants, so that ``backward()`` leaves their ``grad`` at ``None`` and
        ``torch.autograd.grad`` raises for them. Fit them by a likelihood, as ``fit`` does.

        Args:
            output_indices: which of several outputs; all if ``None``.
            observation_noise: add the likelihood's noise (``True``; its mean, where it is known for
                each point) or the given variances (..., q, m), in standardised units.

        Raises:
            TypeError: for X that is no tensor.
            ValueError: for X of another dimension than the data; for a posterior of paths, if the
                data require gradients.
        """
        # BoTorch's lists of models may ask for it by its number in the list
        if self.num_outputs == 1:
            output_indices = None
        with gpt_posterior_settings(), nullcontext() if self._learns else constant(self):
            self.eval()
            is_exact = self._is_exact
            checks.tensor("X", X)
            if is_exact and output_indices is None and self.train_targets.dtype == torch.float64:
                posterior = super().posterior(
                    X, observation_noise=observation_noise, posterior_transform=posterior_transform
                )
                return fine(posterior, self._units)
            if not is_exact:  # whose shapes GPyTorch checks
                checks.batch_of_points(X, self.batch_shape)
            points = X = self.transform_inputs(X)
            if self.num_outputs > 1:
                points, _ = add_output_dim(X, self._input_batch_shape)
            return assemble(
                self, self(points), X, output_indices, observation_noise, posterior_transform
            )

    def __call__(self, *inputs: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Return the prior at the training inputs in training mode,
        the posterior in standardised units in evaluation mode.
        """
        if self.training or gpytorch.settings.prior_mode.on():
            return super().__call__(*inputs, **kwargs)
        checks.point_width(inputs[0], self.train_inputs[0].shape[-1])
        if not self._is_exact:
            return path_distribution(
                self._posterior_paths(), inputs[0].to(self.train_inputs[0].dtype)
            )
        posterior = self._exact_posterior(learns=self._learns)
        with direct_algebra():
            return posterior(*inputs, **kwargs)

    @ordinary_tensors()
    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> Any:
        """Return a new model that has seen Y (k, m) at X (k, d), too; the hyperparameters and the
        transforms stay as they are.

        The mean's next solve starts from this model's, if it has drawn paths. X and Y may have the
        model's batch shape in front. With other batches, Y (..., k, m) at X (..., k, d) as
        BoTorch's ``fantasize`` makes them, exact models return a batch model, those of paths a
        :class:`FantasyGP`.

        Args:
            X: in the units of ``train_X``.
            Y: in the units of ``train_Y``.
            noise: variances of the shape of Y, in standardised units, needed where ``train_Yvar``
                was given; 0 as in ``train_Yvar``. Given where σ² is inferred, they make the noise
                of all data a known one, σ² that of the data so far and of values to come. They
                count in the mean, too, unlike in ``SingleTaskGP`` with an inferred σ².

        Raises:
            TypeError, ValueError: for data that are not finite or of the wrong shape, dtype or
                device, and for missing noise.
        """
        self.eval()
        check_noise_of_values(self.likelihood, noise)
        if noise is not None:
            noise = known_noise(noise)
        if self._is_exact:
            with as_given(), constant(self):
                return super().condition_on_observations(X, Y, noise=noise, **kwargs)
        if isinstance(Y, Tensor) and Y.ndim > 2 and Y.shape[:-2] != self.batch_shape:
            return FantasyGP(self, *imagined(self, X, Y, noise))
        shape = (*self.batch_shape, -1, self.num_outputs)
        _check_observations(
            X, Y, noise, like=self._given_inputs, shape=shape, needs_noise=self._needs_noise
        )
        if noise is None and self._began_homoscedastic:
            noise = self._noise_of_values(X).expand_as(Y)
        if hasattr(self, "outcome_transform"):
            Y, _ = self.outcome_transform(Y, X=self.transform_inputs(X))
        X, Y, noise = self._transform_tensor_args(X, Y, noise)
        model = self._without_state()
        inputs = torch.cat([self._given_inputs, X], -2)
        model.set_train_data(inputs, torch.cat([self.train_targets, Y], -1), strict=False)
        with as_given():
            self._extend_noise(model, noise)
        return model.warm_start(self) if self.has_weights else model

    def fantasize(
        self, X: Tensor, sampler: Any, observation_noise: Tensor | None = None, **kwargs: Any
    ) -> Any:
        """Return the model after values at X (..., k, d) that it imagines, as BoTorch's does."""
        checks.outside_transforms(
            "Fantasies must be made", "Transform functions of `posterior(X)`."
        )
        if observation_noise is None and self._began_homoscedastic:
            observation_noise = self._noise_of_values(X)
        kwargs.pop("propagate_grads", None)  # in hyperparameters: the update has none
        return super().fantasize(X, sampler, observation_noise, **kwargs)

    def get_fantasy_model(
        self, inputs: Tensor, targets: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> Any:
        """Return the posterior after appended data, which may be batches, on transformed inputs and
        in standardised units.

        Args:
            inputs: (*T, k, d), or (*T, m, k, d) the same for every of m outputs.
            targets: (*F, k), or (*F, m, k).
            noise: variances of the targets.

        Returns:
            A model of this class from exact models, a :class:`FantasyGP` from those of paths.
        """
        if self._is_exact:
            return super().get_fantasy_model(inputs, targets, noise, **kwargs)
        return FantasyGP(self.eval(), *outputs_last(self, inputs, targets, noise))

    @property
    def _supports_cache_root(self) -> bool:
        """Whether BoTorch may extend a factor of the posterior: paths have a root already."""
        return self._may_cache_root and self._is_exact

    @_supports_cache_root.setter
    def _supports_cache_root(self, value: bool) -> None:
        self._may_cache_root = value


def takes_settings(*, without: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Any]:
    """Give a constructor, which passes its ``settings`` on to that of :class:`PathwiseGP`, the
    signature with these arguments, too, which Ax and BoTorch read.

    Args:
        without: arguments that it does not take; those after them are taken by name alone.
    """

    def decorated(init: Callable[..., None]) -> Callable[..., None]:
        general = signature(PathwiseGP.__init__).parameters
        positional = list(
            takewhile(
                lambda part: part.name not in without and part.kind is not Parameter.KEYWORD_ONLY,
                general.values(),
            )
        )
        own = [
            part
            for name, part in signature(init).parameters.items()
            if name not in general and part.kind is not Parameter.VAR_KEYWORD
        ]
        named = [
            part.replace(kind=Parameter.KEYWORD_ONLY)
            for name, part in list(general.items())[len(positional) :]
            if name not in without
        ]
        whole = Signature([*positional, *own, *named], return_annotation=None)

        @wraps(init)
        def bound(*given: Any, **by_name: Any) -> None:
            init(**whole.bind(*given, **by_name).arguments)

        bound.__signature__ = whole  # type: ignore[attr-defined]
        return bound

    return decorated


def _check_observations(
    X: Any, Y: Any, noise: Any, *, like: Tensor, shape: tuple[int, ...], needs_noise: bool
) -> None:
    """Require X (*batch, k, d) ``like`` the model's inputs, Y (*batch, k, m), of ``shape`` (*batch,
    -1, m), and, if it is given or needed, ``noise`` of the shape of Y.
    """
    checks.floating_tensor("X", X)
    checks.floating_tensor("Y", Y)
    *batch, _, m = shape
    front = "".join(f"{size}, " for size in batch)
    d = like.shape[-1]
    if X.ndim != len(shape) or X.shape[:-2] != shape[:-2] or X.shape[-1] != d:
        raise ValueError(f"`X` must have shape ({front}k, {d}), got {tuple(X.shape)}.")
    if Y.shape != (*X.shape[:-1], m):
        raise ValueError(f"`Y` must have shape {(*X.shape[:-1], m)}, got {tuple(Y.shape)}.")
    checks.like("X", X, "train_X", like)
    checks.like("Y", Y, "train_X", like)
    if needs_noise and noise is None:
        raise ValueError(
            "`noise` must be given, variances of the shape of `Y` in standardised units: the"
            " model's noise is known."
        )
    if noise is not None and noise.shape != Y.shape:
        raise ValueError(
            f"`noise` must be variances of the shape of `Y`, {tuple(Y.shape)}, got"
            f" {tuple(noise.shape)}."
        )
