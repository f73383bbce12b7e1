"""Sketch-and-project beyond the contract: the corrected equations, written out,
and what the printed ones would give.
"""

import math
from dataclasses import replace

import pytest
import torch

from surrogates import (
    Identity,
    IterativeSolver,
    KernelSystem,
    Nystrom,
    Preconditioner,
    SketchAndProject,
    Tiled,
    kernel_operator,
    memory,
)
from surrogates.operators import tiles
from surrogates.solvers.run import Start
from surrogates.solvers.sketch_and_project import CPU, SketchAndProjectState, default_block_size
from surrogates.systems.preconditioners import largest_eigenvalue, nystrom_approximation
from tests import problems
from tests.contracts import assert_no_worse
from tests.live_matrices import LiveMatrices
from tests.problems import seeded

N = 60
B = 15


def test_a_step_solves_the_equations_of_its_block() -> None:
    system = problems.system(N, 0.1)
    rhs = problems.normal(N, 2)
    solver = SketchAndProject.sap(block_size=B)
    state = solver.init(system, Start(rhs, torch.zeros_like(rhs), rhs, None))
    index = state.monitor.deal(B, seeded())[0]
    state = solver.step(system, rhs, state, seeded())
    gap = rhs - system.to_dense() @ state.W
    torch.testing.assert_close(gap[index], torch.zeros_like(gap[index]), rtol=0, atol=1e-10)
    moved = state.W.abs().sum(1) > 0
    assert moved.nonzero().squeeze(1).tolist() == sorted(index.tolist())


@pytest.mark.parametrize(
    "preconditioner", [Identity(), Nystrom(10, sketch="gaussian")], ids=["identity", "nystrom"]
)
def test_the_step_is_the_inverse_of_the_largest_eigenvalue(
    preconditioner: Identity | Nystrom,
) -> None:
    system = problems.system(N, 0.1)
    apply = preconditioner(system, seeded())
    exact = torch.linalg.eigvals(apply(system.to_dense())).real.max().item()
    estimate = largest_eigenvalue(system, apply, seeded())
    assert 0.95 * exact <= estimate <= exact * (1 + 1e-10)


def test_the_sketch_is_exact_for_a_matrix_of_its_rank() -> None:
    factor = problems.normal(N, 6)
    K = factor @ factor.T
    test = torch.linalg.qr(problems.normal(N, 8, seed=1)).Q
    U, eigenvalues = nystrom_approximation(K @ test, test)
    torch.testing.assert_close(U @ torch.diag(eigenvalues) @ U.T, K, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        eigenvalues[:6], torch.linalg.eigvalsh(K).flip(0)[:6], rtol=1e-6, atol=1e-6
    )
    assert (eigenvalues >= 0).all()


def test_the_damping_enters_the_sketched_preconditioner_once() -> None:
    system = problems.system(N, 0.1)
    P = torch.linalg.inv(
        Nystrom(10, sketch="gaussian")(system, seeded())(torch.eye(N, dtype=torch.float64))
    )
    eigenvalues = torch.linalg.eigvalsh(P)
    damping = eigenvalues[0]  # S_rr + σ² on the complement; S_rr more on the last kept direction
    torch.testing.assert_close(eigenvalues[: N - 10], damping.expand(N - 10), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(eigenvalues[N - 10], 2 * damping - 0.1, rtol=1e-6, atol=1e-8)


def test_exact_blocks_of_a_random_partition_beat_stochastic_steps_per_epoch() -> None:
    system = problems.system(300, 1e-4)
    rhs = system @ problems.normal(300, 2)
    budget = {"tolerance": 1e-12, "max_epochs": 12.0, "block_size": 60}
    exact = SketchAndProject.sap(**budget).solve(system, rhs)
    identity = SketchAndProject.adasap_identity(**budget).solve(system, rhs)
    assert 3 * exact.residual.max() < identity.residual.min()


def test_tail_averaging_returns_the_mean_of_the_second_half() -> None:
    system = problems.system(N, 0.1)
    rhs = problems.normal(N, 1)
    solver = SketchAndProject(block_size=B, tail_average=True, max_epochs=4.0)
    plain = SketchAndProject(block_size=B)
    zeros = torch.zeros_like(rhs)
    state = solver.init(system, Start(rhs, zeros, rhs, None))
    other = plain.init(system, Start(rhs, zeros, rhs, None))
    random = seeded()
    same = seeded()
    iterates = []
    for _ in range(16):
        state = solver.step(system, rhs, state, random)
        other = plain.step(system, rhs, other, same)
        iterates.append(other.W.clone())
    torch.testing.assert_close(solver.estimate(system, state), torch.stack(iterates[7:]).mean(0))


def test_a_rank_beyond_the_blocks_takes_all_of_their_rows_and_the_note_says_so() -> None:
    system, rhs = problems.system(N), problems.normal(N, 1)
    wide, full = (
        SketchAndProject(Nystrom(rank, sketch="gaussian"), block_size=25).solve(system, rhs)
        for rank in (50, 20)
    )
    assert torch.equal(wide.value, full.value)
    assert wide.note == "`rank` is reduced to 20, the size of the smallest block"
    assert not full.note


@pytest.mark.parametrize(
    ("preconditioner", "dtype"),
    [
        (Identity(), torch.float32),
        (Nystrom(20, "gaussian"), torch.float64),
        (Nystrom(20), torch.float32),
    ],
)
def test_a_block_that_is_not_held_takes_the_steps_of_one_that_is(
    preconditioner: Preconditioner, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, b = 1500, 600
    rhs = problems.normal(n, 2, dtype=dtype)
    solver = SketchAndProject.adasap(
        preconditioner=preconditioner, block_size=b, max_epochs=4.0, refine=False
    )
    monkeypatch.setitem(tiles.TILE_SIDE, "cpu", 128)
    found = []
    for budget in (2**31, 0):
        monkeypatch.setattr(memory, "default_budget", lambda device, budget=budget: budget)
        system = problems.system(n, kind=Tiled, dtype=dtype)
        with LiveMatrices(rhs.new_empty(n // 3, n // 3)) as blocks:
            found.append(solver.solve(system, rhs))
        assert (blocks.most > 0) == (budget > 0)
    held, by_tiles = found
    assert held.epochs == by_tiles.epochs
    # The steps add up the rounding of a hundred sums
    close = 100 * torch.finfo(dtype).eps * held.value.abs().max().item() * math.sqrt(n)
    torch.testing.assert_close(by_tiles.value, held.value, rtol=0, atol=close)


def test_the_published_blocks_of_the_largest_data_set_fit_in_a_card() -> None:
    solver = SketchAndProject.adasap(block_size=165_500)
    taxi = solver.bytes_needed(331_000_000, 9, 16, num_processes=4)
    assert taxi <= 40 * 2**30
    blocks = taxi - IterativeSolver.bytes_needed(solver, 331_000_000, 9, 16, num_processes=4)
    assert blocks - 8 * 331_000_000 <= 2**30
    small = replace(solver, block_size=1000)
    whole = small.bytes_needed(5000, 9, 16) - small.bytes_needed(5000, 9, 16, num_processes=2)
    assert whole >= 2500 * (6 * 16 + 18) * 4 + 500_000 * 4  # half of a block that is held


@pytest.mark.parametrize("nu", [None, 8.0])
def test_the_default_mu_is_half_of_one_over_nu_for_exact_blocks_and_the_smallest_noise_for_others(
    nu: float | None,
) -> None:
    noise = 0.01 + 0.1 * problems.uniform(N)
    system = problems.system(N, noise)
    rhs = problems.normal(N, 2)

    def mu(solver: SketchAndProject) -> list[float]:
        momentum = solver.init(system, Start(rhs, torch.zeros_like(rhs), rhs, None)).momentum
        return momentum.mu.tolist()

    settings = {"block_size": B, "nu": nu}
    assert mu(SketchAndProject.asap(**settings)) == pytest.approx([0.5 / (nu or N / B)] * 2)
    smallest = noise.min().item()
    assert mu(SketchAndProject.adasap_identity(**settings)) == pytest.approx([smallest] * 2)
    assert mu(
        SketchAndProject.adasap(preconditioner=Nystrom(5, sketch="gaussian"), **settings)
    ) == pytest.approx([smallest] * 2)
    assert mu(SketchAndProject.asap(mu=0.01, **settings)) == pytest.approx([0.01] * 2)
    assert mu(SketchAndProject.asap(mu=100.0, **settings)) == pytest.approx(
        [1.0 / (nu or N / B)] * 2
    )


def test_acceleration_lowers_the_error_of_an_ill_conditioned_system() -> None:
    # The error in the norm of H, which a block step cannot raise; the residual jumps from step to
    # step.
    n = 600
    logs = []
    for seed in range(3):
        centres = problems.uniform(6, 2, seed=9 + seed).repeat_interleave(n // 6, dim=0)
        system = problems.system(noise=1e-4, X=centres + 0.02 * problems.normal(n, 2, seed=seed))
        rhs = problems.normal(n, 2, seed=seed)
        exact = torch.linalg.solve(system.to_dense(), rhs)
        budget = {"block_size": n // 10, "max_epochs": 30.0, "tolerance": 1e-12}
        errors = [
            solver.solve(system, rhs).value - exact
            for solver in (SketchAndProject.sap(**budget), SketchAndProject.asap(**budget))
        ]
        plain, accelerated = ((error * (system @ error)).sum(0).sqrt() for error in errors)
        logs.append((accelerated / plain).log().mean().item())
    assert math.exp(sum(logs) / len(logs)) < 0.85


@pytest.mark.parametrize(
    ("accelerated", "refine", "said"),
    [
        (False, False, "the precision or the step is exhausted"),
        (False, True, "went on in float64; float32 cannot hold the solution"),
        (True, True, "went on in float64; float32 cannot hold the solution"),
    ],
    ids=["sap-single", "sap", "asap"],
)
def test_exact_blocks_end_when_the_precision_is_exhausted_and_say_so(
    accelerated: bool, refine: bool, said: str
) -> None:
    X = problems.uniform(300, 2, dtype=torch.float32)
    rhs = problems.normal(300, 2, dtype=torch.float32)
    system = KernelSystem(kernel_operator(problems.rbf(2.0), X), 1e-6)
    solver = SketchAndProject(
        block_size=30, accelerated=accelerated, refine=refine, max_epochs=400.0
    )
    solution = solver.solve(system, rhs)
    assert not solution.converged.any()
    assert solution.epochs < 0.5 * solver.max_epochs
    assert said in solution.note
    assert_no_worse(system, rhs, solution.value, torch.zeros_like(rhs))


@pytest.mark.parametrize("accelerated", [False, True], ids=["sap", "asap"])
def test_exact_blocks_that_are_slow_but_precise_go_on(accelerated: bool) -> None:
    system = problems.system(400, 1e-4)
    rhs = problems.normal(400, 2)
    solution = SketchAndProject(
        block_size=40, accelerated=accelerated, tolerance=1e-6, max_epochs=120.0
    ).solve(system, rhs)
    assert solution.converged.all() or solution.epochs > 117.0, str(solution)


def test_steps_along_gradients_go_on_however_little_they_gain() -> None:
    # Two of these columns rise for more than 24 epochs before they fall
    system = problems.system(X=problems.uniform(16, 2))
    solver = SketchAndProject.adasap_identity(
        block_size=16, mu=1e-3, tail_average=False, tolerance=1e-3, max_epochs=500.0
    )
    solution = solver.solve(system, problems.normal(16, 4))
    assert solution.converged.all(), solution


def test_the_estimate_is_the_checkpoint_in_the_middle_of_a_divergence() -> None:
    system = problems.system(N, 0.1)
    rhs = problems.normal(N, 3)
    solver = SketchAndProject.asap(block_size=B)
    state: SketchAndProjectState = solver.init(system, Start(rhs, torch.zeros_like(rhs), rhs, None))
    random = seeded()
    for _ in range(2 * N // B + 1):
        state = solver.step(system, rhs, state, random)
    monitor = state.monitor
    assert not torch.equal(state.W, monitor.checkpoint)
    residual = torch.stack(
        [monitor.best[0], 2.1 * monitor.best[1], torch.tensor(math.nan, dtype=rhs.dtype)]
    )
    broken = replace(
        state,
        W=torch.cat([state.W[:, :2], torch.full((N, 1), math.nan, dtype=rhs.dtype)], dim=1),
        residual=residual,
    )
    estimate = solver.estimate(system, broken)
    assert torch.equal(estimate[:, 0], state.W[:, 0])
    assert torch.equal(estimate[:, 1:], monitor.checkpoint[:, 1:])


def test_the_default_block_grows_with_points_and_columns_between_256_and_8192() -> None:
    points = [1, 10, 255, 256, 257, 1_000, 10_000, 100_000, 1_000_000, 100_000_000]
    columns = [1, 10, 100, 1_000, 10_000]
    sizes = torch.tensor([[default_block_size(n, s) for s in columns] for n in points])
    assert (sizes.diff(dim=0) >= 0).all()
    assert (sizes.diff(dim=1) >= 0).all()
    assert (sizes <= torch.tensor(points).unsqueeze(1)).all()
    assert sizes.max() == 8192
    assert all(default_block_size(n, 1) == min(n, 256) for n in (1, 100, 256, 500))
    assert default_block_size(10_000, 64) == math.ceil(math.sqrt(10_000 * (64 + 50)))
    # Four processes have a quarter of a product each, and factorise all of a block
    assert default_block_size(10_000, 64, num_processes=4) == math.ceil(math.sqrt(285_000.0))


def test_processes_take_smaller_blocks_only_where_each_factorises_all_of_a_block() -> None:
    for solver in (SketchAndProject.sap(), SketchAndProject.asap()):
        assert solver._block_size_of(10_000, 64, CPU, 4) == default_block_size(10_000, 64, CPU, 4)
    sketched = SketchAndProject.adasap()
    assert sketched._block_size_of(10_000, 64, CPU, 4) == default_block_size(10_000, 64)
    # A process then holds a quarter of the block's rows, and all of its sketch
    n, b = 10_000, default_block_size(10_000, 64)
    held = sketched.bytes_of_a_step(n, 64, 4, torch.float32)
    assert held == 8 * n + 4 * (math.ceil(b / 4) * b + 8 * b * 100)
