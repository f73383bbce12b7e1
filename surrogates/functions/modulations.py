"""Amplitudes of waves that depend on the point: those of the Tanimoto kernel, and of tasks.

With c = ⟨x, z⟩, a = ‖x‖² and b = ‖z‖², the Tanimoto kernel is a linear one times Gaussian ones of
all lengthscales t^-½,

    c / (a + b − c)  =  ∫₀^∞ c exp(−t a/2) exp(−t b/2) exp(−t ‖x − z‖²/2) dt,

so that its waves have frequencies N(0, t I) and amplitudes (sᵀx) exp(−t a/2), for E s sᵀ = I. A
point with a = 1/t is the one that a wave of rate t serves best: rates are drawn for the lengths
that the data have. The amplitudes at a point are divided by their root mean square: the prior
variance is exact, and the covariance changes by O(1/h) for h waves. At x = 0 they are 1, unrelated
to all others, as k(0, 0) = 1 and k(0, z) = 0 ask.

Differs from Tripp et al. (2023), who sketch a truncated power series: nothing is truncated, and the
features are differentiable in their points.

Waves of an index kernel K have the amplitudes (L s)_t at a point of task t, for L Lᵀ = K and random
signs s, E s sᵀ = I; they have the prior variance K_tt of each task exactly, too.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from surrogates import memory
from surrogates.functions.draws import (
    Array,
    NormalLaw,
    normal_radii,
    orthogonal_directions,
    standard_normal,
    strata,
    weighted_frequencies,
)
from surrogates.functions.tasks import task_numbers
from surrogates.operators.linalg import matmul
from surrogates.operators.tanimoto import squared_lengths

SEVERAL = 0.25  # of a product's high waves are so in several factors


def turns(
    tails: Tensor, num_factors: int, weighted: bool, generator: torch.Generator
) -> list[Tensor]:
    """Return which of ``tails`` (h,) are high in each of the factors: three in four of them in one
    factor, in turn, and the fourth in each of m factors with probability 2/m.
    """
    number = tails.cumsum(0) - 1
    period = round(1.0 / SEVERAL)
    several = tails & (number % period == period - 1)
    alone = tails & ~several
    turn = alone.cumsum(0) % max(1, num_factors)
    own_tails = []
    for i in range(num_factors):
        own = several
        if num_factors > 2 and weighted:
            own = several & (_uniform(len(tails), generator) < 2.0 / num_factors)
        own_tails.append(own | (alone & (turn == i)))
    return own_tails


def shuffled(tails: Tensor, weighted: bool, generator: torch.Generator) -> Tensor:
    """Return a random order of the waves in which those of ``tails`` swap only among themselves."""
    if not weighted:
        return permutation(len(tails), generator)
    order = torch.empty(len(tails), dtype=torch.long, device="cpu")
    for chosen in (tails, ~tails):
        order[chosen] = chosen.nonzero().squeeze(1)[spread(int(chosen.sum()), generator)]
    return order


def spread(count: int, generator: torch.Generator) -> Tensor:
    """Return a random order of ``count`` sorted waves that takes one from each of √count equal
    parts by turns: what meets them in its own order meets all of them evenly.
    """
    if count == 0:
        return torch.empty(0, dtype=torch.long, device="cpu")
    part = torch.arange(count, device="cpu") * math.isqrt(count) // count
    order = permutation(count, generator)
    by_part = order[torch.argsort(part[order], stable=True)]
    turn = torch.arange(count, device="cpu") - torch.searchsorted(part, part)
    return by_part[torch.argsort(turn + _uniform(count, generator))]


def permutation(count: int, generator: torch.Generator) -> Tensor:
    """Return a random order of ``count``."""
    return torch.randperm(count, generator=generator, device=generator.device).cpu()


def _uniform(count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator, device=generator.device).cpu()


@dataclass(frozen=True, eq=False)
class _OfWaves:
    """Amplitudes of h waves, as tensors."""

    per_wave: ClassVar[tuple[str, ...]]  # those whose last dimension is h

    def reordered(self, order: Tensor) -> Self:
        """Return the same of waves in another order (F,)."""
        return self._with(lambda part: part[..., order], self.per_wave)

    def between(self, before: int, after: int) -> Self:
        """Return the same with so many waves that are not modulated before and after its own."""
        pad = torch.nn.functional.pad
        return self._with(lambda part: pad(part, (before, after)), self.per_wave)

    def to(self, place: memory.Place) -> Self:
        """Return the same on another device, or in another dtype."""
        is_dtype = isinstance(place, torch.dtype)
        return self._with(
            lambda part: part if is_dtype and not part.is_floating_point() else part.to(place)
        )

    def _with(self, change: Callable[[Tensor], Tensor], names: Sequence[str] = ()) -> Self:
        chosen = names or [entry.name for entry in fields(self)]
        return replace(self, **{name: change(getattr(self, name)) for name in chosen})


@dataclass(frozen=True, eq=False)
class Modulation(_OfWaves):
    """Amplitudes B_j(x) = (s_jᵀ x) exp(−t_j ‖x‖² / 2), before they are normalised."""

    per_wave = ("slopes", "rates", "active")
    columns: Tensor  # (c,), those of the fingerprint among the input columns
    slopes: Tensor  # s (c, h)
    rates: Tensor  # t (h,), from the lowest on, which is 0: a common factor cancels
    active: Tensor  # (h,), which waves are so modulated; the others have amplitude 1

    def __call__(self, X: Tensor) -> Tensor:
        """Return B(X), (m, h)."""
        everything = torch.arange(X.shape[1], device=self.columns.device)
        x = X if torch.equal(self.columns, everything) else X[:, self.columns]
        square = squared_lengths(x).unsqueeze(1)
        amplitude = matmul(x, self.slopes) * torch.exp(-0.5 * square * self.rates)
        return torch.where(self.active & (square != 0.0), amplitude, 1.0)

    def deviation(self, X: Tensor) -> Tensor:
        """Return the root mean square (m, 1) that the amplitudes are to have."""
        return X.new_ones(len(X), 1)


@dataclass(frozen=True, eq=False)
class TaskAmplitudes(_OfWaves):
    """Amplitudes B_j(t) of the task t of a point, not yet divided by their root mean square."""

    per_wave = ("table", "active")
    column: Tensor  # (1,), that of the task, from 0 on, among the input columns
    table: Tensor  # B (T, h)
    deviations: Tensor  # (T,), the square roots of the prior variances
    active: Tensor  # (h,), as in :class:`Modulation`

    def __call__(self, X: Tensor) -> Tensor:
        """Return B(X), (m, h)."""
        return torch.where(self.active, self.table[self._tasks(X)], 1.0)

    def deviation(self, X: Tensor) -> Tensor:
        """Return the root mean square (m, 1) that the amplitudes are to have."""
        return self.deviations[self._tasks(X)].unsqueeze(1)

    def _tasks(self, X: Tensor) -> Tensor:
        return task_numbers(X[:, self.column].squeeze(1), len(self.table))


Amplitudes = Modulation | TaskAmplitudes


def modulated(modulations: tuple[Amplitudes, ...], weights: Tensor, X: Tensor) -> Tensor:
    """Return the amplitudes (m, h) of waves with ``weights`` (h,), whose weighted mean square is
    what it is to be at every point: over the waves of each summand, those that the same factors
    modulate.
    """
    parts = [part(X) for part in modulations]
    amplitudes = math.prod(parts[1:], start=parts[0])
    patterns = torch.stack([part.active for part in modulations])
    if patterns.all():  # the same for all
        number = torch.zeros_like(weights, dtype=torch.long)
    else:
        number = patterns.unique(dim=1, return_inverse=True)[1]
    summands = torch.nn.functional.one_hot(number).to(X)
    means = ((weights * amplitudes.square()) @ summands) / (weights @ summands)
    scales = [torch.where(part.active, part.deviation(X), 1.0) for part in modulations]
    return amplitudes * (means.rsqrt() @ summands.mT) * math.prod(scales)


def tanimoto_waves(
    columns: Tensor,
    count: int,
    lengths: tuple[float, float] | None,
    like: Tensor,
    generator: torch.Generator,
) -> tuple[Tensor, Modulation]:
    """Return frequencies (c, h) and amplitudes of waves of equal weights, in ascending order of
    their rates.

    Args:
        columns: (c,), of the fingerprint.
        count: h.
        lengths: the least and the largest ‖x‖² to serve; those of binary vectors if ``None``.
    """
    c = len(columns)
    least, largest = (1.0, float(c)) if lengths is None else lengths
    rates, density = _rates(math.log(least), math.log(largest), strata(count, generator))
    normal, ratios = _normal_waves(c, count, like, generator)
    frequencies = normal * torch.from_numpy(np.sqrt(rates)).to(like)
    steepness = torch.from_numpy(c * rates / density).to(like) / (0.5 + 0.5 * ratios)
    slopes = _directions(c, count, like, generator) * steepness.sqrt()
    active = torch.ones(count, dtype=torch.bool, device=like.device)
    lowest_first = torch.from_numpy(rates - rates[0]).to(like)
    return frequencies, Modulation(columns, slopes, lowest_first, active)


def task_amplitudes(
    column: Tensor, covariance: Tensor, count: int, generator: torch.Generator
) -> TaskAmplitudes:
    """Return amplitudes of waves of equal weights for an index kernel K (T, T) of a task column."""
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp_min(0.0).sqrt()
    signs = torch.randint(2, (len(root), count), generator=generator, device=generator.device).to(
        root
    )
    active = torch.ones(count, dtype=torch.bool, device=root.device)
    deviations = covariance.diagonal().sqrt()
    return TaskAmplitudes(column, root @ (2.0 * signs - 1.0), deviations, active)


def range_of_lengths(X: Tensor) -> tuple[float, float] | None:
    """Return the least ‖x‖² above 0 among the rows of X, and the largest; ``None`` if all are 0."""
    squares = squared_lengths(X)
    squares = squares[squares > 0.0]
    return (squares.min().item(), squares.max().item()) if len(squares) else None


def _normal_waves(
    dim: int, count: int, like: Tensor, generator: torch.Generator, dense_up_to: int = 32
) -> tuple[Tensor, Tensor]:
    """Return frequencies (d, h) of a Gaussian kernel in an order that meets other numbers evenly,
    and their ratios (h,): half of them from a heavier tail, except in more than ``dense_up_to``
    dimensions, where points are far from each other.
    """
    if dim > dense_up_to:
        radii = normal_radii(dim, strata(count, generator)[permutation(count, generator)])
        frequencies = _directions(dim, count, like, generator) * torch.from_numpy(radii).to(like)
        return frequencies, like.new_ones(count)
    tails = torch.arange(count, device="cpu") % 2 == 1
    frequencies, ratios = weighted_frequencies(NormalLaw(dim), tails, like, generator)
    order = shuffled(tails, True, generator).to(like.device)
    return frequencies[:, order], ratios[order]


def _directions(
    dim: int, count: int, like: Tensor, generator: torch.Generator, orthogonal_up_to: int = 256
) -> Tensor:
    """Return unit vectors (d, h), made orthogonal in few dimensions: in many they nearly are."""
    if dim <= orthogonal_up_to:
        return orthogonal_directions(dim, count, like, generator)
    return torch.nn.functional.normalize(standard_normal((dim, count), like, generator), dim=0)


def _rates(
    least: float,
    largest: float,
    quantiles: Array,
    lowest: float = -14.0,
    highest: float = 3.2,
    num_on_grid: int = 4096,
) -> tuple[Array, Array]:
    """Return rates t at ``quantiles`` of a law of u = log t, and the density q of u there: half of
    it is the law that points with lengths between the two want, uniformly in log ‖x‖², and half
    is uniform in u, for the high rates of which the variance between dense data is made.

    Args:
        least: log of the least ‖x‖².
        largest: log of the largest.
        lowest, highest: log(t ‖x‖²) at which 1e-6 of the kernel's variance is left to lower rates,
            and 2e-11 to higher ones.
    """
    low = least - 0.5
    high = largest + 0.5
    start = -high - 1.0
    end = highest - low

    def density(u: Array) -> Array:
        # At a point, −log t − log ‖x‖² has Gumbel's law
        wanted = (np.exp(-np.exp(u + low)) - np.exp(-np.exp(u + high))) / (high - low)
        return 0.5 * wanted + 0.5 * (u >= start) / (end - start)

    grid = np.linspace(lowest - high, end, num_on_grid)
    cumulative = np.cumsum(density(grid))
    u = np.interp(quantiles * cumulative[-1], cumulative, grid)
    return np.exp(u), density(u)
