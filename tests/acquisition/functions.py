"""Known functions in place of paths, and linear constraints."""

from collections.abc import Callable

import torch
from torch import Tensor

from tests import problems


class Functions:
    """s known functions, remembering what was evaluated.

    Args:
        formula: maps points (s, k, d), or (1, c, d) shared by all, to values (s, k).
    """

    def __init__(self, num_samples: int, formula: Callable[[Tensor], Tensor]):
        self.num_samples = num_samples
        self.formula = formula
        self.visited: list[Tensor] = []

    def __call__(self, X: Tensor) -> Tensor:
        return self.formula(X.unsqueeze(0))

    def each(self, X: Tensor) -> Tensor:
        self.visited.append(X.detach())
        return self.formula(X)


def waves(num_samples: int, d: int) -> Functions:
    """Return s functions with many maxima."""
    frequencies = 20.0 * problems.uniform(num_samples, 1, d, seed=7)
    return Functions(num_samples, lambda X: torch.sin(frequencies * X).sum(-1))


def linear(
    indices: list[int], coefficients: list[float], rhs: float
) -> tuple[Tensor, Tensor, float]:
    """Return a linear constraint as BoTorch states it."""
    return torch.tensor(indices), torch.tensor(coefficients, dtype=torch.float64), rhs
