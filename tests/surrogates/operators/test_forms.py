"""The elementwise part of a kernel: when a device compiles it, and that this makes no difference to
the values; and the likelihood by a kernel matrix.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from surrogates.operators.forms import (
    PROFILES,
    SMALLEST_COMPILED_TILE,
    Fused,
    batched_cholesky,
    gaussian_nll,
)
from tests import problems
from tests.simulated_device import simulated_device

SMALL_SIDE = 4
LARGE_SIDE = 64
assert SMALL_SIDE**2 < SMALLEST_COMPILED_TILE <= LARGE_SIDE**2


class Compiler:
    """Stands in for ``torch.compile``: doubles what the function returns, so that it shows."""

    def __init__(self) -> None:
        self.calls = 0
        self.fails = False
        self.codes = list[Any]()

    def __call__(self, function: Callable[..., Tensor], dynamic: bool) -> Callable[..., Tensor]:
        assert dynamic
        self.calls += 1
        self.codes.append(getattr(function, "__code__", None))

        def compiled(*arguments: Tensor) -> Tensor:
            if self.fails:
                raise RuntimeError("no such file: cc1plus")
            return 2.0 * function(*arguments)

        return compiled


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    compiler = Compiler()
    monkeypatch.setattr(torch, "compile", compiler)
    monkeypatch.setenv("SCALABLE_BO_COMPILE", "always")
    return compiler


@pytest.fixture
def large() -> Iterator[Tensor]:
    with simulated_device() as there:
        yield torch.ones(LARGE_SIDE, LARGE_SIDE).to(there)


def test_a_device_compiles_once_there_has_been_enough_work(
    compiler: Compiler, large: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCALABLE_BO_COMPILE", raising=False)
    square = Fused(torch.square, entries_before_compiling=3 * large.numel())
    values = [square(large)[0, 0].item() for _ in range(5)]
    assert values == [1.0, 1.0, 2.0, 2.0, 2.0]
    assert compiler.calls == 1


def test_a_cpu_never_waits_for_the_compiler(compiler: Compiler) -> None:
    assert (Fused(torch.square)(3.0 * torch.ones(LARGE_SIDE, LARGE_SIDE)) == 9.0).all()
    assert compiler.calls == 0


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("length", [0, 1, 100])
def test_values_overwrite_a_tile(profile: str, length: int) -> None:
    tile = problems.uniform(length)
    scale = torch.tensor(2.0, dtype=tile.dtype)
    expected = PROFILES[profile].value(tile.clone(), scale)
    assert PROFILES[profile].value_(tile, scale) is tile
    assert torch.equal(tile, expected)


def test_small_tiles_stay_eager(compiler: Compiler, large: Tensor) -> None:
    small = large[:SMALL_SIDE, :SMALL_SIDE]
    assert Fused(torch.square)(small)[0, 0] == 1.0
    assert compiler.calls == 0


@pytest.mark.parametrize(("mode", "expected"), [("never", 1.0), ("always", 2.0)])
def test_the_environment_variable_overrides_the_rule(
    compiler: Compiler, large: Tensor, monkeypatch: pytest.MonkeyPatch, mode: str, expected: float
) -> None:
    monkeypatch.setenv("SCALABLE_BO_COMPILE", mode)
    square = Fused(torch.square, entries_before_compiling=0 if mode == "never" else 10**18)
    assert square(large)[0, 0] == expected


@pytest.mark.parametrize("before", [0, 1])
def test_a_compiler_that_fails_at_once_or_later_leaves_the_eager_path_and_says_so_once(
    before: int, compiler: Compiler, large: Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    square = Fused(torch.square)
    assert all(square(large)[0, 0] == 2.0 for _ in range(before))  # compiled
    compiler.fails = True  # for other dtypes, say, or with gradients
    assert [square(large)[0, 0].item() for _ in range(3)] == [1.0] * 3
    assert compiler.calls == 1
    message = "compiling failed (RuntimeError: no such file: cc1plus); going on uncompiled"
    assert caplog.text.count(message) == 1


def test_running_out_of_memory_is_no_failure_to_compile(compiler: Compiler, large: Tensor) -> None:
    fused = Fused(Mock(side_effect=[torch.cuda.OutOfMemoryError("no"), large]))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        fused(large)
    assert fused(large)[0, 0] == 2.0  # compiled


def test_every_function_has_a_compilation_budget_of_its_own(
    compiler: Compiler, large: Tensor
) -> None:
    # Closures of one function, and torch counts recompilations by code object
    for profile in PROFILES.values():
        Fused(profile.value.function)(large, torch.ones(()).to(large.device))  # type: ignore[attr-defined]
    assert len({id(code) for code in compiler.codes}) == len(PROFILES)


def compare_with_eager(profile: str, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    from torch._dynamo.utils import counters  # takes a second

    formulas = PROFILES[profile]
    graphs = counters["stats"]["unique_graphs"]
    value, contract = (Fused(fused.function) for fused in (formulas.value, formulas.contract))  # type: ignore[attr-defined]
    value_ = Fused(formulas.value_.function)  # type: ignore[attr-defined]
    monkeypatch.setenv("SCALABLE_BO_COMPILE", "always")
    for dtype in (torch.float32, torch.float64):
        close = {"rtol": 20 * torch.finfo(dtype).eps, "atol": 20 * torch.finfo(dtype).eps}
        for rows, columns in ((64, 64), (100, 70), (37, 300)):
            d2 = 9 * problems.uniform(rows, columns, dtype=dtype).to(device)
            d2[0, :3] = torch.tensor([0.0, -1e-7, 1e-12])
            outputscale = torch.tensor(2.5, dtype=dtype, device=device)
            torch.testing.assert_close(
                value(d2, outputscale), formulas.value.function(d2, outputscale), **close
            )  # type: ignore[attr-defined]
            torch.testing.assert_close(
                value_(d2.clone().view(-1), outputscale), value(d2, outputscale).view(-1), **close
            )
            weights = problems.normal(1, 1, columns, dtype=dtype).to(device)
            compiled = contract(d2.unsqueeze(0), weights)
            eager = formulas.contract.function(d2.unsqueeze(0), weights)  # type: ignore[attr-defined]
            torch.testing.assert_close(
                compiled[0], eager[0], rtol=close["rtol"], atol=columns * close["atol"]
            )
            torch.testing.assert_close(compiled[1], eager[1], **close)
    assert (
        value._compiled is not None
        and value_._compiled is not None
        and contract._compiled is not None
    )
    # The compiler has not fallen back to eager by itself
    assert counters["stats"]["unique_graphs"] >= graphs + 3


@pytest.mark.gpu
@pytest.mark.parametrize("profile", PROFILES)
def test_compiled_and_eager_values_agree_on_cuda(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_with_eager(profile, monkeypatch, "cuda")


def test_a_singular_matrix_is_shifted_and_its_neighbours_in_the_batch_are_not() -> None:
    K = torch.stack([torch.ones(5, 5), 2.0 * torch.eye(5)]).double()
    factor = batched_cholesky(K)
    torch.testing.assert_close(factor @ factor.mT, K, rtol=0, atol=1e-12)
    assert torch.equal(factor[1], torch.linalg.cholesky(K[1]))


@pytest.mark.parametrize("value", [torch.nan, -1.0])
def test_a_likelihood_that_cannot_be_evaluated_is_none(value: float) -> None:
    K = torch.eye(4).double().expand(3, 4, 4).clone()
    r = problems.normal(3, 4)
    whole = gaussian_nll(K, r)
    K[1] *= value
    nll = gaussian_nll(K.requires_grad_(), r)
    nll.sum().backward()
    assert nll[1] == math.inf and K.grad is not None and K.grad.isfinite().all()
    assert torch.equal(nll[[0, 2]], whole[[0, 2]])


@pytest.mark.parametrize("value", [torch.nan, -1.0])
def test_a_matrix_that_is_no_covariance_is_refused(value: float) -> None:
    K = torch.eye(4).double().expand(3, 4, 4).clone()
    K[1] *= value
    with pytest.raises(FloatingPointError, match="not finite or not positive definite"):
        batched_cholesky(K)
