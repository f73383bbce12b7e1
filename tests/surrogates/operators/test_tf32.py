"""The precision of float32 products on CUDA: set for one product, then as before;
the setting exists without a device, too.
"""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from surrogates import Dense, Tiled
from surrogates.operators import gemm, rough, tf32
from surrogates.operators.tf32 import float32_products
from tests import problems

SETTINGS = torch.backends.cuda.matmul
needs_precisions = pytest.mark.skipif(
    not hasattr(SETTINGS, "fp32_precision"), reason="needs PyTorch 2.9"
)


@pytest.fixture(params=["fp32_precision", "allow_tf32"])
def setting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The setting of this PyTorch, or the one of versions before 2.9."""
    if request.param == "fp32_precision" and not hasattr(SETTINGS, "fp32_precision"):
        pytest.skip("needs PyTorch 2.9")
    monkeypatch.setattr(tf32, "_has_precisions", lambda: request.param == "fp32_precision")
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
    for wanted in (True, False):
        with float32_products(tf32=wanted):
            assert getattr(SETTINGS, setting) == values[wanted]
        assert getattr(SETTINGS, setting) == values[before]


def test_the_precision_is_restored_after_an_error(setting: str) -> None:
    before = getattr(SETTINGS, setting)
    with pytest.raises(torch.cuda.OutOfMemoryError), float32_products(tf32=True):
        raise torch.cuda.OutOfMemoryError("no")
    assert getattr(SETTINGS, setting) == before


@needs_precisions
def test_a_rough_product_evaluates_the_kernel_in_full_precision() -> None:
    X = problems.uniform(300, 2, dtype=torch.float32)
    W = problems.normal(300, 4, dtype=torch.float32)
    seen = []
    K = problems.operator(Tiled, problems.matern(1.5), X)

    def part(i: slice, j: slice) -> Tensor:
        seen.append(SETTINGS.fp32_precision)
        return K.tiles.tile(i, j)

    torch.testing.assert_close(rough._tf32_matmul(128, part, 300, W), K @ W)
    assert len(seen) > 1 and set(seen) == {SETTINGS.fp32_precision} != {"tf32"}


@pytest.mark.gpu
@needs_precisions
def test_only_a_rough_product_on_cuda_is_in_tf32() -> None:
    if not tf32.has_tf32(torch.device("cuda")):
        pytest.skip("needs a CUDA device with TF32")
    X = problems.uniform(3000, 4, dtype=torch.float32)
    W = problems.normal(3000, 256, dtype=torch.float32)
    exact = problems.own_evaluation(problems.matern(1.5), X, X) @ W.double()
    before = SETTINGS.fp32_precision
    SETTINGS.fp32_precision = "tf32"  # what the user allows for other work changes nothing
    try:
        for kind in (Dense, Tiled):
            K = problems.operator(kind, problems.matern(1.5), X.cuda())
            assert problems.relative_error((K @ W.cuda()).cpu(), exact) < 1e-5
            assert 1e-5 < problems.relative_error(K.rough_matmul(W.cuda()).cpu(), exact) < 2e-3
        assert SETTINGS.fp32_precision == "tf32"
    finally:
        SETTINGS.fp32_precision = before
    assert (
        gemm.matmul(W.T.cuda(), W.cuda()).cpu().double() - W.T.double() @ W.double()
    ).abs().max() < 1e-2
