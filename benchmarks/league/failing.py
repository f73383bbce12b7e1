"""Functions of the unit cube that fail within a region: half-spaces, corners, a band, a ring and a
ball around the optimum, 5 to 50 % of the cube.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Function = Callable[[np.ndarray], Any]  # of points (n, d)


def drawn(dim: int, seed: int) -> Function:
    """Return a sum of 40 random waves, of variance 1."""
    generator = np.random.default_rng(seed)
    waves = 3.0 * generator.normal(size=(40, dim))
    phases = generator.uniform(0.0, 2.0 * np.pi, 40)
    amplitudes = generator.normal(size=40) * math.sqrt(2.0 / 40)
    return lambda X: np.cos(X @ waves.T + phases) @ amplitudes


def distance(X: np.ndarray, *centre: float) -> np.ndarray:
    return np.linalg.norm(X - np.array(centre), axis=1)


# The number of inputs, a function to maximise, and where it fails
FAILING: dict[str, tuple[int, Function, Function]] = {
    "failing-rising-half-space": (
        *(3, lambda X: X[:, 2] + 0.5 * X[:, 0] - (X[:, 1] - 0.4) ** 2),
        lambda X: X[:, 2] > 0.8,
    ),
    "failing-rising-corner": (2, lambda X: X.sum(1), lambda X: (X > 0.7).all(1)),
    "failing-oblique": (
        3,
        lambda X: X[:, 0] + X[:, 1] - X[:, 2] ** 2,
        lambda X: X[:, 0] + X[:, 1] > 1.4,
    ),
    "failing-band": (
        2,
        lambda X: -(distance(X, 0.3, 0.6) ** 2),
        lambda X: abs(X[:, 0] - 0.55) < 0.1,
    ),
    "failing-ball": (
        2,
        lambda X: -(distance(X, 0.5, 0.5) ** 2),
        lambda X: distance(X, 0.5, 0.5) < 0.2,
    ),
    "failing-drawn-half-space": (4, drawn(4, 1), lambda X: X[:, 0] > 0.6),
    "failing-drawn-ring": (2, drawn(2, 2), lambda X: abs(distance(X, 0.5, 0.5) - 0.3) < 0.06),
    "failing-drawn-corner": (6, drawn(6, 3), lambda X: (X[:, 0] > 0.6) & (X[:, 1] > 0.5)),
    "failing-rising-edge": (2, lambda X: X[:, 0] + 0.3 * X[:, 1], lambda X: X[:, 0] > 0.95),
    "failing-rising-half": (
        *(5, lambda X: X[:, 0] - 0.1 * ((X[:, 1:] - 0.5) ** 2).sum(1)),
        lambda X: X[:, 0] > 0.5,
    ),
}
