"""Hyperparameters from several small neighbourhoods of the data, fitted side by side and averaged.

Notation: n data, s subsets of m points each, every subset with hyperparameters of its own.
"""

import math
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor

from surrogates import checks, memory
from surrogates.fitting.batched import BatchedGP
from surrogates.fitting.neighbours import Neighbours
from surrogates.fitting.search import copy_set_apart
from surrogates.operators.forms import gaussian_nll
from surrogates.restoring import restored_on_failure
from surrogates.rules.hyperparameters import (
    Coordinates,
    ModelT,
    StepCallback,
    data_of_parts,
    log_prior,
)


@restored_on_failure
def fit_subsets(
    model: ModelT,
    *,
    num_subsets: int = 10,
    subset_size: int = 500,
    average: Literal["log", "arithmetic"] = "log",
    num_steps: int = 100,
    learning_rate: float = 0.1,
    generator: torch.Generator | None = None,
    callback: StepCallback | None = None,
) -> ModelT:
    """Average the hyperparameters that maximise the exact marginal likelihoods of subsets of the
    data; return ``model`` with them.

    A subset is a random datum and the points nearest to it in units of the kernel's lengthscales.
    Adam maximises the s log marginal likelihoods (with the model's priors) at once, one batched
    Cholesky of s matrices m × m a step; each subset's best step counts. Equal parts of a sum start
    apart, as in :func:`fit_exact`.

    Args:
        num_subsets: s.
        subset_size: m, at least 2; at most n are used. A step costs O(s m³) and holds about 48 s m²
            bytes.
        average: ``"log"``, the geometric mean of what has a lower bound, above that bound;
            ``"arithmetic"``, of the values themselves.
        num_steps: of Adam.
        learning_rate: of Adam, in logarithms of hyperparameters: a step changes each by about this
            share.
        generator: of the centroids; one seeded with 0 if ``None``.
        callback: called after every step with the steps done and the log likelihood of n data as
            the subsets estimate it, in nats.

    Raises:
        TypeError, ValueError: if an argument is not as above, or the data are not finite.
        MemoryError: if the matrices do not fit in free memory.
        FloatingPointError: if a hyperparameter stops being finite; the model is then as it was.
        KeyboardInterrupt: passed on; the model has the average of the best hyperparameters so far.

    References:
        Lin et al. (2023), "Sampling from Gaussian Process Posteriors using Stochastic Gradient
        Descent", Appendix A.1 (10 subsets of 10 000 points). Differs: (1) distances in units of the
        lengthscales; (2) the average of logarithms; (3) smaller subsets.
    """
    num_subsets = checks.positive_int("num_subsets", num_subsets)
    checks.integer("subset_size", subset_size, 2, "One point cannot tell noise from signal.")
    checks.one_of("average", average, ("log", "arithmetic"))
    num_steps = checks.positive_int("num_steps", num_steps)
    learning_rate = checks.positive_float("learning_rate", learning_rate)
    X, _ = data_of_parts(model)
    n = len(X)
    s = min(num_subsets, n)
    m = min(int(subset_size), n)
    memory.require(
        memory.squares_bytes(s * m * m),
        X.device,
        f"Fitting {s} subsets of {m} points",
        "Reduce `subset_size` or `num_subsets`.",
    )
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    centroids = torch.randperm(n, generator=generator, device=generator.device)[:s].to(X.device)
    index = Neighbours(X, model.covar_module).of(X[centroids], m)

    subsets = _Subsets(model, index)
    optimizer = torch.optim.Adam([one.value for one in subsets.coordinates], lr=learning_rate)
    try:
        for step in range(1, num_steps + 1):
            objective = subsets.evaluate()
            optimizer.step()
            if callback is not None:
                callback(step, n * objective.mean().item())
        subsets.evaluate()
    finally:
        subsets.average(average).write_to(model)
    return model


class _Subsets:
    """s models of s subsets: the parameters of each, and the best that it has had."""

    def __init__(self, model: Any, index: Tensor):
        self._index = index
        first = copy_set_apart(BatchedGP(model))
        self.models = [deepcopy(first) for _ in index]
        self.coordinates = [Coordinates(one, first.X[index]) for one in self.models]
        self._best_objective = first.y.new_full((len(index),), -math.inf)
        self._best = [one.value.clone() for one in self.coordinates]

    def evaluate(self) -> Tensor:
        """Return (log likelihood + log prior) / m of subsets, (s,); coordinates get gradients."""
        for one in self.coordinates:
            one.write()
        sets = self._index.split(1)
        with torch.enable_grad():
            K, residuals = (
                torch.cat(list(map(part, self.models, sets)))
                for part in (BatchedGP.with_noise, BatchedGP.residuals)
            )
            nll = gaussian_nll(K, residuals)
            prior = torch.stack([log_prior(one).to(nll) for one in self.models])
            objective = (prior - nll) / self._index.shape[1]
            (-objective.sum()).backward()
        objective = objective.detach()
        if not bool(torch.isfinite(objective).all()):
            raise FloatingPointError(
                "The likelihood of a subset is not finite; the model is as it was. Reduce"
                " `learning_rate`."
            )
        for i in (objective > self._best_objective).nonzero().flatten().tolist():
            self._best[i] = self.coordinates[i].value.clone()
        self._best_objective = torch.maximum(self._best_objective, objective)
        for one in self.coordinates:
            one.pull_gradient()
        return objective

    def average(self, kind: str) -> BatchedGP:
        """Return the model of the subsets' averaged best hyperparameters."""
        for one, best in zip(self.coordinates, self._best, strict=True):
            one.move_to(best)
        mean = deepcopy(self.models[0])
        if kind == "log":
            coordinates = Coordinates(mean)
            coordinates.move_to(torch.stack([one.value for one in self.coordinates]).mean(0))
            return mean
        with torch.no_grad():
            own = mean.named_parameters_and_constraints()
            for (_, parameter, bounds), *others in zip(
                own, *(one.parameters() for one in self.models), strict=True
            ):
                if parameter.requires_grad:
                    natural = torch.stack(
                        [other if bounds is None else bounds.transform(other) for other in others]
                    ).mean(0)
                    parameter.copy_(
                        natural if bounds is None else bounds.inverse_transform(natural)
                    )
        return mean
