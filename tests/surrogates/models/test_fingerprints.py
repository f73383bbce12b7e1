"""Models of molecular fingerprints, binary and counted, alone and beside other inputs."""

from typing import Any

import pytest
import torch
from torch import Tensor

import surrogates
from surrogates import CG, Cholesky, PathwiseGP, TanimotoKernel, gaussian_likelihood
from tests import problems

N = 120
BITS = 32


def data(kind: str, n: int) -> tuple[Tensor, Tensor]:
    """Return fingerprints, the last of n points zero, and values that depend on few bits."""
    generator = torch.Generator().manual_seed(0)
    share = torch.linspace(0.05, 0.6, BITS)
    bits = (torch.rand(n, BITS, generator=generator) < share).double()
    if kind == "counts":
        bits *= torch.randint(1, 5, (n, BITS), generator=generator)
    bits[-1] = 0.0
    return bits, (bits[:, 20:22].sum(1, keepdim=True) - bits[:, 25:26]).sin()


def model(kind: str, beside: bool, **options: Any) -> tuple[PathwiseGP, Tensor]:
    """Return a model and points where it has no data; ``beside`` with a further input."""
    X, Y = data(kind, N + 40)
    kernel = TanimotoKernel(active_dims=list(range(BITS)))
    if beside:
        X = torch.cat([X, problems.uniform(len(X), 1)], 1)
        kernel = kernel * problems.matern(1.5, 0.4, active_dims=[BITS])
    given = PathwiseGP(
        X[:N],
        Y[:N],
        covar_module=problems.scaled(kernel, 1.5),
        likelihood=gaussian_likelihood(1e-2),
        **options,
    )
    return given, X[N:]


@pytest.mark.parametrize(("kind", "beside"), [("binary", True), ("counts", False)])
def test_paths_have_the_exact_posterior(kind: str, beside: bool) -> None:
    exact, X = model(kind, beside, solver=Cholesky())
    several = {"solver": CG(tolerance=1e-8, preconditioner=None), "num_paths": 1024}
    paths, _ = model(kind, beside, **several)
    expected = exact.posterior(X)
    law = paths.posterior(X)
    torch.testing.assert_close(law.mean, expected.mean, rtol=0, atol=1e-5)
    ratios = law.variance / expected.variance
    assert 0.8 < ratios.min() <= ratios.max() < 1.2  # (2 / 1024)^½ is .044
    assert 0.95 < ratios.mean() < 1.05
    drawn = paths.paths(4)
    assert drawn(X).shape == (4, len(X))
    own = X[:8].reshape(4, 2, -1)
    torch.testing.assert_close(
        drawn.each(own), torch.stack([drawn(x)[i] for i, x in enumerate(own)])
    )


def test_what_the_bits_do_not_tell_a_fit_finds() -> None:
    X, Y = data("binary", 300)
    given = PathwiseGP(X, Y, covar_module=problems.scaled(TanimotoKernel(), 0.3))
    before = given.covar_module.outputscale.item()
    surrogates.fit(given)
    assert given.noise < 0.2 and given.covar_module.outputscale.item() != before
