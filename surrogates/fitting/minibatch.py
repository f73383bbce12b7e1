"""sgGP: hyperparameters by stochastic gradients of the marginal likelihoods of minibatches, for any
n.

Notation: n data, minibatches of m points, b of them a step; θ the coordinates in which steps are
taken: logarithms of what is above 0.
"""

import math
from itertools import islice
from typing import Literal

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from surrogates import checks
from surrogates.fitting.batched import BatchedGP
from surrogates.fitting.neighbours import Neighbours
from surrogates.fitting.search import copy_set_apart
from surrogates.restoring import restored_on_failure
from surrogates.rules.hyperparameters import (
    Coordinates,
    ModelT,
    StepCallback,
    batches,
    data_of_parts,
    log_prior,
)

LEARNING_RATES = {"adam": 0.01, "sgd": 9.0}


@restored_on_failure
def fit_minibatch(
    model: ModelT,
    *,
    batch_size: int = 16,
    sampling: Literal["nearest", "uniform"] = "nearest",
    optimizer: Literal["adam", "sgd"] = "adam",
    max_epochs: int = 100,
    num_batches: int | None = None,
    learning_rate: float | None = None,
    tolerance: float = 1e-3,
    generator: torch.Generator | None = None,
    callback: StepCallback | None = None,
) -> ModelT:
    """Learn the hyperparameters of ``model`` (with its priors) from minibatches as if each were all
    the data; return the model.

    With ξ a minibatch of m data, a step follows, for each hyperparameter θ_l, the average over b
    minibatches of

        g_l(θ) = (m / s_l(m)) ∂/∂θ_l [−(1 / m) log p(y_ξ | X_ξ, θ) − (1 / n) log p(θ)],

    where s_l(m) = m, and 3 log m for the output scales of RBF kernels under ``"sgd"`` (Adam is free
    of scale). All b matrices m × m are factorised at once. Minibatches are random subsets, or a
    random datum and the m − 1 points nearest to it in units of the kernel's lengthscales;
    neighbours are searched anew when those have moved. Lengthscales stay between a tenth of the
    median gap between neighbouring values of their input, and a thousand times its range. Equal
    parts of a sum start apart, as in :func:`fit_exact`.

    Args:
        batch_size: m, at least 2; at most n are used. 16 as published; of nearest neighbours, 64
            and 128 were seen to end in a poor optimum that takes fine structure for noise.
        sampling: ``"nearest"`` finds the noise more reliably; ``"uniform"`` is what the theory is
            about.
        optimizer: ``"adam"``, whose average over the last steps is returned, or ``"sgd"`` with
            steps α₁ / k, whose last iterate is.
        max_epochs: n / m minibatches each.
        num_batches: b; ``None`` for as many, up to 64, as leave 2000 steps.
        learning_rate: of Adam (``None`` for 0.01), or α₁ (9).
        tolerance: stop once the log likelihood a datum gained less than this three times in 200
            steps; 0 for all epochs.
        generator: of the minibatches; one seeded with 0 if ``None``.
        callback: called after every step with the steps done and the estimated log likelihood of n
            data, in nats.

    Raises:
        TypeError, ValueError: if an argument is not as above, or the data are not finite.
        FloatingPointError: if a hyperparameter stops being finite; the model is then as it was.
        KeyboardInterrupt: passed on; the model has the hyperparameters reached.

    References:
        Chen, Zheng, Al Kontar, Raskutti (2022), "Gaussian Process Parameter Estimation Using
        Mini-batch Stochastic Gradient Descent: Convergence Guarantees and Empirical Benefits",
        Algorithms 1–3. Differs: (1) steps are taken in logarithms, which keeps the constraints; (2)
        several minibatches a step; (3) distances follow the lengthscales; (4) no step of ``"sgd"``
        changes a logarithm by more than 1, which the first steps of α₁ would; (5) Adam's iterates
        are averaged, and the fit stops once it has settled.
    """
    _check(batch_size, sampling, optimizer, max_epochs, num_batches, learning_rate, tolerance)
    n = len(data_of_parts(model)[1])
    m = min(int(batch_size), n)
    default = max(1, min(64, int(max_epochs) * n // (m * 2000)))
    b = default if num_batches is None else min(int(num_batches), n)
    num_steps = max(1, math.ceil(int(max_epochs) * n / (m * b)))
    generator = torch.Generator().manual_seed(0) if generator is None else generator

    gp = copy_set_apart(BatchedGP(model))
    X = gp.X
    coordinates = Coordinates(gp, X)
    rate = LEARNING_RATES[optimizer] if learning_rate is None else learning_rate
    rates = None if optimizer == "adam" else rate * m / _scales(gp, m)
    steps = _Steps(coordinates.value, rate, rates)
    # Parts of one permutation of the data are disjoint
    subsets = batches(n, 1 if sampling == "nearest" else m, generator, X.device)
    neighbours = Neighbours(X, gp.covar_module) if sampling == "nearest" else None
    values: list[float] = []
    best, looks_without = math.inf, 0
    try:
        for step in range(1, num_steps + 1):
            drawn = torch.stack(list(islice(subsets, b)))
            index = drawn if neighbours is None else neighbours.of(X[drawn.squeeze(1)], m)
            nll = _descent_direction(gp, index, step)
            coordinates.pull_gradient()
            steps.take()
            coordinates.write()
            if callback is not None:
                callback(step, -n * nll)
            values.append(nll)
            if step % 200 == 0:  # the likelihood and the neighbours are looked at now and then
                mean = sum(values) / len(values)
                values.clear()
                looks_without = 0 if mean < best - tolerance else looks_without + 1
                best = min(best, mean)
                if tolerance > 0 and looks_without == 3:
                    break
                if neighbours is not None:
                    neighbours.follow(gp.covar_module)
    finally:
        steps.finish()
        coordinates.write()
        gp.write_to(model)
    return model


def _descent_direction(gp: BatchedGP, index: Tensor, step: int) -> float:
    """Compute the gradient of the objective of the minibatches ``index`` (b, m); return their mean
    negative log likelihood a datum.
    """
    with torch.enable_grad():
        nll = gp.negative_log_likelihood(index).mean() / index.shape[1]
        loss = nll - log_prior(gp) / len(gp.X)
        loss.backward()
    if not math.isfinite(loss.item()):
        raise FloatingPointError(
            f"The likelihood is not finite at step {step}; the model is as it was."
            " Reduce `learning_rate`."
        )
    return nll.item()


class _Steps:
    """Steps of Adam, of whose iterates about the last tenth are averaged, or, given ``rates`` (p,)
    α₁ m / s_l(m), steps α₁ / k along gradients divided by s_l(m), of at most a factor e.

    Args:
        averaging: an average of k iterates weighs the j-th by about (j / k)^(averaging − 1).
    """

    def __init__(self, value: Tensor, rate: float, rates: Tensor | None, averaging: float = 8.0):
        self._value = value
        self._rates = rates
        self._averaging = averaging
        self._average = value.clone()
        self._adam = torch.optim.Adam([value], lr=rate)
        self._done = 0

    def take(self) -> None:
        self._done += 1
        if self._rates is None:
            self._adam.step()
            share = self._averaging / (self._done + self._averaging - 1)
            self._average.lerp_(self._value, share)
            return
        assert self._value.grad is not None
        self._value -= (self._rates / self._done * self._value.grad).clamp(-1.0, 1.0)

    def finish(self) -> None:
        """Put the average, if there is one, in the place of the last iterate."""
        if self._rates is None:
            self._value.copy_(self._average)


def _scales(gp: BatchedGP, m: int) -> Tensor:
    """Return s_l(m) (p,): 3 log m for RBF output scales, whose spectra decay fast, else m."""
    exponential = {
        id(kernel.raw_outputscale)
        for kernel in gp.covar_module.modules()
        if isinstance(kernel, ScaleKernel) and isinstance(kernel.base_kernel, RBFKernel)
    }
    learned = [p for p in gp.parameters() if p.requires_grad]
    scales = [3.0 * math.log(m) if id(p) in exponential else float(m) for p in learned]
    return torch.cat([p.new_full((p.numel(),), s) for p, s in zip(learned, scales, strict=True)])


def _check(
    batch_size: int,
    sampling: str,
    optimizer: str,
    max_epochs: int,
    num_batches: int | None,
    learning_rate: float | None,
    tolerance: float,
) -> None:
    checks.integer("batch_size", batch_size, 2, "One point cannot tell noise from signal.")
    checks.one_of("sampling", sampling, ("nearest", "uniform"))
    checks.one_of("optimizer", optimizer, LEARNING_RATES)
    checks.positive_int("max_epochs", max_epochs)
    checks.optional(checks.positive_int, "num_batches", num_batches)
    checks.optional(checks.positive_float, "learning_rate", learning_rate)
    if tolerance != 0:
        checks.positive_float("tolerance", tolerance, "Use 0 to run all epochs.")
