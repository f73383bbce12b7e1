"""Gaussian processes whose posterior has its weights on inducing points.

Notation: X (n, d) training inputs, Z (m, d) inducing points, Σ noise variances, f prior paths at X,
ε ~ N(0, Σ).
"""

from typing import Self

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import Mean
from torch import Tensor

from surrogates import checks
from surrogates.functions.paths import SamplePaths
from surrogates.models.batches import DataSet, data_sets
from surrogates.models.covariances import FiniteRank
from surrogates.models.drawing import DIRECT_SOLVE_UP_TO, DrawingGP
from surrogates.models.pathwise import DEFAULT_NUM_FEATURES, DEFAULT_NUM_PATHS, PathwiseGP
from surrogates.operators.linalg import stable_cholesky
from surrogates.operators.stationary import StationaryKernel
from surrogates.rules.inducing_points import check_choice, choose_inducing_points
from surrogates.solvers.base import Solver
from surrogates.solvers.cholesky import Cholesky
from surrogates.solvers.sgd import SGD
from surrogates.systems.inducing import InducingSystem

DEFAULT_NUM_INDUCING = 1024


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
            ``CG(preconditioner=None)`` is possible, too, with a far smaller tolerance than its
            default: see :class:`InducingSystem` on residuals.

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

    has_exact_posterior = False

    inducing_points: Tensor

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        likelihood: GaussianLikelihood | FixedNoiseGaussianLikelihood | None = None,
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        *,
        inducing_points: Tensor | int = DEFAULT_NUM_INDUCING,
        inducing_method: str = "k-means",
        solver: Solver | None = None,
        num_features: int = DEFAULT_NUM_FEATURES,
        num_paths: int = DEFAULT_NUM_PATHS,
        seed: int = 0,
        memory_budget: int | None = None,
    ) -> None:
        checks.training_data(train_X, train_Y)
        check_one_data_set(train_X)
        check_choice(inducing_points, inducing_method, train_X)
        super().__init__(
            train_X,
            train_Y,
            train_Yvar,
            likelihood,
            covar_module,
            mean_module,
            outcome_transform,
            input_transform,
            solver=solver,
            num_features=num_features,
            num_paths=num_paths,
            seed=seed,
            memory_budget=memory_budget,
        )
        self.register_buffer(
            "inducing_points", place_inducing_points(self, inducing_points, inducing_method)
        )

    def warm_start(self, previous: DrawingGP, *, scale: float = 1.0) -> Self:
        """Start the mean's next solve from ``previous``, a model of the same inducing points and
        the first rows of the same data.

        Args:
            scale: one unit of its targets in the units of this model's, where the caller
                standardises them.
        Raises:
            ValueError: if the inducing points differ, or the training inputs of ``previous`` are
                not the first of this model's.
        """
        same = isinstance(previous, InducingPathwiseGP) and torch.equal(
            previous.inducing_points, self.inducing_points
        )
        if not same:
            raise ValueError(
                "`previous` must be an InducingPathwiseGP with the inducing points of this model,"
                " got other ones. Give both models the same `inducing_points`."
            )
        return super().warm_start(previous, scale=scale)

    def _centres(self, data: DataSet) -> Tensor:
        # A state dict is loaded into the buffer, which must not move the paths drawn before
        return self.inducing_points.clone()

    def _system(self, data: DataSet) -> InducingSystem:
        return InducingSystem(
            data.kernel, data.X, self._centres(data), data.noise, memory_budget=self.memory_budget
        )

    def _covariance(self, data: DataSet, paths: SamplePaths) -> FiniteRank:
        """Return k(·, Z) A⁻¹ k(Z, ·), the covariance by which new data move the mean."""
        L, M = self._system(data).to(torch.float64).whitened()
        root = torch.linalg.solve_triangular(
            stable_cholesky(M).T, torch.eye(len(M), dtype=M.dtype, device=M.device), upper=True
        )
        return FiniteRank(
            paths.data,
            torch.linalg.solve_triangular(L.T, root, upper=True).to(data.X),
            perturbed=True,
        )

    def _default_solver(self, num_centres: int) -> Solver:
        return Cholesky() if num_centres <= DIRECT_SOLVE_UP_TO else SGD()


def place_inducing_points(model: PathwiseGP, inducing_points: Tensor | int, method: str) -> Tensor:
    """Return Z (m, d) on the transformed inputs of ``model``: the points given, or so many chosen
    among its data, at most all.

    Several outputs share them; distances are in lengthscales of the first.
    """
    model.eval()  # the training inputs are then the transformed ones
    try:
        if isinstance(inducing_points, Tensor):
            return model.transform_inputs(inducing_points).detach().clone()
        data = data_sets(model)[0]
        generator = torch.Generator().manual_seed(model.seed)
        X = data.X.detach()
        m = min(inducing_points, len(X))
        return choose_inducing_points(
            X, m, method, generator=generator, lengthscale=_lengthscale(data.kernel)
        )
    finally:
        model.train()


def check_one_data_set(train_X: Tensor) -> None:
    """Require train_X (n, d): inducing points are those of one data set.

    Raises:
        ValueError: naming the shape.
    """
    if train_X.ndim != 2:
        raise ValueError(
            "`train_X` must have shape (n, d) for a model of inducing points, got"
            f" {tuple(train_X.shape)}. Build a model for each data set, or a PathwiseGP."
        )


def _lengthscale(kernel: Kernel) -> Tensor | None:
    """Return the lengthscales of ``kernel`` if it has a closed form in all inputs."""
    stationary = StationaryKernel.of(kernel)
    return (
        None if stationary is None or stationary.active_dims is not None else stationary.lengthscale
    )
