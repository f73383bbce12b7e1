"""Products in bfloat16: as close as they are said to be, in any shape,
and only where they are faster.
"""

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from surrogates import Dense, Tiled
from surrogates.operators import gemm, rough, tiles
from tests import problems

KINDS: list[type[Dense | Tiled]] = [Dense, Tiled]
ROUNDING = 2.0**-8  # of each of the two factors, and of a sum


@pytest.fixture
def bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rough, "FEWEST_COLUMNS", 1)
    monkeypatch.setattr(rough, "cpu_multiplies_bfloat16", lambda: True)


@settings(max_examples=40)
@given(
    m=st.integers(1, 90),
    n=st.integers(1, 90),
    s=st.integers(1, 5),
    side=st.integers(1, 30),
    kind=st.sampled_from(KINDS),
)
def test_any_shape_agrees_to_three_digits(
    m: int, n: int, s: int, side: int, kind: type[Dense | Tiled]
) -> None:
    X, Z, W = (
        part.float()
        for part in (problems.uniform(m, 3), problems.uniform(n, 3, seed=1), problems.normal(n, s))
    )
    K = problems.operator(kind, problems.matern(1.5), X, Z)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rough, "FEWEST_COLUMNS", 1)
        patch.setattr(rough, "cpu_multiplies_bfloat16", lambda: True)
        patch.setitem(tiles.TILE_SIDE, "cpu", side)
        product = K.rough_matmul(W)
    assert product.dtype == torch.float32
    bound = K.to_dense().abs() @ W.abs()
    assert ((product - K.to_dense() @ W).abs() <= 3.1 * ROUNDING * bound).all()


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize("kind", KINDS)
def test_independent_weights_leave_the_stated_error(kind: type[Dense | Tiled]) -> None:
    X = problems.uniform(700, 3, dtype=torch.float32)
    W = problems.normal(700, 40, dtype=torch.float32)
    K = problems.operator(kind, problems.matern(1.5), X)
    scale = (K.to_dense().square() @ W.square()).sqrt()
    error = ((K.rough_matmul(W) - K @ W).square().mean() / scale.square().mean()).sqrt().item()
    assert 1e-3 < error < 5e-3  # above what float32 leaves: it is bfloat16 that is measured


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32", "matern52"])
def test_distant_points_have_no_covariance(kind: type[Dense | Tiled], name: str) -> None:
    X = 1e6 * problems.uniform(12, 3, dtype=torch.float32)
    W = problems.normal(12, 2, dtype=torch.float32)
    K = problems.operator(kind, problems.KERNELS[name](), X)
    torch.testing.assert_close(K.rough_matmul(W), W, rtol=ROUNDING, atol=0)
    assert not K.rows(slice(0, 4)).columns(slice(4, 12)).any()


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize("kind", KINDS)
def test_double_precision_is_kept(kind: type[Dense | Tiled]) -> None:
    X = problems.uniform(30, 3)
    W = problems.normal(30, 4)
    K = problems.operator(kind, problems.rbf(), X)
    assert torch.equal(K.rough_matmul(W), K @ W)


@pytest.mark.parametrize("kind", KINDS)
def test_few_columns_and_other_processors_keep_float32(
    kind: type[Dense | Tiled], monkeypatch: pytest.MonkeyPatch
) -> None:
    X = problems.uniform(30, 3, dtype=torch.float32)
    W = problems.normal(30, rough.FEWEST_COLUMNS, dtype=torch.float32)
    K = problems.operator(kind, problems.rbf(), X)
    monkeypatch.setattr(rough, "capabilities", lambda: {"avx512_bf16": True})
    assert torch.equal(K.rough_matmul(W[:, 1:]), K @ W[:, 1:])
    assert not torch.equal(K.rough_matmul(W), K @ W)
    monkeypatch.setattr(rough, "capabilities", lambda: {"avx512_f": True})
    assert torch.equal(K.rough_matmul(W), K @ W)


def test_what_a_processor_can_do_is_asked_of_pytorch() -> None:
    assert isinstance(gemm.capabilities(), Mapping)
    assert rough.cpu_multiplies_bfloat16() in (True, False)
