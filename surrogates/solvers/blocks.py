"""Sampling blocks of rows: by ridge leverage scores, and from a determinantal point process.

Both are of the low-rank approximation K̂ = L Lᵀ by r random columns, L (n, r), with Λ = K̂ + λ I
and λ = σ² + the mean of what the columns leave of K's diagonal.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from surrogates.operators.linalg import jittered_cholesky
from surrogates.systems.preconditioners import column_factor
from surrogates.systems.system import KernelSystem


@dataclass(frozen=True, eq=False)
class RowSampler(ABC):
    """Draws blocks of rows, each with about the probability of its ridge leverage score ℓ_i = (K̂
    Λ⁻¹)_ii + what K̂ misses there, over λ.

    Attributes:
        scores: (n,) ℓ, above 0.
    """

    scores: Tensor

    @property
    def weights(self) -> Tensor:
        """(n,) factors of a row's residual that make blocks speak for all rows:
        the mean score over its own, the root of it.
        """
        return (self.scores.mean() / self.scores).sqrt()

    @abstractmethod
    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        """Return ``size`` distinct rows."""


@dataclass(frozen=True, eq=False)
class LeverageSampler(RowSampler):
    """Rows drawn in turn, none twice, with probabilities proportional to ℓ. O(n) a block."""

    @classmethod
    def of(
        cls, system: KernelSystem, generator: torch.Generator, rank: int = 500
    ) -> "LeverageSampler":
        """Return the sampler of ``system`` by ``rank`` columns, or all if there are fewer."""
        return cls(_scores(system, *_low_rank(system, generator, rank)))

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        return draw_without_replacement(self.scores, size, generator)


@dataclass(frozen=True, eq=False)
class DeterminantalSampler(RowSampler):
    """Blocks with P(𝓑) ∝ det(Λ_𝓑𝓑): rows that are alike avoid each other. O(n b²) a block, for
    study rather than speed.

    Λ has the eigenvectors U (n, r) of K̂ with eigenvalues ``values``, and λ for the rest of the
    space. A fixed-size process picks b eigenvectors, with probability proportional to the product
    of their eigenvalues, then rows by projections onto their span. As all of the rest is alike, a
    random subspace stands for the eigenvectors from there.

    References:
        Kulesza, Taskar (2012), "Determinantal Point Processes for Machine Learning", Sections 2.4.4
        and 5.2; Rathore et al. (2025), Section 3.2, for its use in sketch-and-project. Differs: of
        the low-rank approximation, for which the sample is exact.
    """

    U: Tensor
    values: Tensor
    floor: float

    @classmethod
    def of(
        cls, system: KernelSystem, generator: torch.Generator, rank: int = 500
    ) -> "DeterminantalSampler":
        """Return the sampler of ``system`` by ``rank`` columns, or all if there are fewer."""
        L, floor = _low_rank(system, generator, rank)
        U, singular, _ = torch.linalg.svd(L, full_matrices=False)
        return cls(_scores(system, L, floor), U, singular.square() + floor, floor)

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        chosen = self.U[:, self._eigenvectors(size, generator)]
        normal = torch.randn(
            len(self.U),
            size - chosen.shape[1],
            generator=generator,
            device=generator.device,
            dtype=torch.float64,
        )
        rest = normal.to(self.U.device)
        rest -= self.U @ (self.U.T @ rest)
        return _project(torch.linalg.qr(torch.cat([chosen, rest], dim=1)).Q, generator)

    def _eigenvectors(self, size: int, generator: torch.Generator) -> list[int]:
        """Return which of U's columns are among the ``size`` eigenvectors picked."""
        r = len(self.values)
        others = len(self.U) - len(self.values)
        logs = self.values.log().tolist()
        # table[j][l]: log elementary symmetric polynomial, degree l, of the first j eigenvalues
        table = torch.full((r + 1, size + 1), -math.inf, dtype=torch.float64, device="cpu")
        table[:, 0] = 0.0
        for j in range(r):
            table[j + 1, 1:] = torch.logaddexp(table[j, 1:], table[j, :-1] + logs[j])
        # The weight of the others, when l are from the first r
        from_rest = torch.arange(size, -1, -1, dtype=torch.float64, device="cpu")
        not_picked = (others - from_rest).clamp_min(0.0)
        log_ways = math.lgamma(others + 1) - torch.lgamma(from_rest + 1)
        log_ways = log_ways - torch.lgamma(not_picked + 1)
        log_others = log_ways + from_rest * math.log(self.floor)
        log_others[from_rest > others] = -math.inf
        remaining = int(
            torch.multinomial(torch.softmax(table[r] + log_others, 0), 1, generator=generator)
        )
        picked = []
        for j in range(r, 0, -1):
            if remaining == 0:
                break
            log_probability = float(table[j - 1, remaining - 1] + logs[j - 1] - table[j, remaining])
            chance = torch.rand((), generator=generator, dtype=torch.float64, device="cpu")
            if float(chance) < math.exp(min(0.0, log_probability)):
                picked.append(j - 1)
                remaining -= 1
        return picked


def _low_rank(system: KernelSystem, generator: torch.Generator, rank: int) -> tuple[Tensor, float]:
    """Return L, in float64, and λ."""
    system.rows.require_all("A sampler of blocks", "Use blocks='partition'.")
    L = column_factor(system, min(rank, system.n), generator).double()
    missed = (system.diagonal.double() - L.square().sum(1)).clamp_min(0.0)
    return L, system.noise.double().mean().item() + missed.mean().item()


def _scores(system: KernelSystem, L: Tensor, floor: float) -> Tensor:
    inner = L.T @ L
    inner.diagonal().add_(floor)
    missed = (system.diagonal.double() - L.square().sum(1)).clamp_min(0.0)
    factor, _ = jittered_cholesky(inner)
    captured = torch.linalg.solve_triangular(factor, L.T, upper=False).square().sum(0)
    scores = captured + missed / (floor + missed)
    # No row is out of reach, and none speaks for too many
    return scores.clamp_min(0.1 * scores.mean())


def _project(span: Tensor, generator: torch.Generator) -> Tensor:
    """Return b rows drawn from the projection process of ``span`` (n, b), orthonormal columns."""
    remaining = span.square().sum(1)
    directions = torch.empty_like(span)
    rows: list[int] = []
    for t in range(span.shape[1]):
        row = int(torch.multinomial(remaining.clamp_min(0.0).cpu(), 1, generator=generator))
        rows.append(row)
        component = span @ span[row] - directions[:, :t] @ directions[row, :t]
        directions[:, t] = component / component[row].sqrt()
        remaining = (remaining - directions[:, t].square()).index_fill(
            0, torch.tensor(rows, device=span.device), 0.0
        )
    return torch.tensor(rows, device=span.device)


def draw_without_replacement(weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return ``count`` distinct rows, drawn in turn in proportion to ``weights`` (n,)."""
    clocks = torch.empty(weights.shape, dtype=torch.float64, device=generator.device).exponential_(
        generator=generator
    )
    # The first clocks to ring are such draws
    return (weights / clocks.to(weights.device)).topk(count).indices
