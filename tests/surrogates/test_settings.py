"""The setting of the whole process: changed for as long as it is needed, then as before, and left
alone where the switch says so.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from unittest.mock import Mock

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


def test_solves_and_products_are_in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Mock(return_value=nullcontext())
    monkeypatch.setattr(memory, "full_precision_on", asked)
    with simulated_device() as there:
        X = problems.uniform(20, 2).to(there)
        W, V, rows = (problems.normal(*shape).to(there) for shape in ((8, 3), (20, 3), (8, 20)))
        features = RandomFeatures.draw(
            problems.rbf().double(), 2, 8, generator=torch.Generator().manual_seed(0), like=X
        )
        system = problems.system(X=X)
        K = problems.operator(Tiled, problems.rbf().double(), X)
        for use in (
            lambda: K @ V,
            lambda: CG().solve(system, problems.normal(20, 1).to(there)),
            lambda: features(X),
            lambda: features.matmul(X, W),
            lambda: features.matmul_gradient(X, W, V),
            lambda: features.rowwise(X.unsqueeze(1), rows),
        ):
            asked.reset_mock()
            use()
            asked.assert_any_call(there)


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
