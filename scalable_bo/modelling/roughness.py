"""Whether what a surrogate takes for noise is noise, or a part of the function that it is too
smooth for, such as ripples.

Notation: n values y at X (n, d), their kernel K (n, n), noise σ².
"""

import torch
from torch import Tensor

from surrogates.operators.linalg import jittered_cholesky
from surrogates.rules.data_set import DataSet


@torch.no_grad()
def evidence_of_roughness(data: DataSet, num_compared: int = 500) -> float:
    """Return by how much the log likelihood of the values, in nats, is larger if the noise is a
    rough part of the function: with the covariance σ² R in place of σ² I.

    R has the correlations of the kernel at lengthscales that are 0.3 to 0.01 of its own, those that
    suit the values best. Values at points far closer together than that differ by noise alone, and
    decide; where there are none, both explain the values alike, and this is about 0.

    Args:
        data: in float64, with one variance of the noise.
        num_compared: of the latest values, which are those near the optimum.
    """
    X = data.X[-num_compared:]
    residuals = data.y[-num_compared:] - data.mean_module(X)
    covariance = data.kernel(X).to_dense()
    identity = torch.eye(len(X), device="cpu").to(X)
    rough = []
    for lengthscale in (0.3, 0.1, 0.03, 0.01):
        shorter = data.kernel(X / lengthscale).to_dense()
        deviations = shorter.diagonal().sqrt()
        correlations = shorter / deviations / deviations.unsqueeze(1)
        part = correlations + 1e-6 * identity  # so that points may repeat
        rough.append(_log_likelihood(residuals, covariance + data.noise * part))
    return max(rough) - _log_likelihood(residuals, covariance + data.noise * identity)


def _log_likelihood(residuals: Tensor, covariance: Tensor) -> float:
    """Return the log density of N(0, ``covariance``), less what all have in common."""
    root, _ = jittered_cholesky(covariance)
    whitened = torch.linalg.solve_triangular(root, residuals.unsqueeze(1), upper=False)
    return float(-0.5 * whitened.square().sum() - root.diagonal().log().sum())
