"""How much a minibatch tells about the noise: the curvature of its likelihood,
for random and for neighbouring points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from benchmarks.fits.cell import FitCell
from scalable_bo.experiments.cells import Status
from surrogates import checks
from surrogates.fitting.neighbours import Neighbours

SAMPLINGS = ("uniform", "nearest")
SPREAD = 10.0
LENGTHSCALE = 0.5
OUTPUTSCALE = 4.0
NOISE = 1.0


@dataclass(frozen=True, kw_only=True)
class CurvatureCell(FitCell):
    """The curvature for one way of sampling: γ = 1 / (2 m) Σ_j (σ_f² λ_j + σ²)^(−2), λ the
    eigenvalues of a minibatch's kernel matrix.

    Args:
        method: ``uniform``, or ``nearest`` for a random point and those nearest to it.
        batch_sizes: m.
        n: points x ~ N(0, 10²), of which at least the largest m.
        num_replicates: minibatches of each size.
        seed: of points and minibatches.
    References:
        Chen, Zheng, Al Kontar, Raskutti (2022), "Gaussian Process Parameter Estimation Using
        Mini-batch Stochastic Gradient Descent: Convergence Guarantees and Empirical Benefits",
        Figure 1.
    """

    experiment: ClassVar[str] = "curvature"
    method: str
    batch_sizes: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    n: int = 2048
    num_replicates: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        checks.one_of("method", self.method, SAMPLINGS)
        checks.positive_int("num_replicates", self.num_replicates)
        for m in self.batch_sizes:
            checks.integer("batch_sizes", m, 1)
            if m > self.n:
                raise ValueError(
                    f"`batch_sizes` must be at most n = {self.n}, got {m}. Reduce it, or raise `n`."
                )

    def measure(self, on_status: Status) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(self.seed)
        X = SPREAD * torch.randn(self.n, 1, generator=generator, dtype=torch.float64)
        neighbours = Neighbours(X, RBFKernel())
        points = []
        for m in self.batch_sizes:
            on_status(f"{self.method}: {self.num_replicates} minibatches of {m}")
            if self.method == "nearest":
                rows = neighbours.of(
                    X[torch.randperm(self.n, generator=generator)[: self.num_replicates]], m
                )
            else:
                rows = torch.stack(
                    [
                        torch.randperm(self.n, generator=generator)[:m]
                        for _ in range(self.num_replicates)
                    ]
                )
            values = curvature(X[rows].to(self.device)).cpu()
            points.append(
                {
                    "batch_size": m,
                    "mean": values.mean().item(),
                    "std": values.std().item() if len(values) > 1 else 0.0,
                }
            )
        return {"points": points}

    def describe(self, record: dict[str, Any]) -> str:
        values = ", ".join(
            f"{point['mean']:.3f} at m = {point['batch_size']}" for point in record["points"]
        )
        return f"curvature of {self.method} minibatches: {values}"


def curvature(X: Tensor) -> Tensor:
    """Return γ (b,) of b minibatches X (b, m, 1) under the RBF kernel of lengthscale 0.5,
    σ_f² = 4 and σ² = 1.
    """
    K = torch.exp(-0.5 * ((X - X.mT) / LENGTHSCALE).square())
    values = torch.linalg.eigvalsh(K).clamp_min(0.0)
    return 0.5 * (OUTPUTSCALE * values + NOISE).pow(-2.0).mean(-1)
