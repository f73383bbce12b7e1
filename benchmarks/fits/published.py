"""The published scores of fits, to stand beside our own."""

from __future__ import annotations

from typing import NamedTuple


class PublishedScore(NamedTuple):
    """A method's means on one data set, as printed in Tables 1 to 5 of the sgGP paper (Chen et al.
    2022); ``None`` where not printed.

    Attributes:
        n: points, of which 60 % for training.
        noise_std: learned, on standardised targets.
        minutes: of the fit, on one core of 2014.
    """

    data: str
    n: int
    method: str
    rmse: float
    nll: float | None
    noise_std: float | None
    minutes: float


SCORES = (
    PublishedScore("levy", 10_000, "sgGP (uni)", 0.594, 0.891, 0.549, 0.41),
    PublishedScore("levy", 10_000, "sgGP (nn)", 0.264, 0.034, 0.200, 0.35),
    PublishedScore("levy", 10_000, "SGPR", 0.564, 0.688, 0.265, 3.55),
    PublishedScore("griewank", 10_000, "sgGP (uni)", 0.149, 0.317, 0.010, 0.54),
    PublishedScore("griewank", 10_000, "sgGP (nn)", 0.070, -1.251, 0.071, 0.48),
    PublishedScore("griewank", 10_000, "SGPR", 0.132, -0.350, 0.183, 1.76),
    PublishedScore("borehole", 1_000_000, "sgGP (uni)", 0.173, -0.323, 0.168, 54.82),
    PublishedScore("borehole", 1_000_000, "sgGP (nn)", 0.172, -0.335, 0.171, 65.19),
    PublishedScore("borehole", 1_000_000, "SGPR", 0.178, -0.299, 0.157, 857.60),
    PublishedScore("otl", 2_000_000, "sgGP (nn)", 0.401, None, None, 33.43),
    PublishedScore("wing", 2_000_000, "sgGP (nn)", 0.072, None, None, 78.78),
    PublishedScore("bike", 17_379, "sgGP (uni)", 0.226, 0.238, None, 1.50),
    PublishedScore("bike", 17_379, "sgGP (nn)", 0.221, -0.038, None, 1.55),
    PublishedScore("bike", 17_379, "SGPR", 0.276, -0.150, None, 5.31),
    PublishedScore("protein", 45_730, "sgGP (uni)", 0.829, 1.241, None, 3.12),
    PublishedScore("protein", 45_730, "sgGP (nn)", 0.659, 0.884, None, 2.63),
    PublishedScore("protein", 45_730, "SGPR", 0.715, 0.948, None, 19.55),
)
