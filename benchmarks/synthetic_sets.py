"""Stand-ins for regression sets of the papers that are not available here: with their numbers of
rows and inputs, and with the kernel and the noise of the papers.

    python -m benchmarks.synthetic_sets houseelec --rows 20000 --out synthetic-houseelec.parquet

Inputs are standard normal, the target y is a path of the prior and noise. The noise variance is
the square of the best published RMSE on the standardised target, and that of the path is the rest.
The papers publish no lengthscale: 4 √d is about three times the distance of two points, so that
some thousand rows tell more than the mean even in a hundred dimensions. Nothing that depends on how
the inputs are distributed, such as clusters, is reproduced.

References:
    Lin et al. (2023), Table 1; Rathore et al. (2025), Table 1.
"""

import math
from pathlib import Path
from typing import NamedTuple

import pandas
import torch

from benchmarks.scripts import script_parser
from scalable_bo.experiments.models import SMOOTHNESS, matern_kernel
from surrogates import PriorPaths, checks


class Published(NamedTuple):
    """A set as published; ``rmse`` is the best on its standardised target."""

    rows: int
    dim: int
    kernel: str
    rmse: float


SETS = {
    "yolanda": Published(400_000, 100, "rbf", 0.795),
    "song": Published(515_345, 90, "matern32", 0.752),
    "benzene": Published(627_983, 66, "matern52", 0.012),
    "malonaldehyde": Published(993_237, 36, "matern52", 0.015),
    "acsincome": Published(1_664_500, 11, "rbf", 0.789),
    "houseelec": Published(2_049_280, 11, "matern32", 0.027),
    "3droad": Published(434_874, 3, "matern32", 0.11),
    "buzz": Published(583_250, 77, "matern32", 0.33),
}


def table_like(name: str, rows: int | None = None, seed: int = 0) -> pandas.DataFrame:
    """Return a table of the inputs ``x1``, …, and the target ``y``, of so many rows, or of as many
    as the set has.
    """
    checks.one_of("name", name, SETS)
    rows = checks.optional(checks.integer, "rows", rows, 2)
    published = SETS[name]
    generator = torch.Generator().manual_seed(seed)
    shape = (published.rows if rows is None else rows, published.dim)
    X = torch.randn(shape, generator=generator, dtype=torch.float64)
    kernel = matern_kernel(4.0 * math.sqrt(published.dim), 1.0, SMOOTHNESS[published.kernel])
    path = PriorPaths.draw(kernel, published.dim, 1, num_features=5000, generator=generator, like=X)
    noise = torch.randn(shape[0], generator=generator, dtype=torch.float64)
    values = torch.cat([path(part).squeeze(0) for part in X.split(10_000)])
    values = (values - values.mean()) / values.std() * math.sqrt(1.0 - published.rmse**2)
    table = pandas.DataFrame(X.numpy(), columns=[f"x{i + 1}" for i in range(published.dim)])
    return table.assign(y=(values + published.rmse * noise).numpy())


def main() -> None:
    parser = script_parser(__doc__, "Parquet table to write")
    parser.add_argument("name", choices=SETS)
    parser.add_argument("--rows", type=int, help="rows, if not all")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    out = arguments.out or Path(f"synthetic-{arguments.name}.parquet")
    table_like(arguments.name, arguments.rows, arguments.seed).to_parquet(out)


if __name__ == "__main__":
    main()
