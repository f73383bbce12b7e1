"""Gaussian processes with weights on inducing points alone.

Notation: X (n, d) data, Z (m, d) inducing points, A = K_ZX Σ⁻¹ K_XZ + K_ZZ.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from surrogates import memory
from surrogates.functions.paths import SamplePaths
from surrogates.models.data import place_inducing_points
from surrogates.models.pathwise import PathwiseGP, takes_settings
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


class InducingPathwiseGP(PathwiseGP):
    """A :class:`PathwiseGP` whose weights are on m inducing points Z alone: O(m) numbers a path,
    O(n m) a pass over the data.

    With A = K_ZX Σ⁻¹ K_XZ + K_ZZ and a prior path f, a posterior path is

        μ(·) + f(·) + k(·, Z) (v − a),   v = A⁻¹ K_ZX Σ⁻¹ (y − μ(X)),   a = A⁻¹ K_ZX Σ⁻¹ (f(X) + ε).

    The mean is that of Titsias' variational posterior. The paths' covariance is the mean squared
    error of this mean under the prior: that of the exact posterior for Z = X, and never below it.
    Away from Z the update vanishes and the prior returns, even where there are data: choose Z to
    cover them, to about half a lengthscale.

    Args:
        inducing_points: Z (m, d) in the units of ``train_X``, or their number, of which at most n
            are chosen. They stay what they are on transformed inputs when a learnable input
            transform changes.
        inducing_method: how a number of them is chosen, see :func:`choose_inducing_points`;
            distances are in units of the lengthscale that the kernel has now.
        solver: ``None`` for ``Cholesky()`` up to 4096 inducing points and ``SGD()`` beyond.
            ``CG(preconditioner=None)`` is possible, too, but may need thousands of epochs.

    The other arguments are those of :class:`PathwiseGP`.

    Attributes:
        inducing_points: Z (m, d) on transformed inputs, a buffer.

    Raises:
        TypeError, ValueError: as ``PathwiseGP``, and for inducing points that are empty, more than
            n, not finite, or of wrong shape.

    References:
        Lin et al. (2023), "Sampling from Gaussian Process Posteriors using Stochastic Gradient
        Descent", Section 3.3 and Appendix C. Like there, a fits f(X) + ε, where samples of Titsias'
        posterior would fit the projection K_XZ K_ZZ⁻¹ f(Z) in place of f(X).
    """

    inducing_points: Tensor

    @takes_settings()
    def __init__(
        self,
        train_X: Tensor,
        *,
        inducing_points: Tensor | int = 1024,
        inducing_method: str = "k-means",
        **settings: Any,
    ) -> None:
        super().__init__(train_X, **settings)
        place_inducing_points(self, train_X, inducing_points, inducing_method)

    @property
    def rule(self) -> InducingPoints:
        return InducingPoints(
            self.solver, self.num_features, self.memory_budget, self.seed, self.inducing_points
        )
