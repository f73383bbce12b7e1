"""Models of random shapes, scales, dtypes, kernels, noise and solvers: what they answer is right,
by a float64 Cholesky factor, or warned of, or refused by an error that says why.

A number is the seed of a model, so that a failure can be looked at alone.
"""

import math
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from botorch.models.transforms.input import Normalize
from botorch.models.transforms.outcome import Standardize
from gpytorch.kernels import Kernel, LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, RQKernel
from torch import Tensor

from surrogates import (
    CG,
    SDD,
    SGD,
    Auto,
    Cholesky,
    Nystrom,
    PathwiseGP,
    SketchAndProject,
    Solver,
    UnsolvedWarning,
    gaussian_likelihood,
)
from surrogates.models.data import data_sets
from surrogates.models.posterior import LEAST_VARIANCE
from tests import problems

ALL = 2000
BLOCK = 60
NUM_PATHS = 64
REFUSALS = (ValueError, TypeError, MemoryError)
MONTE_CARLO = 3.0  # times too much or too little variance, of so few paths
# The same where next to nothing of the prior's variance is left, which few frequencies make up
OF_A_FEW = 15.0
FEW = 1e-5
FEW_POINTS = 25


@dataclass
class Case:
    """What a seed stands for."""

    X: Tensor
    Y: Tensor
    Yvar: Tensor | None
    noise: float
    kernel: Kernel
    solver: Solver | None
    transforms: dict[str, Any]
    queries: Tensor


def drawn(seed: int) -> Case:
    draw = np.random.default_rng(seed)
    dtype = torch.float32 if draw.random() < 0.6 else torch.float64
    n = int(10.0 ** draw.uniform(0.0, math.log10(300.0)))
    d = int(draw.integers(1, 7))
    m = 2 if draw.random() < 0.15 else 1
    batch = [2] if draw.random() < 0.1 else []
    X = points(draw, batch, n + 6, d)
    scale = 10.0 ** (draw.uniform(-30.0, 30.0) if draw.random() < 0.1 else draw.uniform(-3.0, 3.0))
    shift = 10.0 ** draw.uniform(-2.0, 3.0) if draw.random() < 0.2 else 0.0
    near = scale * 10.0 ** draw.uniform(-1.5, 1.0)
    length = near if draw.random() < 0.85 else 10.0 ** draw.uniform(-3.0, 3.0)
    X = (scale * (X + shift)).to(dtype)
    kernel = KERNELS[draw.integers(len(KERNELS))](d, length)
    if draw.random() < 0.5:
        kernel = problems.scaled(kernel, 10.0 ** draw.uniform(-3.0, 3.0))
    Y = values(draw, X, length, m).to(dtype)
    noise = 10.0 ** draw.uniform(-7.0, 1.0)
    Yvar = None
    if draw.random() < 0.2:
        Yvar = (noise * torch.from_numpy(draw.uniform(0.0, 2.0, Y[..., :n, :].shape))).to(dtype)
        if draw.random() < 0.3:
            Yvar[..., ::2, :] = 0.0
    shape = torch.Size(batch)
    transforms: dict[str, Any] = {}
    if draw.random() < 0.7:
        transforms["outcome_transform"] = Standardize(m=m, batch_shape=shape)
    else:
        transforms["outcome_transform"] = None
    if draw.random() < 0.15:
        transforms["input_transform"] = Normalize(d, batch_shape=shape)
    solver = SOLVERS[draw.integers(len(SOLVERS))]
    return Case(
        X[..., :n, :], Y[..., :n, :], Yvar, noise, kernel, solver, transforms, X[..., n - 2 :, :]
    )


def points(draw: np.random.Generator, batch: list[int], n: int, d: int) -> Tensor:
    kind = draw.integers(6)
    X = torch.from_numpy(draw.uniform(0.0, 1.0, (*batch, n, d)))
    if kind == 1:
        X = torch.from_numpy(draw.normal(size=(*batch, n, d)))
    elif kind == 2:  # a grid, so that points repeat
        X = (4.0 * X).round() / 4.0
    elif kind == 3:  # two clusters
        X = 1e-3 * X + (X[..., :1] > 0.5)
    elif kind == 4:  # a line
        X = X[..., :1] * torch.ones(d, dtype=X.dtype)
    elif kind == 5:  # an input that does not vary, and an outlier
        X[..., -1] = 0.5
        X[..., 0, :] = 30.0
    return X


def values(draw: np.random.Generator, X: Tensor, length: float, m: int) -> Tensor:
    waves = torch.from_numpy(draw.normal(size=(X.shape[-1], m)))
    Y = torch.sin((X.double() / length).clamp(-1e6, 1e6) @ waves)
    Y = Y + 10.0 ** draw.uniform(-3.0, 0.0) * torch.from_numpy(draw.normal(size=Y.shape))
    kind = draw.random()
    if kind < 0.05:
        Y = torch.zeros_like(Y)
    extreme = draw.random() < 0.1
    scale = 10.0 ** (draw.uniform(-25.0, 25.0) if extreme else draw.uniform(-3.0, 3.0))
    return scale * (Y + (10.0 ** draw.uniform(-1.0, 4.0) if draw.random() < 0.2 else 0.0))


def ard(kernel: Callable[..., Kernel]) -> Callable[[int, float], Kernel]:
    def make(d: int, length: float) -> Kernel:
        lengths = length * torch.linspace(0.5, 2.0, d).unsqueeze(0)
        return problems.with_lengthscale(kernel(ard_num_dims=d), lengths)

    return make


KERNELS: tuple[Callable[[int, float], Kernel], ...] = (
    lambda d, length: problems.rbf(length),
    lambda d, length: problems.matern(0.5, length),
    lambda d, length: problems.matern(1.5, length),
    lambda d, length: problems.matern(2.5, length),
    ard(RBFKernel),
    ard(lambda **settings: MaternKernel(nu=1.5, **settings)),
    lambda d, length: problems.with_lengthscale(RQKernel(), length),
    lambda d, length: problems.with_lengthscale(PeriodicKernel(), length),
    lambda d, length: problems.rbf(length) + problems.matern(1.5, 0.3 * length),
    lambda d, length: problems.rbf(length) * problems.matern(2.5, 2.0 * length),
    lambda d, length: problems.rbf(length) + LinearKernel(),
)
SOLVERS: tuple[Solver | None, ...] = (
    None,
    Cholesky(),
    CG(max_epochs=50.0),
    CG(None, max_epochs=50.0),
    CG(Nystrom(1), max_epochs=50.0),
    Auto(),
    Auto(tolerance=1e-4),
    Auto(direct=False, max_epochs=50.0),
    SketchAndProject.asap(max_epochs=50.0),
    SketchAndProject.sap(max_epochs=20.0),
    SketchAndProject.adasap(max_epochs=20.0),
    SDD(max_epochs=10.0),
    SGD(max_epochs=10.0),
)


@dataclass
class Reference:
    """The posterior of one data set at the queries by a float64 factor, in standardised units.

    Attributes:
        mean, variance: (q,).
        slack: (q,) what a path may be off by for a residual of 1.
        rounding: (q,) what the mean may be off by for an error of 1 in every kernel entry.
        scale: of the prior and the data.
        prior: (q,) the variance before the data.
        condition: of the system.
    """

    mean: Tensor
    variance: Tensor
    slack: Tensor
    rounding: Tensor
    scale: Tensor
    prior: Tensor
    condition: Tensor

    @classmethod
    def of(cls, data: Any, Q: Tensor) -> "Reference":
        X = data.X.double()
        noise = data.noise.double().expand(len(X))
        K = entries(data.kernel, X, X)
        cross = entries(data.kernel, X, Q)
        prior = entries(data.kernel, Q, Q).diagonal()
        L = torch.linalg.cholesky(K + torch.diag(noise))
        b = (data.y - data.mean_module(data.X)).double().unsqueeze(1)
        w = torch.cholesky_solve(b, L)
        A = torch.cholesky_solve(cross, L)
        mean = data.mean_module(Q).double() + (cross.T @ w).squeeze(1)
        variance = prior - (cross * A).sum(0)
        scale = torch.maximum(prior.max().sqrt(), b.abs().max())
        sizes = torch.stack([b.norm(), (K.diagonal() + noise).sum().sqrt()])
        slack = A.norm(dim=0) * sizes.max()
        condition = 1.0 + K.norm() / noise.min()
        return cls(mean, variance, slack, w.abs().sum() * prior, scale, prior, condition)


def entries(kernel: Kernel, X: Tensor, Z: Tensor) -> Tensor:
    """Return k(X, Z) in float64, of so few points at a time that PyTorch takes distances from
    differences: those from squares leave coinciding points apart.
    """
    rows = []
    for part in X.split(FEW_POINTS):
        tiles = [problems.own_evaluation(kernel, part, other) for other in Z.split(FEW_POINTS)]
        rows.append(torch.cat(tiles, 1))
    return torch.cat(rows)


def problem_with(seed: int) -> str:
    """Return what is wrong with the answers of a model, nothing if they are right."""
    case = drawn(seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            return wrong_answers(case, caught)
        except REFUSALS as error:
            return "" if str(error) else f"an empty {type(error).__name__}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"


@torch.no_grad()
def wrong_answers(case: Case, caught: list[warnings.WarningMessage]) -> str:
    likelihood = None if case.Yvar is not None else gaussian_likelihood(case.noise)
    model = PathwiseGP(
        case.X,
        case.Y,
        case.Yvar,
        likelihood,
        deepcopy(case.kernel),
        solver=case.solver,
        num_paths=NUM_PATHS,
        **case.transforms,
    )
    posterior = model.posterior(case.queries)
    outputs = {"mean": posterior.mean, "variance": posterior.variance}
    residual = largest_residual(model)
    try:
        paths = model.paths(2)
    except REFUSALS:  # kernels without features
        paths = None
    if paths is not None:
        outputs["paths"] = paths(case.queries)
        outputs["paths' mean"] = paths.mean(case.queries)
    for name, values in outputs.items():
        if not values.isfinite().all():
            return f"{name} not finite"
    foreign = [str(w.message) for w in caught if not w.category.__module__.startswith(KNOWN)]
    if foreign:
        return f"a warning: {foreign[0][:200]}"
    if any(issubclass(w.category, UnsolvedWarning) for w in caught):
        return ""
    return far_off(model, case, outputs, max(residual, largest_residual(model)))


def largest_residual(model: PathwiseGP) -> float:
    """Return that of the last solve, 0 if there was none."""
    return 0.0 if model.solution is None else model.solution.residual.max().item()


KNOWN = ("surrogates", "botorch", "linear_operator", "gpytorch")


def far_off(model: PathwiseGP, case: Case, outputs: dict[str, Tensor], solved_to: float) -> str:
    m = model.num_outputs
    Q = model.transform_inputs(case.queries)
    eps = torch.finfo(case.X.dtype).eps
    for i, data in enumerate(data_sets(model)):
        of_set = Q[i // m] if Q.ndim > 2 else Q
        exact = Reference.of(data, of_set)
        offset = model._units.offset.flatten()[i].double()
        scale = model._units.scale.flatten()[i].double()
        residual = 100.0 * eps * exact.condition + 1.2 * solved_to
        slack = residual * exact.slack
        rounded = 50.0 * eps * (exact.rounding + exact.scale + (offset / scale).abs())
        allowed = slack + rounded + 1e-3 * exact.scale
        for name in sorted({"mean", "paths' mean"} & outputs.keys()):
            values = outputs[name].double()
            if m > 1:
                values = values[..., i % m]
            elif name == "mean":
                values = values.squeeze(-1)
            values = values[i // m] if values.ndim > 1 else values
            error = ((values - offset) / scale - exact.mean).abs()
            if (error > allowed).any():
                error, allowed = error / exact.scale, allowed / exact.scale
                return f"{name} off by {error.max():.1e}, allowed {allowed.max():.1e}"
        if "variance" not in outputs:
            continue
        values = outputs["variance"].double()[..., i % m]
        values = (values[i // m] if values.ndim > 1 else values) / scale**2
        least = LEAST_VARIANCE * min(1.0, scale.item() ** 2) / scale**2
        rounded = 20.0 * eps * exact.prior + (rounded - 50.0 * eps * exact.rounding).square()
        deviation = exact.variance.clamp_min(0.0).sqrt()
        most = ((deviation + slack).square() + rounded).clamp_min(least)
        fewest = (deviation - slack).clamp_min(0.0).square() - rounded
        is_of_few = exact.variance < FEW * exact.prior
        factor = torch.full_like(values, MONTE_CARLO).masked_fill(is_of_few, OF_A_FEW)
        if not ((values > fewest / factor) & (values < factor * most)).all():
            ratio = values / exact.variance
            variance = (exact.variance / exact.prior).min()
            return f"variance {ratio.min():.2g} … {ratio.max():.2g} times the exact {variance:.1e}"
    return ""


@pytest.mark.parametrize(
    "start",
    [0, *(pytest.param(start, marks=pytest.mark.slow) for start in range(BLOCK, ALL, BLOCK))],
)
def test_models_are_right_or_say_why_not(start: int) -> None:
    found = {seed: problem_with(seed) for seed in range(start, min(start + BLOCK, ALL))}
    assert not {seed: problem for seed, problem in found.items() if problem}
