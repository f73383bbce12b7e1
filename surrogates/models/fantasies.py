"""Many imagined continuations of one model of paths, from one block solve.

With the posterior mean m and covariance c of the data seen, k new points Q, imagined values Y at
them, C = c(Q, Q) + Σ = L Lᵀ, the mean and the deviations of path f_i from it become

    m(·) + c(·, Q) C⁻¹ (Y − m(Q)),
    (f_i − m)(·) − c(·, Q) L⁻ᵀ (L + Σ^½)⁻¹ (f_i − m)(Q),

which have mean and covariance of a model of all data: the square root of Andrews (1968), which
needs no noise drawn. c(·, Q) takes a solve (or, of models of finitely many functions, none),
whatever the number of values imagined at Q. Notation: B the model's batch of data sets, T that of
sets of points Q, F = (..., *T) that of the fantasies, s paths, m outputs.
"""

import math
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import FantasizeMixin, Model
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.transformed import TransformedPosterior
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import Likelihood
from linear_operator.operators import RootLinearOperator
from torch import Tensor

from surrogates import checks
from surrogates.functions.draws import standard_normal
from surrogates.functions.paths import SamplePaths
from surrogates.models.data import check_noise_of_values, data_sets, indices, known_noise
from surrogates.models.posterior import assemble, constant
from surrogates.operators.linalg import jittered_cholesky
from surrogates.rules.rule import Covariance


class FantasyGP(Model, FantasizeMixin):
    """A batch of models of paths, each of which has seen other values at further points; made by
    ``PathwiseGP.fantasize``.

    The posterior is differentiable in its points and in those of the fantasies, once where it takes
    a solve: a second derivative, forward mode and ``torch.func.vmap`` raise
    ``NotImplementedError``, and so does making fantasies under ``torch.func``. It is that of the
    model when it was made, whatever becomes of it. It can be fantasised from in turn.

    Args:
        model: a ``PathwiseGP`` with the posterior of paths.
        Q: (*T, k, d) further points, as the model's input transform returns them; T broadcasts with
            B.
        values: (*F, k, m) values there, standardised.
        noise: variances of values, broadcast with them; ``None`` for σ².
    """

    def __init__(self, model: Any, Q: Tensor, values: Tensor, noise: Tensor | None = None):
        super().__init__()
        checks.outside_transforms(
            "Fantasies must be made", "Transform functions of `posterior(X)`."
        )
        paths = model._posterior_paths()
        self.base = model._without_state()
        # The paths, which no change to `model` moves
        self.base.prediction_strategy = model.prediction_strategy
        if hasattr(self.base, "outcome_transform"):  # BoTorch's lists of models ask for it
            self.outcome_transform = self.base.outcome_transform
        batch = self.base.batch_shape
        if noise is None:
            noise = self.base._noise_of_values(Q)
        T = torch.broadcast_shapes(Q.shape[:-2], batch, noise.shape[:-2])
        self.Q = Q.expand(*T, *Q.shape[-2:])
        self.noise = noise.expand(*T, *values.shape[-2:])
        self.values = values.expand(
            *torch.broadcast_shapes(values.shape[:-2], T), *values.shape[-2:]
        )
        self._parts = []
        for i, ((b, t), data, part) in enumerate(
            zip(self._elements(), data_sets(self.base), paths.parts, strict=True)
        ):
            with self.base._kept() as kept:
                name = f"covariance {i}"
                if name not in kept:
                    kept[name] = self.base.rule.covariance(data, part)
            points = _of_data_set(self.Q, b)
            observed = _of_data_set(self.values, b)[..., t]
            variances = _of_data_set(self.noise, b)[..., t]
            self._parts.append(
                _Fantasies(part, kept[name], points, observed, variances, model.seed + 1)
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are made anew of the model and the data, without their graph."""
        data = (self.Q.detach(), self.values.detach(), self.noise.detach())
        return FantasyGP, (self.base, *data)

    @property
    def num_outputs(self) -> int:
        return self.base.num_outputs

    @property
    def batch_shape(self) -> torch.Size:
        """F."""
        return self.values.shape[:-2]

    @property
    def likelihood(self) -> Likelihood:
        return self.base.likelihood

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """The transformed inputs of the model and of the fantasies, copied together when asked for:
        (*F, n + k, d), or (*F, m, n + k, d) of several outputs, as GPyTorch has them.
        """
        outputs = (self.num_outputs,) if self.num_outputs > 1 else ()
        X = self.base.train_inputs[0]
        Q = self.Q.unsqueeze(-3) if outputs else self.Q
        batch = (*self.batch_shape, *outputs)
        return (torch.cat([part.expand(*batch, *part.shape[-2:]) for part in (X, Q)], -2),)

    @property
    def train_targets(self) -> Tensor:
        """The standardised values of model and fantasies: (*F, n + k), or (*F, m, n + k)."""
        values = self.values.mT if self.num_outputs > 1 else self.values.squeeze(-1)
        y = self.base.train_targets
        return torch.cat([y.expand(*values.shape[:-1], y.shape[-1]), values], -1)

    def transform_inputs(self, X: Tensor, input_transform: Any = None) -> Tensor:
        """Return X, which the model of paths transforms by itself."""
        return X

    def posterior(  # type: ignore[override]  # BoTorch's own overrides of it disagree with one another
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> GPyTorchPosterior | TransformedPosterior:
        """Return each fantasy's joint posterior at X (..., q, d); as ``PathwiseGP.posterior``."""
        checks.batch_of_points(X, self.batch_shape)
        batch = self.base.batch_shape
        m = self.num_outputs
        # The mean of what is known, as BoTorch has it
        if observation_noise is True and self.base._needs_noise:
            known = self.base.noise.reshape(*batch, m, -1)
            total = known.sum(-1) + self.noise.sum(-2)
            observation_noise = total.unsqueeze(-2) / (known.shape[-1] + self.noise.shape[-2])
        with constant(self.base):
            X = self.base.transform_inputs(X)
            points = X.expand(*torch.broadcast_shapes(X.shape[:-2], batch), *X.shape[-2:])
            laws = [
                part.law(_of_data_set(points, b))
                for (b, _), part in zip(self._elements(), self._parts, strict=True)
            ]
            mean = torch.stack([mean for mean, _ in laws], -2)
            root = torch.stack([root for _, root in laws], -3)
            inner = (*batch, m) if m > 1 else batch
            mean = mean.reshape(*mean.shape[:-2], *inner, mean.shape[-1])
            root = root.reshape(*root.shape[:-3], *inner, *root.shape[-2:])
            distribution = MultivariateNormal(mean, RootLinearOperator(root))
            return assemble(
                self.base, distribution, X, output_indices, observation_noise, posterior_transform
            )

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> "FantasyGP":
        """Return fantasies that have seen Y (*F', k', m) at X (*T', k', d), too;
        F broadcasts with T', and T' with F'.
        """
        return self._extended(*imagined(self.base, X, Y, noise, self.batch_shape))

    def get_fantasy_model(
        self, inputs: Tensor, targets: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> "FantasyGP":
        """Return fantasies that have seen more, given on transformed inputs and in standardised
        units, in the layout of GPyTorch.
        """
        return self._extended(*outputs_last(self.base, inputs, targets, noise))

    def _extended(self, Q: Tensor, values: Tensor, noise: Tensor | None) -> "FantasyGP":
        batch = torch.broadcast_shapes(Q.shape[:-2], self.batch_shape)
        all_values = torch.cat(
            [self.values.expand(*values.shape[:-2], *self.values.shape[-2:]), values], -2
        )
        points = torch.cat([part.expand(*batch, *part.shape[-2:]) for part in (self.Q, Q)], -2)
        if noise is None:
            noise = self.base._noise_of_values(Q)
        noise = noise.expand(*torch.broadcast_shapes(noise.shape[:-2], batch), *values.shape[-2:])
        seen = self.noise.expand(*noise.shape[:-2], *self.noise.shape[-2:])
        return FantasyGP(self.base, points, all_values, torch.cat([seen, noise], -2))

    def _elements(self) -> list[tuple[tuple[int, ...], int]]:
        """Return the index in B and the output of every data set."""
        return [(b, t) for b in indices(self.base.batch_shape) for t in range(self.num_outputs)]


class _Fantasies:
    """The fantasies of one output of one data set, which has seen values Y (*F, k) at Q (*T, k, d)
    with noise (*T, k).
    """

    def __init__(
        self,
        paths: SamplePaths,
        covariance: Covariance,
        Q: Tensor,
        Y: Tensor,
        noise: Tensor,
        seed: int,
    ):
        self.paths = paths
        self.with_Q = covariance.between(Q)
        C = self.with_Q(Q)
        L, _ = jittered_cholesky(0.5 * (C + C.mT) + torch.diag_embed(noise))
        self.mean_weights = torch.cholesky_solve((Y - paths.mean(Q)).unsqueeze(-1), L)  # (*F, k, 1)
        deviations = covariance.deviations(paths, Q).movedim(0, -1)
        std = noise.sqrt()
        if covariance.perturbed:
            draws = standard_normal(
                (Q.shape[-2], paths.num_samples), Q, torch.Generator().manual_seed(seed)
            )
            # (*T, k, s), the same draws in every t-batch
            self.weights = torch.cholesky_solve(deviations + std.unsqueeze(-1) * draws, L)
        else:
            halves = torch.linalg.solve_triangular(
                L + torch.diag_embed(std), deviations, upper=False
            )
            self.weights = torch.linalg.solve_triangular(L.mT, halves, upper=True)

    def law(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean (..., q) and a root (..., q, s) of the covariance at X (..., q, d),
        broadcast with F.
        """
        covariance = self.with_Q(
            X.expand(
                *torch.broadcast_shapes(X.shape[:-2], self.mean_weights.shape[:-2]), *X.shape[-2:]
            )
        )
        mean = self.paths.mean(X)
        deviations = (self.paths(X) - mean).movedim(0, -1)
        root = (deviations - covariance @ self.weights) / math.sqrt(self.paths.num_samples)
        return mean + (covariance @ self.mean_weights).squeeze(-1), root


def imagined(
    model: Any, X: Any, Y: Any, noise: Any, batch_shape: torch.Size | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return Q, values and noise of Y (*F, k, m) at X (*T, k, d), both in the user's units; F as
    broadcast with ``batch_shape``.

    Args:
        batch_shape: of what has been imagined before; B if ``None``.

    Raises:
        TypeError, ValueError: for shapes that do not fit, and missing noise.
    """
    checks.floating_tensor("X", X)
    checks.floating_tensor("Y", Y)
    d = model._given_inputs.shape[-1]
    m = model.num_outputs
    if X.ndim < 2 or X.shape[-1] != d:
        raise ValueError(f"`X` must have shape (..., k, {d}), got {tuple(X.shape)}.")
    if Y.ndim < 2 or Y.shape[-2:] != (X.shape[-2], m):
        raise ValueError(
            f"`Y` must have a shape that ends in {(X.shape[-2], m)}, got {tuple(Y.shape)}."
        )
    checks.like("X", X, "train_X", model.train_inputs[0])
    checks.like("Y", Y, "train_X", model.train_inputs[0])
    if model._needs_noise and noise is None:
        raise ValueError(
            "`noise` must be given, variances in standardised units: the model's noise is known for"
            " every point."
        )
    check_noise_of_values(model.likelihood, noise)
    if noise is not None:
        noise = known_noise(noise)
        if noise.shape[-2:] != Y.shape[-2:]:
            raise ValueError(
                f"`noise` must be variances of shape {(*X.shape[:-1], m)}, got"
                f" {tuple(noise.shape)}."
            )
    seen = model.batch_shape if batch_shape is None else batch_shape
    for name, batch in (
        ("X", X.shape[:-2]),
        ("noise", () if noise is None else noise.shape[:-2]),
        ("the model", seen),
    ):
        if not checks.broadcasts(batch, Y.shape[:-2]):
            raise ValueError(
                "`Y` must have a batch shape that the one of"
                f" {name if ' ' in name else f'`{name}`'}, {tuple(batch)}, broadcasts to, got"
                f" {tuple(Y.shape[:-2])}."
            )
    with constant(model):
        Q = model.transform_inputs(X)
        if hasattr(model, "outcome_transform"):
            Y, _ = model.outcome_transform(Y, X=Q)
    return Q, Y, noise


def outputs_last(
    model: Any, inputs: Tensor, targets: Tensor, noise: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return Q, values and noise of what GPyTorch lays out with the points last: (..., k) of one
    output, (..., m, k) of several.

    Raises:
        ValueError: if the inputs of several outputs differ, and for noise beside that of tasks.
    """
    check_noise_of_values(model.likelihood, noise)
    if model.num_outputs == 1:
        return inputs, targets.unsqueeze(-1), None if noise is None else noise.unsqueeze(-1)
    if inputs.ndim > 2:
        if not torch.equal(inputs, inputs[..., :1, :, :].expand_as(inputs)):
            raise ValueError(
                "`inputs` must be the same for every output, got different ones. Build a model for"
                " each output."
            )
        inputs = inputs[..., 0, :, :]
    return inputs, targets.mT, None if noise is None else noise.mT


def _of_data_set(tensor: Tensor, index: tuple[int, ...]) -> Tensor:
    """Return the entries (..., a, b) of one data set among those (..., *B, a, b) of all."""
    where: Any = (..., *index, slice(None), slice(None))
    return tensor[where]
