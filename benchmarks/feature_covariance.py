"""Distance of the paths' covariance to the exact posterior's, against the number F of random
features.

    python benchmarks/feature_covariance.py --out benchmarks/results/feature_covariance.json

Paths that share one draw of features Φ have, however many they are, the covariance [I, −A] ΦΦᵀ [I,
−A]ᵀ + σ² A Aᵀ with A = k(·, X) H⁻¹. It is compared with the exact one at 50 points (Matérn-3/2,
1000 uniform data): relative Frobenius distance, and root mean square relative error of the
variances, for one draw and for the average of eight. The model's default F and its paths a draw
follow from this.
"""

import statistics

import torch
from gpytorch.kernels import MaternKernel

from scalable_bo.experiments.scripts import print_rows, script_parser, write_benchmark
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
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=6)
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
            print_rows(
                f"d = {dim}, lengthscale {lengthscale}, noise {noise:g}, {kind} features",
                ("F", "draws", "distance", "variance error"),
                [
                    [
                        str(row["num_features"]),
                        str(row["draws"]),
                        f"{row['distance']:.3f}",
                        f"{row['variance_error']:.3f}",
                    ]
                    for row in rows
                ],
                num_words=0,
            )
    settings = {
        "kernel": "Matérn-3/2",
        "num_data": 1000,
        "num_test": 50,
        "repeats": arguments.repeats,
        "dtype": "float64",
    }
    write_benchmark(arguments.out, "feature_covariance", settings=settings, results=results)


if __name__ == "__main__":
    main()
