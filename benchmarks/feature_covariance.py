"""Posterior variances of paths over the exact ones, and their distance against the number F of
random features.

    python benchmarks/feature_covariance.py --out benchmarks/results/feature_covariance.json

Paths that share one draw of features Φ have, however many they are, the covariance [I, −A] ΦΦᵀ [I,
−A]ᵀ + σ² A Aᵀ with A = k(·, X) H⁻¹. Over a grid of dimensions, kernels, lengthscales and noises,
the average variance at the test points is divided by the exact one: of single draws, and of the
posterior of 256 paths, whose deviations from the mean are f − A (f(X) + ε). These are drawn as the
model draws them, with a direct solve; ``--check`` compares some with those of the model. Against F,
the relative Frobenius distance of the covariance and the root mean square relative error of the
variances are those of one draw and of the average of eight. The model's default F and its paths a
draw follow from this.
"""

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Iterator
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
from surrogates import CG, Nystrom, PathwiseGP, RandomFeatures, gaussian_likelihood
from surrogates.functions.draws import balanced_normal
from surrogates.rules.data import DataSet
from surrogates.rules.solved import draw_prior

DIMS = (1, 2, 4, 8, 20)
NUS = (0.5, 1.5, 2.5, math.inf)  # RBF is ν = ∞
LENGTHSCALES = (0.1, 0.5, 1.0, 2.0, 5.0)
NOISES = (1e-6, 1e-4, 1e-2, 1e-1)
SEEDS = 8
NUM_PATHS = 256
NUM_TEST = 40
# d, lengthscale, noise of the distances
PROBLEMS = ((2, 0.3, 1e-2), (8, 0.5, 1e-6), (8, 2.0, 1e-6))
DISTANCE_POINTS = 300
NUM_FEATURES = (256, 1024, 2048, 4096)
DRAWS = (1, 8)
# d, ν, lengthscale, noise, of which the model's own posterior is computed
CHECKED = ((1, 1.5, 1.0, 1e-4), (4, 1.5, 2.0, 1e-6), (8, math.inf, 0.5, 1e-2))


@dataclass(frozen=True)
class Problem:
    """Uniform data of a kernel.

    Attributes:
        dim, nu, lengthscale: d, ν, ℓ.
        num_data: n.
        device: of the points, and so of all that is computed.
    """

    dim: int
    nu: float
    lengthscale: float
    num_data: int
    device: str = "cpu"

    @cached_property
    def kernel(self) -> Kernel:
        kernel = RBFKernel() if math.isinf(self.nu) else MaternKernel(nu=self.nu)
        kernel.lengthscale = self.lengthscale
        return kernel.double().to(self.device).requires_grad_(False)

    @cached_property
    def points(self) -> tuple[Tensor, Tensor]:
        """The data X and the test points."""
        generator = torch.Generator().manual_seed(0)
        sizes = (self.num_data, NUM_TEST)
        X, T = (torch.rand(m, self.dim, generator=generator, dtype=torch.float64) for m in sizes)
        return X.to(self.device), T.to(self.device)

    @cached_property
    def data(self) -> DataSet:
        X, _ = self.points
        return DataSet(X, torch.zeros_like(X[:, 0]), torch.ones(()), self.kernel, ZeroMean())

    @cached_property
    def covariances(self) -> tuple[Tensor, Tensor, Tensor]:
        X, T = self.points
        return self.kernel(X).to_dense(), self.kernel(X, T).to_dense(), self.kernel(T).to_dense()

    def exact(self, noise: float) -> tuple[Tensor, Tensor]:
        """Return the covariance at the test points, and A."""
        K, cross, prior = self.covariances
        L = torch.linalg.cholesky(K + noise * torch.eye(len(K)).to(K))
        half = torch.linalg.solve_triangular(L, cross, upper=False)
        A = torch.linalg.solve_triangular(L.T, half, upper=True).T
        return prior - half.T @ half, A

    def features(self, num_features: int, weighted: bool, generator: torch.Generator) -> Tensor:
        """Return one draw of features at the test points, and at the data below them."""
        drawn = RandomFeatures.draw(
            self.kernel, self.dim, num_features, weighted=weighted, generator=generator
        )
        X, T = self.points
        return drawn(torch.cat([T, X]))


def of_draw(features: Tensor, A: Tensor, noise: float) -> Tensor:
    """Return the covariance at the test points of paths that share one draw of features."""
    deviation = features[:NUM_TEST] - A @ features[NUM_TEST:]
    return deviation @ deviation.T + noise * A @ A.T


def of_paths(values: Tensor, A: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """Return the variances at the test points of paths with the prior ``values`` (q + n, s)."""
    std = math.sqrt(noise)
    f = values[NUM_TEST:]
    deviation = values[:NUM_TEST] - A @ (f + std * balanced_normal(f / std, generator))
    return deviation.square().mean(1)


def of_model(problem: Problem, noise: float, seed: int) -> Tensor:
    """Return the variances at the test points of the posterior of a model of paths."""
    X, T = problem.points
    model = PathwiseGP(
        X,
        torch.zeros(len(X), 1, dtype=X.dtype),
        likelihood=gaussian_likelihood(noise),
        covar_module=problem.kernel,
        mean_module=ZeroMean(),
        outcome_transform=None,
        solver=CG(Nystrom(len(X) // 5), tolerance=1e-8),
        seed=seed,
    )
    with torch.no_grad():
        variance: Tensor = model.posterior(T).variance.squeeze(-1)
    return variance


def ratios(problem: Problem, num_features: int) -> Iterator[dict[str, Any]]:
    """Yield, for every noise, the variances over the exact one, averaged over test points, of
    every seed.
    """
    X, T = problem.points
    solved = {noise: problem.exact(noise) for noise in NOISES}
    found: dict[float, dict[str, list[float]]] = {
        noise: {"unweighted": [], "weighted": [], "paths": []} for noise in NOISES
    }
    for seed in range(SEEDS):
        generator = torch.Generator().manual_seed(seed)
        prior = draw_prior(problem.data, NUM_PATHS, num_features, True, generator)
        values = prior(torch.cat([T, X])).T
        state = generator.get_state()
        weighted = prior.draws[0][0](torch.cat([T, X]))
        unweighted = problem.features(num_features, False, torch.Generator().manual_seed(seed))
        for noise, (covariance, A) in solved.items():
            exact = covariance.trace()
            for name, features in (("unweighted", unweighted), ("weighted", weighted)):
                ratio = of_draw(features, A, noise).trace() / exact
                found[noise][name].append(ratio.item())
            own = torch.Generator()
            own.set_state(state)  # so that every noise is drawn as the model would
            found[noise]["paths"].append((of_paths(values, A, noise, own).sum() / exact).item())
    for noise, (covariance, _) in solved.items():
        yield {
            "dim": problem.dim,
            "nu": "inf" if math.isinf(problem.nu) else problem.nu,
            "lengthscale": problem.lengthscale,
            "noise": noise,
            "num_data": problem.num_data,
            "exact": float(f"{covariance.trace().item() / NUM_TEST:.3g}"),
            **{name: [round(value, 3) for value in all] for name, all in found[noise].items()},
        }


def distances(
    problem: Problem, noise: float, weighted: bool, repeats: int
) -> list[dict[str, float]]:
    """Return one row for every F and number of draws, means over ``repeats``."""
    exact, A = problem.exact(noise)
    generator = torch.Generator().manual_seed(0)

    def drawn(num_features: int) -> Tensor:
        return of_draw(problem.features(num_features, weighted, generator), A, noise)

    rows = []
    for num_features, num_draws in itertools.product(NUM_FEATURES, DRAWS):
        covariances = [
            torch.stack([drawn(num_features) for _ in range(num_draws)]).mean(0)
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


def checked(num_data: int, device: str) -> list[dict[str, Any]]:
    """Return the largest differences of a variance from the one of the model itself."""
    rows = []
    for dim, nu, lengthscale, noise in CHECKED:
        problem = Problem(dim, nu, lengthscale, num_data, device)
        X, T = problem.points
        generator = torch.Generator().manual_seed(3)
        prior = draw_prior(problem.data, NUM_PATHS, 2048, True, generator)
        _, A = problem.exact(noise)
        own = of_paths(prior(torch.cat([T, X])).T, A, noise, generator)
        theirs = of_model(problem, noise, 3)
        rows.append(
            {
                "dim": dim,
                "lengthscale": lengthscale,
                "noise": noise,
                "difference": ((own - theirs).abs() / theirs).max().item(),
            }
        )
    return rows


def summary(cells: list[dict[str, Any]]) -> Table:
    """Return the extremes over the grid of every seed, and of the average over seeds."""
    table = Table(title=f"Variance over the exact one: extremes over {len(cells)} cells")
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
    parser.add_argument("--num-data", type=int, default=1000)
    parser.add_argument("--num-features", type=int, default=2048)
    parser.add_argument("--dims", type=int, nargs="*", default=DIMS, help="of the grid")
    parser.add_argument("--check", action="store_true", help="compare some with the model's own")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=None, help="JSON record to write")
    arguments = parser.parse_args()
    started = time.perf_counter()
    n = arguments.num_data
    cells: list[dict[str, Any]] = []
    for values in itertools.product(arguments.dims, NUS, LENGTHSCALES):
        cells += ratios(Problem(*values, n, arguments.device), arguments.num_features)
    Console().print(summary(cells))
    rows = []
    for dim, lengthscale, noise in PROBLEMS if arguments.repeats else ():
        problem = Problem(dim, 1.5, lengthscale, DISTANCE_POINTS, arguments.device)
        for weighted in (False, True):
            own = distances(problem, noise, weighted, arguments.repeats)
            place = {"dim": dim, "lengthscale": lengthscale, "noise": noise}
            rows.append({**place, "weighted": weighted, "rows": own})
            Console().print(place, "weighted" if weighted else "unweighted")
            for row in own:
                Console().print(row)
    against_model = checked(n, arguments.device) if arguments.check else []
    Console().print(against_model, f"{time.perf_counter() - started:.0f} s")
    if arguments.out is not None:
        settings = {
            "num_data": n,
            "num_test": NUM_TEST,
            "num_features": arguments.num_features,
            "num_paths": NUM_PATHS,
            "repeats": arguments.repeats,
            "dtype": "float64",
        }
        write_record(
            arguments.out,
            {
                "benchmark": "feature_covariance",
                "settings": settings,
                "environment": describe_environment(torch.device(arguments.device)),
                "variances": cells,
                "distances": rows,
                "checked": against_model,
            },
        )


if __name__ == "__main__":
    main()
