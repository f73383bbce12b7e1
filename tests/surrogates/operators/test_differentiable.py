"""Combinations of basis functions: values and gradients against autograd, tiled or not."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from surrogates import RandomFeatures
from surrogates.functions import features
from surrogates.operators import tiles
from surrogates.operators.differentiable import Basis, KernelBasis, combine, combine_rowwise
from tests import problems
from tests.problems import DIM, KERNELS, STATIONARY

BASES: dict[str, Callable[[], Basis]] = {
    **{
        name: lambda make=make: KernelBasis(make().double(), problems.uniform(13, DIM))
        for name, make in KERNELS.items()
    },
    **{
        f"features-{name}": lambda make=make: RandomFeatures.draw(
            make().double(), DIM, 14, generator=torch.Generator().manual_seed(0)
        )
        for name, make in STATIONARY.items()
    },
}


def size(basis: Basis) -> int:
    return len(basis.Z) if isinstance(basis, KernelBasis) else basis.num_features  # type: ignore[attr-defined]


def whole(basis: Basis, X: torch.Tensor) -> torch.Tensor:
    """Return Φ(X) by GPyTorch or by its definition, differentiable by autograd."""
    return basis.kernel(X, basis.Z).to_dense() if isinstance(basis, KernelBasis) else basis(X)  # type: ignore[operator]


@pytest.fixture(params=BASES.values(), ids=BASES.keys())
def basis(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Basis:
    monkeypatch.setitem(tiles.TILE_SIDE, "cpu", 5)
    monkeypatch.setitem(features.CHUNK_ENTRIES, "cpu", 60)
    return request.param()


def test_combine_agrees_with_autograd(basis: Basis) -> None:
    X = problems.uniform(9, DIM, seed=1).requires_grad_()
    W = problems.normal(size(basis), 4)
    C = problems.normal(9, 4, seed=2)
    values = combine(basis, X, W)
    expected = whole(basis, X) @ W
    torch.testing.assert_close(values, expected)
    torch.testing.assert_close(
        torch.autograd.grad(values, X, C), torch.autograd.grad(expected, X, C)
    )


# A tile (side 5) holds several functions, one, or a part of one
@pytest.mark.parametrize("points", [1, 3, 7])
def test_combine_rowwise_agrees_with_autograd(basis: Basis, points: int) -> None:
    X = problems.uniform(4, points, DIM, seed=1).requires_grad_()
    W = problems.normal(size(basis), 4)
    values = combine_rowwise(basis, X, W)
    expected = torch.stack([whole(basis, x) @ w for x, w in zip(X, W.T, strict=True)])
    torch.testing.assert_close(values, expected)
    C = problems.normal(4, points, seed=2)
    torch.testing.assert_close(
        torch.autograd.grad(values, X, C), torch.autograd.grad(expected, X, C)
    )


@settings(max_examples=30)
@given(
    s=st.integers(1, 9),
    q=st.integers(1, 12),
    n=st.integers(1, 30),
    side=st.integers(1, 40),
    chunk=st.integers(1, 300),
)
def test_tiles_and_chunks_change_nothing(s: int, q: int, n: int, side: int, chunk: int) -> None:
    kernel = problems.matern(1.5).double()
    X = problems.uniform(s, q, DIM, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiles.TILE_SIDE, "cpu", side)
        patch.setitem(features.CHUNK_ENTRIES, "cpu", chunk)
        drawn = RandomFeatures.draw(kernel, DIM, 6, generator=torch.Generator().manual_seed(0))
        for basis in (KernelBasis(kernel, problems.uniform(n, DIM)), drawn):
            W = problems.normal(size(basis), s)
            expected = torch.stack([whole(basis, x) @ w for x, w in zip(X, W.T, strict=True)])
            torch.testing.assert_close(combine_rowwise(basis, X, W), expected.detach())
            torch.testing.assert_close(combine(basis, X[0], W), (whole(basis, X[0]) @ W).detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", KERNELS)
def test_the_gradient_at_a_data_point_is_finite(name: str, dtype: torch.dtype) -> None:
    Z = problems.uniform(6, DIM, dtype=dtype)
    basis = KernelBasis(KERNELS[name]().to(dtype), Z)
    W = problems.normal(6, 2, dtype=dtype)
    X = Z.clone().requires_grad_()
    combine(basis, X, W).sum().backward()
    assert X.grad is not None and X.grad.isfinite().all() and X.grad.abs().max() < 1e3
    X = Z.repeat(2, 1, 1).requires_grad_()
    combine_rowwise(basis, X, W).sum().backward()
    assert X.grad is not None and X.grad.isfinite().all() and X.grad.abs().max() < 1e3


@pytest.mark.parametrize("name", ["matern32", "product"])
def test_hyperparameters_gather_no_gradient(name: str) -> None:
    kernel = KERNELS[name]().double()
    X = problems.uniform(4, DIM).requires_grad_()
    combine(
        KernelBasis(kernel, problems.uniform(5, DIM)), X, problems.normal(5, 1)
    ).sum().backward()
    assert all(parameter.grad is None for parameter in kernel.parameters())
