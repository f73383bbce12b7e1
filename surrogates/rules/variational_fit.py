"""The evidence lower bound on minibatches, for sparse variational models of any n.

Notation: X (n, d) inputs, Z (m, d) inducing points, q(v) = N(c, R Rᵀ) for whitened inducing values
v, as in ``surrogates.rules.variational``.
"""

from copy import deepcopy
from itertools import islice

import torch
from botorch.models import SingleTaskGP
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.means import Mean
from gpytorch.mlls import VariationalELBO
from gpytorch.models import ApproximateGP
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from surrogates import checks
from surrogates.restoring import restored_on_failure
from surrogates.rules.hyperparameters import (
    Coordinates,
    ModelT,
    StepCallback,
    batches,
    data_of_parts,
    rule_of,
)
from surrogates.rules.limits import check_no_noise_of_tasks


@restored_on_failure
def fit_variational(
    model: ModelT,
    *,
    num_steps: int = 20_000,
    batch_size: int = 512,
    learning_rate: float = 0.01,
    learn_hyperparameters: bool = True,
    learn_inducing_points: bool = True,
    generator: torch.Generator | None = None,
    callback: StepCallback | None = None,
) -> ModelT:
    """Maximise the evidence lower bound of ``model`` (with its priors) by Adam on minibatches;
    return it, with the q(v) found.

    A step estimates, from a batch of b data, and ascends

        (n / b) Σ_{i in batch} E_q[log p(y_i | f(x_i))] − KL(q(v) ‖ N(0, I)) + log
        p(hyperparameters)

    in O(m³ + b m²). It starts from q(v) = N(0, I), and from the model's hyperparameters and
    inducing points.

    Args:
        model: a :class:`VariationalGP`.
        num_steps: 20 000 as published.
        batch_size: b, at most n of which are used; batches of an epoch are disjoint.
        learning_rate: of Adam: in the logarithms of what has a lower bound, and in other parameters
            themselves.
        learn_hyperparameters: also of the kernel, the mean and the likelihood; those with
            ``requires_grad=False`` stay.
        learn_inducing_points: move Z.
        generator: of the batches; one seeded with the model's ``seed`` if ``None``.
        callback: called after every step with the steps done and the bound's estimate in nats.

    Raises:
        TypeError, ValueError: if an argument is not as above.
        FloatingPointError: if the bound or a parameter is not finite; the model is then as it was.
        KeyboardInterrupt: passed on; the model has the q(v) and the hyperparameters reached.

    References:
        Hensman, Fusi, Lawrence (2013), "Gaussian Processes for Big Data"; whitening as in Hensman,
        Matthews, Ghahramani (2015), "Scalable Variational Gaussian Process Classification". Number
        of steps: Lin et al. (2023), "Sampling from Gaussian Process Posteriors using Stochastic
            Gradient Descent", 4.2. Differs: (1) batch size and learning rate, which it does not
            give;
        (2) steps in logarithms, which keeps the constraints.
    """
    rule = rule_of(model, "variational", "VariationalGP")
    if model.num_outputs > 1:
        raise ValueError(
            f"`model` must have one output to be fitted, got {model.num_outputs}. Use"
            " `subset_output`, or a model for each."
        )
    check_no_noise_of_tasks(model.likelihood)
    num_steps = checks.positive_int("num_steps", num_steps)
    batch_size = checks.positive_int("batch_size", batch_size)
    learning_rate = checks.positive_float("learning_rate", learning_rate)
    generator = torch.Generator().manual_seed(rule.seed) if generator is None else generator
    X, y = data_of_parts(model)
    n = len(X)

    svgp = _SVGP(
        deepcopy(model.mean_module),
        deepcopy(model.covar_module),
        rule.points,
        learn_inducing_points,
    ).train()
    likelihood = deepcopy(model.likelihood).train()
    if not learn_hyperparameters:
        for module in (svgp.mean_module, svgp.covar_module, likelihood):
            module.requires_grad_(False)
    objective = VariationalELBO(likelihood, svgp, num_data=n)
    parameters = [p for p in objective.parameters() if p.requires_grad]
    coordinates = Coordinates(objective)
    optimizer = torch.optim.Adam([coordinates.value], lr=learning_rate)
    try:
        for step, batch in enumerate(
            islice(batches(n, min(batch_size, n), generator, X.device), num_steps), start=1
        ):
            with torch.enable_grad():
                bound = _bound(objective, X[batch], y[batch], batch)
                _require_finite([bound], step, learning_rate)
                (-bound).backward()
            coordinates.pull_gradient()
            optimizer.step()
            coordinates.write()
            if callback is not None:
                callback(step, n * bound.item())
    except KeyboardInterrupt:
        if _are_finite(parameters):
            _write(svgp, likelihood, model)
        raise
    _require_finite(parameters, num_steps, learning_rate)
    _write(svgp, likelihood, model)
    return model


class _SVGP(ApproximateGP):
    """GPyTorch's model of the same posterior, as a function of its parameters."""

    def __init__(
        self, mean_module: Mean, covar_module: Kernel, Z: Tensor, learn_inducing_points: bool
    ):
        distribution = CholeskyVariationalDistribution(len(Z)).to(Z)
        strategy = VariationalStrategy(
            self, Z, distribution, learn_inducing_locations=learn_inducing_points
        )
        # At N(0, I), without GPyTorch's noise from the global generator
        strategy.variational_params_initialized.fill_(1)
        super().__init__(strategy)
        self.mean_module = mean_module
        self.covar_module = covar_module

    def forward(self, X: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(X), self.covar_module(X))


def _bound(objective: VariationalELBO, X: Tensor, y: Tensor, batch: Tensor) -> Tensor:
    """Return the evidence lower bound a datum, by ``batch``; NaN if a factorisation fails."""
    known = {}
    if isinstance(objective.likelihood, FixedNoiseGaussianLikelihood):
        known = {"noise": objective.likelihood.noise_covar.noise[batch]}
    try:
        bound: Tensor = objective(objective.model(X), y, **known)
    except (NanError, NotPSDError):
        return torch.tensor(torch.nan, device="cpu")
    return bound


def _write(svgp: _SVGP, likelihood: Likelihood, model: SingleTaskGP) -> None:
    strategy = svgp.variational_strategy
    model.covar_module.load_state_dict(svgp.covar_module.state_dict())
    model.mean_module.load_state_dict(svgp.mean_module.state_dict())
    model.likelihood.load_state_dict(likelihood.state_dict())
    model.inducing_points = strategy.inducing_points.detach().clone()
    model.whitened_mean = strategy._variational_distribution.variational_mean.detach().clone()
    model.whitened_root = strategy._variational_distribution.chol_variational_covar.detach().clone()


def _are_finite(values: list[Tensor]) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in values)


def _require_finite(values: list[Tensor], step: int, learning_rate: float) -> None:
    if not _are_finite(values):
        raise FloatingPointError(
            f"The evidence lower bound is not finite after step {step}; the model is as it was."
            f" Reduce `learning_rate` below {learning_rate:g}, use float64, or use the closed form"
            " by not fitting."
        )
