"""Stand-ins for the sets of the papers that are not at hand."""

import math

import pytest
import torch

from benchmarks.synthetic_sets import SETS, table_like
from scalable_bo.experiments.models import SMOOTHNESS, matern_kernel


@pytest.mark.parametrize("name", SETS)
def test_the_target_is_a_draw_of_the_kernel_and_the_noise(name: str) -> None:
    published = SETS[name]
    table = torch.from_numpy(table_like(name, rows=400, seed=3).to_numpy())
    assert table.shape == (400, published.dim + 1)
    X, y = table[:, :-1], table[:, -1]
    noise = published.rmse**2
    kernel = matern_kernel(math.sqrt(published.dim), 1.0 - noise, SMOOTHNESS[published.kernel])
    H = kernel(X).to_dense() + noise * torch.eye(400, dtype=X.dtype)
    whitened = torch.linalg.solve_triangular(torch.linalg.cholesky(H), y[:, None], upper=False)
    # The sum of their squares is chi-squared
    assert abs(whitened.square().mean().item() - 1.0) < 4.0 * math.sqrt(2.0 / 400)
