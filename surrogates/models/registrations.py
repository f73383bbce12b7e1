"""Our sample paths where BoTorch draws its own: ``draw_matheron_paths``, its two parts, and all
that is built on them.

Importing this module registers :class:`PathwiseGP` and its subclasses with BoTorch's dispatchers,
so that ``PathwiseThompsonSampling``, ``get_matheron_path_model`` and ``optimize_posterior_samples``
use the model's solver, and paths that are evaluated tile by tile.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from botorch.sampling.pathwise.features import FeatureMap, KernelEvaluationMap
from botorch.sampling.pathwise.paths import GeneralizedLinearPath, SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.sampling.pathwise.prior_samplers import (
    DrawKernelFeaturePaths,
    draw_kernel_feature_paths,
)
from botorch.sampling.pathwise.update_strategies import GaussianUpdate, gaussian_update
from botorch.sampling.pathwise.utils import (
    get_output_transform,
    get_train_inputs,
    get_train_targets,
)
from gpytorch.likelihoods import HadamardGaussianLikelihood, _GaussianLikelihoodBase
from gpytorch.models import ExactGP
from linear_operator.operators import ConstantDiagLinearOperator, DiagLinearOperator, LinearOperator
from torch import Size, Tensor

from surrogates import memory
from surrogates.functions.features import PriorPaths, RandomFeatures
from surrogates.functions.paths import BatchPaths, SamplePaths
from surrogates.models.data import detached_copy
from surrogates.models.pathwise import PathwiseGP
from surrogates.operators.differentiable import Basis, KernelBasis, combine, combine_rowwise
from surrogates.operators.kernel_matrix import kernel_operator
from surrogates.rules.limits import noise_at
from surrogates.rules.solved import COLUMNS_HELD, default_solver, joined_targets
from surrogates.solvers.accuracy import PosteriorError
from surrogates.systems.system import KernelSystem


class PathwiseSamplePath(SamplePath):
    """A model's paths in the shapes of BoTorch, in the user's units, without transforms of its own.

    Args:
        paths: s functions, or s of every posterior of a batch.
        sample_shape: of s elements; empty for one function.
    """

    def __init__(self, paths: SamplePaths | BatchPaths, sample_shape: Size):
        super().__init__()
        self.paths = paths
        self.sample_shape = sample_shape

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Return the functions at x (batch, q, d): broadcast(sample_shape + model's batch shape,
        batch) + (q,), outputs in the batch.

        Where the batch has a dimension beside one of the sample shape, each function is evaluated
        at points of its own.
        """
        paths = self.paths
        if isinstance(paths, SamplePaths):
            return _broadcast(paths, paths.each, self.sample_shape, x)
        X = x if paths.input_transform is None else paths.input_transform(x)
        values = paths.of_parts(
            X, lambda part, points: _broadcast(part, part.each, self.sample_shape, points)
        )
        if paths.units is None:
            return values
        # Other outcome transforms want the outputs last
        values = values.mT if paths.several_outputs else values.unsqueeze(-1)
        values = paths.units.untransform(values, x)
        return values.mT if paths.several_outputs else values.squeeze(-1)

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Do nothing: the model is no ensemble."""


class TiledLinearPath(GeneralizedLinearPath):
    """BoTorch's path ``bias(x) + φ(x)ᵀ w``, never holding the features of all points: forwards and
    backwards by tiles.

    Args:
        basis: the N functions φ.
        feature_map: the same functions as BoTorch has them, with its input transform if it has one.
        weight: sample_shape + (N,).
    """

    def __init__(self, basis: Basis, feature_map: FeatureMap, weight: Tensor, **settings: Any):
        super().__init__(feature_map, weight, **settings)
        self.basis = basis

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Return the functions at x (batch, q, d): broadcast(sample_shape, batch) + (q,)."""
        transform = getattr(self.feature_map, "input_transform", None)
        x = x if transform is None else transform(x)
        W = self.weight.reshape(-1, self.weight.shape[-1]).T
        values = _broadcast(
            lambda X: combine(self.basis, X, W),
            lambda X: combine_rowwise(self.basis, X, W),
            self.weight.shape[:-1],
            x,
        )
        return values if self.bias_module is None else values + self.bias_module(x)


class RandomFeatureMap(FeatureMap):
    """:class:`RandomFeatures` as a feature map of BoTorch."""

    def __init__(self, features: RandomFeatures):
        super().__init__()
        self.features = features
        self.num_outputs = features.num_features
        self.batch_shape = Size()

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Return Φ(x), (..., q, F)."""
        return self.features(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)


@DrawMatheronPaths.register(PathwiseGP)
def _draw_paths(
    model: PathwiseGP, *, sample_shape: Size, prior_sampler: Any, update_strategy: Any
) -> SamplePath:
    """Draw paths with a seed from the global generator, like all of BoTorch. Those of an exact
    model come as BoTorch's ``MatheronPath``, whose prior and update are ours.
    """
    stock = prior_sampler is draw_kernel_feature_paths and update_strategy is gaussian_update
    if not stock or (model._is_exact and model.train_targets.ndim == 1):
        model.eval()
        return DrawMatheronPaths.funcs[(ExactGP,)](
            model,
            sample_shape=sample_shape,
            prior_sampler=prior_sampler,
            update_strategy=update_strategy,
        )
    sample_shape = Size(sample_shape)
    return PathwiseSamplePath(
        model.paths(sample_shape.numel(), generator=_generator()), sample_shape
    )


@DrawKernelFeaturePaths.register(PathwiseGP)
def _draw_prior(
    model: PathwiseGP, *, sample_shape: Size, num_features: int | None = None, **botorch: Any
) -> GeneralizedLinearPath:
    """Draw functions of as many features as the model has; BoTorch's for a batch or given maps."""
    if model.train_targets.ndim > 1 or botorch:
        botorch |= {} if num_features is None else {"num_features": num_features}
        return DrawKernelFeaturePaths.funcs[(ExactGP,)](model, sample_shape=sample_shape, **botorch)
    model.eval()
    X = model.train_inputs[0]
    sample_shape = Size(sample_shape)
    prior = PriorPaths.draw(
        model.covar_module,
        X.shape[-1],
        sample_shape.numel(),
        num_features=model.num_features if num_features is None else num_features,
        generator=_generator(),
        like=X,
        points=X,
    )
    ((features, W),) = prior.draws
    return TiledLinearPath(
        features,
        RandomFeatureMap(features),
        W.T.reshape(*sample_shape, -1),
        bias_module=deepcopy(model.mean_module).requires_grad_(False),
        input_transform=deepcopy(getattr(model, "input_transform", None)),
        output_transform=detached_copy(get_output_transform(model)),
    )


@GaussianUpdate.register(PathwiseGP, _GaussianLikelihoodBase)
def _update(
    model: PathwiseGP,
    likelihood: _GaussianLikelihoodBase,
    *,
    sample_values: Tensor,
    target_values: Tensor | None = None,
    points: Tensor | None = None,
    noise_covariance: Tensor | LinearOperator | None = None,
    scale_tril: Tensor | LinearOperator | None = None,
) -> GeneralizedLinearPath:
    """Return k(·, X) H⁻¹ (y − f(X) − ε) for given values of f(X), with the model's solver.

    BoTorch's factorisation takes over for a batch, and where a solver cannot: without noise, with a
    noise covariance that is not diagonal, given a factor.
    """
    if not model.rule.is_exact:
        raise ValueError(
            f"`update_strategy` must be left to a {type(model).__name__} itself, got BoTorch's, an"
            " update by all data. Draw with the defaults of `draw_matheron_paths`, or use a"
            " PathwiseGP."
        )
    points = get_train_inputs(model, transformed=True)[0] if points is None else points
    if noise_covariance is None and isinstance(likelihood, HadamardGaussianLikelihood):
        noise_covariance = DiagLinearOperator(noise_at(likelihood, points))
    noise = noise_covariance
    if noise is None:
        noise = likelihood.noise_covar(shape=points.shape[:-1])
    if points.ndim > 2 or scale_tril is not None or not isinstance(noise, DiagLinearOperator):
        return GaussianUpdate.funcs[(ExactGP, _GaussianLikelihoodBase)](
            model,
            likelihood,
            sample_values=sample_values,
            target_values=target_values,
            points=points,
            noise_covariance=noise_covariance,
            scale_tril=scale_tril,
        )
    variances = noise.diagonal().detach()
    if target_values is None:
        target_values = get_train_targets(model, transformed=True)
    kernel = deepcopy(model.covar_module).requires_grad_(False)
    system = KernelSystem(
        kernel_operator(kernel, points, memory_budget=model.memory_budget),
        variances[0] if isinstance(noise, ConstantDiagLinearOperator) else variances,
    )
    mean = model.mean_module(points)
    weights = _update_weights(
        model, system, (target_values - mean).detach(), (sample_values - mean).detach()
    )
    feature_map = KernelEvaluationMap(
        kernel, points, input_transform=deepcopy(getattr(model, "input_transform", None))
    )
    return TiledLinearPath(KernelBasis(kernel, points), feature_map, weights)


def _update_weights(
    model: PathwiseGP, system: KernelSystem, target_values: Tensor, sample_values: Tensor
) -> Tensor:
    """Return H⁻¹ (y − f − ε), of the shape to which y and f (..., n) broadcast, for values from
    which the mean has been subtracted. Each y and each f + ε is solved for once.
    """
    shape = torch.broadcast_shapes(target_values.shape, sample_values.shape)
    memory.require(
        COLUMNS_HELD * shape.numel() * sample_values.element_size(),
        system.device,
        f"An update of {shape.numel()} sample values",
        "Draw fewer paths at a time.",
    )
    values = sample_values.expand(shape)
    noise_draw = system.noise.sqrt() * torch.randn_like(values.contiguous())
    misfits, values, noise_draw = (
        part.reshape(-1, system.n).T for part in (target_values, values, noise_draw)
    )
    num_means = misfits.shape[1]
    targets = joined_targets(misfits, values, noise_draw)
    solver = model.solver if model.solver is not None else default_solver(system.n)
    model.solution = solver.solve(
        system,
        targets,
        generator=_generator(),
        posterior=PosteriorError.for_targets(system, targets, num_means),
    )
    model.solution.warn_if_unsolved("The updates of the sample paths")
    means, samples = model.solution.value.T.tensor_split([num_means])
    return means.reshape(target_values.shape) - samples.reshape(shape)


def _broadcast(
    everywhere: Callable[[Tensor], Tensor],
    each: Callable[[Tensor], Tensor],
    sample_shape: Size,
    x: Tensor,
) -> Tensor:
    """Return s functions at x (batch, q, d), broadcast(sample_shape, batch) + (q,): ``everywhere``
    all of them at X (..., q, d), (s, ..., q), ``each`` function i at ``X[i]``, (s, q) for (s, q,
    d).
    """
    shape = torch.broadcast_shapes(sample_shape, x.shape[:-2])
    x = x.reshape(*[1] * (len(shape) - x.ndim + 2), *x.shape)
    first = len(shape) - len(sample_shape)
    sampled = [first + i for i, size in enumerate(sample_shape) if size != 1]
    others = [size for i, size in enumerate(x.shape[:-2]) if i not in sampled]
    sizes = [shape[i] for i in sampled]
    front = list(range(len(sampled)))
    if all(x.shape[i] == 1 for i in sampled):
        values = everywhere(x.reshape(*others, *x.shape[-2:]))
    else:
        x = x.expand(
            *[shape[i] if i in sampled else size for i, size in enumerate(x.shape[:-2])],
            *x.shape[-2:],
        )
        values = each(x.movedim(sampled, front).reshape(sample_shape.numel(), -1, x.shape[-1]))
    return values.reshape(*sizes, *others, x.shape[-2]).movedim(front, sampled)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(int(torch.randint(2**62, (), device="cpu")))
