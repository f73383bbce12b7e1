"""Frequencies of isotropic kernels, half of them from a heavier tail, and weighted for it.

Between dense data, what is left of a posterior's variance comes from frequencies ω far above
1/lengthscale, which draws from the kernel's own law p seldom show. So half of the waves follow a
multivariate t distribution h with fewer degrees of freedom, and every wave has the weight p/q of
the mixture (the balance heuristic of Veach and Guibas, 1995), at most 2:

    q = ½ p + ½ h,    p / q = 1 / (½ + ½ ρ),    ρ = h / p.

The radii ‖ω‖ of each half are stratified, and directions that follow each other are orthogonal, so
that every single draw is close to the kernel. h ends where p has 1e-10 of the variance left.

Notation: d input columns, lengthscale 1, r = ‖ω‖.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import betainc, betaincinv, gammainccinv, gammaincinv, gammaln, kve
from torch import Tensor

TAIL_DEGREES = 0.3  # nearly as many waves in every octave
BEYOND_TAIL = 1e-10  # of the prior variance is left to the kernel's own half
LARGEST_RADIUS = 1e6  # of the tail: beyond, float32 has no phase of a wave
LARGEST_RATIO = 1e26  # ρ: weights stay positive in float32

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class RadialLaw(ABC):
    """An isotropic law of frequencies.

    Attributes:
        dim: d.
    """

    dim: int

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
        return _normal_radii(self.dim, strata(count, generator))

    def log_density(self, r: Array) -> Array:
        return -0.5 * (self.dim * math.log(2.0 * math.pi) + r * r)


@dataclass(frozen=True)
class StudentLaw(RadialLaw):
    """The multivariate t distribution, of Matérn kernels with ν = ``degrees`` / 2.

    Attributes:
        degrees: of freedom.
        largest: the radius where the law ends.
    """

    degrees: float
    largest: float = math.inf

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
        lengths = _normal_radii(self.dim, strata(count, generator))
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


def weighted_frequencies(
    law: RadialLaw, tails: Tensor, like: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return frequencies Ω (d, h) and their ratios ρ (h,).

    Args:
        law: p.
        tails: (h,), which of the waves are to follow the heavier tail.
        like: tensor whose dtype and device the result takes.
    """
    tail = StudentLaw(law.dim, TAIL_DEGREES, min(law.reach, LARGEST_RADIUS))
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
    return directions * torch.as_tensor(r).to(like), torch.as_tensor(np.exp(log_ratios)).to(like)


def orthogonal_directions(dim: int, count: int, like: Tensor, generator: torch.Generator) -> Tensor:
    """Return (d, count) unit vectors of uniform law, orthogonal within consecutive blocks of d."""
    width = min(dim, count)
    shape = (math.ceil(count / width), dim, width)
    blocks = torch.randn(*shape, generator=generator, device=generator.device, dtype=like.dtype)
    Q, R = torch.linalg.qr(blocks.to(like.device))
    # Signs fixed: uniform over the orthogonal group
    Q = Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return Q.transpose(0, 1).reshape(dim, -1)[:, :count]


def strata(count: int, generator: torch.Generator) -> Array:
    """Return one uniform number from each of ``count`` equal parts of [0, 1), ascending."""
    uniform = torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64)
    return (np.arange(count) + uniform.cpu().numpy()) / count


def _normal_radii(dim: int, quantiles: Array) -> Array:
    return np.sqrt(2.0 * gammaincinv(0.5 * dim, quantiles))
