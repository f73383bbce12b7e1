"""Combinations of basis functions: values and gradients against autograd, tiled or not."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from surrogates import RandomFeatures, memory
from surrogates.operators import tiles
from surrogates.operators.differentiable import Basis, KernelBasis, combine, combine_rowwise
from tests import problems
from tests.problems import DIM, KERNELS, STATIONARY, Scalar, by_differences

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
    return whole(basis, torch.zeros(1, basis.dim, dtype=basis.dtype)).shape[1]


def whole(basis: Basis, X: torch.Tensor) -> torch.Tensor:
    """Return Φ(X) by GPyTorch or by its definition, differentiable by autograd."""
    return basis.kernel(X, basis.Z).to_dense() if isinstance(basis, KernelBasis) else basis(X)  # type: ignore[operator]


# One of each closed form, and of what is made of them
FORMS = [
    *("rbf", "matern12-ard", "matern52-active", "product", "main-effects", "rq"),
    *("features-matern32-ard", "features-matern52-active"),
]


@pytest.fixture(params=BASES)
def basis(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Basis:
    monkeypatch.setitem(tiles.TILE_SIDE, "cpu", 5)
    monkeypatch.setattr(memory, "chunk_entries", lambda device: 60)
    return BASES[request.param]()


def test_combine_agrees_with_autograd(basis: Basis) -> None:
    X = problems.uniform(9, DIM, seed=1).requires_grad_()
    W = problems.normal(size(basis), 4)
    C = problems.normal(4, 9, seed=2)
    values = combine(basis, X, W)
    expected = (whole(basis, X) @ W).T
    torch.testing.assert_close(values, expected)
    torch.testing.assert_close(
        torch.autograd.grad(values, X, C), torch.autograd.grad(expected, X, C)
    )


def test_combine_rowwise_agrees_with_autograd(basis: Basis) -> None:
    W = problems.normal(size(basis), 4)
    for points in (1, 3, 7):  # a tile (side 5) holds several functions, one, or a part of one
        X = problems.uniform(4, points, DIM, seed=1).requires_grad_()
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
        patch.setattr(memory, "chunk_entries", lambda device: chunk)
        drawn = RandomFeatures.draw(kernel, DIM, 6, generator=torch.Generator().manual_seed(0))
        for basis in (KernelBasis(kernel, problems.uniform(n, DIM)), drawn):
            W = problems.normal(size(basis), s)
            expected = torch.stack([whole(basis, x) @ w for x, w in zip(X, W.T, strict=True)])
            torch.testing.assert_close(combine_rowwise(basis, X, W), expected.detach())
            everywhere = torch.stack([whole(basis, x) @ W for x in X]).movedim(-1, 0)
            torch.testing.assert_close(combine(basis, X, W), everywhere.detach())


@pytest.mark.parametrize("name", KERNELS)
def test_the_gradient_at_a_data_point_is_finite(name: str) -> None:
    for dtype in (torch.float32, torch.float64):
        Z = problems.uniform(6, DIM, dtype=dtype)
        basis = KernelBasis(KERNELS[name]().to(dtype), Z)
        W = problems.normal(6, 2, dtype=dtype)
        for combined, X in ((combine, Z.clone()), (combine_rowwise, Z.repeat(2, 1, 1))):
            combined(basis, X.requires_grad_(), W).sum().backward()
            assert X.grad is not None and X.grad.isfinite().all() and X.grad.abs().max() < 1e3


def test_where_a_kernel_has_no_slope_the_other_points_give_the_gradient() -> None:
    Z = problems.uniform(6, DIM)
    kernel = KERNELS["matern12"]().double()
    W = problems.normal(6, 2)
    X = Z.clone().requires_grad_()
    combine(KernelBasis(kernel, Z), X, W).sum().backward()
    assert X.grad is not None
    for point, gradient in enumerate(X.grad):
        x = Z[point : point + 1].clone().requires_grad_()
        others = torch.arange(6) != point
        (whole(KernelBasis(kernel, Z[others]), x) @ W[others]).sum().backward()
        torch.testing.assert_close(gradient, x.grad[0])


@pytest.mark.parametrize("name", ["matern32", "product"])
def test_hyperparameters_gather_no_gradient(name: str) -> None:
    kernel = KERNELS[name]().double()
    X = problems.uniform(4, DIM).requires_grad_()
    combine(
        KernelBasis(kernel, problems.uniform(5, DIM)), X, problems.normal(5, 1)
    ).sum().backward()
    assert all(parameter.grad is None for parameter in kernel.parameters())


def wavy(basis: Basis, own: bool) -> Scalar:
    """Return a scalar of X (n, d) whose cotangents depend on the points: of two combinations at all
    points, or, of four points, of each at two of its own.
    """
    W = problems.normal(size(basis), 2)
    if own:
        return lambda X: combine_rowwise(basis, X.reshape(2, 2, DIM), W).sin().sum()
    return lambda X: combine(basis, X, W).sin().sum()


@pytest.mark.parametrize("basis", FORMS, indirect=True)
@pytest.mark.parametrize(
    "own", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["together", "own"]
)
def test_second_derivatives_agree_with_differences_of_the_first(basis: Basis, own: bool) -> None:
    f = wavy(basis, own)
    X = problems.uniform(4 if own else 2, DIM, seed=1)
    hessian = torch.autograd.functional.hessian(f, X)
    expected = by_differences(lambda x: torch.autograd.functional.jacobian(f, x), X)
    torch.testing.assert_close(hessian, expected, rtol=0.0, atol=1e-6 * expected.abs().max().item())


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("rbf-ard", False),
        ("matern52-active", True),
        ("product", True),
        ("features-matern32", False),
    ],
)
def test_transforms_of_torch_func_agree_with_autograd(name: str, own: bool) -> None:
    basis = BASES[name]()
    f = wavy(basis, own)
    X = problems.uniform(4, DIM, seed=1)
    gradient = torch.autograd.functional.jacobian(f, X)
    hessian = torch.autograd.functional.hessian(f, X)
    func = torch.func
    torch.testing.assert_close(func.grad(f)(X), gradient)
    torch.testing.assert_close(func.jacfwd(f)(X), gradient)
    torch.testing.assert_close(func.hessian(f)(X), hessian)
    torch.testing.assert_close(func.jacrev(func.jacrev(f))(X), hessian)
    torch.testing.assert_close(func.jacfwd(func.jacfwd(f))(X), hessian)
    torch.testing.assert_close(func.jacrev(func.jacfwd(f))(X), hessian)
    batch = problems.uniform(3, 4, DIM, seed=2)
    torch.testing.assert_close(func.vmap(f)(batch), torch.stack([f(x) for x in batch]))
    each = torch.stack([torch.autograd.functional.hessian(f, x) for x in batch])
    torch.testing.assert_close(func.vmap(func.hessian(f))(batch), each)


def test_third_derivatives_agree_with_differences_of_the_second() -> None:
    f = wavy(BASES["matern52-ard"](), False)
    X = problems.uniform(2, DIM, seed=1)
    third = torch.func.jacrev(torch.func.hessian(f))(X)
    expected = by_differences(lambda x: torch.autograd.functional.hessian(f, x), X)
    torch.testing.assert_close(third, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.func.jacfwd(torch.func.hessian(f))(X), third)


def test_the_second_derivative_of_a_basis_without_pieces_is_refused_by_name() -> None:
    class Bare(KernelBasis):
        pieces = Basis.pieces

    X = problems.uniform(2, DIM).requires_grad_()
    values = combine(
        Bare(problems.rbf().double(), problems.uniform(5, DIM)), X, problems.normal(5, 1)
    )
    (gradient,) = torch.autograd.grad(values.sum(), X, create_graph=True)
    with pytest.raises(NotImplementedError, match="Bare is differentiable once"):
        gradient.sum().backward()


@pytest.mark.parametrize("evaluate", [combine, combine_rowwise])
def test_weights_that_require_gradients_are_refused(evaluate: Callable[..., object]) -> None:
    basis = KernelBasis(problems.rbf().double(), problems.uniform(5, DIM))
    W = problems.normal(5, 1).requires_grad_()
    with pytest.raises(ValueError, match=r"`W` must not require gradients.*`W.detach\(\)`"):
        evaluate(basis, problems.uniform(1, 2, DIM).squeeze(0), W)


def test_a_batch_of_weights_is_refused_by_name() -> None:
    basis = KernelBasis(problems.rbf().double(), problems.uniform(5, DIM))
    X = problems.uniform(2, DIM)
    with pytest.raises(NotImplementedError, match="must map over the points alone"):
        torch.func.vmap(lambda W: combine(basis, X, W))(problems.normal(3, 5, 1))
