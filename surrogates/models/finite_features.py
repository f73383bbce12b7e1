"""Gaussian processes with finitely many features, exact in weight space at any n; see
:mod:`surrogates.rules.finite_features`.
"""

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import Mean
from torch import Tensor, nn

from surrogates.functions.feature_maps import FeatureKernel
from surrogates.models.data import data_sets
from surrogates.models.pathwise import PathwiseGP
from surrogates.rules.finite_features import FiniteFeatures
from surrogates.rules.weight_space import TRIED_ROWS, FeatureBasis, WeightPosterior


class FiniteFeatureGP(PathwiseGP):
    """A Gaussian process with the kernel ``outputscale · φ(x)ᵀ φ(z)``, φ any network or finite
    feature map: exact, at any n.

    All is computed in weight space, in O(n F² + F³) and chunks of rows: the posterior's mean and
    covariance, whose root has F columns, and paths, which are draws of the F weights. Posterior,
    paths, transforms and conditioning are otherwise those of :class:`PathwiseGP`; there is no
    linear solver, so that ``solution`` stays ``None`` and a warm start changes nothing.
    Hyperparameters: :func:`fit_finite_features`.

    Args:
        train_X: (n, d), or batches (*batch, n, d).
        train_Y: (n, m), m outputs, which are independent and share the kernel.
        train_Yvar: (n, m) known noise variances; ``None`` for one inferred σ².
        likelihood: Gaussian; see :func:`gaussian_likelihood` for a given σ².
        feature_map: φ, a ``torch.nn.Module`` from (m, d), after the input transform, to (m, F),
            each row by itself: a network, :class:`FourierFeatures`, :class:`NystromFeatures`,
            :class:`AttentionFeatures`, or several in ``torch.nn.Sequential``. It is used in
            evaluation mode, and becomes part of the model.
        mean_module: any GPyTorch mean; constant if ``None``.
        outcome_transform: as in ``PathwiseGP``.
        input_transform: as in ``SingleTaskGP``.
        seed: of the paths.

    Raises:
        TypeError, ValueError: as ``PathwiseGP``, and for a feature map that does not return (m, F)
            finite features.
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        likelihood: GaussianLikelihood | FixedNoiseGaussianLikelihood | None = None,
        *,
        feature_map: nn.Module,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        seed: int = 0,
    ) -> None:
        kernel = ScaleKernel(FeatureKernel(feature_map))
        kernel.outputscale = 1.0
        super().__init__(
            train_X,
            train_Y,
            train_Yvar,
            likelihood,
            kernel,
            mean_module,
            outcome_transform,
            input_transform,
            seed=seed,
        )
        self.eval()
        with torch.no_grad():
            first, *_ = data_sets(self)
            basis = FeatureBasis.of(first.kernel, first.X)
            basis(first.X[:TRIED_ROWS])
        self.num_features = basis.shape[1]
        self.train()

    @property
    def rule(self) -> FiniteFeatures:
        return FiniteFeatures(self.num_features, self.seed)

    def weight_posterior(self) -> WeightPosterior:
        """Return the law of the weights of a model of one output and one data set, in standardised
        units.

        Raises:
            ValueError: if a feature is not finite, or the model has several outputs or data sets.
            MemoryError: if the F × F matrices do not fit in free memory.
        """
        self.eval()
        elements = data_sets(self)
        if len(elements) > 1:
            raise ValueError(
                "`weight_posterior` needs a model of one output and one data set, got"
                f" {len(elements)} of them."
            )
        return self.rule.solve(elements[0])[1]

    def log_marginal_likelihood(self) -> float:
        """Return log p(y) of the standardised targets in nats, without the priors of the
        hyperparameters, in O(n F² + F³).

        Raises:
            ValueError, MemoryError: as :meth:`weight_posterior`.
        """
        return self.weight_posterior().log_likelihood
