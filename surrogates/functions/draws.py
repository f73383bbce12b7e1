"""Random draws: normal numbers, those of many paths balanced; and frequencies of kernels.

*Balanced.* Where data are dense and smooth on their scale, a posterior varies in a few smooth
directions only, and by the noise rather than by the prior. A variance over S paths is then one of a
few averages of S squares, 9 % off for one direction and S = 256. Whitening the noise there makes it
exact. With U (n, k), the leading left singular vectors of some prior values f(X), on which the
noise E (n, S) does not depend, and P = Uᵀ E,

    E  ←  E + U ((P Pᵀ / S)^-½ − I) P.

*Isotropic kernels*, half of the frequencies from a heavier tail, and weighted for it. Between dense
data, what is left of a posterior's variance comes from frequencies ω far above 1/lengthscale, which
draws from the kernel's own law p seldom show. So half of the waves follow a multivariate t
distribution h with fewer degrees of freedom, and every wave has the weight p/q of the mixture (the
balance heuristic of Veach and Guibas, 1995), at most 2:

    q = ½ p + ½ h,    p / q = 1 / (½ + ½ ρ),    ρ = h / p.

The radii ‖ω‖ of each half are stratified, and directions that follow each other are orthogonal, so
that every single draw is close to the kernel. h ends where p has 1e-10 of the variance left.

*BoTorch's kernel of categories* is a finite function of integer codes. Over c columns it is a
product, k(x, z) = Π_j (ρ_j + (1 − ρ_j) [x_j = z_j]) with ρ_j = exp(−1 / c ℓ_j). Of integers,
[x = z] = E cos ω(x − z) for ω uniform in [0, 2π).

Notation: d input columns, lengthscale 1, r = ‖ω‖.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from botorch.models.kernels.categorical import CategoricalKernel
from scipy.special import (
    betainc,
    betaincinv,
    gammainccinv,
    gammaincinv,
    gammaln,
    ive,
    kve,
    loggamma,
)
from torch import Tensor

from surrogates import memory

BEYOND_TAIL = 1e-10  # of the prior variance is left to the kernel's own half
# ρ: weights stay positive in float32, a third of whose range is left to what they are multiplied by
LARGEST_RATIO = torch.finfo(torch.float32).max ** (2 / 3)

Array = np.ndarray[Any, np.dtype[np.float64]]


def standard_normal(shape: Sequence[int], like: Tensor, generator: torch.Generator) -> Tensor:
    """Return N(0, 1) draws of the dtype and device of ``like``, drawn in float64: a seed means the
    same in either dtype and, unless they are so many that the device draws them, everywhere.
    """
    own = memory.generator_for(generator, like.device, math.prod(shape))
    return torch.randn(*shape, generator=own, device=own.device, dtype=torch.float64).to(like)


def balanced_normal(values: Tensor, generator: torch.Generator) -> Tensor:
    """Return N(0, 1) draws, balanced over the columns.

    Args:
        values: (n, S) prior functions at n points, in units of the noise there.
    """
    draws = standard_normal(values.shape, values, generator)
    return balanced_rows(values, draws, lambda A, B: A.T @ B)


def balanced_rows(
    values: Tensor,
    draws: Tensor,
    product: Callable[[Tensor, Tensor], Tensor],
    num_directions: int = 8,
    draws_each: int = 8,
) -> Tensor:
    """Return N(0, 1) draws, balanced over the columns, of which several processes hold rows.

    The directions come from the squares of their lengths, in float64: those below 5e-7 of the
    longest are left out.

    Args:
        values: (n_r, S) prior functions at the points of this process, in units of the noise there.
        draws: (n_r, S), the rows of this process.
        product: AᵀB over the rows of all processes, for this one's of A and B.
        num_directions: k at most.
        draws_each: the draws that one direction needs, to be shown by the values and to be normal.
    """
    k = min(num_directions, draws.shape[1] // draws_each)
    values = values[:, : draws_each * num_directions].double()
    squares = product(values, values)
    if k == 0 or not squares.isfinite().all():  # the solver says what is wrong with such values
        return draws
    squares, axes = torch.linalg.eigh(squares)
    leading = squares > 1e3 * torch.finfo(squares.dtype).eps * squares[-1]
    leading[:-k] = False
    U = values @ (axes[:, leading] / squares[leading].sqrt())
    P = product(U, draws.double())
    spread, axes = torch.linalg.eigh(P @ P.T / P.shape[1])
    whitened = (axes / spread.sqrt()) @ (axes.T @ P)
    return draws + (U @ (whitened - P)).to(draws)


@dataclass(frozen=True)
class RadialLaw(ABC):
    """An isotropic law of frequencies."""

    dim: int  # d

    @property
    @abstractmethod
    def reach(self) -> float:
        """The radius where the heavier tail ends."""

    @abstractmethod
    def radii(self, count: int, generator: torch.Generator) -> Array:
        """Return ``count`` stratified radii in ascending order."""

    @abstractmethod
    def log_density(self, r: Array) -> Array:
        """Return the logarithm of the density of ω with ‖ω‖ = r."""


class NormalLaw(RadialLaw):
    """N(0, I), of RBF kernels."""

    @property
    def reach(self) -> float:
        return math.sqrt(2.0 * gammainccinv(0.5 * self.dim, BEYOND_TAIL))

    def radii(self, count: int, generator: torch.Generator) -> Array:
        return normal_radii(self.dim, strata(count, generator))

    def log_density(self, r: Array) -> Array:
        return -0.5 * (self.dim * math.log(2.0 * math.pi) + r * r)


@dataclass(frozen=True)
class StudentLaw(RadialLaw):
    """The multivariate t distribution, of Matérn kernels with ν = ``degrees`` / 2."""

    degrees: float  # of freedom
    largest: float = math.inf  # the radius where the law ends

    @property
    def reach(self) -> float:
        shrunk = betaincinv(0.5 * self.degrees, 0.5 * self.dim, BEYOND_TAIL)
        return math.sqrt(self.degrees * (1.0 / shrunk - 1.0))

    def radii(self, count: int, generator: torch.Generator) -> Array:
        # 1 / (1 + r² / degrees) is Beta(degrees / 2, d / 2)
        beyond = 1.0 - self._mass() * strata(count, generator)
        shrunk = betaincinv(0.5 * self.degrees, 0.5 * self.dim, beyond)
        return np.sqrt(self.degrees * (1.0 / shrunk - 1.0))

    def log_density(self, r: Array) -> Array:
        total = self.degrees + self.dim
        constant = (
            gammaln(0.5 * total)
            - gammaln(0.5 * self.degrees)
            - 0.5 * self.dim * math.log(self.degrees * math.pi)
            - math.log(self._mass())
        )
        values = constant - 0.5 * total * np.log1p(r * r / self.degrees)
        return np.where(r <= self.largest, values, -np.inf)

    def _mass(self) -> float:
        """Return the share of the whole distribution that lies within ``largest``."""
        shrunk = 1.0 / (1.0 + self.largest**2 / self.degrees)
        return 1.0 - float(betainc(0.5 * self.degrees, 0.5 * self.dim, shrunk))


@dataclass(frozen=True)
class ScaledNormalLaw(RadialLaw):
    """N(0, τ I) with τ ~ Gamma(alpha, rate alpha), of rational quadratic kernels."""

    alpha: float

    @property
    def reach(self) -> float:
        precision = gammainccinv(self.alpha, BEYOND_TAIL) / self.alpha
        return NormalLaw(self.dim).reach * math.sqrt(precision)

    def radii(self, count: int, generator: torch.Generator) -> Array:
        lengths = normal_radii(self.dim, strata(count, generator))
        order = torch.randperm(count, generator=generator, device=generator.device).cpu().numpy()
        precision = gammaincinv(self.alpha, strata(count, generator)[order]) / self.alpha
        return np.sort(lengths * np.sqrt(precision))

    def log_density(self, r: Array) -> Array:
        a = self.alpha
        order = a - 0.5 * self.dim
        x = math.sqrt(2.0 * a) * r
        constant = (
            math.log(2.0) + a * math.log(a) - gammaln(a) - 0.5 * self.dim * math.log(2.0 * math.pi)
        )
        with np.errstate(divide="ignore"):
            return constant + order * np.log(x / (2.0 * a)) + np.log(kve(order, x)) - x


@dataclass(frozen=True)
class PiecewisePolynomialLaw(RadialLaw):
    """The law of kernels that are (1 − r)^e Σ_i a_i rⁱ up to r = 1, and 0 beyond.

    Mellin's transform of the kernel is that of the law, whatever d, and gives the characteristic
    function of u = log ‖ω‖, of which a Fourier transform makes a density:

        E ‖ω‖^−z = 2^(1 − z) Γ((d − z)/2) / (Γ(d/2) Γ(z/2)) Σ_i a_i B(z + i, e + 1),    z = −i s.
    """

    power: int  # e
    coefficients: tuple[float, ...]  # a

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        """u from −32 to 32 in steps of a thousandth, and the density there."""
        count = 2**15
        z = -2j * np.pi / 64.0 * np.arange(1, count + 1)
        e = self.power + 1.0
        factor = (1.0 - z) * math.log(2.0) + loggamma(0.5 * (self.dim - z)) - loggamma(0.5 * z)
        factor += gammaln(e) - gammaln(0.5 * self.dim)
        moments = np.ones(count + 1, dtype=np.complex128)
        moments[1:] = sum(
            a * np.exp(factor + loggamma(z + i) - loggamma(z + i + e))
            for i, a in enumerate(self.coefficients)
        )
        density: Array = np.fft.fftshift(np.fft.irfft(moments.conj())) * count / 32.0
        return np.linspace(-32.0, 32.0, 2 * count, endpoint=False), density.clip(0.0)

    @property
    def reach(self) -> float:
        return float(self._at(np.array([1.0 - BEYOND_TAIL]))[0])

    def radii(self, count: int, generator: torch.Generator) -> Array:
        return self._at(strata(count, generator))

    def log_density(self, r: Array) -> Array:
        surface = math.log(2.0) + 0.5 * self.dim * math.log(math.pi) - gammaln(0.5 * self.dim)
        with np.errstate(divide="ignore"):
            density = np.log(np.interp(np.log(r), *self._table))
        return density - surface - self.dim * np.log(r)

    def _at(self, quantiles: Array) -> Array:
        u, density = self._table
        cumulative = density.cumsum() - 0.5 * density  # by the trapezium rule
        return np.exp(np.interp(quantiles * density.sum(), cumulative, u))


def weighted_frequencies(
    law: RadialLaw,
    tails: Tensor,
    like: Tensor,
    generator: torch.Generator,
    largest_radius: float = 1e6,
    degrees: float = 0.3,
) -> tuple[Tensor, Tensor]:
    """Return frequencies Ω (d, h) and their ratios ρ (h,).

    Args:
        law: p.
        tails: (h,), which of the waves are to follow the heavier tail.
        like: tensor whose dtype and device the result takes.
        largest_radius: of the tail: beyond, float32 has no phase of a wave.
        degrees: of freedom of the tail: few give nearly as many waves to every octave.
    """
    tail = StudentLaw(law.dim, degrees, min(law.reach, largest_radius))
    directions = like.new_empty(law.dim, len(tails))
    r = np.empty(len(tails))
    for part, chosen in ((law, ~tails), (tail, tails)):
        count = int(chosen.sum())
        if count:
            r[chosen.numpy()] = part.radii(count, generator)
            directions[:, chosen.to(like.device)] = orthogonal_directions(
                law.dim, count, like, generator
            )
    log_ratios = np.minimum(tail.log_density(r) - law.log_density(r), math.log(LARGEST_RATIO))
    return directions * torch.from_numpy(r).to(like), torch.from_numpy(np.exp(log_ratios)).to(like)


def harmonics(rate: float, tails: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return orders j (h,) of the Fourier series exp(rate (cos θ − 1)) = E cos jθ and their ratios
    ρ (h,): from the kernel's own law or, where ``tails`` (h,) are true, all orders alike.
    """
    own = ive(np.arange(math.ceil(20.0 + 12.0 * math.sqrt(rate))), rate)
    own[1:] *= 2.0  # of both signs
    own = own[own[::-1].cumsum()[::-1] > BEYOND_TAIL]
    orders = np.empty(len(tails), dtype=int)
    for law, chosen in ((own, ~tails), (np.ones_like(own), tails)):
        cumulative = law.cumsum()
        quantiles = strata(int(chosen.sum()), generator) * cumulative[-1]
        orders[chosen.numpy()] = np.searchsorted(cumulative[:-1], quantiles, side="right")
    ratios = own.sum() / (len(own) * own[orders])
    signs = torch.randint(2, (len(tails),), generator=generator, device=generator.device).cpu()
    return torch.from_numpy(orders) * (2 * signs - 1), torch.from_numpy(ratios)


def orthogonal_directions(dim: int, count: int, like: Tensor, generator: torch.Generator) -> Tensor:
    """Return (d, count) unit vectors of uniform law, orthogonal within consecutive blocks of d."""
    width = min(dim, count)
    shape = (math.ceil(count / width), dim, width)
    Q, R = torch.linalg.qr(standard_normal(shape, like.new_empty(0).double(), generator))
    # Signs fixed: uniform over the orthogonal group
    Q = Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return Q.transpose(0, 1).reshape(dim, -1)[:, :count].to(like)


def strata(count: int, generator: torch.Generator) -> Array:
    """Return one uniform number from each of ``count`` equal parts of [0, 1), ascending."""
    uniform = torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64)
    return (np.arange(count) + uniform.cpu().numpy()) / count


def normal_radii(dim: int, quantiles: Array) -> Array:
    """Return lengths of N(0, I) vectors at ``quantiles`` of their law."""
    return np.sqrt(2.0 * gammaincinv(0.5 * dim, quantiles))


def category_frequencies(
    kernel: CategoricalKernel, num_columns: int, count: int, generator: torch.Generator
) -> Tensor:
    """Return frequencies (c, h) for ``num_columns`` = c and ``count`` = h: 0 with probability ρ_j,
    else uniform. Both come from one number, stratified over the waves of a column.
    """
    shape = (num_columns, count)
    device = generator.device
    order = torch.rand(shape, generator=generator, device=device).argsort(1)
    order[0] = torch.arange(count, device=device)  # ascending, as the waves of other kernels are
    within = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
    uniform = (order + within) / count
    lengthscale = kernel.lengthscale.detach().reshape(-1, 1).to(uniform)
    ignored = torch.exp(-1.0 / (num_columns * lengthscale))
    rest = -torch.expm1(-1.0 / (num_columns * lengthscale))
    return 2.0 * torch.pi * (uniform - ignored).clamp_min(0.0) / rest
