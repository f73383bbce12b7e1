"""Random Fourier features of a GPyTorch kernel, and prior functions made of them.

Notation: Ω (d, F/2) frequencies, Φ(X) = sqrt(2 outputscale / F) [cos(XΩ) | sin(XΩ)] (n, F), with
E[Φ Φᵀ] = k(X, X). Kernels that are not one stationary kernel have a scale for every frequency and,
where a linear kernel takes part, amplitudes a(X) (n, F/2).
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates import checks, memory
from surrogates.functions.draws import orthogonal_directions, standard_normal
from surrogates.functions.modulations import Amplitudes, modulated
from surrogates.functions.spectra import Embedding, Found, WaveSource
from surrogates.operators import native
from surrogates.operators.differentiable import Features, combine, combine_rowwise
from surrogates.operators.forms import StationaryKernel
from surrogates.operators.linalg import matmul


@dataclass(frozen=True, eq=False)
class RandomFeatures(Features):
    """F sine and cosine features of a kernel.

    Attributes:
        frequencies: Ω (d, F/2), lengthscales included; zero rows for input columns that the kernel
            ignores.
        scale: (F/2,), the square roots of the waves' weights: sqrt(2 outputscale / F) of one
            stationary kernel where they are equal.
        amplitudes: affine factors (d + 1, F/2) of the amplitudes, intercepts in the last row; none
            for amplitudes of 1.
        modulations: further factors of the amplitudes, of the waves of fingerprints and of tasks.
        embedding: maps the points to those that the waves are functions of.
    """

    frequencies: Tensor
    scale: Tensor
    amplitudes: tuple[Tensor, ...]
    modulations: tuple[Amplitudes, ...]
    embedding: Embedding

    @classmethod
    def draw(
        cls,
        kernel: Kernel | StationaryKernel,
        dim: int,
        num_features: int,
        *,
        weighted: bool = True,
        orthogonal: bool = False,
        generator: torch.Generator,
        like: Tensor | None = None,
        points: Tensor | None = None,
    ) -> Self:
        """Draw the features of ``kernel``, isotropic or ARD, of all columns or its active ones.

        The documentation has a table of the kernels with features. Sums, products and multiples of
        them have features, too, and so has a kernel that transforms its inputs for one of them.

        Args:
            dim: d, the number of input columns.
            num_features: F, even.
            weighted: half of the frequencies of RBF, Matérn and rational quadratic kernels from a
                heavier tail, weighted for it, with stratified radii and orthogonal directions. A
                posterior's variance between dense data needs them; the kernel itself does not.
            orthogonal: of features that are not weighted, directions from Haar-orthogonal blocks of
                d, lower variance at the same F.
            like: tensor whose dtype and device the features take; the kernel's lengthscale or first
                parameter if ``None``.
            points: (n, d) data whose lengths the features of a Tanimoto kernel are to serve; those
                of binary vectors if ``None``.

        Raises:
            ValueError: if F is odd, below 2 or below twice the number of summands, or the kernel
                has no such features.
        References:
            Rahimi, Recht (2007), "Random Features for Large-Scale Kernel Machines"; Yu et al.
            (2016), "Orthogonal Random Features"; Veach, Guibas (1995), "Optimally Combining
            Sampling Techniques for Monte Carlo Rendering" (the weights).
        """
        num_features = checks.positive_int("num_features", num_features)
        if num_features % 2:
            raise ValueError(
                f"`num_features` must be even (sine and cosine pairs), got {num_features}. Use"
                f" {num_features + 1}."
            )
        normal = _orthogonal_normal if orthogonal else standard_normal
        half = num_features // 2
        embedding = Embedding(dim, ())
        inner: Found = {}
        if isinstance(kernel, Kernel) and (closed := StationaryKernel.of(kernel)) is not None:
            kernel = closed
        if isinstance(kernel, StationaryKernel):
            like = kernel.lengthscale if like is None else like
        else:
            if like is None:
                like = next(kernel.parameters(), torch.empty(0, device="cpu")).detach()
            few = torch.full((2, dim), 0.5 / dim, device="cpu").to(like)
            embedding, inner = Embedding.of(kernel, few if points is None else points)
            dim = embedding(few).shape[1]
            points = None if points is None else embedding(points)
        source = WaveSource(dim, like, normal, generator, weighted, points=points, inner=inner)
        waves = source.draw(kernel, half)
        scale = waves.weights.sqrt()
        return cls(waves.frequencies, scale, waves.amplitudes, waves.modulations, embedding)

    @property
    def num_features(self) -> int:
        return 2 * self.frequencies.shape[1]

    @property
    def dim(self) -> int:
        return self.embedding.dim

    @property
    def dtype(self) -> torch.dtype:
        return self.frequencies.dtype

    def __call__(self, X: Tensor) -> Tensor:
        """Return Φ(X), (m, F)."""
        return self.scale.repeat(2) * torch.cat(self._waves(X), dim=1)

    def _waves(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features' cosines and sines at X (m, d), (m, F/2) each, unscaled."""
        X = self.embedding(X)
        angles = matmul(X, self.frequencies)
        waves = torch.cos(angles), torch.sin(angles)
        factors = [X @ factor[:-1] + factor[-1] for factor in self.amplitudes]
        if self.modulations:
            factors.append(modulated(self.modulations, self.scale.square(), X))
        if factors:
            amplitude = math.prod(factors[1:], start=factors[0])
            waves = waves[0] * amplitude, waves[1] * amplitude
        return waves

    def matmul(self, X: Tensor, W: Tensor) -> Tensor:
        weights = self._scaled(W).chunk(2)
        by_c = self._are_native(X, W)
        out = []
        with memory.full_precision_on(X.device):
            for rows in memory.chunks(X, len(W)):
                part = X[rows]
                cosines, sines = native.waves(part, self._panels) if by_c else self._waves(part)
                out.append((cosines @ weights[0]).addmm_(sines, weights[1]))
        return torch.cat(out)

    def matmul_gradient(self, X: Tensor, W: Tensor, cotangent: Tensor) -> Tensor:
        if not self._are_plain:
            return super().matmul_gradient(X, W, cotangent)
        cosines, sines = (part.T for part in self._scaled(W).chunk(2))
        parts = []
        for rows in memory.chunks(X, len(W)):
            of_cosines = matmul(cotangent[rows], cosines)
            of_sines = matmul(cotangent[rows], sines)
            parts.append(self._gradient(self._terms(X[rows], of_cosines, of_sines)[1]))
        return torch.cat(parts)

    def rowwise(self, X: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        num_functions, points, _ = X.shape
        if not self._are_plain:
            return super().rowwise(X, W)
        cosines, sines = (part.T for part in self._scaled(W).chunk(2))
        if self._are_native(X, W):
            sums, gradients = native.wave_sums(X.flatten(0, 1), self._panels, cosines, sines)
            return sums.view(num_functions, points), gradients.view_as(X)
        # By columns the weights are read at a quarter of the rate
        cosines = cosines.contiguous().unsqueeze(1)
        sines = sines.contiguous().unsqueeze(1)
        values = X.new_empty(num_functions, points)
        gradient = torch.empty_like(X)
        for group in memory.chunks(X, points * len(W)):
            waves, slope = self._terms(X[group], cosines[group], sines[group])
            gradient[group] = self._gradient(slope)
            values[group] = waves.sum(-1)
        return values, gradient

    def to(self, place: memory.Place) -> Self:
        frequencies = self.frequencies.to(place)
        return replace(
            self,
            frequencies=frequencies,
            scale=self.scale.to(place),
            amplitudes=tuple(part.to(place) for part in self.amplitudes),
            modulations=tuple(part.to(place) for part in self.modulations),
            embedding=self.embedding.to(frequencies),
        )

    def _are_native(self, X: Tensor, W: Tensor) -> bool:
        return self._are_plain and native.serves(X, self.frequencies, self.scale, W)

    @property
    def _are_plain(self) -> bool:
        return not (self.amplitudes or self.modulations or self.embedding.steps)

    @cached_property
    def _panels(self) -> native.Panels:
        return native.Panels.of(self.frequencies.T)

    def _scaled(self, W: Tensor) -> Tensor:
        return self.scale.repeat(2).unsqueeze(1) * W

    def _terms(self, X: Tensor, of_cosines: Tensor, of_sines: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``of_cosines_j cos α_j + of_sines_j sin α_j`` for the angles α (..., F/2) of X
        (..., d), and its derivatives in them.
        """
        angles = matmul(X, self.frequencies)
        # Not compiled: the vendor library's sine and cosine are twice as fast as the compiler's
        cosine = torch.cos(angles)
        sine = angles.sin_()
        waves = (cosine * of_cosines).addcmul_(sine, of_sines)
        return waves, cosine.mul_(of_sines).addcmul_(sine, of_cosines, value=-1.0)

    def _gradient(self, slope: Tensor) -> Tensor:
        """Return the gradient in X (..., d) for the second of what ``_terms`` returns."""
        return matmul(slope.flatten(0, -2), self.frequencies.T).view(*slope.shape[:-1], -1)


@dataclass(frozen=True, eq=False)
class PriorPaths:
    """Functions drawn from a Gaussian process prior of mean zero, as combinations of random
    features; differentiable, tiled.

    Attributes:
        draws: one or more independent sets of features, with the weights (F, s_g) of the functions
            made of each.
    """

    draws: tuple[tuple[RandomFeatures, Tensor], ...]

    def __repr__(self) -> str:
        number = sum(weights.shape[1] for _, weights in self.draws)
        features = f"{len(self.draws[0][1])} features"
        return f"PriorPaths({number} functions of {features} in {len(self.draws)} draws)"

    @classmethod
    def draw(
        cls,
        kernel: Kernel,
        dim: int,
        num_paths: int,
        *,
        num_features: int,
        num_draws: int = 1,
        generator: torch.Generator,
        **options: Any,
    ) -> Self:
        """Draw ``num_paths`` functions, in ``num_draws`` groups with features of their own, for
        which ``options`` are those of :meth:`RandomFeatures.draw`.

        Functions that share features have the covariance ΦΦᵀ of those features, off k by O(F^-1/2)
        however many functions there are; over several draws the covariance averages to k. With
        weighted features the variance that data leave is right in every draw, too.
        """
        num_paths = checks.positive_int("num_paths", num_paths)
        num_draws = min(checks.positive_int("num_draws", num_draws), num_paths)
        draws = []
        for size in map(len, torch.arange(num_paths, device="cpu").tensor_split(num_draws)):
            features = RandomFeatures.draw(
                kernel, dim, num_features, generator=generator, **options
            )
            draws.append(
                (features, standard_normal((num_features, size), features.frequencies, generator))
            )
        return cls(tuple(draws))

    @property
    def num_paths(self) -> int:
        """The number of functions, s."""
        return sum(weights.shape[1] for _, weights in self.draws)

    @property
    def dim(self) -> int:
        """The number of inputs, d."""
        return self.draws[0][0].dim

    def __call__(self, X: Tensor) -> Tensor:
        """Return every function at X (..., q, d): (s, ..., q)."""
        return torch.cat([combine(features, X, weights) for features, weights in self.draws])

    def each(self, X: Tensor) -> Tensor:
        """Return function i at ``X[i]``: (s, q), for X (s, q, d)."""
        groups = X.split([weights.shape[1] for _, weights in self.draws])
        return torch.cat(
            [combine_rowwise(f, group, w) for (f, w), group in zip(self.draws, groups, strict=True)]
        )

    def part(self, functions: slice) -> Self:
        """Return some of the functions."""
        chosen = range(self.num_paths)[functions]
        draws = []
        first = 0
        for features, weights in self.draws:
            inside = [i - first for i in chosen if 0 <= i - first < weights.shape[1]]
            if inside:
                draws.append((features, weights[:, inside]))
            first += weights.shape[1]
        return replace(self, draws=tuple(draws))

    def scaled(self, factors: Tensor) -> Self:
        """Return every function times its own of the factors (s,)."""
        groups = factors.split([weights.shape[1] for _, weights in self.draws])
        draws = zip(self.draws, groups, strict=True)
        return replace(
            self, draws=tuple((part, weights * own.to(weights)) for (part, weights), own in draws)
        )

    def summed_in(self, dtype: torch.dtype) -> Self:
        """Return the same functions with weights in ``dtype``, in which they are summed."""
        return replace(self, draws=tuple((part, weights.to(dtype)) for part, weights in self.draws))

    def to(self, place: memory.Place) -> Self:
        """Return the same functions on another device, or in another dtype."""
        moved = tuple((part.to(place), weights.to(place)) for part, weights in self.draws)
        return replace(self, draws=moved)


def _orthogonal_normal(shape: tuple[int, int], like: Tensor, generator: torch.Generator) -> Tensor:
    """Return (d, k) columns of the law of N(0, I), orthogonal within consecutive blocks of d."""
    directions = orthogonal_directions(*shape, like, generator)
    return directions * torch.linalg.vector_norm(standard_normal(shape, like, generator), dim=0)
