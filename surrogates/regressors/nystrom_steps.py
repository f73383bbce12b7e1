"""Stochastic gradient steps in a Nyström subspace: its centres by ridge leverage scores, schedules,
the descent, and the coordinates that it runs in.

Notation: Z (m, d) centres among n data, K_mm = k(Z, Z) of rank r, R (m, r) with R Rᵀ = K_mm⁺, Φ (n,
r) features, y (n,) targets, κ² = max k(x, x), step size η, batch size b.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates import memory
from surrogates.operators.kernel_matrix import kernel_operator
from surrogates.operators.linalg import jittered_cholesky
from surrogates.operators.tiles import Index, spans, tile_side

Rows = Callable[[Index], Tensor]  # gives the rows Φ_j of indices j


class Schedule(NamedTuple):
    """Step size η, batch size b and number of iterations T."""

    step_size: float
    batch_size: int
    num_iterations: int


def regime_schedule(
    regime: str,
    n: int,
    source_exponent: float = 0.0,
    capacity_exponent: float = 1.0,
    kernel_bound: float = 1.0,
) -> Schedule:
    """Return the settings that learn at the optimal rate n^(−(2ζ+1)/p), p = 2ζ + γ + 1, from m ≥
    n^(1/p) log n uniform centres.

    With c = 1/(8κ²) and T = n^(1/p) / (η κ²):

        I    η = c n^(−(2ζ+1)/p)   b = 1                passes 8 n^((1−γ)/p)
        II   η = c / log n         b = n^((2ζ+1)/p)     passes 8 n^((1−γ)/p) log n
        III  η = c / n             b = 1                passes 8 n^(1/p)
        IV   η = c / √n            b = √n               passes 8 n^(1/p)

    Args:
        n: number of data, at least 2.
        source_exponent: ζ in [0, 1/2].
        capacity_exponent: γ in [0, 1].
        kernel_bound: κ², the largest k(x, x).

    References:
        Lin, Rosasco (2017), Corollary 3.3, which leaves constants open: c is the largest of eq.
        5.27, without its logarithm, and what the experiment of Section 2.3 has; T is that of
        Theorem 3.2, where κ² makes it the same whatever the kernel's scale.
    """
    step = 0.125  # η κ² of eq. 5.27, without its logarithm
    p = 2.0 * source_exponent + capacity_exponent + 1.0
    rate = n ** ((2.0 * source_exponent + 1.0) / p)
    divisor, batch_size = {
        "I": (rate, 1.0),
        "II": (math.log(n), rate),
        "III": (n, 1.0),
        "IV": (math.sqrt(n), math.sqrt(n)),
    }[regime]
    return Schedule(
        step / (kernel_bound * divisor), round(batch_size), round(divisor * n ** (1.0 / p) / step)
    )


def descend(
    features: Rows,
    targets: Tensor,
    initial: Tensor,
    step_size: Tensor,
    batch_size: int,
    num_passes: int,
    generator: torch.Generator,
    decay: float = 0.0,
) -> Iterator[Tensor]:
    """Yield the coefficients c (..., r, s) after every pass of stochastic gradient steps
    ``c ← c − (η_t/b) Φ_jᵀ (Φ_j c − y_j)``, η_t = η t^(−θ).

    The s columns differ in their step sizes, leading dimensions in their data; all see the same
    indices j.

    Args:
        features: maps indices (b,) to rows Φ_j (..., b, r).
        targets: y (..., n).
        initial: c before the first step.
        step_size: η (s,).
        batch_size: b; equal to n, every step takes all data once; less, b independent draws.
        decay: θ in [0, 1), Theorem 5.22 of Lin and Rosasco (2017).
    """
    n = targets.shape[-1]
    done = 0
    c = initial.clone()
    scale = step_size / batch_size
    for number in range(1, num_passes + 1):
        last = math.ceil(number * n / batch_size)
        batches: Any = [slice(n)]
        if batch_size < n:
            batches = torch.randint(n, (last - done, batch_size), generator=generator, device="cpu")
        for step, index in enumerate(batches, done + 1):
            rows = features(index)
            c -= step**-decay * scale * (rows.mT @ (rows @ c - targets[..., index, None]))
        done = last
        yield c.clone()


def inverse_root(matrix: Tensor) -> Tensor:
    """Return R (m, r), R Rᵀ the pseudo-inverse of a positive semi-definite matrix of rank r."""
    values, vectors = torch.linalg.eigh(matrix)
    kept = values > len(matrix) * torch.finfo(matrix.dtype).eps * values[-1]
    return vectors[:, kept] * values[kept].rsqrt()


def flattening(features: Tensor, batch_size: int) -> Tensor:
    """Return P (r, r) such that the largest eigenvalues of (ΦP)ᵀΦP/n, those above what the noise of
    a batch leaves of use, are all the same.

    With eigenpairs (λ_i, u_i) of ΦᵀΦ/n, P = Σ_i u_i u_iᵀ √min(1, λ_k/λ_i), and k the first for
    which λ_k is at most κ²_k / b, κ²_k the largest ‖Pφ‖².

    Args:
        features: a sample (N, r) of the rows of Φ.

    References:
        Ma, Belkin (2017), "Diving into the shallows: a computational perspective on large-scale
        shallow learning", Section 4.
    """
    _, singular, vectors = torch.linalg.svd(features, full_matrices=False)
    values = singular.square() / len(features)
    squares = (features @ vectors.mT).square()
    outside = features.square().sum(1) - squares.sum(1)
    # The largest squared norm of a row for each k: what comes after k, and k times what it leaves.
    after = squares.sum(1, keepdim=True) - squares.cumsum(1)
    shrunk = values * (squares / values.clamp_min(torch.finfo(values.dtype).tiny)).cumsum(1)
    bounds = (shrunk + after + outside.unsqueeze(1)).amax(0)
    enough = (values * batch_size <= bounds).nonzero()
    k = int(enough[0]) if len(enough) else len(values) - 1
    scales = (values[k] / values[: k + 1]).sqrt()
    top = vectors[: k + 1]
    identity = torch.eye(features.shape[1], dtype=features.dtype, device="cpu")
    return identity - top.mT @ ((1.0 - scales).unsqueeze(1) * top)


def approximate_leverage_scores(
    kernel: Kernel, X: Tensor, sketch: Tensor, regularization: float
) -> Tensor:
    """Return approximations (n,) of the ridge leverage scores diag(K (K + λ n I)⁻¹), K = k(X, X),
    which say how much each of n data matters to a regression, from a uniform sketch S of p data, in
    O(n p²):

        (k(x, x) − k(x, S) (K_SS + λ p I)⁻¹ k(S, x)) / (λ n),   at most 1; exact if p = n.

    A point that the sketch represents badly gets a high score, so that it is drawn.

    Args:
        X: (n, d).
        sketch: the indices S (p,), distinct.
        regularization: λ, above 0.

    References:
        Rudi, Calandriello, Carratino, Rosasco (2018), "On Fast Leverage Score Sampling and Optimal
        Learning", with uniform weights.
    """
    p = len(sketch)
    n = len(X)
    block = kernel_operator(kernel, X[sketch]).to_dense().clone()
    block.diagonal().add_(regularization * p)
    factor, _ = jittered_cholesky(block, overwrite=True)

    def missed(size: int) -> Tensor:
        parts = []
        for part in spans(n, size):
            half = torch.linalg.solve_triangular(
                factor, kernel_operator(kernel, X[sketch], X[part]).to_dense(), upper=False
            )
            parts.append(kernel(X[part], diag=True) - half.square().sum(0))
        return torch.cat(parts)

    scores = memory.halving(missed, tile_side(X.device), "A part") / (regularization * n)
    return scores.clamp(torch.finfo(X.dtype).eps, 1.0)
