"""Nearest neighbours in the kernel's own metric: distances in units of its lengthscales.

Notation: X (n, d) points; c (d,) how much each input weighs in a distance, its spread over its
lengthscale, normalised to ‖c‖ = 1.
"""

import numpy as np
import torch
from gpytorch.kernels import Kernel
from scipy.spatial import cKDTree
from torch import Tensor

from surrogates.rules.limits import parts_with_lengthscales

EXACT_UP_TO_DIM = 3
# A neighbour may be this share farther than the true one; measured: 0.5 % farther on average, in a
# third of the time
APPROXIMATION = 0.5


class Neighbours:
    """The nearest points of a data set, by a KD-tree; exact in up to 3 dimensions or up to 5000
    points, approximate beyond.

    Args:
        X: (n, d), finite.
        kernel: whose lengthscales measure distances; inputs that none of its parts looks at weigh
            nothing.
        exact_up_to: as many points are searched exactly in any dimension.
    """

    def __init__(self, X: Tensor, kernel: Kernel, exact_up_to: int = 5000):
        self._X = X.detach().double().cpu().numpy()
        self._spread = self._X.std(0)
        self._device = X.device
        n, dim = self._X.shape
        self._approximation = 0.0 if n <= exact_up_to or dim <= EXACT_UP_TO_DIM else APPROXIMATION
        self._build(kernel)

    def of(self, points: Tensor, k: int) -> Tensor:
        """Return indices (b, k), in no order, of the k nearest points of X to ``points`` (b, d)."""
        workers = torch.get_num_threads() if len(points) > 100 else 1
        _, found = self._tree.query(
            points.detach().double().cpu().numpy() * self._metric,
            k=[1] if k == 1 else k,
            eps=self._approximation,
            workers=workers,
        )
        return torch.from_numpy(np.asarray(found, dtype=np.int64)).to(self._device)

    def follow(self, kernel: Kernel, tolerated: float = 0.25) -> bool:
        """Search anew, from now on, if the lengthscales of ``kernel`` have moved c by more than is
        ``tolerated``; return whether they have. Their common factors change no neighbour.
        """
        weights = self._weights(inverse_lengthscales(kernel, self._X.shape[1]))
        moved = bool(np.linalg.norm(weights - self._built_for) > tolerated)
        if moved:
            self._build(kernel)
        return moved

    def _build(self, kernel: Kernel) -> None:
        self._metric = inverse_lengthscales(kernel, self._X.shape[1])
        self._built_for = self._weights(self._metric)
        self._tree = cKDTree(self._X * self._metric)

    def _weights(self, metric: np.ndarray) -> np.ndarray:
        weights = metric * self._spread
        return weights / max(np.linalg.norm(weights), np.finfo(float).tiny)


def inverse_lengthscales(kernel: Kernel, dim: int) -> np.ndarray:
    """Return (d,) the factors by which distances are measured: of every input, the largest 1 /
    lengthscale among the kernel's parts.

    An input without a lengthscale counts as it is if no part has one, and else not at all.
    """
    factors = np.zeros(dim)
    for part, columns in parts_with_lengthscales(kernel, dim):
        inverse = 1.0 / part.lengthscale.detach().double().cpu().numpy().reshape(-1)
        factors[columns.numpy()] = np.maximum(factors[columns.numpy()], inverse)
    return factors if factors.any() else np.ones(dim)
