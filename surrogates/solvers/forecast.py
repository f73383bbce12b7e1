"""How many iterations conjugate gradients will take, from a few hundred columns of the kernel
matrix.

Notation: K (n, n), σ² the smallest noise variance, R probed columns, m_r the mean of what r columns
leave of K's diagonal, λ_1 ≥ λ_2 ≥ … .

Conjugate gradients depend on a matrix only by its eigenvalues and by what the right-hand side has
of each. So the same recursion is run on a diagonal matrix of a few hundred distinct eigenvalues, a
model of the spectrum, in about a millisecond.
"""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from surrogates.systems.preconditioners import column_factor
from surrogates.systems.system import KernelSystem

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, eq=False)
class SpectrumModel:
    """A model of K's spectrum: R eigenvalues from R columns, and beyond them a power law.

    The law λ_j = λ_R (j / R)^-p, j > R, has the trace that the columns miss, n m_R, and begins with
    λ_R = −n dm_R/dR, what the last columns removed. Where points are clustered, most of the missed
    diagonal is on few points: the law is scaled by each of ten quantiles of it, and the union
    taken.
    """

    n: int  # number of points
    noise: float  # σ²
    scale: float  # mean of K's diagonal
    eps: float  # rounding unit of K
    captured: Array  # (R,) eigenvalues of the columns' Nyström approximation, descending
    missed: Array  # (R,) m_1, …, m_R
    shares: Array  # quantiles of what each point's diagonal misses, over their mean
    least: float  # the lowest among the points that are not the columns' own, over their mean
    top: float  # λ_R
    power: float  # p

    @classmethod
    def of(cls, system: KernelSystem, generator: torch.Generator, rank: int | None = None) -> Self:
        """Return the model of ``system`` by ``rank`` random columns; ``None``: n/20, 64 to 400."""
        n = system.n
        rank = min(n, rank or max(64, min(n // 20, 400)))
        L = column_factor(system, rank, generator)
        diagonal = system.diagonal
        scale = diagonal.mean().item()
        eps = torch.finfo(L.dtype).eps
        of_columns = scale - (L.square().sum(0) / n).cumsum(0)
        of_points = (diagonal - L.square().sum(1)).sort().values
        missed, left = (
            part.clamp_min(eps * scale).double().cpu().numpy() for part in (of_columns, of_points)
        )
        middles = (np.arange(10) + 0.5) / 10  # of the tenths
        shares = _quantiles(left, middles)
        others = left[len(missed) % n :]  # the columns' own points, the first, miss nothing
        least = float(_quantiles(others, middles[0]) / others.mean())
        captured = torch.linalg.eigvalsh((L.T @ L).double()).flip(0).clamp_min(0.0).cpu().numpy()
        top, power = _power_law(n, missed)
        return cls(
            n,
            system.noise.min().item(),
            scale,
            eps,
            captured,
            missed,
            shares / shares.mean(),
            least,
            top,
            power,
        )

    @property
    def smallest(self) -> float:
        """The smallest eigenvalue of H that the model has."""
        return self.noise + self.least * self.top * (self.n / len(self.missed)) ** -self.power

    @property
    def posterior_residual(self) -> float:
        """The relative residual that stands for an error of one posterior standard deviation, of
        the variance at a point given all others: 1 / λ averaged over the spectrum, less the noise.
        """
        values, counts = self._levels(len(self.missed), self.n)
        spectrum = np.outer(values, self.shares).ravel()
        counts = np.repeat(counts / len(self.shares), len(self.shares))
        inverse = (1.0 / (self.noise + self.captured)).sum()
        inverse += (counts / (self.noise + spectrum)).sum()
        variance = max(self.n / inverse - self.noise, self.eps * self.noise)
        return math.sqrt(variance / (self.scale + self.noise))

    def direct_residual(self, dtype: torch.dtype, share: float = 1e-2) -> float:
        """Return a direct solve's relative residual in ``dtype``, a ``share`` of eps n / λ_n."""
        return share * torch.finfo(dtype).eps * self.n * self.scale / self.smallest

    def missed_by(self, rank: int) -> float:
        """Return m_r for r = ``rank``."""
        if rank <= len(self.missed):
            return float(self.missed[rank - 1])
        values, counts = self._levels(rank, self.n)
        return float(values @ counts) / self.n

    def iterations(self, rank: int, tolerance: float, acting: float = 0.03) -> float:
        """Return the iterations of conjugate gradients to a relative residual, preconditioned by
        ``rank`` columns, or not at all for 0.

        Right-hand sides are noisy prior draws, whose variance along an eigenvector is its
        eigenvalue. Rounding slows the convergence where it exceeds the smallest eigenvalue: by
        their ratio, a guess on the safe side.

        Args:
            acting: what of the preconditioner's δ = m_r acts. With all of it, as if the columns
                spanned eigenvectors, forecasts are half of what is found.
        """
        number = len(self.missed)
        beyond, counts = self._levels(max(1, rank or number), self.n)
        beyond = np.outer(beyond, self.shares).ravel()
        counts = np.repeat(counts / len(self.shares), len(self.shares))
        held = self.captured[: rank or number]
        multiplicities = np.ones(min(rank or number, number))
        if rank > number:
            levels, more = self._levels(number, rank)
            held = np.concatenate([held, levels])
            multiplicities = np.concatenate([multiplicities, more])
        delta = acting * self.missed_by(rank) if rank else 0.0
        H = self.noise + np.concatenate([held, beyond])
        P = np.ones(len(H))
        if rank:
            P = delta + self.noise + np.concatenate([held, np.zeros(len(beyond))])
        rounding = 1.0 + self.eps * H[0] / self.smallest
        return rounding * _conjugate_gradients(
            H, P, np.concatenate([multiplicities, counts]), tolerance
        )

    def _levels(self, first: int, last: int, most: int = 60) -> tuple[Array, Array]:
        """Return distinct values, and how many eigenvalues each stands for, of the law between two
        indices: at most so many, evenly spaced in the logarithm of the index.
        """
        edges = np.unique(np.round(np.geomspace(first, last, most)))
        values = self.top * (np.sqrt(edges[:-1] * edges[1:]) / len(self.missed)) ** -self.power
        return values, np.diff(edges)


def _quantiles(ascending: Array, shares: Array) -> Array:
    # NumPy's own takes a millisecond
    return np.interp(shares * (len(ascending) - 1), np.arange(len(ascending)), ascending)


def _power_law(n: int, missed: Array) -> tuple[float, float]:
    number = len(missed)
    decay = max(0.0, math.log2(missed[number // 2 - 1] / missed[-1]))
    mean = n * missed[-1] / max(1, n - number)
    top = max(decay * n * missed[-1] / number, mean)
    index = np.arange(number + 1, n + 1) / number
    low = 0.0
    high = 50.0
    while high - low > 1e-6:
        power = 0.5 * (low + high)
        low, high = (power, high) if top * (index**-power).sum() > n * missed[-1] else (low, power)
    return float(top), low


def _conjugate_gradients(
    H: Array, P: Array, multiplicities: Array, tolerance: float, most: int = 300
) -> float:
    """Return the iterations for H = diag(H), preconditioner diag(P); between the last two, the
    residual is interpolated, and beyond so many it is extrapolated.
    """
    R = np.sqrt(multiplicities * H)
    start = norm = float(np.linalg.norm(R))
    D = Z = R / P
    inner = float(R @ Z)
    for iteration in range(1, most + 1):
        V = H * D
        R = R - inner / float(D @ V) * V
        before = norm
        norm = float(np.linalg.norm(R))
        if norm <= tolerance * start:
            if norm == 0.0:
                return float(iteration)
            return iteration - math.log(tolerance * start / norm) / math.log(before / norm)
        Z = R / P
        inner, previous = float(R @ Z), inner
        D = Z + inner / previous * D
    return most * math.log(tolerance) / math.log(min(norm / start, 0.9))
