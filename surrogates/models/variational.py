"""Sparse variational Gaussian processes (SVGP), the usual approximation to compare with, as models
whose posterior is its paths; see :mod:`surrogates.rules.variational`.
"""

from typing import Any

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import Mean
from torch import Tensor

from surrogates import checks
from surrogates.models.batches import DEFAULT_NUM_INDUCING, data_sets, place_inducing_points
from surrogates.models.pathwise import DEFAULT_NUM_FEATURES, DEFAULT_NUM_PATHS, PathwiseGP
from surrogates.rules.inducing_points import check_choice
from surrogates.rules.variational import Variational, WhitenedPosterior


class VariationalGP(PathwiseGP):
    """A sparse variational Gaussian process: the data enter through m inducing values alone.

    Until :func:`fit_variational` has been called, q(v) is the maximiser of the evidence lower bound
    for the current hyperparameters, in closed form, with M = I + L⁻¹ K_ZX Σ⁻¹ K_XZ L⁻ᵀ and in O(n
    m²):

        q(v) = N(M⁻¹ L⁻¹ K_ZX Σ⁻¹ (y − μ(X)), M⁻¹).

    ``fit_variational`` keeps the q(v) that it finds, whatever the hyperparameters and data become,
    until it is called again; convert the model's dtype before, for q(v) depends on the jitter of
    its dtype. Paths, posterior, transforms and seeds are those of :class:`PathwiseGP`; there is no
    linear solver, so that ``solution`` stays ``None`` and a warm start changes nothing.

    Args:
        inducing_points: Z (m, d) in the units of ``train_X``, or their number, of which at most n
            are chosen. They stay what they are on transformed inputs when a learnable input
            transform changes.
        inducing_method: how a number of them is chosen, see :func:`choose_inducing_points`.

    The other arguments are those of :class:`PathwiseGP`.

    Attributes:
        inducing_points: Z (m, d) on transformed inputs, a buffer.

    Raises:
        TypeError, ValueError: as ``PathwiseGP``, and for inducing points that are empty, more than
            n, not finite, or of wrong shape.

    References:
        Titsias (2009), "Variational Learning of Inducing Variables in Sparse Gaussian Processes",
        eq. 10. Hensman, Fusi, Lawrence (2013), "Gaussian Processes for Big Data". Differs: (1)
        noise variances may differ between data; (2) samples are paths.
    """

    inducing_points: Tensor
    whitened_mean: Tensor
    whitened_root: Tensor

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
        num_features: int = DEFAULT_NUM_FEATURES,
        num_paths: int = DEFAULT_NUM_PATHS,
        seed: int = 0,
        memory_budget: int | None = None,
    ) -> None:
        checks.training_data(train_X, train_Y)
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
            num_features=num_features,
            num_paths=num_paths,
            seed=seed,
            memory_budget=memory_budget,
        )
        Z = place_inducing_points(self, inducing_points, inducing_method, seed)
        self.register_buffer("inducing_points", Z)
        # Empty for the closed form. Buffers, so that a state dict and `.to` carry what was fitted.
        self.register_buffer("whitened_mean", self.inducing_points.new_empty(0))
        self.register_buffer("whitened_root", self.inducing_points.new_empty(0, 0))

    @property
    def rule(self) -> Variational:
        return Variational(
            self.inducing_points,
            self.whitened_mean,
            self.whitened_root,
            self.num_features,
            self.memory_budget,
            self.seed,
        )

    @torch.no_grad()
    def whitened_posterior(self, output: int = 0) -> WhitenedPosterior:
        """Return q(u) of ``output``: the fitted one, or else the closed-form optimum.

        Raises:
            MemoryError: if the m × m matrices do not fit in free memory.
        """
        self.eval()
        return self.rule.posterior(data_sets(self)[output])

    @torch.no_grad()
    def elbo(self) -> float:
        """Return the evidence lower bound E_q[log p(y | f)] − KL(q(v) ‖ N(0, I)) in nats, over all
        data in standardised units.

        At the closed-form optimum it is Titsias' collapsed bound; with Z = X that is the log
        marginal likelihood. The bounds of several outputs are added.
        """
        self.eval()
        return sum(self.rule.bound(data) for data in data_sets(self))

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        # Their sizes may differ between models
        for name in ("inducing_points", "whitened_mean", "whitened_root"):
            if prefix + name in state_dict:
                setattr(self, name, getattr(self, name).new_empty(state_dict[prefix + name].shape))
        super()._load_from_state_dict(state_dict, prefix, *args)
