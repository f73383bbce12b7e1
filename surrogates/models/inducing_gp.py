"""Gaussian processes with weights on inducing points; see :mod:`surrogates.rules.inducing`."""

from typing import Any

from torch import Tensor

from surrogates.models.data import place_inducing_points
from surrogates.models.pathwise import PathwiseGP, takes_settings
from surrogates.rules.inducing import InducingPoints


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
