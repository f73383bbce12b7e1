"""Posterior variances of paths over the exact ones, and their distance against the number F of
random features.

    python benchmarks/feature_covariance.py --out benchmarks/results/feature_covariance.json

Paths that share one draw of features Φ have, however many they are, the covariance [I, −A] ΦΦᵀ [I,
−A]ᵀ + σ² A Aᵀ with A = k(·, X) H⁻¹. Over a grid of dimensions, kernels, lengthscales and noises,
the average variance at the test points is divided by the exact one: of single draws, weighted and
not, and of the posterior of 256 paths. Against F, the relative
Frobenius distance of the covariance and the root mean square relative error of the variances are
those of one draw and of the average of eight. The model's default F and its paths a draw follow
from this.
"""

import argparse
import itertools
import math
import statistics
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from gpytorch.means import ZeroMean
from rich.console import Console
from rich.table import Table
from torch import Tensor

from scalable_bo.experiments.records import describe_environment, write_record
from surrogates import Auto, PathwiseGP, RandomFeatures, gaussian_likelihood

DIMS = (1, 2, 4, 8, 20)
NUS = (0.5, 1.5, 2.5, math.inf)  # RBF is ν = ∞
LENGTHSCALES = (0.1, 0.7, 5.0)
NOISES = (1e-6, 1e-3, 1e-1)
SEEDS = 8
NUM_TEST = 40
# d, lengthscale, noise of the distances
PROBLEMS = ((2, 0.3, 1e-2), (8, 0.5, 1e-6), (8, 2.0, 1e-6))
NUM_FEATURES = (256, 1024, 2048, 4096)
DRAWS = (1, 8)


@dataclass(frozen=True)
class Cell:
    """A posterior of zero-mean uniform data.

    Attributes:
        dim, nu, lengthscale, noise: d, ν, ℓ, σ².
        num_data: n.
    """

    dim: int
    nu: float
    lengthscale: float
    noise: float
    num_data: int

    @cached_property
    def kernel(self) -> Kernel:
        kernel = RBFKernel() if math.isinf(self.nu) else MaternKernel(nu=self.nu)
        kernel.lengthscale = self.lengthscale
        return kernel.double().requires_grad_(False)

    @cached_property
    def points(self) -> tuple[Tensor, Tensor]:
        """The data X and the test points."""
        generator = torch.Generator().manual_seed(0)
        sizes = (self.num_data, NUM_TEST)
        X, T = (torch.rand(m, self.dim, generator=generator, dtype=torch.float64) for m in sizes)
        return X, T

    @cached_property
    def exact(self) -> tuple[Tensor, Tensor]:
        """The covariance at the test points, and A."""
        X, T = self.points
        noise = self.noise * torch.eye(len(X), dtype=X.dtype)
        L = torch.linalg.cholesky(self.kernel(X).to_dense() + noise)
        cross = self.kernel(X, T).to_dense()
        half = torch.linalg.solve_triangular(L, cross, upper=False)
        return self.kernel(T).to_dense() - half.T @ half, torch.cholesky_solve(cross, L).T

    def drawn(self, num_features: int, weighted: bool, generator: torch.Generator) -> Tensor:
        """Return the covariance at the test points of paths that share one draw of features."""
        X, T = self.points
        _, A = self.exact
        features = RandomFeatures.draw(
            self.kernel, self.dim, num_features, weighted=weighted, generator=generator
        )
        deviation = features(T) - A @ features(X)
        return deviation @ deviation.T + self.noise * A @ A.T

    def of_paths(self, seed: int) -> Tensor:
        """Return the variances at the test points of the posterior of 256 paths."""
        X, T = self.points
        model = PathwiseGP(
            X,
            torch.zeros(len(X), 1, dtype=X.dtype),
            likelihood=gaussian_likelihood(self.noise),
            covar_module=self.kernel,
            mean_module=ZeroMean(),
            outcome_transform=None,
            solver=Auto(),
            seed=seed,
        )
        with torch.no_grad():
            variance: Tensor = model.posterior(T).variance.squeeze(-1)
        return variance


def ratios(cell: Cell) -> dict[str, Any]:
    """Return the variances over the exact one, averaged over test points, of every seed."""
    exact = cell.exact[0].trace().item()
    generator = torch.Generator().manual_seed(0)
    draws = {
        name: [cell.drawn(2048, weighted, generator).trace().item() for _ in range(SEEDS)]
        for name, weighted in (("unweighted", False), ("weighted", True))
    }
    draws["paths"] = [cell.of_paths(seed).sum().item() for seed in range(SEEDS)]
    return {
        "dim": cell.dim,
        "nu": "inf" if math.isinf(cell.nu) else cell.nu,
        "lengthscale": cell.lengthscale,
        "noise": cell.noise,
        "exact": float(f"{exact / NUM_TEST:.3g}"),
        **{name: [round(value / exact, 3) for value in values] for name, values in draws.items()},
    }


def distances(cell: Cell, weighted: bool, repeats: int) -> list[dict[str, float]]:
    """Return one row for every F and number of draws, means over ``repeats``."""
    exact = cell.exact[0]
    generator = torch.Generator().manual_seed(0)
    rows = []
    for num_features, num_draws in itertools.product(NUM_FEATURES, DRAWS):
        covariances = [
            torch.stack(
                [cell.drawn(num_features, weighted, generator) for _ in range(num_draws)]
            ).mean(0)
            for _ in range(repeats)
        ]
        differences = [covariance - exact for covariance in covariances]
        relative = [difference.diagonal() / exact.diagonal() for difference in differences]
        rows.append(
            {
                "num_features": num_features,
                "draws": num_draws,
                "distance": statistics.fmean(
                    (part.norm() / exact.norm()).item() for part in differences
                ),
                "variance_error": statistics.fmean(
                    part.square().mean().sqrt().item() for part in relative
                ),
            }
        )
    return rows


def summary(cells: list[dict[str, Any]]) -> Table:
    """Return the extremes over the grid of every seed, and of the average over seeds."""
    table = Table(title="Variance over the exact one: extremes over the grid")
    for heading in ("", "of a seed", "of the average over seeds"):
        table.add_column(heading)
    for name in ("unweighted", "weighted", "paths"):
        alone = [value for cell in cells for value in cell[name]]
        average = [statistics.fmean(cell[name]) for cell in cells]
        table.add_row(
            name,
            *(f"{min(values):.3f} … {max(values):.3f}" for values in (alone, average)),
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3, help="of the distances")
    parser.add_argument("--num-data", type=int, default=300)
    parser.add_argument("--out", type=Path, default=None, help="JSON record to write")
    arguments = parser.parse_args()
    n = arguments.num_data
    grid = itertools.product(DIMS, NUS, LENGTHSCALES, NOISES)
    cells = [ratios(Cell(*values, n)) for values in grid]
    Console().print(summary(cells))
    rows = []
    for dim, lengthscale, noise in PROBLEMS:
        cell = Cell(dim, 1.5, lengthscale, noise, n)
        for weighted in (False, True):
            own = distances(cell, weighted, arguments.repeats)
            problem = {"dim": dim, "lengthscale": lengthscale, "noise": noise}
            rows.append({**problem, "weighted": weighted, "rows": own})
            Console().print(problem, "weighted" if weighted else "unweighted")
            for row in own:
                Console().print(row)
    if arguments.out is not None:
        settings = {
            "num_data": n,
            "num_test": NUM_TEST,
            "num_features": 2048,
            "num_paths": 256,
            "repeats": arguments.repeats,
            "dtype": "float64",
        }
        write_record(
            arguments.out,
            {
                "benchmark": "feature_covariance",
                "settings": settings,
                "environment": describe_environment(torch.device("cpu")),
                "variances": cells,
                "distances": rows,
            },
        )


if __name__ == "__main__":
    main()
