"""What every solver promises, as one suite over operators and dtypes;
``surrogates/solvers/test_solvers.py`` lists the solvers.

Bounds come from ‖w − w*‖ ≤ ‖b − H w‖ / λ_min(H) with λ_min(H) ≥ the smallest noise variance.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surrogates import (
    Auto,
    Dense,
    IterativeSolver,
    KernelOperator,
    KernelSystem,
    Progress,
    Solution,
    Solver,
    Tiled,
)
from surrogates.operators import tiles
from surrogates.operators.tiles import Index
from tests import problems
from tests.simulated_device import simulated_device

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}
LOOSE = 1e-2  # of claims that hold however long a solve goes on
N = 90
S = 3
NOISE = 0.1


def tight(solver: Solver, dtype: torch.dtype, **settings: Any) -> Solver:
    """Return ``solver`` with a tolerance near what ``dtype`` allows."""
    if not isinstance(solver, IterativeSolver | Auto):
        return solver
    return replace(solver, **{"tolerance": TOLERANCE[dtype], "max_epochs": 2000.0, **settings})


def matrices(state: Any) -> Iterator[Tensor]:
    """Yield the matrices of N rows inside a state."""
    if isinstance(state, Tensor):
        if state.shape == (N, S):
            yield state
    elif is_dataclass(state):
        for entry in fields(state):
            yield from matrices(getattr(state, entry.name))


def true_residual(system: KernelSystem, rhs: Tensor, value: Tensor) -> Tensor:
    """Return ‖b − H w‖ / ‖b‖ of each column, in float64."""
    gap = rhs.double() - system.to_dense().double() @ value.double()
    return gap.norm(dim=0) / rhs.double().norm(dim=0)


def assert_no_worse(system: KernelSystem, rhs: Tensor, value: Tensor, start: Tensor) -> None:
    """Require a residual or an objective ½ wᵀHw − wᵀb no higher than that of ``start`` in every
    column.
    """
    H = system.to_dense().double()
    B = rhs.double()

    def objective(W: Tensor) -> Tensor:
        return (W * (0.5 * H @ W - B)).sum(0)

    residuals = true_residual(system, rhs, value) <= true_residual(system, rhs, start) * (1 + 1e-3)
    assert (residuals | (objective(value.double()) < objective(start.double()))).all()


def assert_close_solutions(
    a: Tensor, b: Tensor, rhs: Tensor, smallest_noise: float = NOISE, solves: int = 2
) -> None:
    """Require that solutions with residuals within the tolerance are as close as that implies."""
    allowed = solves * TOLERANCE[rhs.dtype] * rhs.double().norm(dim=0) / smallest_noise
    distance = (a.double() - b.double()).norm(dim=0)
    assert (distance <= allowed).all(), f"{distance} > {allowed}"


# For claims that are the same in any arithmetic, once a solve agrees with a dense one in all
in_one_arithmetic = pytest.mark.parametrize(
    "arithmetic", [(Tiled, torch.float32)], ids=["tiled-float32"], indirect=True
)


class SolverContract:
    """Claims about every solver. Subclasses are parametrised over ``solver``."""

    @pytest.fixture(
        params=[(Dense, torch.float64), (Tiled, torch.float32)],
        ids=["dense-float64", "tiled-float32"],
    )
    def arithmetic(
        self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> tuple[type[KernelOperator], torch.dtype]:
        monkeypatch.setitem(tiles.TILE_SIDE, "cpu", 32)
        return request.param

    @pytest.fixture
    def kind(self, arithmetic: tuple[type[KernelOperator], torch.dtype]) -> type[KernelOperator]:
        return arithmetic[0]

    @pytest.fixture
    def dtype(self, arithmetic: tuple[type[KernelOperator], torch.dtype]) -> torch.dtype:
        return arithmetic[1]

    @pytest.fixture
    def system(self, kind: type[KernelOperator], dtype: torch.dtype) -> KernelSystem:
        return problems.system(N, NOISE, kind=kind, dtype=dtype)

    @pytest.fixture
    def rhs(self, dtype: torch.dtype) -> Tensor:
        return problems.normal(N, S, dtype=dtype)

    @pytest.fixture(scope="class")
    @classmethod
    def found(cls) -> dict[tuple[Any, ...], Solution]:
        return {}

    @pytest.fixture
    def solved(
        self,
        found: dict[tuple[Any, ...], Solution],
        solver: Solver,
        kind: type[KernelOperator],
        system: KernelSystem,
        dtype: torch.dtype,
        rhs: Tensor,
    ) -> Solution:
        """The tight solution of ``system``, found once for all claims that compare with it."""
        key = (solver, kind, dtype)
        if key not in found:
            found[key] = tight(solver, dtype).solve(system, rhs)
        return found[key]

    def test_agrees_with_a_dense_solve(
        self, solver: Solver, kind: type[KernelOperator], dtype: torch.dtype, rhs: Tensor
    ) -> None:
        for noise in (torch.tensor(NOISE, dtype=dtype), problems.vector_noise(N, dtype)):
            system = problems.system(N, noise, kind=kind, dtype=dtype)
            dense = problems.own_evaluation(
                problems.scaled(problems.matern(1.5, 0.4), 1.5),
                system.kernel.tiles.X1,
                system.kernel.tiles.X2,
            )
            dense.diagonal().add_(noise)
            solution = tight(solver, dtype).solve(system, rhs)
            assert solution.converged.all(), str(solution)
            assert_close_solutions(
                solution.value, torch.linalg.solve(dense, rhs.double()), rhs, noise.min().item()
            )

    def test_the_reported_residual_is_the_true_one(
        self,
        solver: Solver,
        system: KernelSystem,
        dtype: torch.dtype,
        rhs: Tensor,
        solved: Solution,
    ) -> None:
        brief = tight(solver, dtype, max_epochs=5.0, tolerance=1e-3).solve(system, rhs)
        for solution in (solved, brief):
            rounding = N * torch.finfo(dtype).eps
            torch.testing.assert_close(
                solution.residual.double(),
                true_residual(system, rhs, solution.value),
                rtol=1e-3,
                atol=rounding,
            )

    @in_one_arithmetic
    def test_permuting_the_points_permutes_the_answer(
        self, solver: Solver, kind: type[KernelOperator], dtype: torch.dtype, rhs: Tensor
    ) -> None:
        order = torch.randperm(N, generator=torch.Generator().manual_seed(3))
        noise = problems.vector_noise(N, dtype)
        value = (
            tight(solver, dtype).solve(problems.system(N, noise, kind=kind, dtype=dtype), rhs).value
        )
        permuted = (
            tight(solver, dtype)
            .solve(problems.system(N, noise, kind=kind, dtype=dtype, order=order), rhs[order])
            .value
        )
        assert_close_solutions(permuted, value[order], rhs, noise.min().item())

    @in_one_arithmetic
    def test_columns_solved_together_match_columns_solved_alone(
        self,
        solver: Solver,
        system: KernelSystem,
        dtype: torch.dtype,
        rhs: Tensor,
        solved: Solution,
    ) -> None:
        for number in (0, S - 1):
            column = slice(number, number + 1)
            alone = tight(solver, dtype).solve(system, rhs[:, column])
            assert_close_solutions(solved.value[:, column], alone.value, rhs[:, column])

    @in_one_arithmetic
    def test_a_zero_right_hand_side_gives_zero(
        self, solver: Solver, system: KernelSystem, dtype: torch.dtype, rhs: Tensor
    ) -> None:
        rhs[:, 1] = 0.0
        solution = tight(solver, dtype, tolerance=LOOSE).solve(system, rhs)
        assert torch.equal(solution.value[:, 1], torch.zeros_like(rhs[:, 1]))
        assert solution.residual[1] == 0.0
        assert solution.converged.all()

    @in_one_arithmetic
    def test_the_same_seed_gives_the_same_result(
        self, solver: Solver, system: KernelSystem, dtype: torch.dtype, rhs: Tensor
    ) -> None:
        global_state = torch.get_rng_state()
        first, second = (
            tight(solver, dtype, tolerance=LOOSE).solve(
                system, rhs, generator=torch.Generator().manual_seed(5)
            )
            for _ in range(2)
        )
        assert torch.equal(first.value, second.value)
        assert torch.equal(first.steps, second.steps)
        assert first.epochs == second.epochs
        assert torch.equal(torch.get_rng_state(), global_state)

    @in_one_arithmetic
    def test_arguments_are_left_as_they_are(
        self, solver: Solver, system: KernelSystem, dtype: torch.dtype, rhs: Tensor
    ) -> None:
        initial = problems.normal(N, S, seed=1, dtype=dtype)
        before = rhs.clone(), initial.clone(), system.kernel.to_dense().clone()
        tight(solver, dtype, tolerance=LOOSE).solve(system, rhs, initial=initial)
        assert all(map(torch.equal, (rhs, initial, system.kernel.to_dense()), before))

    @in_one_arithmetic
    def test_a_warm_start_leads_to_the_same_solution(
        self,
        solver: Solver,
        system: KernelSystem,
        dtype: torch.dtype,
        rhs: Tensor,
        solved: Solution,
    ) -> None:
        initial = problems.normal(N, S, seed=1, dtype=dtype)
        warm = tight(solver, dtype).solve(system, rhs, initial=initial)
        assert warm.converged.all(), str(warm)
        assert_close_solutions(warm.value, solved.value, rhs)

    @in_one_arithmetic
    def test_duplicate_points_are_fine(
        self, solver: Solver, kind: type[KernelOperator], dtype: torch.dtype, rhs: Tensor
    ) -> None:
        X = problems.uniform(N // 3, 2, dtype=dtype).repeat(3, 1)
        solution = tight(solver, dtype).solve(
            problems.system(noise=NOISE, kind=kind, dtype=dtype, X=X), rhs
        )
        assert solution.converged.all(), str(solution)

    def test_every_kernel_entry_used_is_counted(
        self,
        solver: Solver,
        kind: type[KernelOperator],
        dtype: torch.dtype,
        rhs: Tensor,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        # The operator in float64 would be another, which does not count
        monkeypatch.setattr(KernelSystem, "doubled", lambda self: None)
        system = problems.system(N, NOISE, kind=kind, dtype=dtype)
        counting = CountingOperator(system.kernel)
        system = KernelSystem(counting, NOISE)
        system.entries = 10 * N**2  # a system that has been used before
        solution = tight(solver, dtype, tolerance=LOOSE).solve(system, rhs)
        assert solution.epochs == pytest.approx(counting.entries / N**2)
        assert system.entries == 10 * N**2 + counting.entries

    @settings(max_examples=25)
    @given(n=st.integers(1, 24), s=st.integers(0, 4), seed=st.integers(0, 100))
    def test_any_number_of_points_and_columns_is_solved(
        self, solver: Solver, n: int, s: int, seed: int
    ) -> None:
        small = {
            name: min(value, n)
            for name, value in vars(solver).items()
            if name in ("batch_size", "block_size") and value
        }
        if rank := getattr(getattr(solver, "preconditioner", None), "rank", None):
            smallest_block = n // math.ceil(n / small.get("block_size", n))
            small["preconditioner"] = replace(solver.preconditioner, rank=min(rank, smallest_block))  # type: ignore[attr-defined]
        rhs = problems.normal(n, s, seed=seed)
        system = problems.system(X=problems.uniform(n, 2, seed=seed))
        solution = tight(replace(solver, **small), torch.float64).solve(system, rhs)  # type: ignore[type-var]
        assert solution.value.shape == (n, s)
        assert solution.converged.all(), str(solution)
        assert str(solution).startswith(f"{s}/{s} columns converged")

    @in_one_arithmetic
    def test_another_device_goes_the_same_way(
        self, solver: Solver, kind: type[KernelOperator], dtype: torch.dtype, rhs: Tensor
    ) -> None:
        brief = tight(solver, dtype, max_epochs=5.0)
        X = problems.uniform(N, 2, dtype=dtype)
        on_cpu = brief.solve(problems.system(noise=NOISE, kind=kind, dtype=dtype, X=X), rhs)
        with simulated_device() as device:
            system = problems.system(noise=NOISE, kind=kind, dtype=dtype, X=X.to(device))
            there = brief.solve(system, rhs.to(device))
        assert there.value.device == device
        # It may have begun in float32, and come no further
        like = rhs.float() if isinstance(solver, Auto) else rhs
        assert_close_solutions(there.value.cpu(), on_cpu.value, like)

    @pytest.mark.gpu
    def test_a_cuda_device_gives_the_same_solution(
        self, solver: Solver, kind: type[KernelOperator], dtype: torch.dtype, rhs: Tensor
    ) -> None:
        X = problems.uniform(N, 2, dtype=dtype)
        on_cpu = tight(solver, dtype).solve(
            problems.system(noise=NOISE, kind=kind, dtype=dtype, X=X), rhs
        )
        on_cuda = tight(solver, dtype).solve(
            problems.system(noise=NOISE, kind=kind, dtype=dtype, X=X.cuda()), rhs.cuda()
        )
        assert on_cuda.value.is_cuda
        assert_close_solutions(on_cuda.value.cpu(), on_cpu.value, rhs)


class IterativeSolverContract(SolverContract):
    """Further claims about solvers that iterate."""

    def test_a_warm_start_at_the_solution_takes_no_step(
        self,
        solver: IterativeSolver,
        system: KernelSystem,
        dtype: torch.dtype,
        rhs: Tensor,
        solved: Solution,
    ) -> None:
        again = tight(solver, dtype, tolerance=2 * TOLERANCE[dtype]).solve(
            system, rhs, initial=solved.value
        )
        assert torch.equal(again.value, solved.value)
        assert not again.steps.any()
        assert again.epochs == 1.0  # the product that found it solved

    def test_a_warm_start_near_the_solution_saves_steps(
        self,
        solver: IterativeSolver,
        system: KernelSystem,
        dtype: torch.dtype,
        rhs: Tensor,
        solved: Solution,
    ) -> None:
        near = solved.value + 10 * TOLERANCE[dtype] * problems.normal(N, S, seed=1, dtype=dtype)
        warm = tight(solver, dtype).solve(system, rhs, initial=near)
        assert warm.converged.all()
        assert (warm.steps < solved.steps).all()

    def test_a_converged_column_never_moves_again(
        self,
        solver: IterativeSolver,
        system: KernelSystem,
        dtype: torch.dtype,
        rhs: Tensor,
        solved: Solution,
    ) -> None:
        done = solved.value[:, 1:2]
        initial = torch.zeros_like(rhs)
        initial[:, 1:2] = done
        moments: list[Progress] = []
        solution = tight(solver, dtype, tolerance=1.5 * TOLERANCE[dtype]).solve(
            system, rhs, initial=initial, callback=moments.append
        )
        assert torch.equal(solution.value[:, 1:2], done)
        assert solution.steps[1] == 0
        assert (solution.steps[[0, 2]] > 0).all()
        assert max(moment.num_active for moment in moments) == S - 1

    @in_one_arithmetic
    def test_a_spent_budget_is_kept_to_and_reported(
        self, solver: IterativeSolver, system: KernelSystem, dtype: torch.dtype, rhs: Tensor
    ) -> None:
        for max_epochs in (0.5, 1.0, 3.0, 6.5):
            brief = tight(solver, dtype, max_epochs=max_epochs, tolerance=1e-9)
            solution = brief.solve(system, rhs)
            assert not solution.converged.any()
            assert solution.epochs <= max_epochs
            assert_no_worse(system, rhs, solution.value, torch.zeros_like(rhs))
            assert solution.value.isfinite().all()

    @in_one_arithmetic
    def test_a_spent_time_is_kept_to_and_reported(
        self,
        solver: IterativeSolver,
        system: KernelSystem,
        dtype: torch.dtype,
        rhs: Tensor,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        clock: Iterator[int] = itertools.count()  # every look at it takes a second
        monkeypatch.setattr(
            "surrogates.solvers.solver.time", SimpleNamespace(perf_counter=clock.__next__)
        )
        solution = tight(solver, dtype, max_seconds=5.0, tolerance=1e-9).solve(system, rhs)
        assert not solution.converged.any()
        assert 0 < solution.steps.max() <= 5
        assert 5 <= solution.seconds <= 10

    @in_one_arithmetic
    def test_the_callback_sees_the_solve_go_on(
        self, solver: IterativeSolver, system: KernelSystem, dtype: torch.dtype, rhs: Tensor
    ) -> None:
        moments: list[Progress] = []
        solution = tight(solver, dtype, tolerance=LOOSE).solve(system, rhs, callback=moments.append)
        assert moments
        assert len(moments) <= solution.epochs + 1  # one an epoch: a callback may be slow
        assert all(moment.num_columns == S and 0 < moment.num_active <= S for moment in moments)
        assert all(moment.epochs <= moment.max_epochs == 2000.0 for moment in moments)
        for earlier, later in itertools.pairwise(moments):
            assert (earlier.steps, earlier.epochs) < (later.steps, later.epochs)
            assert earlier.seconds <= later.seconds

    def test_a_column_is_never_returned_worse_than_it_came(
        self, solver: IterativeSolver, dtype: torch.dtype, rhs: Tensor
    ) -> None:
        # Hopeless in a few epochs, and beyond float32's precision
        system = problems.system(N, 1e-9, dtype=dtype)
        initial = 0.1 * problems.normal(N, S, seed=1, dtype=dtype)
        solution: Solution = tight(solver, dtype, max_epochs=8.0).solve(
            system, rhs, initial=initial
        )
        assert_no_worse(system, rhs, solution.value, initial)


class CountingOperator(KernelOperator):
    """An operator that counts the entries asked of it."""

    def __init__(self, operator: KernelOperator):
        super().__init__(operator.tiles, operator.symmetric)
        self.operator = operator
        self.entries = 0

    def _count(self, entries: int) -> None:
        self.entries += entries

    def __matmul__(self, W: Tensor) -> Tensor:
        self._count(self.shape[0] * self.shape[1])
        return self.operator @ W

    def rows(self, index: Index) -> KernelOperator:
        rows = self.operator.rows(index)
        self._count(rows.shape[0] * rows.shape[1])
        return rows

    def columns(self, index: Index) -> Tensor:
        columns = self.operator.columns(index)
        self._count(columns.numel())
        return columns

    def part(self, index: Index) -> KernelOperator:
        part = self.operator.part(index)
        self._count(part.shape[0] * part.shape[1])
        return part

    def diagonal(self) -> Tensor:
        return self.operator.diagonal()

    def to_dense(self) -> Tensor:
        self._count(self.shape[0] * self.shape[1])
        return self.operator.to_dense()

    def to(self, dtype: torch.dtype) -> KernelOperator:
        other = CountingOperator(self.operator.to(dtype))
        other._count = self._count  # type: ignore[method-assign]
        return other
