"""The error of an iterative posterior on inducing points, in posterior standard deviations.

Notation: n data, m inducing points, A = K_ZX Σ⁻¹ K_XZ + K_ZZ (m, m), R = B − A W (m, s) the
residuals of W, k_j (m,) the kernel between the inducing points and the data point x_j, L the factor
of K_ZZ.

An error E = A⁻¹ R of the weights changes the functions at x_j by k_jᵀ E, to be compared with the
variance of the paths there,

    v_j = k(x_j, x_j) − ‖L⁻¹ k_j‖² + k_jᵀ A⁻¹ k_j.

Both need A⁻¹ = L⁻ᵀ M⁻¹ L⁻¹, see :meth:`InducingSystem.whitened`, which takes O(n m²): less than an
iterative solve for many columns. A sample of the data would not do, since a few of them, those
beside inducing points, carry most of the information on the weights of a rough function.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from surrogates.operators.linalg import jittered_cholesky
from surrogates.solvers.cholesky import substituted
from surrogates.solvers.solver import NUM_ROWS, Judge, groups_by, shuffled_rows
from surrogates.systems.inducing_system import InducingSystem
from surrogates.systems.system import Apply, Targets


@dataclass(eq=False)
class InducingError(Judge):
    """Estimates the errors of a solve's columns from all of their residuals, in float64."""

    system: InducingSystem
    targets: Targets
    # (s,) the errors as of the last look at each column, NaN before the first
    found: Tensor = field(init=False)
    scale: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.found = torch.full_like(self.targets.values[0], math.nan, dtype=torch.float64)
        self.scale = torch.ones_like(self.found)
        self.epochs_per_look = self.system.epochs_per_product

    @cached_property
    def rhs(self) -> Tensor:
        """B (m, s) in float64: rounding it to float32 would count as an error of the weights."""
        return self._precise.rhs(self.targets.to(torch.float64))

    @cached_property
    def gaps(self) -> Tensor:
        """R (m, s) as of the last look at each column, NaN before the first."""
        return torch.full_like(self.rhs, math.nan)

    def first_tolerance(self) -> Tensor:
        """Return the relative residual of each column, (s,), whose weights differ from the solution
        by a draw of the posterior: such a residual has covariance A.
        """
        L, M = self._whitened
        trace = (L @ M).mul_(L).sum()
        norms = torch.linalg.vector_norm(self.rhs, dim=0)
        return trace.sqrt() / torch.where(norms > 0, norms, 1.0)

    def look(self, columns: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        gap = self.rhs[:, columns] - self._times(W) / self.scale[columns]
        self.gaps[:, columns] = gap
        self.found[columns] = self._errors(self._solve(gap), self._variances)
        return self.found[columns], self._relative(columns, gap)

    def errors(self) -> Tensor:
        return self.found

    def drift(self, columns: Tensor, R: Tensor) -> Tensor:
        claimed = R.double() / self.scale[columns]
        return self._relative(columns, self.gaps[:, columns] - claimed)

    def rounded(self, columns: Tensor, D: Tensor) -> Tensor:
        return self._relative(columns, self._times(D) / self.scale[columns])

    def of_residuals(self, W: Tensor, R: Tensor, solve: Apply) -> Tensor:
        """See :class:`Judge`. The variance that inducing points cannot explain is left out, which
        makes the errors larger, if anything.
        """
        rows = self._rows.to(R)
        variances = (rows * solve(rows.T.contiguous()).T).sum(1)
        return self._errors(solve(R) / self.scale, variances)

    def _errors(self, E: Tensor, variances: Tensor) -> Tensor:
        """Return the errors of columns whose weights are wrong by E (m, c), (c,)."""
        squares = (self._rows @ E.double()).square() / variances.double().unsqueeze(1)
        of_groups = squares[groups_by(variances)].mean(1)
        means = of_groups.mean(1)
        uneven = means.max() / means.mean() if bool(means.mean() > 0) else 1.0
        return (of_groups.mean(0) * uneven).sqrt()

    def _times(self, W: Tensor) -> Tensor:
        """Return A W (m, c) in float64."""
        before = self._precise.entries
        product = self._precise @ W.double()
        if self._precise is not self.system:
            self.system.entries += self._precise.entries - before
        return product

    @cached_property
    def _precise(self) -> InducingSystem:
        return self.system.precise()

    @cached_property
    def _index(self) -> Tensor:
        """The data at which errors are evaluated, random ones; inducing points only if there are
        no others, since the posterior varies less there than at new points.
        """
        order = shuffled_rows(self.system)[: NUM_ROWS + self.system.n]
        X, Z = self.system.cross.tiles.X1[order], self.system.points
        _, kinds = torch.cat([Z, X]).unique(dim=0, return_inverse=True)
        coincide = torch.isin(kinds[len(Z) :], kinds[: len(Z)])
        return order[coincide.byte().argsort(stable=True)][:NUM_ROWS]

    @cached_property
    def _rows(self) -> Tensor:
        """The k_j of the data at which errors are evaluated, (min(256, n), m)."""
        return self._precise.kernel_rows(self._index)

    @cached_property
    def _whitened(self) -> tuple[Tensor, Tensor]:
        """L and M."""
        before = self._precise.entries
        L, M = self._precise.whitened()
        if self._precise is not self.system:
            self.system.entries += self._precise.entries - before
        return L, M

    @cached_property
    def _factor(self) -> Tensor:
        return jittered_cholesky(self._whitened[1])[0]

    @cached_property
    def _variances(self) -> Tensor:
        """v_j, (min(256, n),)."""
        whitened = torch.linalg.solve_triangular(self._whitened[0], self._rows.T, upper=False)
        explained = whitened.square().sum(0)
        prior = self._precise.cross.tiles.rows(self._index).diagonal()
        left = (prior - explained).clamp_min(0.0)
        return left + (whitened * torch.cholesky_solve(whitened, self._factor)).sum(0)

    def _solve(self, R: Tensor) -> Tensor:
        """Return A⁻¹ R."""
        return substituted(self._whitened[0], self._factor, R)
