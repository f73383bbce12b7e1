"""Distance of the paths' covariance to the exact posterior's, against the number F of random
features.

    python benchmarks/feature_covariance.py --out benchmarks/results/feature_covariance.json

Paths that share one draw of features Φ have, however many they are, the covariance [I, −A] ΦΦᵀ [I,
−A]ᵀ + σ² A Aᵀ with A = k(·, X) H⁻¹. It is compared with the exact one at 50 points (Matérn-3/2,
1000 uniform data): relative Frobenius distance, and root mean square relative error of the
variances, for one draw and for the average of eight. The model's default F and its paths a draw
follow from this.
"""

import argparse
import statistics
from pathlib import Path

import torch
from gpytorch.kernels import MaternKernel
from rich.console import Console
from rich.table import Table

from scalable_bo.experiments.records import describe_environment, write_record
from surrogates import RandomFeatures

PROBLEMS = ((2, 0.3, 1e-2), (8, 0.5, 1e-6), (8, 2.0, 1e-6))  # d, lengthscale, noise
NUM_FEATURES = (256, 1024, 2048, 4096, 16384)
DRAWS = (1, 8)


def errors(
    dim: int, lengthscale: float, noise: float, orthogonal: bool, repeats: int
) -> list[dict[str, float]]:
    """Return one row for every F and number of draws, means over ``repeats``."""
    kernel = MaternKernel(nu=1.5).double().requires_grad_(False)
    kernel.lengthscale = lengthscale
    generator = torch.Generator().manual_seed(0)
    X, T = (torch.rand(size, dim, generator=generator, dtype=torch.float64) for size in (1000, 50))
    cross = kernel(X, T).to_dense()
    A = torch.linalg.solve(kernel(X).to_dense() + noise * torch.eye(len(X), dtype=X.dtype), cross).T
    exact = kernel(T).to_dense() - A @ cross
    rows = []
    for num_features in NUM_FEATURES:
        for draws in DRAWS:
            distances = []
            variance_errors = []
            for _ in range(repeats):
                covariance = noise * A @ A.T
                for _ in range(draws):
                    features = RandomFeatures.draw(
                        kernel, dim, num_features, orthogonal=orthogonal, generator=generator
                    )
                    deviation = features(T) - A @ features(X)
                    covariance = covariance + deviation @ deviation.T / draws
                difference = covariance - exact
                distances.append((difference.norm() / exact.norm()).item())
                variance_errors.append(
                    (difference.diagonal() / exact.diagonal()).square().mean().sqrt().item()
                )
            rows.append(
                {
                    "num_features": num_features,
                    "draws": draws,
                    "distance": statistics.fmean(distances),
                    "variance_error": statistics.fmean(variance_errors),
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--out", type=Path, default=None, help="JSON record to write")
    arguments = parser.parse_args()
    results = []
    for dim, lengthscale, noise in PROBLEMS:
        for orthogonal in (False, True):
            rows = errors(dim, lengthscale, noise, orthogonal, arguments.repeats)
            results.append(
                {
                    "dim": dim,
                    "lengthscale": lengthscale,
                    "noise": noise,
                    "orthogonal": orthogonal,
                    "rows": rows,
                }
            )
            kind = "orthogonal" if orthogonal else "independent"
            table = Table(
                title=f"d = {dim}, lengthscale {lengthscale}, noise {noise:g}, {kind} features"
            )
            for heading in ("F", "draws", "distance", "variance error"):
                table.add_column(heading, justify="right")
            for row in rows:
                table.add_row(
                    str(row["num_features"]),
                    str(row["draws"]),
                    f"{row['distance']:.3f}",
                    f"{row['variance_error']:.3f}",
                )
            Console().print(table)
    if arguments.out is not None:
        settings = {
            "kernel": "Matérn-3/2",
            "num_data": 1000,
            "num_test": 50,
            "repeats": arguments.repeats,
            "dtype": "float64",
        }
        environment = describe_environment(torch.device("cpu"))
        write_record(
            arguments.out,
            {
                "benchmark": "feature_covariance",
                "settings": settings,
                "environment": environment,
                "results": results,
            },
        )


if __name__ == "__main__":
    main()
