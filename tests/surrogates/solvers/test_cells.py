"""Cells of neighbours: partitions, the same however the rows are shared, that take fewer epochs."""

from typing import Any

import pytest
import torch
from torch import Tensor

from surrogates import KernelSystem, SketchAndProject
from surrogates.solvers.cells import Cells
from surrogates.solvers.state import Order
from tests import problems

N = 300


def system(kernel: str, X: Tensor, noise: float = 1e-3) -> KernelSystem:
    made = {
        "rough": problems.matern(1.5, 0.1),
        "smooth": problems.rbf(0.6),
        # By its own evaluation
        "rational": problems.scaled(problems.RQKernel(), 2.0),
    }[kernel].to(X.dtype)
    return KernelSystem(problems.operator(problems.OPERATORS[0], made, X), noise)


def random_order(size: int, n: int = N) -> tuple[Order, torch.Generator]:
    generator = problems.seeded(3)
    return Order(n).shuffled(size, generator, torch.device("cpu")), generator


@pytest.mark.parametrize("kernel", ["rough", "smooth", "rational"])
@pytest.mark.parametrize("size", [300, 299, 70, 7, 1])
def test_cells_are_a_partition_into_parts_of_the_same_sizes(kernel: str, size: int) -> None:
    cells = Cells.of(system(kernel, problems.uniform(N, 2)), problems.seeded())
    order, generator = random_order(size)
    arranged = cells.arranged(order, generator)
    assert arranged.num_parts == order.num_parts
    parts = [arranged.part(number) for number in range(order.num_parts)]
    before = [order.part(number) for number in range(order.num_parts)]
    assert [len(part) for part in parts] == [len(part) for part in before]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(N))
    if len(parts) > 1:
        count = cells.num_from_everywhere(len(parts[0]))
        assert torch.equal(parts[0][:count], before[0][:count])


def spread(X: Tensor, rows: Tensor) -> float:
    """Return the mean distance of the points ``rows`` from their mean."""
    return (X[rows] - X[rows].mean(0)).norm(dim=1).mean().item()


@pytest.mark.parametrize("kernel", ["rough", "rational"])
def test_a_cell_holds_neighbours_and_another_epoch_cuts_elsewhere(kernel: str) -> None:
    X = problems.uniform(N, 2)
    cells = Cells.of(system(kernel, X), problems.seeded())
    order, generator = random_order(40)
    first, second = (cells.arranged(order, generator) for _ in range(2))
    count = cells.num_from_everywhere(40)
    spreads = [spread(X, first.part(number)[count:]) for number in range(order.num_parts)]
    assert sum(spreads) / len(spreads) < 0.7 * spread(X, torch.arange(N))
    assert {frozenset(first.part(i).tolist()) for i in range(8)}.isdisjoint(
        {frozenset(second.part(i).tolist()) for i in range(8)}
    )


def test_blocks_stay_random_where_half_of_one_settles_a_smooth_function(spy: Any) -> None:
    X = problems.uniform(N, 2)
    arrange = spy(Cells, "arranged")
    solver = SketchAndProject.asap(block_size=100)
    for kernel, cells_pay in (("smooth", False), ("rough", True)):
        made = system(kernel, X)
        assert Cells.of(made, problems.seeded()).pay(100) == cells_pay
        assert solver.solve(made, problems.normal(N, 2)).converged.all()
        assert arrange.called == cells_pay


@pytest.mark.parametrize("d", [2, 6])
def test_cells_take_fewer_epochs_than_random_blocks_on_rough_functions(d: int) -> None:
    X = problems.uniform(1500, d)
    rough = problems.matern(1.5, 0.15 if d == 2 else 0.5)
    rhs = problems.normal(1500, 3)
    epochs = {}
    for blocks in ("cells", "partition"):
        solver = SketchAndProject.asap(blocks=blocks, block_size=150)
        made = KernelSystem(problems.operator(problems.OPERATORS[0], rough, X), 1e-3)
        f = torch.linalg.cholesky(made.to_dense()) @ rhs
        solution = solver.solve(made, f)
        assert solution.converged.all()
        epochs[blocks] = solution.epochs
    assert epochs["cells"] < 0.75 * epochs["partition"]


def test_a_column_of_which_one_region_says_nothing_is_not_taken_for_solved() -> None:
    X = problems.uniform(1000, 2)
    far = X[:, 0] < 0.1
    rhs = torch.where(far, problems.normal(1000), torch.zeros(1000, dtype=X.dtype)).unsqueeze(1)
    made = system("rough", X)
    solution = SketchAndProject.asap(block_size=60, tolerance=1e-3).solve(made, rhs)
    assert solution.converged.all()
    exact = (rhs - made.to_dense() @ solution.value).norm() / rhs.norm()
    assert exact <= 1e-3
    assert "stopped improving" not in solution.note


@pytest.mark.parametrize("n", [1000, pytest.param(17_000, marks=pytest.mark.slow)])
def test_a_right_hand_side_of_few_rows_is_not_taken_for_solved(n: int) -> None:
    X = problems.uniform(n, 3, dtype=torch.float32)
    kernel = problems.matern(1.5, 0.03)
    made = KernelSystem(problems.operator(problems.OPERATORS[0], kernel, X), 1e-2)
    rhs = torch.zeros(n, 2)
    rhs[5, 0] = 1.0
    rhs[:, 1] = problems.normal(n, dtype=torch.float32)
    rhs[12, 1] = 1000.0
    solution = SketchAndProject.asap().solve(made, rhs)
    exact = (rhs - made @ solution.value).norm(dim=0) / rhs.norm(dim=0)
    assert (exact <= 1.01e-2).all() and solution.converged.all()
    torch.testing.assert_close(solution.residual, exact, rtol=1e-2, atol=1e-5)


def test_points_that_are_all_alike_are_cut_anywhere() -> None:
    made = system("rough", torch.ones(50, 2, dtype=torch.float64), noise=0.1)
    solution = SketchAndProject.asap(block_size=10).solve(made, problems.normal(50, 2))
    assert solution.converged.all()
