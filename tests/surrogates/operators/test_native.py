"""Kernels and waves in C: the numbers of PyTorch in float64, of every point by itself."""

import logging
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from surrogates import RandomFeatures, kernel_operator
from surrogates.operators import native
from surrogates.operators.differentiable import KernelBasis, combine_rowwise
from surrogates.operators.forms import PROFILES as FORMULAS
from surrogates.operators.native import PANEL, PROFILES, Panels
from tests import problems
from tests.pairs import each_pair

pytestmark = pytest.mark.skipif(
    not native.serves(torch.zeros(1)), reason="needs a C compiler, and that it is not switched off"
)

DTYPES = (torch.float32, torch.float64)
EDGES = (0.0, 1e-6, 1.0, 17.0, 300.0, 1e15, 1e19)


def close(dtype: torch.dtype, terms: float = 1.0) -> dict[str, float]:
    """Return tolerances of a sum of so many terms of order 1."""
    eps = torch.finfo(dtype).eps
    return {"rtol": 8.0 * eps, "atol": 8.0 * math.sqrt(terms) * eps}


def formula(profile: str, d2: Tensor) -> tuple[Tensor, Tensor]:
    """Return κ and its slope in d², in float64."""
    d2 = d2.double()
    slope = FORMULAS[profile].contract(d2, torch.ones_like(d2))[1]
    return FORMULAS[profile].value(d2, d2.new_ones(())), slope


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("profile", PROFILES)
def test_values_and_slopes_are_those_of_the_formula(profile: str, dtype: torch.dtype) -> None:
    """Also at distances that are 0, so large that their squares are infinite, or where a value is
    as small as a number can be.
    """
    spread = 30.0 * problems.uniform(3 * PANEL)
    farther = torch.arange(0.0, 750.0, 0.25)  # exp(-745) is 0 in float64
    r = torch.cat([torch.tensor(EDGES), spread, farther]).to(dtype).unsqueeze(1)
    origin = Panels.of(torch.zeros_like(r[:1]))
    values, slopes = formula(profile, r.square())
    one = torch.ones((), dtype=dtype)
    found = native.values(profile, r, origin, 2.5 * one)
    torch.testing.assert_close(found.double(), 2.5 * values, **close(dtype))
    sums, gradients = native.kernel_sums(profile, r, origin, r.new_ones(1, 1))
    torch.testing.assert_close(sums.double(), values.squeeze(1), **close(dtype))
    finite = r.square().isfinite()
    expected = torch.where(finite, 2.0 * slopes * r.double(), 0.0)
    torch.testing.assert_close(gradients.double(), expected, **close(dtype, 4.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("profile", PROFILES)
def test_what_is_no_number_stays_none(profile: str, dtype: torch.dtype) -> None:
    X = torch.tensor([[0.5], [math.nan]] * 20, dtype=dtype)
    panels = Panels.of(X[:1])
    values = native.values(profile, X, panels, X.new_ones(()))
    assert torch.equal(values.isnan(), X.isnan())
    sums, gradients = native.kernel_sums(profile, X[:2], panels, X.new_ones(2, 1))
    assert sums.isnan().tolist() == gradients.isnan().squeeze(1).tolist() == [False, True]


@each_pair(
    profile=PROFILES,
    shape=[(1, 5, 3), (3, PANEL, 1), (8, 700, 6), (64, 257, 2), (100, 40, 3)],
    dtype=DTYPES,
)
def test_tiles_and_sums_are_those_of_the_formula(
    profile: str, shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    d, n, q = shape
    s = 3
    X = problems.uniform(s * q, d, dtype=dtype)
    Z = problems.uniform(n, d, seed=1, dtype=dtype)
    W = problems.normal(s, n, dtype=dtype)
    panels = Panels.of(Z)
    differences = X.double().unsqueeze(1) - Z.double()
    values, slopes = formula(profile, differences.square().sum(-1))
    tile = native.values(profile, X, panels, torch.tensor(2.5, dtype=dtype))
    torch.testing.assert_close(tile.double(), 2.5 * values, **close(dtype, d))
    own = W.double().repeat_interleave(q, 0)
    sums, gradients = native.kernel_sums(profile, X, panels, W)
    torch.testing.assert_close(sums.double(), (values * own).sum(1), **close(dtype, 4.0 * n))
    expected = 2.0 * ((slopes * own).unsqueeze(-1) * differences).sum(1)
    torch.testing.assert_close(gradients.double(), expected, **close(dtype, 4.0 * n))


@pytest.mark.parametrize("profile", PROFILES)
def test_rounding_moves_no_eigenvalue_further_than_independent_errors_do(profile: str) -> None:
    """Errors of eps / 2 that know nothing of each other have a norm of 2 (eps / 2) n^½; those that
    are functions of the distance add up to one that grows as n.
    """
    n = 1000
    X = 3.0 * problems.uniform(n, 1, dtype=torch.float32)
    d2 = (X.double() - X.double().T).square()
    found = native.values(profile, X, Panels.of(X), X.new_ones(()))
    smallest = torch.linalg.eigvalsh(found.double())[0]
    exact = torch.linalg.eigvalsh(formula(profile, d2)[0])[0]
    assert smallest - exact > -1.5 * torch.finfo(torch.float32).eps * math.sqrt(n)


@pytest.mark.parametrize("dtype", DTYPES)
def test_near_points_lose_no_digits_far_from_zero(dtype: torch.dtype) -> None:
    # By ‖x‖² − 2xᵀz + ‖z‖² all of them would be lost
    Z = (1000.0 + problems.uniform(50, 3)).to(dtype)
    X = (1000.0 + problems.uniform(20, 3, seed=1)).to(dtype)
    values, _ = formula("rbf", (X.double().unsqueeze(1) - Z.double()).square().sum(-1))
    found = native.values("rbf", X, Panels.of(Z), X.new_ones(()))
    torch.testing.assert_close(found.double(), values, **close(dtype, 3.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("d", "n", "q"), [(1, 5, 3), (3, PANEL, 1), (8, 700, 6)])
def test_waves_and_their_sums_are_those_of_the_formula(
    d: int, n: int, q: int, dtype: torch.dtype
) -> None:
    s = 3
    # Multiples of 1/8: their products are exact, so that the angles are, too
    X = (8.0 * problems.uniform(s * q, d)).round().div(8.0).to(dtype)
    Z = (80.0 * problems.normal(n, d, seed=1)).round().div(8.0).to(dtype)
    C = problems.normal(s, n, dtype=dtype)
    S = problems.normal(s, n, seed=1, dtype=dtype)
    panels = Panels.of(Z)
    angles = X.double() @ Z.double().T
    cosines, sines = native.waves(X, panels)
    torch.testing.assert_close(cosines.double(), angles.cos(), **close(dtype))
    torch.testing.assert_close(sines.double(), angles.sin(), **close(dtype))
    of_cosines = C.double().repeat_interleave(q, 0)
    of_sines = S.double().repeat_interleave(q, 0)
    sums, gradients = native.wave_sums(X, panels, C, S)
    expected = (of_cosines * angles.cos() + of_sines * angles.sin()).sum(1)
    torch.testing.assert_close(sums.double(), expected, **close(dtype, 4.0 * n))
    slopes = of_sines * angles.cos() - of_cosines * angles.sin()
    torch.testing.assert_close(gradients.double(), slopes @ Z.double(), **close(dtype, 400.0 * n))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [1.0, 1e4, 1e6, 1e8, 1e12, 1e30])
def test_waves_of_large_angles_keep_their_digits(largest: float, dtype: torch.dtype) -> None:
    angles = torch.linspace(-largest, largest, 1001, dtype=torch.float64).to(dtype)
    cosines, sines = native.waves(torch.ones(1, 1, dtype=dtype), Panels.of(angles.unsqueeze(1)))
    tolerance = close(dtype)
    torch.testing.assert_close(cosines[0].double(), angles.double().cos(), **tolerance)
    torch.testing.assert_close(sines[0].double(), angles.double().sin(), **tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_points_found_together_match_points_found_alone_to_the_last_bit(dtype: torch.dtype) -> None:
    s, q, d, n = 3, 7, 5, 300
    X = problems.uniform(s * q, d, dtype=dtype)
    panels = Panels.of(problems.uniform(n, d, seed=1, dtype=dtype))
    W = problems.normal(s, n, dtype=dtype)
    own = W.repeat_interleave(q, 0)
    one = X.new_ones(())

    def found(X: Tensor, W: Tensor) -> list[Tensor]:
        return [
            native.values("matern32", X, panels, one),
            *native.kernel_sums("matern32", X, panels, W),
            *native.waves(X, panels),
            *native.wave_sums(X, panels, W, W.flip(1)),
        ]

    together = found(X, W)
    for i in range(len(X)):
        alone = found(X[i : i + 1], own[i : i + 1])
        assert all(
            torch.equal(part[i : i + 1], single)
            for part, single in zip(together, alone, strict=True)
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_may_lie_in_memory_in_any_way(dtype: torch.dtype) -> None:
    s, q, n = 5, 3, 2 * PANEL + 10
    X = problems.uniform(s * q, 2, dtype=dtype)
    panels = Panels.of(problems.uniform(n, 2, seed=1, dtype=dtype))
    wide = problems.normal(2 * s, 3 * n, dtype=dtype)
    W = wide[::2, 1::3].contiguous()
    expected = [*native.kernel_sums("rbf", X, panels, W), *native.wave_sums(X, panels, W, W)]
    for others in (wide[::2, 1::3], W.T.contiguous().T):
        found = [
            *native.kernel_sums("rbf", X, panels, others),
            *native.wave_sums(X, panels, others, others),
            *native.wave_sums(X, panels, others, W),
        ]
        assert all(map(torch.equal, found, [*expected, *expected[2:]]))
    shared = W[:1].expand(s, n)
    alike = native.kernel_sums("rbf", X, panels, shared.contiguous())
    assert all(map(torch.equal, native.kernel_sums("rbf", X, panels, shared), alike))


def test_neither_threads_nor_parts_change_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    X = problems.uniform(90, 3, dtype=torch.float32)
    panels = Panels.of(problems.uniform(500, 3, seed=1, dtype=torch.float32))
    W = problems.normal(9, 500, dtype=torch.float32)
    expected = native.kernel_sums("rbf", X, panels, W)
    in_parts = partial(native._by_rows, entries_a_thread=1000, entries_at_once=20_000)
    monkeypatch.setattr(native, "_by_rows", in_parts)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    found = native.kernel_sums("rbf", X, panels, W)
    assert all(map(torch.equal, found, expected))


def test_a_forked_process_has_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_by_rows", partial(native._by_rows, entries_a_thread=1))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    X = problems.uniform(100, 2)
    panels = Panels.of(X)
    expected = native.values("rbf", X, panels, X.new_ones(()))
    child = os.fork()
    if not child:
        found = native.values("rbf", X, panels, X.new_ones(()))
        os._exit(0 if torch.equal(found, expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("n", [0, 1, PANEL, PANEL + 1])
def test_any_number_of_points_is_taken(n: int) -> None:
    Z = problems.uniform(n, 2)
    panels = Panels.of(Z)
    for m in (0, 1, 5):
        X = problems.uniform(m, 2, seed=1)
        assert native.values("rbf", X, panels, X.new_ones(())).shape == (m, n)
        sums, gradients = native.kernel_sums("rbf", X, panels, X.new_ones(m, n))
        assert sums.shape == (m,) and gradients.shape == (m, 2)
        assert n or not sums.any()


def test_parts_of_panels_are_those_of_the_rows() -> None:
    Z = problems.uniform(2 * PANEL + 10, 3)
    panels = Panels.of(Z)
    X = problems.uniform(4, 3, seed=1)
    one = X.new_ones(())
    for rows in (slice(PANEL, 2 * PANEL), slice(PANEL, len(Z)), slice(None), slice(PANEL, 10**6)):
        part = panels.part(rows)
        assert part is not None and part.count == len(Z[rows])
        expected = native.values("rbf", X, Panels.of(Z[rows]), one)
        assert torch.equal(native.values("rbf", X, part, one), expected)
    assert panels.part(slice(1, PANEL)) is None  # begins inside
    assert panels.part(slice(0, PANEL - 1)) is None  # ends inside
    assert panels.part(slice(0, 4, 2)) is None


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALABLE_BO_COMPILE", "never")
    assert not native.serves(torch.zeros(1))


def test_an_unknown_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALABLE_BO_COMPILE", "sometimes")
    with pytest.raises(
        ValueError,
        match="`SCALABLE_BO_COMPILE` must be 'auto', 'always' or 'never', got 'sometimes'",
    ):
        native.serves(torch.zeros(1))


def test_an_empty_mode_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALABLE_BO_COMPILE", "")
    assert native.mode() == "auto"


def test_numbers_of_other_types_are_left_to_pytorch() -> None:
    one = torch.zeros(1)
    assert not native.serves(torch.zeros(1, dtype=torch.bfloat16))
    assert not native.serves(torch.zeros(1, device="meta"))
    assert not native.serves(one, one.double())
    assert not native.serves(one, torch.zeros(1, device="meta"))


def test_where_gradients_are_asked_for_it_is_left_to_pytorch() -> None:
    X = torch.zeros(1, requires_grad=True)
    assert not native.serves(torch.zeros(1), X)
    with torch.no_grad():
        assert native.serves(torch.zeros(1), X)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.hessian])
def test_inside_a_transform_it_is_left_to_pytorch(transform: Callable[..., Any]) -> None:
    X = problems.uniform(5, 3)
    W = problems.normal(5, 2)
    kernel = problems.rbf().double()
    expected = kernel_operator(kernel, X) @ W

    def function(x: Tensor) -> Tensor:
        found = kernel_operator(kernel, X) @ W
        torch.testing.assert_close(found, expected)
        return (found.sum() * x).sum()

    derivative = transform(function)(torch.ones(2, dtype=torch.float64))
    assert derivative.shape[0] == 2


def features() -> RandomFeatures:
    generator = torch.Generator().manual_seed(0)
    return RandomFeatures.draw(problems.matern(1.5), 3, 100, generator=generator)


@pytest.mark.parametrize("name", ["X", "W"])
def test_features_keep_the_derivatives_that_are_asked_for(name: str) -> None:
    basis = features()
    tensors = {
        "X": problems.uniform(4, 3, dtype=basis.dtype),
        "W": problems.normal(100, 4, dtype=basis.dtype),
    }
    tensors[name].requires_grad_()
    product = basis.matmul(tensors["X"], tensors["W"])
    (found,) = torch.autograd.grad(product.square().sum(), tensors[name])
    expected = basis(tensors["X"]) @ tensors["W"]
    (expected,) = torch.autograd.grad(expected.square().sum(), tensors[name])
    torch.testing.assert_close(found, expected)
    assert expected.any()


def test_weights_of_another_type_are_taken_as_pytorch_takes_them() -> None:
    kernel = problems.matern(1.5).double()
    Z = problems.uniform(300, 3)
    X = problems.uniform(40, 3, seed=1)
    W = problems.normal(300, 40, dtype=torch.float32)
    found = combine_rowwise(KernelBasis(kernel, Z), X.unsqueeze(1), W).squeeze(1)
    with torch.no_grad():
        expected = (kernel(X, Z).to_dense() * W.T).sum(1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, check_dtype=False)


@pytest.mark.parametrize("shape", [(5, 2), (5, 4), (5, 20_000)])
def test_points_of_another_dimension_are_refused(shape: tuple[int, int]) -> None:
    basis = features()
    X = torch.zeros(shape, dtype=basis.dtype)
    W = torch.zeros(100, 5, dtype=basis.dtype)
    with pytest.raises(ValueError, match=r"`X` must be .* of shape \(m, 3\) on the cpu"):
        basis.matmul(X, W)
    with pytest.raises(ValueError, match=r"`X` must be .* of shape \(m, 3\) on the cpu"):
        basis.rowwise(X.unsqueeze(1), W)


def test_what_does_not_go_together_is_refused() -> None:
    X = problems.uniform(6, 3)
    one = X.new_ones(())
    panels = Panels.of(problems.uniform(10, 3, seed=1))
    W = X.new_ones(2, 10)
    for others in (X[:, :2], X.float(), X.to("meta")):
        with pytest.raises(ValueError, match="`X` must be torch.float64 of shape"):
            native.values("rbf", others, panels, one)
    for others in (W[:, :9], W.float(), X.new_ones(4, 10), W[:0]):
        with pytest.raises(ValueError, match="weights must be torch.float64, 10 of each"):
            native.kernel_sums("rbf", X, panels, others)
        with pytest.raises(ValueError, match="weights must be torch.float64, 10 of each"):
            native.wave_sums(X, panels, others, others)
    with pytest.raises(ValueError, match="weights must be"):
        native.wave_sums(X, panels, W, W[:, :9])
    for out in (X.new_empty(6, 9), X.new_empty(6, 10).float(), X.new_empty(10, 6).T):
        with pytest.raises(ValueError, match="`out` must be contiguous torch.float64"):
            native.values("rbf", X, panels, one, out)


def test_a_default_device_is_not_where_sums_are_made() -> None:
    X = problems.uniform(4, 2)
    panels = Panels.of(X)
    expected = native.kernel_sums("rbf", X, panels, X.new_ones(2, 4))
    with torch.device("meta"):
        assert native._is_usable.__wrapped__(torch.float64)
        found = native.kernel_sums("rbf", X, panels, X.new_ones(2, 4))
    assert all(map(torch.equal, found, expected))


def test_what_threads_no_longer_take_is_done_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    X = problems.uniform(100, 2)
    panels = Panels.of(X)
    expected = native.values("rbf", X, panels, X.new_ones(()))
    monkeypatch.setattr(native, "_by_rows", partial(native._by_rows, entries_a_thread=1))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    ended = ThreadPoolExecutor(2)
    ended.shutdown()
    monkeypatch.setattr(native, "_threads", lambda: ended)
    assert torch.equal(native.values("rbf", X, panels, X.new_ones(())), expected)


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        *((name, lambda found: 1.001 * found) for name in native.SIGNATURES),
        ("values", torch.nan_to_num),
    ],
)
def test_a_library_that_finds_other_numbers_is_not_used(
    name: str,
    spoil: Callable[[Tensor], Tensor],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    right = getattr(native, name)

    def wrong(*arguments: Any) -> Any:
        found = right(*arguments)
        return tuple(map(spoil, found)) if isinstance(found, tuple) else spoil(found)

    monkeypatch.setattr(native, name, wrong)
    assert not native._is_usable.__wrapped__(torch.float32)
    assert "compiled kernels find other numbers than PyTorch: they are not used" in caplog.text


def test_without_a_compiler_it_says_so_and_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "find_compiler", lambda: None)
    monkeypatch.setattr(native, "_library", native._library.__wrapped__)
    with caplog.at_level(logging.INFO, native.logger.name):
        assert not native._is_usable.__wrapped__(torch.float32)
    assert "kernels stay uncompiled, three to five times slower: no C compiler" in caplog.text
    assert not any(record.levelno > logging.INFO for record in caplog.records)
    monkeypatch.setenv("SCALABLE_BO_COMPILE", "always")
    assert not native._is_usable.__wrapped__(torch.float32)
    assert caplog.records[-1].levelno == logging.WARNING
