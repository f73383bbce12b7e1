"""Dense and tiled operators against GPyTorch's own evaluation, whatever the kernel and dtype."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from surrogates import Dense, KernelOperator, Tiled, kernel_operator
from surrogates.operators import tiles
from surrogates.operators.forms import StationaryKernel
from surrogates.operators.tiles import (
    ComposedTiles,
    GenericTiles,
    KernelTiles,
    StationaryTiles,
    tile_spans,
)
from tests import problems
from tests.pairs import each_pair
from tests.problems import COMPOSED, DIM, KERNELS, STATIONARY

M = 21
N = 34
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def rounding(dtype: torch.dtype) -> float:
    """What d² = ‖x‖² − 2xᵀz + ‖z‖² may cost for inputs a few lengthscales apart,
    times the largest outputscale.
    """
    return 200 * torch.finfo(dtype).eps


KINDS = (Dense, Tiled)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for device in ("cpu", "cuda"):
        monkeypatch.setitem(tiles.TILE_SIDE, device, 8)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> type[KernelOperator]:
    return request.param


@pytest.mark.parametrize("device", DEVICES)
@each_pair(name=KERNELS, kind=KINDS, dtype=[torch.float32, torch.float64])
def test_every_part_agrees_with_gpytorch(
    kind: type[KernelOperator], name: str, dtype: torch.dtype, device: str
) -> None:
    kernel = KERNELS[name]()
    X = problems.uniform(M, DIM, dtype=dtype).to(device)
    Z = problems.uniform(N, DIM, seed=1, dtype=dtype).to(device)
    K = problems.operator(kind, kernel, X, Z)
    expected = problems.own_evaluation(kernel, X, Z)
    W = problems.normal(N, 5, seed=2).to(device)
    rows = torch.tensor([4, 0, 20, 11], device=device)
    columns = torch.tensor([33, 2], device=device)

    def close(actual: torch.Tensor, reference: torch.Tensor, scale: float = 1.0) -> None:
        assert actual.dtype == dtype
        torch.testing.assert_close(actual.double(), reference, rtol=0, atol=scale * rounding(dtype))

    assert K.shape == (M, N) and K.dtype == dtype and K.device.type == device
    close(K.to_dense(), expected)
    close(K @ W.to(dtype), expected @ W, N)
    close(K.columns(columns), expected[:, columns])
    close(K.columns(slice(3, 9)), expected[:, 3:9])
    for index in (rows, slice(2, 13)):
        close(K.rows(index).to_dense(), expected[index])
        close(K.rows(index) @ W.to(dtype), (expected @ W)[index], N)
        close(K.rows(index).rows(slice(1, 3)).to_dense(), expected[index][1:3])


def test_a_diagonal_takes_no_block_of_the_matrix(
    kind: type[KernelOperator], monkeypatch: pytest.MonkeyPatch
) -> None:
    X = problems.uniform(N, DIM)
    made = [problems.operator(kind, make(), X) for make in KERNELS.values()]
    monkeypatch.setattr(KernelOperator, "block", lambda *_: pytest.fail("a block"))
    for K in made:
        assert K.diagonal().shape == (N,)


@pytest.mark.parametrize("name", KERNELS)
def test_symmetric_operators_give_blocks_and_their_diagonal(name: str) -> None:
    X = problems.uniform(N, DIM)
    expected = problems.own_evaluation(KERNELS[name](), X, X)
    index = torch.tensor([7, 3, 30])
    for kind in KINDS:
        K = problems.operator(kind, KERNELS[name](), X)
        torch.testing.assert_close(K.block(index), expected[index][:, index])
        torch.testing.assert_close(K.diagonal(), expected.diagonal())


def test_an_operator_over_two_sets_has_no_block_and_no_diagonal(kind: type[KernelOperator]) -> None:
    K = problems.operator(kind, problems.rbf(), problems.uniform(5, DIM), problems.uniform(5, DIM))
    for ask in (K.diagonal, lambda: K.block(torch.tensor([1]))):
        with pytest.raises(
            ValueError,
            match=r"needs an operator over one set of points, got k\(X1, X2\) of shape \(5, 5\)",
        ):
            ask()


@pytest.mark.parametrize("name", KERNELS)
def test_other_points_meet_the_same_columns(name: str) -> None:
    X = problems.uniform(7, DIM)
    Z = problems.uniform(9, DIM, seed=1)
    others = problems.uniform(4, DIM, seed=2)
    found = KernelTiles.of(KERNELS[name](), X, Z).columns(slice(2, 8)).between(others)
    torch.testing.assert_close(
        found.tile(slice(None), slice(None)),
        problems.own_evaluation(KERNELS[name](), others, Z[2:8]),
    )


@pytest.mark.parametrize("name", KERNELS)
def test_closed_forms_take_the_fast_path_in_sums_too_and_other_kernels_evaluate_themselves(
    name: str,
) -> None:
    X = problems.uniform(3, DIM)
    tiles = KernelTiles.of(KERNELS[name](), X, X)
    if name in STATIONARY:
        assert isinstance(tiles, StationaryTiles)
    elif name in COMPOSED:
        assert isinstance(tiles, ComposedTiles)
        assert all(isinstance(part, StationaryTiles | ComposedTiles) for part in tiles.parts)
    else:
        assert StationaryKernel.of(KERNELS[name]()) is None
        assert isinstance(tiles, GenericTiles)


@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32", "matern52"])
def test_near_duplicates_keep_their_covariance_in_float32(name: str) -> None:
    X = 100 + problems.uniform(20, DIM, dtype=torch.float32)  # far from the origin, too
    Z = X + 1e-4 * problems.normal(20, DIM, dtype=torch.float32)
    kernel = KERNELS[name]()
    K = problems.operator(Tiled, kernel, X, Z).to_dense().double()
    expected = problems.own_evaluation(kernel, X, Z)
    # Of a coordinate near 100, in lengthscales
    input_rounding = 100 * torch.finfo(torch.float32).eps / 0.6
    torch.testing.assert_close(K, expected, rtol=0, atol=DIM * input_rounding)
    assert (problems.operator(Tiled, kernel, X).to_dense().diagonal() - 1.0).abs().max() < 1e-5


def test_the_memory_budget_decides_whether_the_matrix_is_kept() -> None:
    X = problems.uniform(10, DIM)
    Z = problems.uniform(7, DIM)
    kernel = problems.rbf().double()
    assert isinstance(kernel_operator(kernel, X, Z, memory_budget=10 * 7 * 8), Dense)
    assert isinstance(kernel_operator(kernel, X, Z, memory_budget=10 * 7 * 8 - 1), Tiled)
    assert isinstance(
        kernel_operator(kernel.float(), X.float(), Z.float(), memory_budget=10 * 7 * 4), Dense
    )
    assert kernel_operator(kernel, X).symmetric and not kernel_operator(kernel, X, Z).symmetric


def test_the_default_budget_is_the_stated_one() -> None:
    X = problems.uniform(2**14 + 1, DIM)  # of which a square takes more than 2 GiB
    assert isinstance(kernel_operator(problems.rbf().double(), X[:10]), Dense)
    assert isinstance(kernel_operator(problems.rbf().double(), X), Tiled)


def test_a_tiled_product_holds_no_more_than_a_tile(spy: Any) -> None:
    tile = spy(StationaryTiles, "tile")
    K = problems.operator(Tiled, problems.matern(1.5), problems.uniform(50, DIM))
    K @ problems.normal(50, 2)
    calls = (call.args for call in tile.call_args_list)
    sizes = [len(of.X1[i]) * len(of.X2[j]) for of, i, j in calls]
    assert max(sizes) == 64 and sum(sizes) == 2500


@given(m=st.integers(0, 70), n=st.integers(0, 70), side=st.integers(1, 12))
def test_tiles_cover_a_matrix_once_and_none_is_large_or_a_thin_strip(
    m: int, n: int, side: int
) -> None:
    count = torch.zeros(m, n)
    heights = []
    for i, j in tile_spans(m, n, side):
        count[i, j] += 1
        assert 0 < count[i, j].numel() <= side**2
        heights.append(len(count[i]))
    assert (count == 1).all()
    number = math.ceil(m / side)  # of rows of tiles
    assert not heights or max(heights) - min(heights) < number


def test_hyperparameters_are_read_when_the_operator_is_made() -> None:
    X = problems.uniform(6, DIM)
    kernel = problems.scaled(problems.rbf(), 2.0)
    K = problems.operator(Tiled, kernel, X)
    before = K.to_dense()
    kernel.outputscale = 5.0
    kernel.base_kernel.lengthscale = 0.1
    assert torch.equal(K.to_dense(), before)
