"""What is particular to CUDA devices: tiles that shrink when memory runs out,
and fused kernels. Most of it is tried on the CPU.
"""

import logging
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from surrogates import CG, Cholesky, Dense, RandomFeatures, SketchAndProject, Tiled, kernel_operator
from surrogates.operators import cuda, tiles
from surrogates.operators.differentiable import KernelBasis, combine, combine_rowwise
from surrogates.operators.forms import PROFILES
from surrogates.operators.tiles import (
    KernelTiles,
    StationaryTiles,
    tiled_matmul,
    tiled_matmul_gradient,
    tiled_rowwise,
)
from surrogates.solvers.solver import Solver
from tests import problems
from tests.pairs import each_pair
from tests.problems import DIM, STATIONARY

M = 150
N = 200
S = 5
WHOLE = slice(None)


def stationary_tiles(
    m: int = M,
    name: str = "scale-matern32",
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
) -> StationaryTiles:
    X = problems.uniform(m, DIM, dtype=dtype).to(device)
    Z = problems.uniform(N, DIM, seed=1, dtype=dtype).to(device)
    return KernelTiles.of(STATIONARY[name]().to(X), X, Z)


@pytest.fixture(autouse=True)
def not_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tiles be evaluated as on a device, whatever the environment says of compiled code."""
    monkeypatch.delenv("SCALABLE_BO_COMPILE", raising=False)
    monkeypatch.setattr(StationaryTiles, "_panels", lambda tiles, *_: None)


class SmallMemory:
    """Lets ``StationaryTiles`` evaluate tiles of at most ``entries`` entries."""

    def __init__(self, entries: int, monkeypatch: pytest.MonkeyPatch):
        self.entries = entries
        self.failures = 0
        for name in ("tile", "contract"):
            monkeypatch.setattr(StationaryTiles, name, self.limited(getattr(StationaryTiles, name)))

    def limited(self, evaluate: Any) -> Any:
        def limited(
            part: StationaryTiles, i: slice, j: slice, *weights: Tensor, **out: Tensor
        ) -> Any:
            if len(part.X1[i]) * len(part.X2[j]) > self.entries:
                self.failures += 1
                raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
            return evaluate(part, i, j, *weights, **out)

        return limited


@pytest.mark.parametrize("entries", [10**6, 200 * 100, 4 * 64 * 64])
def test_tiles_shrink_until_they_fit_and_give_the_same(
    entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    K = stationary_tiles()
    W = problems.normal(N, S)
    C = problems.normal(M, S, seed=2)
    V = problems.normal(N, M // 10, seed=3)

    def products() -> list[Tensor]:
        of_rows = [tiled_matmul(K, W), tiled_matmul_gradient(K, W, C), *tiled_rowwise(K, V)]
        return [*of_rows, Tiled(K, False).to_dense()]

    expected = products()
    small = SmallMemory(entries, monkeypatch)
    torch.testing.assert_close(products(), expected)
    assert (small.failures > 0) == (entries < M * N)


def test_without_memory_for_the_smallest_tile_there_is_a_clear_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    K = stationary_tiles()
    SmallMemory(10, monkeypatch)
    for product in (
        lambda: tiled_matmul(K, torch.ones(N, 2).double()),
        lambda: tiled_rowwise(K, torch.ones(N, 3).double()),
    ):
        with pytest.raises(
            MemoryError, match="A tile of 64 rows does not fit in the device's free memory"
        ):
            product()
    with pytest.raises(MemoryError, match="A tile of 64 rows"):
        Dense(K, symmetric=False)


@pytest.mark.parametrize("rows", [64, 3])
def test_features_are_evaluated_for_fewer_points_when_memory_runs_out(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    basis = RandomFeatures.draw(problems.rbf().double(), DIM, 8, generator=problems.seeded())
    X = problems.uniform(20, DIM).requires_grad_()
    W = problems.normal(8, 4)
    V = problems.normal(8, 20)

    def evaluate() -> list[Tensor]:
        found = [combine(basis, X, W), combine_rowwise(basis, X.unsqueeze(1), V)]
        return found + [torch.autograd.grad(values.sum(), X)[0] for values in found]

    expected = evaluate()
    for name in ("matmul", "matmul_gradient", "rowwise"):
        monkeypatch.setattr(RandomFeatures, name, limited_to(rows, getattr(RandomFeatures, name)))
    torch.testing.assert_close(evaluate(), expected)


def limited_to(rows: int, evaluate: Any) -> Any:
    def limited(basis: RandomFeatures, X: Tensor, *others: Tensor) -> Any:
        if len(X) > rows:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return evaluate(basis, X, *others)

    return limited


class Kernels(SimpleNamespace):
    """Stands in for the module of Triton kernels: exact, times 2 so that it shows."""

    LARGEST_WIDTH = max(DIM, S)
    LARGEST_OFFSET = 10**6

    def __init__(self, error: Exception | None = None):
        super().__init__(calls=[], error=error)

    def product(self, profile: str, X: Tensor, Z: Tensor, W: Tensor) -> Tensor:
        self._called("product")
        return 2.0 * PROFILES[profile].value(torch.cdist(X, Z).square(), torch.ones(()).to(X)) @ W

    def rowwise(self, profile: str, X: Tensor, Z: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        self._called("rowwise")
        return torch.full_like(X[:, 0], 2.0), torch.full_like(X, 3.0)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.error is not None:
            raise self.error


@pytest.fixture
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    kernels = Kernels(getattr(request, "param", None))
    monkeypatch.setattr(cuda, "_triton_kernels", lambda: kernels)
    monkeypatch.setattr(cuda, "_unavailable", set())
    monkeypatch.setattr(cuda, "DEVICE_TYPES", {"cpu"})
    monkeypatch.setattr(cuda, "_kernels_for", partial(cuda._kernels_for, fewest_entries=M * N))
    return kernels


@pytest.mark.parametrize(
    ("s", "passes"), [(S, 1), (Kernels.LARGEST_WIDTH + 1, 2), (128, 26), (129, 0)]
)
def test_some_columns_are_fused_in_passes_and_many_are_not(
    kernels: Kernels, s: int, passes: int
) -> None:
    K = stationary_tiles()
    W = problems.normal(N, s)
    expected = (2.0 if passes else 1.0) * K.tile(WHOLE, WHOLE) @ W
    torch.testing.assert_close(tiled_matmul(K, W), expected)
    assert kernels.calls == ["product"] * passes


def test_path_gradients_are_fused_and_in_the_units_of_all_inputs(kernels: Kernels) -> None:
    # Looks at columns 2 and 0, with lengthscales 0.4 and 0.9
    K = stationary_tiles(name="matern52-active")
    values, gradient = tiled_rowwise(K, problems.normal(N, 10))
    assert values.shape == (10, M // 10) and gradient.shape == (10, M // 10, DIM)
    assert (values == 2.0).all()
    torch.testing.assert_close(
        gradient, torch.tensor([3.0 / 0.9, 0.0, 3.0 / 0.4]).double().expand_as(gradient)
    )
    assert kernels.calls == ["rowwise"]


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("cuda", "DEVICE_TYPES", {"cuda"}),
        ("cuda", "_kernels_for", partial(cuda._kernels_for, fewest_entries=M * N + 1)),
        ("cuda", "_triton_kernels", lambda: None),
        ("kernels", "LARGEST_WIDTH", DIM - 1),
        ("kernels", "LARGEST_OFFSET", N * S - 1),
        ("environment", "SCALABLE_BO_COMPILE", "never"),
    ],
    ids=["cpu", "small", "no-triton", "wide", "long", "switched-off"],
)
def test_tiles_do_what_has_no_fused_kernel(
    kernels: Kernels, part: str, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if part == "environment":
        monkeypatch.setenv(name, value)
    else:
        monkeypatch.setattr({"cuda": cuda, "kernels": kernels}[part], name, value)
    K = stationary_tiles()
    W = problems.normal(N, S)
    torch.testing.assert_close(tiled_matmul(K, W), K.tile(WHOLE, WHOLE) @ W)
    assert not kernels.calls


def test_other_kernels_are_never_fused(kernels: Kernels) -> None:
    X = problems.uniform(M, DIM)
    tiled_matmul(
        KernelTiles.of(problems.GENERIC["rq"]().to(X), X, problems.uniform(N, DIM)),
        problems.normal(N, S),
    )
    assert not kernels.calls


@pytest.mark.parametrize("kernels", [RuntimeError("no C compiler")], indirect=True)
def test_a_failing_kernel_leaves_the_tiles_and_is_said_once(
    kernels: Kernels, caplog: pytest.LogCaptureFixture
) -> None:
    K = stationary_tiles()
    W = problems.normal(N, S)
    for _ in range(2):
        torch.testing.assert_close(tiled_matmul(K, W), K.tile(WHOLE, WHOLE) @ W)
    assert kernels.calls == ["product"]
    assert [
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
    ] == [
        "the fused product of matern32 in torch.float64 failed (RuntimeError: no C compiler); going"
        " on with tiles"
    ]


@pytest.mark.parametrize("kernels", [torch.cuda.OutOfMemoryError("no")], indirect=True)
def test_a_kernel_that_runs_out_of_memory_is_tried_again(kernels: Kernels) -> None:
    K = stationary_tiles()
    W = problems.normal(N, S)
    for _ in range(2):
        torch.testing.assert_close(tiled_matmul(K, W), K.tile(WHOLE, WHOLE) @ W)
    assert kernels.calls == ["product"] * 2


@pytest.mark.gpu
@each_pair(name=STATIONARY, s=[1, 3, 32, 33, 129], dtype=[torch.float32, torch.float64])
def test_fused_and_tiled_products_on_cuda_agree_with_the_cpu(
    name: str,
    s: int,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("triton", minversion="3.6")  # earlier ones have no products in float64
    monkeypatch.setattr(cuda, "_kernels_for", partial(cuda._kernels_for, fewest_entries=1))
    exact = stationary_tiles(1000, name, dtype).to(torch.float64)
    K = stationary_tiles(1000, name, dtype, "cuda")
    W = problems.normal(N, s)
    V = problems.normal(N, 20, seed=2)
    tolerance = {"rtol": 0, "atol": 30 * N * torch.finfo(dtype).eps}
    with caplog.at_level(logging.WARNING, cuda.logger.name):
        torch.testing.assert_close(
            tiled_matmul(K, W.cuda().to(dtype)).cpu().double(),
            exact.tile(WHOLE, WHOLE) @ W,
            **tolerance,
        )
        values, gradient = tiled_rowwise(K, V.cuda().to(dtype))
    expected = tiled_rowwise(exact, V)
    torch.testing.assert_close(values.cpu().double(), expected[0], **tolerance)
    # A Matérn-1/2's slope is infinite at a point
    steepest = 1e3 if PROFILES[K.kernel.profile].nu < 1.0 else 1.0
    torch.testing.assert_close(
        gradient.cpu().double(), expected[1], rtol=0, atol=steepest * tolerance["atol"]
    )
    assert not caplog.records  # no kernel has failed


@pytest.mark.gpu
@pytest.mark.parametrize(
    "solver",
    [CG(tolerance=1e-8, max_epochs=500), SketchAndProject(tolerance=1e-8, max_epochs=500)],
    ids=["cg", "sap"],
)
def test_a_solve_by_fused_products_on_cuda_agrees_with_cholesky(
    solver: Solver, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", minversion="3.6")
    monkeypatch.setattr(cuda, "_kernels_for", partial(cuda._kernels_for, fewest_entries=1))
    X = problems.uniform(600, 2)
    rhs = problems.normal(600, 3)
    exact = Cholesky().solve(problems.system(X=X), rhs).value
    found = solver.solve(problems.system(X=X.cuda(), kind=Tiled), rhs.cuda())
    assert found.converged.all()
    assert problems.relative_error(found.value.cpu(), exact) < 1e-5


@pytest.mark.gpu
def test_a_device_that_is_nearly_full_gets_smaller_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "DEVICE_TYPES", set[str]())
    # The memory has gone since it was looked at
    monkeypatch.setattr(tiles.memory, "side_that_fits", lambda device, largest: largest)
    X = problems.uniform(20_000, DIM, dtype=torch.float32).cuda()
    total = torch.cuda.mem_get_info()[1]
    basis = KernelBasis(problems.matern(1.5).to(X), X)
    W = problems.normal(len(X), 4, dtype=torch.float32).cuda()
    points = X[:10_000]
    expected = combine(basis, points, W), combine_rowwise(basis, points.view(4, -1, DIM), W)
    torch.cuda.empty_cache()
    room = torch.cuda.memory_reserved() + 2**28  # a tile of 8192 × 8192 takes it all
    torch.cuda.set_per_process_memory_fraction(room / total)
    try:
        found = combine(basis, points, W), combine_rowwise(basis, points.view(4, -1, DIM), W)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(2**28, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-2)


@pytest.mark.gpu
def test_the_memory_of_a_cuda_device_is_asked_of_it() -> None:
    device = torch.device("cuda")
    before = tiles.memory.available(device)
    held = torch.empty(2**26, device=device)
    # But for other processes
    assert abs(before - tiles.memory.available(device) - 4 * held.numel()) < 2**26
    assert tiles.tile_side(device) <= tiles.DEFAULT_SIDE
    K = kernel_operator(
        problems.rbf().to(held), problems.uniform(10, DIM, dtype=torch.float32).cuda()
    )
    assert isinstance(K, Dense)
