"""Weights on inducing points alone.

Notation: X (n, d) data, Z (m, d) inducing points, A = K_ZX Σ⁻¹ K_XZ + K_ZZ.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from surrogates import memory
from surrogates.functions.paths import SamplePaths
from surrogates.operators.linalg import DIRECT_SOLVE_UP_TO, stable_cholesky
from surrogates.rules.data_set import DataSet
from surrogates.rules.rule import FiniteRank, Rule
from surrogates.rules.solved import SolvedRule
from surrogates.solvers.cholesky import Cholesky
from surrogates.solvers.inducing_error import InducingError
from surrogates.solvers.sgd import SGD
from surrogates.solvers.solver import Solver
from surrogates.systems.inducing_system import InducingSystem
from surrogates.systems.system import Targets


@dataclass(frozen=True, eq=False)
class InducingPoints(SolvedRule):
    """Weights at m inducing points, which solve A."""

    points: Tensor  # Z (m, d), on transformed inputs

    def centres(self, data: DataSet) -> Tensor:
        # A state dict is loaded into the model's buffer, which must not move the paths drawn before
        return self.points.clone()

    def system(self, data: DataSet) -> InducingSystem:
        return InducingSystem(
            data.kernel, data.X, self.points.clone(), data.noise, memory_budget=self.memory_budget
        )

    def judge(self, system: InducingSystem, targets: Targets) -> InducingError | None:
        fits = system.bytes_to_whiten <= memory.available(system.device)
        return InducingError(system, targets) if fits else None

    def default_solver(self, num_centres: int) -> Solver:
        return Cholesky() if num_centres <= DIRECT_SOLVE_UP_TO else SGD()

    def covariance(self, data: DataSet, paths: SamplePaths) -> FiniteRank:
        """Return k(·, Z) A⁻¹ k(Z, ·), the covariance by which new data move the mean."""
        L, M = self.system(data).to(torch.float64).whitened()
        root = torch.linalg.solve_triangular(
            stable_cholesky(M).T, torch.eye(len(M), dtype=M.dtype, device=M.device), upper=True
        )
        return FiniteRank(
            paths.data,
            torch.linalg.solve_triangular(L.T, root, upper=True).to(data.X),
            perturbed=True,
        )

    def check_start(self, previous: Rule) -> None:
        same = isinstance(previous, InducingPoints) and torch.equal(previous.points, self.points)
        if not same:
            raise ValueError(
                "`previous` must be an InducingPathwiseGP with the inducing points of this model,"
                " got other ones. Give both models the same `inducing_points`."
            )
