"""Many imagined continuations of one model of paths, from one block solve.

With the posterior mean m and covariance k_n of n data, k new points Q, imagined values Y at them, and C = k_n(Q, Q) + Σ,

    mean of a fantasy    m(·) + k_n(·, Q) C⁻¹ (Y − m(Q))
    its i-th path        f_i(·) + k_n(·, Q) C⁻¹ (Y − f_i(Q) − ε_i),   ε_i ~ N(0, Σ), f_i a path of the n data,

which are mean and paths of a model of all n + k data. ``k_n(·, Q) = k(·, Q) − k(·, X) W`` takes the solve W = H⁻¹ k(X, Q), whatever the
number of values imagined at Q. Notation: T the batch of sets of points Q, F = (..., *T) that of the fantasies, s paths, m outputs.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import FantasizeMixin, Model
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.transformed import TransformedPosterior
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from linear_operator.operators import RootLinearOperator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.autograd.function import once_differentiable

from surrogates import checks
from surrogates.batches import DataSet, data_sets
from surrogates.features import standard_normal
from surrogates.models import PathwiseGP
from surrogates.operators import KernelBasis, kernel_operator
from surrogates.paths import SamplePaths


class FantasyGP(Model, FantasizeMixin):
    """A batch of models of paths, each of which has seen other values at further points; made by ``PathwiseGP.fantasize``.

    The posterior is differentiable in its points and in those of the fantasies. It is that of the model when it was made, whatever
    becomes of it. It can be fantasised from in turn.

    Args:
        model: of one data set, with all data as its centres.
        X: (*T, k, d) further points, in the units of ``train_X``.
        Y: (*F, k, m) values there, in the units of ``train_Y``.
        noise: (*T, k, m) variances in standardised units, for a model whose noise is known for every point.

    Raises:
        TypeError, ValueError: for shapes that do not fit, and for models that fantasies cannot be made of.
    """

    def __init__(self, model: PathwiseGP, X: Tensor, Y: Tensor, noise: Tensor | None = None):
        super().__init__()
        _check(model, X, Y, noise)
        paths = model._posterior_paths()
        self.base = model._without_state()
        self.base.prediction_strategy = model.prediction_strategy  # the paths, which no change to `model` moves
        self.X, self.Y, self.noise = X, Y, noise
        Q, outcomes = self.base.transform_inputs(X), Y
        if hasattr(self.base, "outcome_transform"):
            outcomes, _ = self.base.outcome_transform(Y, X=Q)
        generator = torch.Generator().manual_seed(model.seed + 1)  # other noise than the paths' own
        self._outputs = []
        for t, (data, part) in enumerate(zip(data_sets(self.base), paths.parts, strict=True)):
            variances = (data.noise if noise is None else noise[..., t]).expand(Q.shape[:-1])
            solve = self.base._solve_with(data)
            self._outputs.append(_Fantasies(data, part, solve, Q, outcomes[..., t], variances, generator))

    @property
    def num_outputs(self) -> int:
        return self.base.num_outputs

    @property
    def batch_shape(self) -> torch.Size:
        """F."""
        return self.Y.shape[:-2]

    @property
    def likelihood(self) -> Likelihood:
        return self.base.likelihood

    def transform_inputs(self, X: Tensor, input_transform: Any = None) -> Tensor:
        """Return X, which the model of paths transforms by itself."""
        return X

    def posterior(  # type: ignore[override]  # BoTorch's own overrides of it disagree with one another
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> GPyTorchPosterior | TransformedPosterior:
        """Return the joint posterior at X (..., q, d) of every fantasy; arguments as those of ``PathwiseGP.posterior``."""
        if observation_noise is True and self.noise is not None:  # the mean of what is known, as BoTorch has it
            known = self.base.noise.reshape(self.num_outputs, -1)
            total = known.sum(-1) + self.noise.sum(-2)
            observation_noise = total.unsqueeze(-2) / (known.shape[-1] + self.noise.shape[-2])
        X = self.base.transform_inputs(X)
        laws = [output.law(X) for output in self._outputs]
        if self.num_outputs == 1:
            ((mean, root),) = laws
        else:
            mean, root = torch.stack([mean for mean, _ in laws], -2), torch.stack([root for _, root in laws], -3)
        distribution = MultivariateNormal(mean, RootLinearOperator(root))
        return self.base._posterior_of(distribution, X, output_indices, observation_noise, posterior_transform)

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any) -> "FantasyGP":
        """Return fantasies that have seen Y (*F', k', m) at X (*T', k', d), too; F broadcasts with T', and T' with F'."""
        _check(self.base, X, Y, noise)
        batch = torch.broadcast_shapes(X.shape[:-2], self.batch_shape)
        values = torch.cat([self.Y.expand(*Y.shape[:-2], *self.Y.shape[-2:]), Y], -2)
        points = torch.cat([self.X.expand(*batch, *self.X.shape[-2:]), X.expand(*batch, *X.shape[-2:])], -2)
        if noise is not None and self.noise is not None:
            noise = torch.cat([part.expand(*batch, *part.shape[-2:]) for part in (self.noise, noise)], -2)
        return FantasyGP(self.base, points, values, noise)


class _Fantasies:
    """The fantasies of one output.

    Args:
        paths: f_i and the mean of the n data, standardised.
        solve: applies H⁻¹ to (n, columns).
        Q: (*T, k, d).
        Y: (*F, k).
        noise: (*T, k).
    """

    def __init__(
        self,
        data: DataSet,
        paths: SamplePaths,
        solve: Callable[[Tensor], Tensor],
        Q: Tensor,
        Y: Tensor,
        noise: Tensor,
        generator: torch.Generator,
    ):
        self.kernel, self.paths, self.solve, self.Q = data.kernel, paths, solve, Q
        self.basis = KernelBasis(data.kernel, data.X)
        with torch.no_grad():
            cross = kernel_operator(data.kernel, data.X, Q.reshape(-1, Q.shape[-1])).to_dense()
            self.W = solve(cross).reshape(len(cross), *Q.shape[:-1])
        C = self._covariance(Q)
        L = psd_safe_cholesky(0.5 * (C + C.mT) + torch.diag_embed(noise))
        mean = paths.mean(Q)
        draws = standard_normal((paths.num_samples, Q.shape[-2]), Q, generator)  # the same in every t-batch
        draws = draws.reshape(len(draws), *(1,) * (Q.ndim - 2), Q.shape[-2])
        deviations = (paths(Q) - mean + noise.sqrt() * draws).movedim(0, -1)
        self.mean_weights = torch.cholesky_solve((Y - mean).unsqueeze(-1), L)  # (*F, k, 1)
        self.weights = torch.cholesky_solve(deviations, L)  # (*T, k, s)

    def law(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean (..., q) and a root (..., q, s) of the covariance at X (..., q, d), broadcast with F."""
        covariance = self._covariance(X.expand(*torch.broadcast_shapes(X.shape[:-2], self.mean_weights.shape[:-2]), *X.shape[-2:]))
        mean = self.paths.mean(X)
        deviations = (self.paths(X) - mean).movedim(0, -1)
        root = (deviations - covariance @ self.weights) / math.sqrt(self.paths.num_samples)
        return mean + (covariance @ self.mean_weights).squeeze(-1), root

    def _covariance(self, A: Tensor) -> Tensor:
        """Return k_n(A, Q), (..., a, k), for A (..., a, d) with a batch that Q's broadcasts to."""
        front, k = A.shape[:-2], self.Q.shape[-2]
        if k == 0:  # BoTorch imagines values at no points, too
            return A.new_zeros(*A.shape[:-1], 0)
        num_own = self.Q.ndim - 2
        lead, own = front[: len(front) - num_own], front[len(front) - num_own :]
        Q, W = self.Q.expand(*own, *self.Q.shape[-2:]), self.W.expand(len(self.W), *own, k)
        points = A.reshape(lead.numel(), own.numel(), *A.shape[-2:]).transpose(0, 1).flatten(1, 2)  # (T, lead · a, d)
        Q, W = Q.reshape(own.numel(), *Q.shape[-2:]), W.reshape(len(W), own.numel(), k)
        values = self.kernel(points, Q).to_dense() - _Reduction.apply(points, Q, W, self.basis, self.solve)
        return values.reshape(own.numel(), lead.numel(), A.shape[-2], k).transpose(0, 1).reshape(*front, A.shape[-2], k)


class _Reduction(torch.autograd.Function):
    """k(A, X) H⁻¹ k(X, Q) for every t, (T, a, k): by tiles, with one more solve for the gradient in Q."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, Q: Tensor, W: Tensor, basis: KernelBasis, solve: Callable[[Tensor], Tensor]) -> Tensor:
        T, a, d = A.shape
        k = Q.shape[1]
        repeated = A.unsqueeze(1).expand(T, k, a, d).reshape(T * k, a, d)
        values, gradient = basis.rowwise(repeated, W.reshape(len(W), T * k))
        ctx.basis, ctx.solve = basis, solve
        ctx.save_for_backward(A, Q, gradient.reshape(T, k, a, d))
        return values.reshape(T, k, a).mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        A, Q, gradient = ctx.saved_tensors
        of_A = torch.einsum("tak,tkad->tad", cotangent, gradient)
        of_Q = None
        if ctx.needs_input_grad[1]:
            basis, (T, k, d) = ctx.basis, Q.shape
            adjoint = [KernelBasis(basis.kernel, A[t]).matmul(basis.Z, cotangent[t]) for t in range(T)]
            _, slopes = basis.rowwise(Q.reshape(T * k, 1, d), ctx.solve(torch.cat(adjoint, 1)))
            of_Q = slopes.reshape(T, k, d)
        return of_A, of_Q, None, None, None


def _check(model: PathwiseGP, X: Any, Y: Any, noise: Any) -> None:
    """Raise unless fantasies of ``model`` can be made of X, Y and the noise."""
    checks.floating_tensor("X", X)
    checks.floating_tensor("Y", Y)
    if not model.has_exact_posterior or model.batch_shape:
        raise NotImplementedError(
            f"A batch of fantasies needs a PathwiseGP of one data set, got a {type(model).__name__} of batch shape "
            f"{tuple(model.batch_shape)}. Use `PathwiseGP(..., solver=Cholesky())`, or condition on one set of values at a time."
        )
    d, m = model.train_inputs[0].shape[-1], model.num_outputs
    if X.ndim < 2 or X.shape[-1] != d:
        raise ValueError(f"`X` must have shape (..., k, {d}), got {tuple(X.shape)}.")
    if Y.shape[Y.ndim - X.ndim :] != (*X.shape[:-1], m):
        raise ValueError(f"`Y` must have a shape that ends in {(*X.shape[:-1], m)}, got {tuple(Y.shape)}.")
    checks.like("X", X, "train_X", model.train_inputs[0])
    checks.like("Y", Y, "train_X", model.train_inputs[0])
    if not isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
        return
    if noise is None:
        raise ValueError("`noise` must be given, variances in standardised units: the model's noise is known for every point.")
    if noise.shape != (*X.shape[:-1], m) or not (noise > 0).all():
        raise ValueError(f"`noise` must be variances above 0 of shape {(*X.shape[:-1], m)}, got {tuple(noise.shape)}.")
