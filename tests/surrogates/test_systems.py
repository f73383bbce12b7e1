"""The systems K + Σ and K_ZX Σ⁻¹ K_XZ + K_ZZ: products, parts, and what they accept."""

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from surrogates import (
    CG,
    SDD,
    Dense,
    InducingSystem,
    KernelSystem,
    PivotedCholesky,
    SketchAndProject,
    Solver,
    Targets,
    Tiled,
)
from surrogates.operators.tiles import StationaryTiles
from tests import problems
from tests.refusals import assert_refused

N = 25


@pytest.mark.parametrize("kind", [Dense, Tiled])
@pytest.mark.parametrize("noise", [0.3, problems.vector_noise(N)], ids=["scalar", "vector"])
def test_every_part_is_that_of_the_dense_matrix(kind: type, noise: float | torch.Tensor) -> None:
    system = problems.system(N, noise, kind=kind)
    H = system.kernel.to_dense() + torch.as_tensor(noise, dtype=torch.float64).expand(N).diag()
    W = problems.normal(N, 3)
    index = torch.tensor([3, 1, 20, 7])
    torch.testing.assert_close(system.to_dense(), H)
    torch.testing.assert_close(system @ W, H @ W)
    torch.testing.assert_close(system.rows_matmul(index, W), (H @ W)[index])
    torch.testing.assert_close(system.block(index), H[index][:, index])
    torch.testing.assert_close(system.columns(index), system.kernel.to_dense()[:, index])


def test_entries_are_counted_in_epochs() -> None:
    system = problems.system(N)
    system @ problems.normal(N, 7)
    assert system.entries / system.entries_per_epoch == 1.0  # whatever the number of columns
    system.rows_matmul(torch.arange(5), problems.normal(N, 1))
    assert system.entries / system.entries_per_epoch == pytest.approx(1.2)
    system.block(torch.arange(5))
    system.columns(torch.arange(5))
    assert system.entries / system.entries_per_epoch == pytest.approx(1.2 + 0.04 + 0.2)


def test_the_right_hand_side_is_values_plus_noise() -> None:
    f = problems.normal(N, 2)
    e = problems.normal(N, 2, seed=1)
    assert torch.equal(problems.system(N).rhs(Targets(f, e)), f + e)


@given(
    bad=st.sampled_from([0.0, -1e-6, float("nan"), float("inf"), -float("inf")]),
    place=st.integers(-1, N - 1),
)
def test_noise_that_is_no_variance_is_refused(bad: float, place: int) -> None:
    noise = (
        torch.tensor(bad)
        if place < 0
        else torch.full((N,), 0.1).index_fill(0, torch.tensor(place), bad)
    )
    with pytest.raises(
        ValueError,
        match="`noise` must be finite variances above 0, got .*Use a small value such as 1e-6",
    ):
        problems.system(N, noise)


@pytest.mark.parametrize("shape", [(N + 1,), (N, 1), (1, 1)])
def test_noise_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"`noise` must be a scalar or have shape \({N},\)"):
        problems.system(N, torch.ones(shape))


def test_an_operator_over_two_sets_of_points_is_refused() -> None:
    kernel = problems.operator(
        Dense, problems.rbf(), problems.uniform(4, 2), problems.uniform(4, 2)
    )
    with pytest.raises(ValueError, match="`kernel` must be an operator over one set of points"):
        KernelSystem(kernel, 0.1)


M = 9
BUDGETS = {"kept": None, "one row at a time": 1, "four rows at a time": 4 * M * 8}


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS.keys())
@pytest.mark.parametrize("noise", [0.3, problems.vector_noise(N)], ids=["scalar", "vector"])
def test_the_inducing_system_is_that_of_dense_algebra(
    noise: float | torch.Tensor, budget: int | None
) -> None:
    system = problems.inducing_system(N, M, noise, memory_budget=budget)
    A, K_XZ, K_ZZ = problems.dense_inducing(system)
    W = problems.normal(M, 3)
    f = problems.normal(N, 3)
    e = problems.normal(N, 3, seed=1)
    index = torch.tensor([3, 1, 20, 7])
    precision = torch.as_tensor(noise, dtype=torch.float64).expand(N).reciprocal().diag()
    torch.testing.assert_close(system @ W, A @ W)
    torch.testing.assert_close(system.rhs(Targets(f, e)), K_XZ.T @ precision @ (f + e))
    torch.testing.assert_close(system.kernel_rows(index), K_XZ[index])
    L, whitened = system.whitened()
    torch.testing.assert_close(L @ L.T, K_ZZ)
    assert L.triu(1).abs().max() == 0
    torch.testing.assert_close(L @ whitened @ L.T, A)


def test_an_epoch_of_an_inducing_system_is_one_pass_over_the_data() -> None:
    system = problems.inducing_system(N, M)
    system.kernel_rows(torch.arange(5))
    assert system.entries / system.entries_per_epoch == pytest.approx(5 / N)
    system @ problems.normal(M, 7)
    assert (
        system.entries / system.entries_per_epoch
        == pytest.approx(5 / N + system.epochs_per_product)
        == pytest.approx(5 / N + 1 + M / N)
    )
    system.rhs(Targets(problems.normal(N, 2), problems.normal(N, 2)))
    assert system.entries / system.entries_per_epoch == pytest.approx(5 / N + 2 + M / N)


def test_no_more_of_the_kernel_is_held_than_the_budget(spy: Any) -> None:
    n = 900
    m = 30
    system = problems.inducing_system(n, m, memory_budget=64 * m * 8)
    assert isinstance(system.cross, Tiled)
    tile = spy(StationaryTiles, "tile")
    system @ problems.normal(m, 2), system.whitened()
    # A block of rows is made of tiles: count it whole
    calls = (call.args for call in tile.call_args_list)
    held = [8 * len(tiles.X1[i]) * len(tiles.X2) for tiles, i, _ in calls]
    assert len(held) >= 2 * n / 64
    assert max(held) <= 64 * m * 8


def test_inducing_points_that_do_not_fit_are_refused() -> None:
    def system(inducing_points: torch.Tensor) -> InducingSystem:
        return InducingSystem(problems.rbf().double(), problems.uniform(N, 2), inducing_points, 0.1)

    shapes = [problems.uniform(*shape) for shape in ((0, 2), (4, 3), (4,), (N + 1, 2))]
    numbers = problems.uniform(4, 2).fill_(torch.nan)
    assert_refused(ValueError, system, inducing_points=[*shapes, numbers])
    assert_refused(TypeError, system, inducing_points=[problems.uniform(4, 2).float()])


def test_the_noise_of_an_inducing_system_is_that_of_the_data() -> None:
    with pytest.raises(
        ValueError, match=rf"`noise` must be a scalar or have shape \({N},\), got \({M},\)"
    ):
        problems.inducing_system(N, M, torch.ones(M))


@pytest.mark.parametrize(
    "solver",
    [CG(), CG(preconditioner=PivotedCholesky(3)), SDD(), SketchAndProject()],
    ids=["cg-nystrom", "cg-pivoted", "sdd", "sap"],
)
def test_methods_that_need_rows_of_the_matrix_refuse_inducing_points_with_the_remedy(
    solver: Solver,
) -> None:
    system = problems.inducing_system(800, 700)
    with pytest.raises(
        TypeError,
        match=(
            r"`system` of inducing points .* Use Cholesky\(\), SGD\(\) or CG\(preconditioner=None\)"
        ),
    ):
        solver.solve(system, problems.normal(700, 1))


@pytest.mark.parametrize(
    ("product", "noise", "fails"),
    [
        (lambda system: [system.project(problems.normal(200, 3))], 0.3, 1),
        (lambda system: [system @ problems.normal(10, 3)], problems.vector_noise(200), 2),
        (lambda system: system.whitened(), 0.3, 2),
    ],
    ids=["project", "matmul", "whitened"],
)
def test_when_memory_runs_out_fewer_rows_of_inducing_points_are_evaluated_at_a_time(
    product: Callable[[InducingSystem], Sequence[torch.Tensor]],
    noise: float | torch.Tensor,
    fails: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = inducing_system_of_parts(noise)
    evaluate = Tiled.to_dense
    tried = list[int]()
    expected = product(inducing_system_of_parts(noise))

    def limited(part: Tiled) -> torch.Tensor:
        tried.append(part.shape[0])
        if len(tried) == fails:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return evaluate(part)

    monkeypatch.setattr(Tiled, "to_dense", limited)
    for value, reference in zip(product(system), expected, strict=True):
        torch.testing.assert_close(value, reference)
    product(system)
    assert tried == [150, 50][:fails] + 2 * [75, 75, 50]  # what did not fit is not tried again


def test_without_memory_for_few_rows_of_inducing_points_there_is_a_clear_error() -> None:
    system = inducing_system_of_parts(0.3)
    no_memory = torch.cuda.OutOfMemoryError("CUDA out of memory.")
    with (
        patch.object(Tiled, "to_dense", side_effect=no_memory),
        pytest.raises(MemoryError, match="A part of 64 rows does not fit in the device's free mem"),
    ):
        system.project(problems.normal(200, 3))


def inducing_system_of_parts(noise: float | torch.Tensor) -> InducingSystem:
    """Return a system of 10 inducing points whose 200 rows are evaluated 150 at a time."""
    X = problems.uniform(200, 2)
    return InducingSystem(problems.rbf().double(), X, X[:10], noise, memory_budget=150 * 10 * 8)
