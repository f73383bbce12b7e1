"""Stand-ins for the sets of the papers that are not at hand."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from benchmarks.synthetic_sets import SETS, table_like
from scalable_bo.experiments.models import SMOOTHNESS, matern_kernel


@pytest.mark.parametrize("name", SETS)
def test_the_target_is_a_draw_of_the_kernel_and_the_noise(name: str) -> None:
    published = SETS[name]
    table = torch.from_numpy(table_like(name, rows=400, seed=3).to_numpy())
    assert table.shape == (400, published.dim + 1)
    X, y = table[:, :-1], table[:, -1]

    def law(outputscale: float, factor: float = 1.0) -> MultivariateNormal:
        lengthscale = factor * 4.0 * math.sqrt(published.dim)
        K = matern_kernel(lengthscale, outputscale, SMOOTHNESS[published.kernel])(X).to_dense()
        H = K + published.rmse**2 * torch.eye(400, dtype=K.dtype)
        return MultivariateNormal(torch.zeros_like(y), H, validate_args=False)

    # The path has been scaled to its share of the variance
    scales = [2.0 ** (power / 2) for power in range(-6, 20)]
    likeliest = max(scales, key=lambda scale: law(scale).log_prob(y).item())
    whitened = torch.linalg.solve_triangular(law(likeliest).scale_tril, y[:, None], upper=False)
    # The sum of their squares is chi-squared
    assert abs(whitened.square().mean().item() - 1.0) < 4.0 * math.sqrt(2.0 / 400)
    assert abs(y.var().item() - 1.0) < 4.0 * math.sqrt(2.0 / 400)
    if published.rmse < 0.1:  # little noise shows the lengthscale
        for factor in (0.25, 4.0):
            others = (law(scale / factor**power, factor) for scale in scales for power in (0, 2))
            best = law(likeliest).log_prob(y).item()
            assert max(other.log_prob(y).item() for other in others) < best
