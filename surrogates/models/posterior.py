"""The BoTorch posterior made of sample paths.

With S paths f_s and the exact posterior mean m, the root A = [f_1 − m | … | f_S − m] / √S (q, S)
gives the covariance A Aᵀ: samples are m + A z with z ~ N(0, I_S), and no q × q matrix is ever
factorised. The deviations are taken about the mean's own solve, not about the paths' average, which
would lose a factor (S − 1) / S and correlate the two. Outputs are independent, each with its root.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import gpytorch
import torch
from botorch.acquisition.objective import (
    ExpectationPosteriorTransform,
    PosteriorTransform,
    ScalarizedPosteriorTransform,
)
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from botorch.posteriors.transformed import TransformedPosterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator.operators import (
    BlockInterleavedLinearOperator,
    DenseLinearOperator,
    LinearOperator,
    RootLinearOperator,
    SumLinearOperator,
)
from torch import Tensor
from torch.nn import Module, Parameter

from surrogates.functions.paths import BatchPaths, SamplePaths, Units
from surrogates.models.double import Rounded

# In standardised units: GPyTorch's own bound for float64
LEAST_VARIANCE = float(gpytorch.settings.min_variance.value(torch.float64))


class FinePosterior(GPyTorchPosterior):
    """A posterior in the user's units whose variances GPyTorch rounds up in the model's units, with
    a warning; here those that rounding leaves below the least are the least.

    Args:
        least: the smallest variance.
    """

    def __init__(self, distribution: MultivariateNormal, least: float):
        super().__init__(distribution)
        self.least = least

    @property
    def variance(self) -> Tensor:
        """The posterior variance (..., q, m)."""
        with gpytorch.settings.min_variance(float_value=-math.inf, double_value=-math.inf):
            return super().variance.clamp_min(self.least)


def fine(posterior: Any, units: Units) -> Any:
    """Return a ``posterior`` in the user's units, which are ``units`` of the model, with variances
    as small as the model tells from zero; those of other kinds as they are.
    """
    if isinstance(posterior, TransformedPosterior):
        posterior._posterior = fine(posterior._posterior, units)
    if type(posterior) is not GPyTorchPosterior:
        return posterior
    distribution = posterior.distribution
    smallest = min(1.0, units.scale.min().item())
    least = max(LEAST_VARIANCE * smallest**2, torch.finfo(distribution.mean.dtype).tiny)
    return FinePosterior(distribution, least)


class IndependentRoots(MultitaskMultivariateNormal):
    """The joint law of m independent outputs at q points, of which a sample takes S normals an
    output; GPyTorch's own, where it computes with it and the covariance is no longer of roots.
    """

    def __new__(cls, mean: Any = None, covariance_matrix: Any = None, **settings: Any) -> Any:
        blocks = getattr(covariance_matrix, "base_linear_op", None)
        if covariance_matrix is None or isinstance(blocks, RootLinearOperator):  # or is copied
            return super().__new__(cls)
        return MultitaskMultivariateNormal(mean, covariance_matrix, **settings)

    @property
    def roots(self) -> Tensor:
        """The roots (..., m, q, S)."""
        roots: Tensor = self.lazy_covariance_matrix.base_linear_op.root.to_dense()
        return roots

    @property
    def base_sample_shape(self) -> torch.Size:
        return torch.Size([self.roots.shape[-1], self.roots.shape[-3]])

    def get_base_samples(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008  # as in GPyTorch
        return torch.randn(
            self._extended_shape(sample_shape), dtype=self.roots.dtype, device=self.roots.device
        )

    def rsample(
        self,
        sample_shape: torch.Size = torch.Size(),  # noqa: B008
        base_samples: Tensor | None = None,
    ) -> Tensor:
        """Return samples (*sample_shape, ..., q, m), of ``base_samples`` (*sample_shape, ..., S, m)
        if they are given.
        """
        base_samples = self.get_base_samples(sample_shape) if base_samples is None else base_samples
        samples = self.mean + torch.einsum("...mqs,...sm->...qm", self.roots, base_samples)
        return samples.contiguous()  # BoTorch takes views of them


def path_distribution(paths: SamplePaths | BatchPaths, X: Tensor) -> MultivariateNormal:
    """Return the joint law at X (..., q, d): the exact mean, and the paths' covariance about it."""
    mean = paths.mean(X)
    deviations = (paths(X) - mean) / math.sqrt(paths.num_samples)
    return MultivariateNormal(mean, RootLinearOperator(deviations.movedim(0, -1)))


def assemble(
    model: Any,
    distribution: MultivariateNormal,
    X: Tensor,
    output_indices: list[int] | None,
    observation_noise: bool | Tensor,
    posterior_transform: PosteriorTransform | None,
) -> Any:
    """Return BoTorch's posterior of a ``distribution`` (..., q), or (..., m, q), at transformed X,
    in standardised units.
    """
    units: Units = model._units
    several = model.num_outputs > 1
    outputs = list(range(model.num_outputs)) if output_indices is None else output_indices
    if not outputs or not set(outputs) <= set(range(model.num_outputs)):
        raise ValueError(
            f"`output_indices` must be None or outputs below {model.num_outputs}, got"
            f" {output_indices}."
        )
    points = X.unsqueeze(-3) if several else X
    noisy = model._apply_noise(points, distribution, observation_noise)
    distribution = affine(noisy, units.offset, units.scale)
    affine_only = joint(distribution, outputs) if several else GPyTorchPosterior(distribution)
    posterior = units.untransform_posterior(affine_only, X, output_indices)
    return fine(transformed(posterior, posterior_transform, X), units)


@contextmanager
def constant(module: Module) -> Iterator[None]:
    """Keep gradients from the parameters of ``module``: where weights and caches have none in them,
    those of a transform or the noise alone would be a part that looks like the whole.
    """
    # Another thread may be copying what a model keeps, and would find half of its parameters
    lock = getattr(module, "_building", nullcontext())
    with lock:
        learnt = [
            (part._parameters, name, value)
            for part in module.modules()
            for name, value in part._parameters.items()
            if value is not None and value.requires_grad
        ]
        for holder, name, value in learnt:
            # Neither views, which would follow the parameter itself, nor copies change afterwards
            stand_in: Any = Parameter(value.detach(), requires_grad=False)
            stand_in.__deepcopy__ = value.__deepcopy__
            holder[name] = stand_in
    try:
        yield
    finally:
        with lock:
            for holder, name, value in learnt:
                holder[name] = value


def affine(
    distribution: MultivariateNormal, offset: Tensor | float, scale: Tensor | float
) -> MultivariateNormal:
    """Return the law of ``offset + scale · f``, scalars or batches; a root keeps its form."""
    mean = distribution.mean
    offset, scale = (
        torch.as_tensor(value, device=mean.device).to(mean).unsqueeze(-1)
        for value in (offset, scale)
    )
    covariance: LinearOperator = distribution.lazy_covariance_matrix
    if isinstance(covariance, Rounded):
        covariance = covariance.scaled(scale.double().square().squeeze(-1))
    elif isinstance(covariance, RootLinearOperator):
        covariance = RootLinearOperator(scale.unsqueeze(-1) * covariance.root.to_dense())
    elif scale.numel() == 1 and isinstance(covariance, SumLinearOperator):
        # Variances are then found without the matrix
        covariance = covariance * scale.square().reshape(())
    else:
        covariance = DenseLinearOperator(scale.square().unsqueeze(-1) * covariance.to_dense())
    return MultivariateNormal(offset + scale * mean, covariance)


def joint(distribution: MultivariateNormal, outputs: list[int]) -> GPyTorchPosterior:
    """Return the posterior of the ``outputs`` among those in the last dimension (..., m) of the
    batch; sampling stays in O(q S).
    """
    mean = distribution.mean
    covariance = distribution.lazy_covariance_matrix
    if len(outputs) > 1 and isinstance(covariance, RootLinearOperator):
        roots = covariance.root.to_dense()[..., outputs, :, :]
        blocks = BlockInterleavedLinearOperator(RootLinearOperator(roots))
        return GPyTorchPosterior(IndependentRoots(mean[..., outputs, :].mT, blocks))
    parts = [MultivariateNormal(mean[..., t, :], covariance[..., t, :, :]) for t in outputs]
    return GPyTorchPosterior(
        parts[0] if len(parts) == 1 else MultitaskMultivariateNormal.from_independent_mvns(parts)
    )


def transformed(posterior: Posterior, transform: PosteriorTransform | None, X: Tensor) -> Any:
    """Return the posterior after ``transform``; a weighted sum of paths is made of paths."""
    if transform is None:
        return posterior
    if not isinstance(posterior, GPyTorchPosterior) or (roots := _roots(posterior)) is None:
        return transform(posterior=posterior, X=X)
    if type(transform) is ExpectationPosteriorTransform:
        weights = transform.weights.to(roots).expand(-1, roots.shape[-3]).mT.unsqueeze(-2)
        mean = (weights * posterior.mean.mT.unflatten(-1, (-1, transform.n_w))).sum(-1)
        root = (weights.unsqueeze(-1) * roots.unflatten(-2, (-1, transform.n_w))).sum(-2)
        return joint(MultivariateNormal(mean, RootLinearOperator(root)), list(range(len(weights))))
    if type(transform) is not ScalarizedPosteriorTransform:
        return transform(posterior=posterior, X=X)
    weights = torch.as_tensor(transform.weights, device=posterior.mean.device)
    if len(weights) != roots.shape[-3]:
        return transform(posterior=posterior, X=X)
    # Q × m S: the outputs are independent
    root = (weights[:, None, None] * roots).movedim(-3, -2).flatten(-2)
    return GPyTorchPosterior(
        MultivariateNormal(transform.offset + posterior.mean @ weights, RootLinearOperator(root))
    )


def _roots(posterior: GPyTorchPosterior) -> Tensor | None:
    """Return the roots (..., m, q, S) of a posterior made of paths, ``None`` for others."""
    distribution = posterior.distribution
    if isinstance(distribution, IndependentRoots):
        return distribution.roots
    if isinstance(distribution.lazy_covariance_matrix, RootLinearOperator):
        return distribution.lazy_covariance_matrix.root.to_dense().unsqueeze(-3)
    return None
