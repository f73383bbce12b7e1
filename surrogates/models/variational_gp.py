"""Sparse variational Gaussian processes (SVGP), the usual approximation to compare with, as models
whose posterior is its paths; see :mod:`surrogates.rules.variational`.
"""

from collections.abc import Mapping
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from surrogates.models.data import data_sets, place_inducing_points
from surrogates.models.pathwise import PathwiseGP, takes_settings
from surrogates.rules.data_set import DataSet
from surrogates.rules.variational import Variational, WhitenedPosterior

INDUCING_VALUES = "inducing values"


class VariationalGP(PathwiseGP):
    """A sparse variational Gaussian process: the data enter through m inducing values alone.

    Until :func:`fit_variational` has been called, q(v) is the maximiser of the evidence lower bound
    for the current hyperparameters, in closed form, with M = I + L⁻¹ K_ZX Σ⁻¹ K_XZ L⁻ᵀ and in O(n
    m²):

        q(v) = N(M⁻¹ L⁻¹ K_ZX Σ⁻¹ (y − μ(X)), M⁻¹).

    ``fit_variational`` keeps the q(v) that it finds, whatever the hyperparameters become, until it
    is called again or the data change: ``condition_on_observations`` and ``set_train_data`` return
    to the closed form, of all the data and with the hyperparameters and inducing points found.
    Convert the model's dtype before, for q(v) depends on the jitter of its dtype.

    ``posterior`` is the law of f under q(v) itself, with a(x) = L⁻¹ k(Z, x) and q(v) = N(c, S):

        mean μ(x) + a(x)ᵀ c,    covariance k(x, x') − a(x)ᵀ a(x') + a(x)ᵀ S a(x').

    Paths are draws of it, by random features; fantasies are made of them. Transforms and seeds are
    those of :class:`PathwiseGP`; there is no linear solver, so that ``solution`` stays ``None`` and
    a warm start changes nothing.

    Args:
        inducing_points, inducing_method: as in :class:`InducingPathwiseGP`.

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

    @takes_settings(without=("solver",))
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

    def set_train_data(
        self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True
    ) -> None:
        """Replace data as ``PathwiseGP`` does; a fitted q(v), which is of others, is forgotten."""
        # The input transform sets inputs alone, too, before they count as transformed
        is_new = (
            targets is not None
            or self._has_transformed_inputs
            or not hasattr(self, "input_transform")
        )
        super().set_train_data(inputs, targets, strict)
        if is_new:
            self.whitened_mean = self.whitened_mean.new_empty(0)
            self.whitened_root = self.whitened_root.new_empty(0, 0)

    def __call__(self, *inputs: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Return the prior at the training inputs in training mode, the law of f in standardised
        units in evaluation mode.
        """
        if self.training or gpytorch.settings.prior_mode.on():
            return super().__call__(*inputs, **kwargs)
        X = inputs[0].to(self.train_inputs[0].dtype)
        rule = self.rule
        batch_shape = self.train_targets.shape[:-1]
        posteriors = self._posteriors()
        if not batch_shape:
            return rule.law(*posteriors[0], X)
        points = X.expand(*torch.broadcast_shapes(X.shape[:-2], batch_shape), *X.shape[-2:])
        points = points.flatten(-2 - len(batch_shape), -3)
        laws = [
            rule.law(*posterior, points[..., i, :, :]) for i, posterior in enumerate(posteriors)
        ]
        mean = torch.stack([law.mean for law in laws], -2)
        covariance = torch.stack([law.covariance_matrix for law in laws], -3)
        return MultivariateNormal(
            mean.unflatten(-2, batch_shape), covariance.unflatten(-3, batch_shape)
        )

    @torch.no_grad()
    def _posteriors(self) -> list[tuple[WhitenedPosterior, DataSet]]:
        """Return q(u) of every data set, and the data, kept until the model changes."""
        with self._kept() as parts:
            if INDUCING_VALUES not in parts:
                rule = self.rule
                found = [(rule.posterior(data), data) for data in data_sets(self)]
                parts[INDUCING_VALUES] = found
            posteriors: list[tuple[WhitenedPosterior, DataSet]] = parts[INDUCING_VALUES]
        return posteriors

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

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load as BoTorch does; a fitted q(v) is loaded, too."""
        loaded = super().load_state_dict(state_dict, *args, **kwargs)
        # BoTorch has set the same targets in the units loaded, and they count as new
        for name in ("whitened_mean", "whitened_root"):
            if name in state_dict:
                setattr(self, name, state_dict[name].to(getattr(self, name), copy=True))
        return loaded

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        # Their sizes may differ between models
        for name in ("inducing_points", "whitened_mean", "whitened_root"):
            if prefix + name in state_dict:
                setattr(self, name, getattr(self, name).new_empty(state_dict[prefix + name].shape))
        super()._load_from_state_dict(state_dict, prefix, *args)
