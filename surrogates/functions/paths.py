"""Sample paths of a Gaussian process posterior: functions that are drawn once and evaluated, with
gradients, anywhere.

Matheron's rule, with a prior draw f, noise ε ~ N(0, Σ), H = k(X, X) + Σ, and representer weights v
= H⁻¹(y − μ(X)), a = H⁻¹(f(X) + ε):

    posterior draw   =   μ(·)  +   f(·)      +   k(·, X) (v − a)
                        mean     prior path      update by the data
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import torch
from botorch.models.transforms.outcome import ChainedOutcomeTransform, OutcomeTransform, Standardize
from botorch.posteriors.posterior import Posterior
from torch import Tensor

from surrogates import checks
from surrogates.operators.differentiable import Basis, KernelBasis, combine, combine_rowwise
from surrogates.operators.expressions import kernel_values
from surrogates.operators.linalg import stable_cholesky


class Units(NamedTuple):
    """The inverse of an outcome transform: ``offset + scale · standardised``, then the inverses of
    ``others``, last first.

    Attributes:
        offset: of the batch shape B of the standardised values, outputs last if there are several.
        scale: of shape B.
        others: transforms other than a last ``Standardize``, in the order in which they were
            applied to the outcomes.
    """

    offset: Tensor
    scale: Tensor
    others: tuple[OutcomeTransform, ...] = ()

    @classmethod
    def of(cls, transform: OutcomeTransform | None, batch_shape: torch.Size, like: Tensor) -> Self:
        """Return the units of a model whose standardised targets have shape (*batch_shape, n)."""
        chain = _links(transform)
        if not chain or type(chain[-1]) is not Standardize:
            return cls(like.new_zeros(batch_shape), like.new_ones(batch_shape), chain)
        # From (*batch, 1, m) to (*batch, m), or (*batch) for one output
        last = slice(None) if chain[-1]._m > 1 else 0
        means, scales = (
            values.detach()[..., 0, last].expand(batch_shape)
            for values in (chain[-1].means, chain[-1].stdvs)
        )
        return cls(means.to(like), scales.to(like), chain[:-1])

    def untransform(self, Y: Tensor, X: Tensor) -> Tensor:
        """Return Y (..., q, m) at X, after the affine map, in the user's units."""
        for transform in reversed(self.others):
            Y, _ = transform.untransform(Y, X=X)
        return Y

    def untransform_posterior(
        self, posterior: Posterior, X: Tensor, outputs: list[int] | None = None
    ) -> Posterior:
        """Return the posterior, on which the affine map has been applied,
        of ``outputs`` (all if ``None``) in the user's units.
        """
        for transform in reversed(self.others):
            part = transform if outputs is None else transform.subset_output(outputs)
            posterior = part.untransform_posterior(posterior, X=X)
        return posterior


@dataclass(frozen=True, eq=False)
class SamplePaths:
    """s functions drawn from a posterior, and its mean; all tiled, so that any number of points
    fits.

    They are differentiable in X any number of times, by autograd and by ``torch.func`` (``grad``,
    ``jacrev``, ``jacfwd``, ``hessian``, ``vmap`` over points), and in nothing else. Second
    derivatives take about four times as long as first ones. Where a point coincides with one of the
    data, a derivative that does not exist counts as zero, see
    :func:`surrogates.operators.expressions.kernel_values`: a Matérn-1/2 kernel counts as flat
    there, and Hessians of the other kernels with a closed form are right.

    Values are in the user's units: ``offset + scale · (standardised value)``; inputs too, before
    the model's input transform. Points of another dtype than the model's are taken in that of the
    model.

    Attributes:
        prior: the s prior functions f, a :class:`PriorPaths`; ``None`` where ``data`` alone make up
            the paths, as finitely many features do.
        data: the functions k(·, x_i) of the n data points, or the n features.
        weights: (n, s), v − a for every path. In float64 on float32 data they ask for sums in
            float64, as do those of ``prior``.
        mean_weights: (n, 1), v.
        prior_mean: μ, maps (..., q, d) to (..., q).
        input_transform: applied to X first; ``None`` for none.
    """

    prior: Any
    data: Basis
    weights: Tensor
    mean_weights: Tensor
    prior_mean: Callable[[Tensor], Tensor]
    input_transform: Callable[[Tensor], Tensor] | None = None
    offset: float = 0.0
    scale: float = 1.0

    def __repr__(self) -> str:
        parts = f"{len(self.weights)} weights of {type(self.data).__name__}"
        return f"SamplePaths({self.num_samples} functions of {parts}, {self.weights.dtype})"

    @property
    def num_samples(self) -> int:
        """The number of functions, s."""
        return self.weights.shape[1]

    @property
    def parts(self) -> tuple[Self]:
        """Itself: the paths of the only posterior."""
        return (self,)

    def __call__(self, X: Tensor) -> Tensor:
        """Return every path at X (..., q, d): (s, ..., q)."""
        X = self._inputs(X, self.input_transform)
        update = combine(self.data, X, self.weights)
        return self._outputs(X, update if self.prior is None else self.prior(X) + update)

    def each(self, X: Tensor) -> Tensor:
        """Return path i at its own points ``X[i]``: (s, q), for X (s, q, d)."""
        if X.ndim != 3 or len(X) != self.num_samples:
            raise ValueError(
                f"`X` must have shape ({self.num_samples}, q, d), a row of points for every path,"
                f" got {tuple(X.shape)}."
            )
        X = self._inputs(X, self.input_transform)
        update = combine_rowwise(self.data, X, self.weights)
        return self._outputs(X, update if self.prior is None else self.prior.each(X) + update)

    def mean(self, X: Tensor) -> Tensor:
        """Return the posterior mean (from the mean's own solve, not the average of the paths) at X
        (..., q, d): (..., q).
        """
        X = self._inputs(X, self.input_transform)
        return self._outputs(X, combine(self.data, X, self.mean_weights).squeeze(0))

    def part(self, functions: slice) -> Self:
        """Return some of the functions, and the same mean."""
        return replace(
            self,
            prior=None if self.prior is None else self.prior.part(functions),
            weights=self.weights[:, functions].contiguous(),
        )

    def summed_in(self, dtype: torch.dtype) -> Self:
        """Return the same functions with weights in ``dtype``, in which they are summed."""
        return replace(
            self,
            prior=None if self.prior is None else self.prior.summed_in(dtype),
            weights=self.weights.to(dtype),
            mean_weights=self.mean_weights.to(dtype),
        )

    def tempered(self, shares: Tensor) -> Self:
        """Return functions that deviate from the mean by shares (s,) of what these do, and the same
        mean: 1 leaves a function as it is, 0 makes it the mean.
        """
        if shares.shape != (self.num_samples,):
            raise ValueError(
                f"`shares` must have shape ({self.num_samples},), one for every path, got"
                f" {tuple(shares.shape)}."
            )
        deviations = self.weights - self.mean_weights
        return replace(
            self,
            prior=None if self.prior is None else self.prior.scaled(shares),
            weights=self.mean_weights + shares.to(deviations) * deviations,
        )

    @torch.no_grad()
    def condensed(self, Z: Tensor) -> Self:
        """Return functions of m terms that have the values of these at points Z (m, d), as far as
        precision allows: the minimum-norm interpolants Σ_j k(·, z_j) c_j beside the prior mean.
        Their mean is this one's interpolant.

        Raises:
            TypeError: if the paths are no combinations of a kernel at data.
        """
        if not isinstance(self.data, KernelBasis):
            raise TypeError(
                "`data` must be a KernelBasis for paths to be condensed, got"
                f" {type(self.data).__name__}. Use the paths themselves."
            )
        X = self._inputs(Z, self.input_transform)
        basis = KernelBasis(self.data.kernel, X)
        K = kernel_values(basis.doubled.kernel, X.double(), X.double())
        factor = stable_cholesky(K, X.dtype, overwrite=True)
        updates = combine(self.data, X, torch.cat([self.mean_weights, self.weights], dim=1))
        if self.prior is not None:
            updates[1:] += self.prior(X)
        weights = torch.cholesky_solve(updates.T.double(), factor).to(X.dtype)
        return replace(
            self, prior=None, data=basis, weights=weights[:, 1:], mean_weights=weights[:, :1]
        )

    def to(self, device: torch.device | str) -> Self:
        """Return the same functions on another device."""
        return replace(
            self,
            prior=None if self.prior is None else self.prior.to(device),
            data=self.data.to(device),
            weights=self.weights.to(device),
            mean_weights=self.mean_weights.to(device),
            prior_mean=_moved(self.prior_mean, device),
            input_transform=_moved(self.input_transform, device),
        )

    @cached_property
    def _form(self) -> tuple[int, torch.dtype]:
        return self.data.dim, self.data.dtype

    def _inputs(self, X: Tensor, transform: Callable[[Tensor], Tensor] | None) -> Tensor:
        if not isinstance(X, Tensor):
            checks.tensor("X", X)
        d, dtype = self._form
        X = X.to(dtype)
        X = X if transform is None else transform(X)
        if X.ndim < 2 or X.shape[-1] != d:  # which a transform may change
            raise ValueError(f"`X` must have shape (..., q, {d}), got {tuple(X.shape)}.")
        return X

    def _outputs(self, X: Tensor, deviations: Tensor) -> Tensor:
        values = self.prior_mean(X) + deviations
        is_scaled = self.scale != 1.0 or self.offset != 0.0
        return self.offset + self.scale * values if is_scaled else values


@dataclass(frozen=True, eq=False)
class BatchPaths:
    """s functions drawn from every posterior of a batch: of several independent outputs, several
    data sets, or both.

    Values are in the user's units. Points X (..., q, d) are broadcast with the data sets (*batch);
    values have the outputs last.

    Attributes:
        parts: the functions of every posterior, in row-major order of ``batch_shape``.
        batch_shape: (*batch, m), or (*batch) for one output.
        several_outputs: whether m is there.
        input_transform: applied to X first; ``None`` for none.
        units: what remains to be undone of the outcome transform; a mean is then that of the
            untransformed function, transformed.
    """

    parts: tuple[SamplePaths, ...]
    batch_shape: torch.Size
    several_outputs: bool = False
    input_transform: Callable[[Tensor], Tensor] | None = None
    units: Units | None = None

    def __repr__(self) -> str:
        shape = tuple(self.batch_shape)
        return f"BatchPaths({self.num_samples} functions of each posterior of a batch {shape})"

    @property
    def num_samples(self) -> int:
        """The number of functions of each posterior, s."""
        return self.parts[0].num_samples

    def __call__(self, X: Tensor) -> Tensor:
        """Return every function at X (..., q, d): (s, ..., *batch, q) or, of several outputs,
        (s, ..., *batch, q, m).
        """
        return self._evaluate(X, SamplePaths.__call__)

    def each(self, X: Tensor) -> Tensor:
        """Return path i at its own points ``X[i]``: (s, *batch, q) or, of several outputs,
        (s, *batch, q, m), for X (s, *batch, q, d).
        """
        batch = self.batch_shape[:-1] if self.several_outputs else self.batch_shape
        if X.ndim != 3 + len(batch) or X.shape[:-2] != (self.num_samples, *batch):
            expected = ", ".join(map(str, (self.num_samples, *batch)))
            raise ValueError(
                f"`X` must have shape ({expected}, q, d), a row of points for every path, got"
                f" {tuple(X.shape)}."
            )
        return self._evaluate(X, SamplePaths.each)

    def mean(self, X: Tensor) -> Tensor:
        """Return the posterior mean at X (..., q, d): (..., *batch, q) or, of several outputs,
        (..., *batch, q, m).
        """
        return self._evaluate(X, SamplePaths.mean)

    def part(self, functions: slice) -> Self:
        """Return some of the functions of every posterior, and the same means."""
        return replace(self, parts=tuple(part.part(functions) for part in self.parts))

    def to(self, device: torch.device | str) -> Self:
        """Return the same functions on another device."""
        units = self.units
        if units is not None:
            units = Units(
                units.offset.to(device),
                units.scale.to(device),
                tuple(_moved(part, device) for part in units.others),
            )
        parts = tuple(part.to(device) for part in self.parts)
        return replace(
            self, parts=parts, input_transform=_moved(self.input_transform, device), units=units
        )

    def _evaluate(self, X: Tensor, evaluate: Callable[[SamplePaths, Tensor], Tensor]) -> Tensor:
        X = self.parts[0]._inputs(X, self.input_transform)
        checks.batch_of_points(
            X, self.batch_shape[:-1] if self.several_outputs else self.batch_shape
        )
        values = self.of_parts(X.unsqueeze(-3) if self.several_outputs else X, evaluate)
        if self.several_outputs:
            values = values.mT
        if self.units is None:
            return values
        if self.several_outputs:
            return self.units.untransform(values, X)
        return self.units.untransform(values.unsqueeze(-1), X).squeeze(-1)

    def of_parts(self, X: Tensor, evaluate: Callable[[SamplePaths, Tensor], Tensor]) -> Tensor:
        """Return what ``evaluate`` finds of every part at its own of points X (..., *batch_shape,
        q, d), to which they are broadcast: (s, ..., *batch_shape, q).
        """
        shape = torch.broadcast_shapes(X.shape[:-2], self.batch_shape)
        front = shape[: len(shape) - len(self.batch_shape)]
        points = X.expand(*shape, *X.shape[-2:])
        points = points.reshape(*front, len(self.parts), *X.shape[-2:])
        values = torch.stack(
            [evaluate(part, points[..., i, :, :]) for i, part in enumerate(self.parts)], dim=-2
        )
        return values.reshape(*values.shape[:-2], *self.batch_shape, X.shape[-2])


def _moved(part: Any, device: torch.device | str) -> Any:
    return deepcopy(part).to(device) if isinstance(part, torch.nn.Module) else part


def _links(transform: OutcomeTransform | None) -> tuple[OutcomeTransform, ...]:
    if transform is None:
        return ()
    if isinstance(transform, ChainedOutcomeTransform):
        return tuple(link for part in transform.values() for link in _links(part))  # type: ignore[arg-type]
    return (transform,)
