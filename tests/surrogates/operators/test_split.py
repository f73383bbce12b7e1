"""Split products: the errors of products in TF32, emulated on the CPU, and where they are used."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from surrogates import Dense, Tiled, memory
from surrogates.operators import split
from surrogates.operators.kernel_matrix import KernelOperator
from surrogates.operators.split import Halves, add_product
from surrogates.operators.tf32 import DROPPED_BITS, halves
from tests import problems
from tests.simulated_device import NAME, simulated_device

BIT = 2.0**-11  # half a unit of TF32's mantissa, relative


def as_tf32(A: Tensor) -> Tensor:
    """Return what a tensor core sees of float32 numbers."""
    return halves(A)[0]


def emulated(A: Tensor, B: Tensor, add_to: Tensor) -> None:
    """Add a product in TF32, with sums in float32."""
    add_to.addmm_(as_tf32(A), as_tf32(B))


def emulated_with_exact_sums(A: Tensor, B: Tensor, add_to: Tensor) -> None:
    add_to.addmm_(as_tf32(A).to(add_to), as_tf32(B).to(add_to))


def numbers(*shape: int, seed: int = 0) -> Tensor:
    scale = 10.0 ** problems.uniform(*shape, seed=seed + 1).mul(12.0).sub(6.0)
    return (problems.normal(*shape, seed=seed) * scale).float()


def test_the_halves_add_up_and_the_first_is_the_nearest_that_tf32_holds() -> None:
    A = numbers(100, 30)
    high, low = halves(A)
    assert torch.equal(high + low, A)
    assert torch.equal(high.double() + low.double(), A.double())
    assert not (high.view(torch.int32) & ((1 << DROPPED_BITS) - 1)).any()
    assert (low.abs() <= BIT * A.abs()).all()
    assert torch.equal(as_tf32(high), high)


def test_zero_infinity_and_no_number_stay_what_they_are() -> None:
    A = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan])
    high, low = halves(A)
    assert torch.equal(high[:4], A[:4])
    assert high[4].isnan() and low[4].isnan()


# of one product at the solution, relative to the right-hand side: TF32, the split with exact sums
ERRORS = {0.5: (3e-3, 8e-7), 2.0: (1.4e-1, 4.5e-5), 3.0: (3.4e-1, 8e-5)}


@pytest.mark.parametrize("lengthscale", ERRORS)
def test_the_split_is_as_exact_as_float32_where_tf32_is_useless(lengthscale: float) -> None:
    n = 1000
    X = problems.uniform(n, 8)
    K = problems.own_evaluation(problems.matern(1.5, lengthscale), X, X)
    H = K + 1e-6 * torch.eye(n).double()
    B = torch.linalg.cholesky(H) @ problems.normal(n, 4)
    W = torch.linalg.solve(H, B).float()
    A = K.float()
    exact = A.double() @ W.double()

    def error(product: Tensor) -> float:
        gap = torch.linalg.vector_norm(product.double() - exact, dim=0)
        return float((gap / torch.linalg.vector_norm(B, dim=0)).max())

    def split_error(dtype: torch.dtype) -> float:
        return error(add_product(Halves.of(A), Halves.of(W), torch.zeros(n, 4, dtype=dtype)))

    plain = error(as_tf32(A) @ as_tf32(W))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split, "add_tf32_product", emulated)
        in_float32 = split_error(torch.float32)
        patch.setattr(split, "add_tf32_product", emulated_with_exact_sums)
        exactly_summed = split_error(torch.float64)
    of_tf32, of_split = ERRORS[lengthscale]
    assert of_tf32 / 3 < plain < 3 * of_tf32
    assert of_split / 3 < exactly_summed < 3 * of_split
    assert in_float32 < 1.5 * error(A @ W) + exactly_summed


@pytest.fixture
def splitting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let products on the simulated device be split; yield the columns of each in TF32."""
    columns: list[int] = []

    def noted(A: Tensor, B: Tensor, add_to: Tensor) -> None:
        columns.append(B.shape[1])
        emulated(A, B, add_to)

    monkeypatch.setattr(split, "DEVICE_TYPES", {NAME})
    monkeypatch.setattr(split, "FEWEST_COLUMNS", 4)
    monkeypatch.setattr(split, "is_faster", lambda device: True)
    monkeypatch.setattr(split, "add_tf32_product", noted)
    with simulated_device():
        yield columns


@pytest.mark.parametrize("kind", [Dense, Tiled])
@pytest.mark.parametrize("name", ["matern32", "rbf", "rational quadratic"])
def test_products_with_a_kernel_matrix_are_split(
    kind: type[KernelOperator], name: str, splitting: list[int]
) -> None:
    kernels = {"matern32": problems.matern(1.5, 0.4), "rbf": problems.rbf(0.4)}
    kernel = kernels.get(name, problems.GENERIC["rq"]()).float()
    X = problems.uniform(150, 3, dtype=torch.float32)
    W = numbers(150, 5)
    index = torch.tensor([7, 3, 140])
    on_cpu = problems.operator(kind, kernel, X)
    expected = on_cpu.to(torch.float64) @ W.double()
    there = problems.operator(kind, kernel.to(NAME), X.to(NAME))
    assert not splitting
    for operator, exact in ((there, expected), (there.rows(index.to(NAME)), expected[index])):
        found = operator @ W.to(NAME)
        assert splitting and set(splitting) == {5}
        splitting.clear()
        assert problems.relative_error(found.cpu(), exact) < 2e-6


@pytest.mark.parametrize(
    ("columns", "dtype"), [(3, torch.float32), (5, torch.float64)], ids=["few", "float64"]
)
def test_other_products_are_not_split(
    columns: int, dtype: torch.dtype, splitting: list[int]
) -> None:
    X = problems.uniform(50, 3, dtype=dtype).to(NAME)
    K = problems.operator(Tiled, problems.matern(1.5).to(X), X)
    K @ torch.ones(50, columns, dtype=dtype, device=NAME)
    assert not splitting


def test_no_product_is_split_where_the_settings_are_to_be_kept(
    splitting: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(memory.SWITCH, "keep")
    X = problems.uniform(50, 3, dtype=torch.float32).to(NAME)
    problems.operator(Dense, problems.matern(1.5).to(X), X) @ torch.ones(50, 5, device=NAME)
    assert not splitting


@pytest.mark.parametrize(
    ("seconds", "loss", "expected"), [(1.0, 0.0, True), (3.0, 0.0, False), (1.0, 1e-2, False)]
)
def test_products_are_split_where_that_is_faster_and_as_precise(
    seconds: float, loss: float, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def imprecise(A: Tensor, B: Tensor, add_to: Tensor) -> None:
        emulated(A, (1.0 + loss) * B, add_to)

    monkeypatch.setattr(split, "TRIAL", (128, 16))
    monkeypatch.setattr(split, "add_tf32_product", imprecise)
    found = iter([seconds, 2.0])  # of the split product, and of the other
    monkeypatch.setattr(memory, "seconds", lambda call, device: next(found))
    assert split.is_faster.__wrapped__(torch.device("cpu")) == expected


@pytest.mark.gpu
def test_split_products_on_cuda_are_as_exact_as_float32() -> None:
    X = problems.uniform(3000, 8, dtype=torch.float32)
    W = problems.normal(3000, 256, dtype=torch.float32)
    exact = problems.own_evaluation(problems.matern(1.5), X, X) @ W.double()
    product = torch.zeros(3000, 256, device="cuda")
    tile = problems.operator(Tiled, problems.matern(1.5).cuda(), X.cuda()).tiles
    add_product(tile.halves(slice(None), slice(None)), Halves.of(W.cuda()), product)
    assert problems.relative_error(product.cpu(), exact) < 1e-5
