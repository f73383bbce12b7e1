"""Published numbers, to stand beside our own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

DATA_SETS = ("pol", "elevators", "bike", "protein", "keggdirected")
LOW_NOISE = 1e-6


@dataclass(frozen=True)
class Published:
    """One row of a published table: (mean, standard error) for each of ``DATA_SETS``, over five
    splits.

    Attributes:
        method: as the source calls it.
        metric: ``rmse``, ``nll`` or ``minutes`` (of the posterior mean alone, on one core of a
            TPUv2).
        values: mean and standard error as printed.
        noise: the noise variance set; ``None`` for that of the largest marginal likelihood.
        source: where it is printed.
    """

    method: str
    metric: str
    values: tuple[tuple[float, float], ...]
    noise: float | None = None
    source: str = "Lin et al. 2023, Table 1"


_SUBSET = "Lin et al. 2023, Table 3"

PUBLISHED = (
    Published(
        "SGD", "rmse", ((0.13, 0.00), (0.38, 0.00), (0.11, 0.00), (0.51, 0.00), (0.12, 0.00))
    ),
    Published("CG", "rmse", ((0.08, 0.00), (0.35, 0.00), (0.04, 0.00), (0.50, 0.00), (0.08, 0.00))),
    Published(
        "SVGP", "rmse", ((0.10, 0.00), (0.37, 0.00), (0.07, 0.00), (0.57, 0.00), (0.09, 0.00))
    ),
    Published(
        "subset, 5 %",
        "rmse",
        ((0.20, 0.01), (0.44, 0.00), (0.18, 0.01), (0.71, 0.01), (0.11, 0.00)),
        source=_SUBSET,
    ),
    Published(
        "subset, 10 %",
        "rmse",
        ((0.16, 0.00), (0.41, 0.01), (0.13, 0.00), (0.66, 0.00), (0.11, 0.00)),
        source=_SUBSET,
    ),
    Published(
        "SGD", "nll", ((-0.70, 0.02), (0.47, 0.00), (-0.48, 0.08), (0.64, 0.01), (-0.62, 0.07))
    ),
    Published(
        "CG", "nll", ((-1.17, 0.01), (0.38, 0.00), (-2.62, 0.06), (0.62, 0.01), (-0.92, 0.10))
    ),
    Published(
        "SVGP", "nll", ((-0.71, 0.01), (0.43, 0.00), (-1.27, 0.02), (0.86, 0.01), (-0.70, 0.02))
    ),
    Published(
        "subset, 5 %",
        "nll",
        ((-0.43, 0.02), (0.57, 0.01), (-0.61, 0.09), (0.99, 0.01), (-0.76, 0.10)),
        source=_SUBSET,
    ),
    Published(
        "subset, 10 %",
        "nll",
        ((-0.66, 0.02), (0.51, 0.01), (-1.28, 0.07), (0.91, 0.01), (-0.82, 0.09)),
        source=_SUBSET,
    ),
    Published(
        "SGD", "minutes", ((3.51, 0.01), (3.51, 0.01), (5.70, 0.02), (7.10, 0.01), (15.2, 0.02))
    ),
    Published(
        "CG", "minutes", ((2.18, 0.32), (1.72, 0.60), (2.81, 0.22), (9.07, 1.68), (12.5, 1.99))
    ),
    Published(
        "SVGP", "minutes", ((21.2, 0.27), (21.3, 0.12), (20.5, 0.02), (20.8, 0.04), (20.8, 0.05))
    ),
    Published(
        "SGD",
        "rmse",
        ((0.13, 0.00), (0.38, 0.00), (0.11, 0.00), (0.51, 0.00), (0.12, 0.00)),
        LOW_NOISE,
    ),
    Published(
        "CG",
        "rmse",
        ((0.16, 0.01), (0.68, 0.09), (0.05, 0.01), (3.03, 0.23), (9.79, 1.06)),
        LOW_NOISE,
    ),
)

THOMPSON_SOURCE = "Rathore et al. 2025, Table 2"
# Improvement over random search in per cent after all rounds, mean over five seeds: preset, solver,
# lengthscale.
PUBLISHED_IMPROVEMENT = {
    ("adasap2025", solver, lengthscale): value
    for solver, values in {
        "adasap": (10.42, 13.86),
        "adasap-i": (7.04, 11.27),
        "sdd-1": (6.50, 11.17),
        "sdd-10": (0.00, 0.00),
        "sdd-100": (0.00, 0.00),
        "cg": (0.13, 5.54),
    }.items()
    for lengthscale, value in zip((2.0, 3.0), values, strict=True)
}
# What is printed of the runs of a preset where their ends are not
PUBLISHED_RUNS = {
    "lin2023-small": (
        " Lin et al. (2023, Figure 6) show their runs as curves, over all lengthscales; a round"
        " took about 180 s by SGD and SVGP, 360 s by CG, on an A100."
    ),
}


class PublishedScore(NamedTuple):
    """A method's means on one data set, as printed in Tables 1 to 5 of the sgGP paper (Chen et al.
    2022); ``None`` where not printed.

    Attributes:
        n: points, of which 60 % for training.
        noise_std, signal_std: learned, on standardised targets.
        minutes: of the fit, on one core of 2014.
    """

    data: str
    n: int
    method: str
    rmse: float
    nll: float | None
    noise_std: float | None
    minutes: float
    signal_std: float | None = None


SCORES = (
    PublishedScore("levy", 10_000, "sgGP (uni)", 0.594, 0.891, 0.549, 0.41, 0.886),
    PublishedScore("levy", 10_000, "sgGP (nn)", 0.264, 0.034, 0.200, 0.35, 0.968),
    PublishedScore("levy", 10_000, "SGPR", 0.564, 0.688, 0.265, 3.55, 1.773),
    PublishedScore("griewank", 10_000, "sgGP (uni)", 0.149, 0.317, 0.010, 0.54, 0.993),
    PublishedScore("griewank", 10_000, "sgGP (nn)", 0.070, -1.251, 0.071, 0.48, 1.533),
    PublishedScore("griewank", 10_000, "SGPR", 0.132, -0.350, 0.183, 1.76, 2.096),
    PublishedScore("borehole", 1_000_000, "sgGP (uni)", 0.173, -0.323, 0.168, 54.82, 2.159),
    PublishedScore("borehole", 1_000_000, "sgGP (nn)", 0.172, -0.335, 0.171, 65.19, 1.091),
    PublishedScore("borehole", 1_000_000, "SGPR", 0.178, -0.299, 0.157, 857.60, 0.684),
    PublishedScore("otl", 2_000_000, "sgGP (nn)", 0.401, None, None, 33.43),
    PublishedScore("wing", 2_000_000, "sgGP (nn)", 0.072, None, None, 78.78),
    PublishedScore("bike", 17_379, "sgGP (uni)", 0.226, 0.238, None, 1.50),
    PublishedScore("bike", 17_379, "sgGP (nn)", 0.221, -0.038, None, 1.55),
    PublishedScore("bike", 17_379, "SGPR", 0.276, -0.150, None, 5.31),
    PublishedScore("protein", 45_730, "sgGP (uni)", 0.829, 1.241, None, 3.12),
    PublishedScore("protein", 45_730, "sgGP (nn)", 0.659, 0.884, None, 2.63),
    PublishedScore("protein", 45_730, "SGPR", 0.715, 0.948, None, 19.55),
)
