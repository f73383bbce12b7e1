"""Predictions from the nearest data of every point alone: O(k³) a point, whatever n.

Notation: X (n, d) training inputs, x one of q new points, N the k data nearest to x, H = k(X_N,
X_N) + Σ_N.
"""

import torch
from botorch.models import SingleTaskGP
from botorch.posteriors.gpytorch import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor

from surrogates import checks, memory
from surrogates.fitting.batched import BatchedGP
from surrogates.fitting.neighbours import Neighbours
from surrogates.rules.hyperparameters import training_data
from surrogates.rules.limits import noise_at


@torch.no_grad()
def predict_by_neighbours(
    model: SingleTaskGP, X: Tensor, *, num_neighbours: int = 128, observation_noise: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the posterior mean and variance at each of ``X``, (q, 1) both, given the data nearest
    to it alone.

    With the k nearest data N of x, in units of the kernel's lengthscales, in place of all of them,

        mean(x) = μ(x) + k(x, X_N) H⁻¹ (y_N − μ(X_N)),    variance(x) = k(x, x) − k(x, X_N) H⁻¹
        k(X_N, x).

    All matrices of a chunk of points are factorised at once, in float64. With k = n this is the
    exact posterior; with fewer, the variance is an upper bound of the exact one, up to the
    neighbours' search being approximate. Points are independent of one another.

    Args:
        model: a GP of one output on n data, with hyperparameters.
        X: (q, d), in the units of ``train_X``.
        num_neighbours: k; at most n are used.
        observation_noise: add the noise variance to that of the function (its mean, where it is
            known for each datum).

    Raises:
        TypeError, ValueError: if an argument is not as above.

    References:
        Chen, Zheng, Al Kontar, Raskutti (2022), "Gaussian Process Parameter Estimation Using
        Mini-batch Stochastic Gradient Descent: Convergence Guarantees and Empirical Benefits",
        5.3, equation 31 on the neighbours of each point.
    """
    num_neighbours = checks.positive_int("num_neighbours", num_neighbours)
    data, _ = training_data(model)
    checks.floating_tensor("X", X)
    if X.ndim != 2:
        raise ValueError(
            f"`X` must have shape (q, d), got {tuple(X.shape)}. Use `X.reshape(-1, d)`: points are"
            " independent."
        )
    checks.like("X", X, "model.train_inputs", data)
    Z = model.transform_inputs(X)
    if Z.shape[1] != data.shape[1]:
        raise ValueError(f"`X` must have the model's {data.shape[1]} inputs, got {Z.shape[1]}.")

    gp = BatchedGP(model)
    neighbours = Neighbours(data, model.covar_module)
    k = min(num_neighbours, len(data))
    moments = []
    for z in Z.split(memory.part_size((k + 1) ** 2)):
        index = neighbours.of(z, k)
        moments.append(gp.predict(z.double().unsqueeze(1), index))
    mean, variance = (torch.cat(parts) for parts in zip(*moments, strict=True))
    if observation_noise:
        known = isinstance(gp.likelihood, FixedNoiseGaussianLikelihood)
        noise = gp.likelihood.noise.mean() if known else noise_at(gp.likelihood, Z)
        variance = variance + noise.unsqueeze(-1)
    # Q independent points
    posterior = GPyTorchPosterior(MultivariateNormal(mean.to(X), variance.to(X).unsqueeze(-1)))
    transform = getattr(model, "outcome_transform", None)
    if transform is not None:
        posterior = transform.untransform_posterior(posterior, X=X.unsqueeze(-2))
    return posterior.mean.reshape(-1, 1), posterior.variance.reshape(-1, 1)
