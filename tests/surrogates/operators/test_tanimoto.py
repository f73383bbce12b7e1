"""The Tanimoto kernel: its values, its closed tiles and their gradients, and fits."""

import pytest
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates import PathwiseGP, TanimotoKernel, fit
from surrogates.operators.differentiable import KernelBasis, combine, combine_rowwise
from surrogates.operators.tiles import GenericTiles, KernelTiles, TanimotoTiles
from tests import problems

COLUMNS = 24


def fingerprints(kind: str, n: int, seed: int = 0) -> Tensor:
    """Return n vectors, of which the second is zero."""
    uniform = problems.uniform(n, COLUMNS, seed=seed)
    X = {
        "binary": (uniform < 0.3).double(),
        "counts": (5.0 * (uniform - 0.5)).clamp_min(0.0).round(),
        "real": uniform - 0.5,
    }[kind]
    X[1] = 0.0
    return X


def dense(X: Tensor, Z: Tensor) -> Tensor:
    """Return the kernel by its formula, one pair at a time."""
    values = torch.empty(len(X), len(Z), dtype=X.dtype)
    for i, x in enumerate(X):
        for j, z in enumerate(Z):
            union = x @ x + z @ z - x @ z
            values[i, j] = x @ z / union if union > 0 else 1.0
    return values


def scaled_part() -> Kernel:
    """Return a kernel with an outputscale, of some of the columns."""
    return problems.scaled(TanimotoKernel(active_dims=list(range(2, 20))), 2.5).double()


@pytest.mark.parametrize("kind", ["binary", "counts", "real"])
def test_the_kernel_is_its_formula_and_positive_semi_definite(kind: str) -> None:
    X = fingerprints(kind, 12)
    Z = fingerprints(kind, 9, seed=1)
    kernel = TanimotoKernel()
    torch.testing.assert_close(kernel(X, Z).to_dense(), dense(X, Z))
    assert torch.equal(kernel(X, diag=True), torch.ones(12, dtype=X.dtype))
    torch.testing.assert_close(kernel(X, Z[:1].expand_as(X), diag=True), dense(X, Z[:1])[:, 0])
    assert torch.linalg.eigvalsh(dense(X, X)).min() > -1e-12


@pytest.mark.parametrize("make", [lambda: TanimotoKernel().double(), scaled_part])
@pytest.mark.parametrize("kind", ["binary", "counts", "real"])
def test_tiles_agree_with_the_kernels_own_evaluation(kind: str, make: type[Kernel]) -> None:
    kernel = make()
    X = fingerprints(kind, 12)
    Z = fingerprints(kind, 10, seed=1)
    tiles = KernelTiles.of(kernel, X, Z)
    assert isinstance(tiles, TanimotoTiles)
    expected = GenericTiles(kernel, X, Z)
    every = slice(None)
    some = torch.tensor([1, 4, 4, 0])
    out = torch.empty(12, 10, dtype=X.dtype)
    tiles.tile(every, every, out=out)
    torch.testing.assert_close(out, expected.tile(every, every))
    for part, own in (
        (tiles.rows(some), expected.rows(some)),
        (tiles.columns(some), expected.columns(some)),
        (tiles.between(Z), expected.between(Z)),
    ):
        torch.testing.assert_close(part.tile(every, every), own.tile(every, every))
    single = tiles.to(torch.float32).tile(every, every)
    torch.testing.assert_close(single.double(), out, rtol=1e-6, atol=1e-6)
    weights = problems.normal(3, 4, 10)
    for given in (weights, weights[:, :1], weights[:1, :1]):
        values, gradient = tiles.contract(every, every, given)
        own_values, own_gradient = expected.contract(every, every, given)
        torch.testing.assert_close(values, own_values)
        torch.testing.assert_close(gradient, own_gradient)


def test_combinations_are_differentiable_any_number_of_times() -> None:
    basis = KernelBasis(scaled_part(), fingerprints("counts", 7))
    W = problems.normal(7, 3)
    X = (problems.uniform(2, COLUMNS) + 0.5).requires_grad_()
    assert torch.autograd.gradcheck(lambda X: combine(basis, X, W), (X,))
    own = problems.uniform(3, 2, COLUMNS, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(lambda X: combine_rowwise(basis, X, W), (own,))
    assert torch.autograd.gradgradcheck(lambda X: combine(basis, X, W), (X,))


def test_the_gradient_at_zero_is_finite() -> None:
    basis = KernelBasis(TanimotoKernel().double(), fingerprints("binary", 5))
    X = torch.zeros(2, COLUMNS, dtype=torch.float64, requires_grad=True)
    combine(basis, X, problems.normal(5, 1)).sum().backward()
    assert X.grad is not None and X.grad.isfinite().all()


def test_what_the_bits_do_not_tell_a_fit_finds() -> None:
    X = fingerprints("binary", 300)
    Y = (X[:, 16:18].sum(1, keepdim=True) - X[:, 20:21]).sin()
    model = PathwiseGP(X, Y, covar_module=problems.scaled(TanimotoKernel(), 0.3))
    before = model.covar_module.outputscale.item()
    fit(model)
    assert model.noise < 0.2 and model.covar_module.outputscale.item() != before
