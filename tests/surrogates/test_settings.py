"""The settings of the whole process: changed for as long as they are needed, then as before, and
left alone where the switch says so.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import psutil
import pytest
import torch

from surrogates import CG, Dense, RandomFeatures, Tiled, memory
from surrogates.operators.linalg import matmul
from tests import problems
from tests.simulated_device import simulated_device

SETTINGS = torch.backends.cuda.matmul
needs_precisions = pytest.mark.skipif(
    not hasattr(SETTINGS, "fp32_precision"), reason="needs PyTorch 2.9"
)


@pytest.fixture(params=["fp32_precision", "allow_tf32"])
def setting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The setting of this PyTorch, or the one of versions before 2.9."""
    if request.param == "fp32_precision" and not hasattr(SETTINGS, "fp32_precision"):
        pytest.skip("needs PyTorch 2.9")
    monkeypatch.setattr(memory, "_has_precisions", lambda: request.param == "fp32_precision")
    before = {
        name: getattr(SETTINGS, name)
        for name in ("allow_tf32", "fp32_precision")
        if hasattr(SETTINGS, name)
    }
    yield request.param
    for name, value in before.items():  # the old setting changes the new one
        setattr(SETTINGS, name, value)


@pytest.mark.parametrize("before", [True, False])
def test_the_precision_holds_inside_and_is_restored(setting: str, before: bool) -> None:
    values = (
        {True: "tf32", False: "ieee"} if setting == "fp32_precision" else {True: True, False: False}
    )
    setattr(SETTINGS, setting, values[before])
    with memory.full_precision():
        assert getattr(SETTINGS, setting) == values[False]
    assert getattr(SETTINGS, setting) == values[before]


def test_the_switch_keeps_the_precision_as_it_is(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = "tf32" if setting == "fp32_precision" else True
    setattr(SETTINGS, setting, allowed)
    monkeypatch.setenv(memory.SWITCH, "keep")
    with memory.full_precision():
        assert getattr(SETTINGS, setting) == allowed
    monkeypatch.setenv(memory.SWITCH, "no")
    with pytest.raises(ValueError, match="must be 'change' or 'keep', got 'no'"):
        memory.may_change()


def test_the_precision_is_restored_after_an_error(setting: str) -> None:
    before = getattr(SETTINGS, setting)
    with pytest.raises(torch.cuda.OutOfMemoryError), memory.full_precision():
        raise torch.cuda.OutOfMemoryError("no")
    assert getattr(SETTINGS, setting) == before


@pytest.mark.parametrize(("kind", "kept"), [("cuda", False), ("cpu", True)])
def test_the_precision_is_full_for_the_work_of_a_cuda_device(
    setting: str, kind: str, kept: bool
) -> None:
    allowed = "tf32" if setting == "fp32_precision" else True
    setattr(SETTINGS, setting, allowed)
    with memory.full_precision_on(torch.device(kind)):
        assert (getattr(SETTINGS, setting) == allowed) == kept


def test_solves_and_features_are_in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def noted(device: torch.device) -> AbstractContextManager[None]:
        asked.append(device)
        return nullcontext()

    monkeypatch.setattr(memory, "full_precision_on", noted)
    with simulated_device() as there:
        X = problems.uniform(20, 2).to(there)
        W, V, rows = (problems.normal(*shape).to(there) for shape in ((8, 3), (20, 3), (8, 20)))
        features = RandomFeatures.draw(
            problems.rbf().double(), 2, 8, generator=torch.Generator().manual_seed(0), like=X
        )
        system = problems.system(X=X)
        for use in (
            lambda: CG().solve(system, problems.normal(20, 1).to(there)),
            lambda: features(X),
            lambda: features.matmul(X, W),
            lambda: features.matmul_gradient(X, W, V),
            lambda: features.rowwise(X.unsqueeze(1), rows),
        ):
            asked.clear()
            use()
            assert there in asked


@pytest.mark.gpu
@needs_precisions
def test_kernel_products_on_cuda_are_in_full_precision() -> None:
    X = problems.uniform(3000, 4, dtype=torch.float32)
    W = problems.normal(3000, 256, dtype=torch.float32)
    exact = problems.own_evaluation(problems.matern(1.5), X, X) @ W.double()
    before = SETTINGS.fp32_precision
    SETTINGS.fp32_precision = "tf32"  # what the user allows for other work changes nothing
    try:
        for kind in (Dense, Tiled):
            K = problems.operator(kind, problems.matern(1.5), X.cuda())
            assert problems.relative_error((K @ W.cuda()).cpu(), exact) < 1e-5
        assert SETTINGS.fp32_precision == "tf32"
    finally:
        SETTINGS.fp32_precision = before
    assert (
        matmul(W.T.cuda(), W.cuda()).cpu().double() - W.T.double() @ W.double()
    ).abs().max() < 1e-2


FREED_TWICE = """
import resource, torch
from surrogates import memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.ones(2**24)  # 64 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults()
with memory.keeping_freed():
    with memory.keeping_freed():
        kept = min(faults() for _ in range(10))  # the first ones make room
print(first, kept, faults())
"""


@pytest.mark.skipif(
    memory._glibc() is None, reason="the allocator of the GNU C library alone can be told"
)
@pytest.mark.parametrize(
    ("environment", "keeps"),
    [
        ({}, True),
        pytest.param({"MALLOC_TRIM_THRESHOLD_": "131072"}, False, marks=pytest.mark.slow),
        pytest.param({memory.SWITCH: "keep"}, False, marks=pytest.mark.slow),
    ],
)
def test_freed_memory_is_kept_inside_the_context_alone(
    environment: dict[str, str], keeps: bool
) -> None:
    inherited = {
        name: value for name, value in os.environ.items() if name not in memory.ALLOCATOR_SETTINGS
    }
    command = [sys.executable, "-c", FREED_TWICE]
    done = subprocess.run(
        command,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    before, inside, after = map(int, done.stdout.split())
    pages = 4 * 2**26 // os.sysconf("SC_PAGE_SIZE")
    assert before > 0.9 * pages, "four tensors of 64 MiB are mapped four times"
    assert after > 0.4 * pages, "given back, and mapped again"
    assert (inside < 0.1 * pages) == keeps


@pytest.mark.skipif(
    memory._glibc() is None, reason="the allocator of the GNU C library alone can be told"
)
def test_memory_that_is_kept_is_given_back_before_free_memory_is_asked_for() -> None:
    process = psutil.Process()
    with memory.keeping_freed():
        block = torch.ones(2**25)  # 128 MiB
        before = process.memory_info().rss
        del block
        memory.available(torch.device("cpu"))
        assert process.memory_info().rss < before - 2**26


NESTED = """
from surrogates import memory

made = []
memory._set_allocator = made.append
try:
    with memory.keeping_freed():
        with memory.keeping_freed():
            assert made == [memory.KEEPING]
        assert made == [memory.KEEPING]
        raise ZeroDivisionError
except ZeroDivisionError:
    assert made == [memory.KEEPING, memory.USUAL]
"""


def test_nested_contexts_set_the_allocator_once() -> None:
    # A process of its own: threads of other tests may still compute in this one
    subprocess.run([sys.executable, "-c", NESTED], check=True, timeout=300)
