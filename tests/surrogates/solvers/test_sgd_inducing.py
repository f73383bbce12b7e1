"""The same stochastic gradient descent on inducing points: its gradient against autograd,
and its end against the direct solve.
"""

import math

import pytest
import torch
from torch import Tensor

from surrogates import SGD, Cholesky, InducingSystem, Progress, Targets
from tests import problems

N = 60
M = 20
B = 15


def objective(system: InducingSystem, f: Tensor, noise_draw: Tensor, A: Tensor) -> Tensor:
    """Return σ² / 2n · Σ over columns of (f + ε − K_XZ a)ᵀ Σ⁻¹ (f + ε − K_XZ a) + aᵀ K_ZZ a,
    σ² the mean noise.
    """
    _, K_XZ, K_ZZ = problems.dense_inducing(system)
    noise = system.noise.expand(system.num_data).unsqueeze(1)
    misfit = f + noise_draw - K_XZ @ A
    return (
        0.5
        * noise.mean()
        / system.num_data
        * ((misfit.square() / noise).sum() + (A * (K_ZZ @ A)).sum())
    )


def gradients(
    solver: SGD, system: InducingSystem, targets: Targets, A: Tensor, epochs: int
) -> Tensor:
    """Return stochastic gradients (draws, m, s) over whole epochs of batches."""
    data = system.regression(system.rhs(targets), targets)
    generator = torch.Generator().manual_seed(0)
    draws = []
    for _ in range(epochs):
        for index in torch.randperm(system.num_data, generator=generator).split(B):
            draws.append(
                solver.gradient(
                    system, data.rhs, data.noise_draw, A, index, generator, data.projected_noise
                )[0]
            )
    return torch.stack(draws)


def test_the_gradient_is_that_of_the_objective_in_expectation() -> None:
    system = problems.inducing_system(N, M, problems.vector_noise(N))
    f = problems.normal(N, 2)
    noise_draw = problems.normal(N, 2, seed=1)
    A = problems.normal(M, 2, seed=2).mul_(0.1).requires_grad_()
    (exact,) = torch.autograd.grad(objective(system, f, noise_draw, A), A)
    draws = gradients(SGD(num_features=200), system, Targets(f, noise_draw), A.detach(), epochs=500)
    error = (draws.mean(0) - exact).norm()
    assert error < 4 * (draws.var(0).sum() / len(draws)).sqrt()
    # Far below the noise's part of the gradient: a factor of 2 on it, or none of it, would show.
    _, K_XZ, _ = problems.dense_inducing(system)
    noise = system.noise.expand(N).unsqueeze(1)
    noise_part = noise.mean() / N * (K_XZ.T @ (noise_draw / noise)).norm()
    assert error < 0.1 * noise_part


def test_a_kernel_without_a_closed_form_is_solved_too() -> None:
    X = problems.uniform(N, problems.DIM)
    system = InducingSystem(problems.COMPOSED["sum"]().double(), X, X[:M], 1.0)
    targets = Targets(problems.normal(N, 2), torch.zeros(N, 2).double())
    A = problems.normal(M, 2, seed=2).requires_grad_()
    (exact,) = torch.autograd.grad(objective(system, *targets, A), A)
    draws = gradients(SGD(), system, targets, A.detach(), epochs=1)
    torch.testing.assert_close(draws.mean(0), exact)
    solver = SGD(max_epochs=500.0)
    solution = solver.solve(system, targets)
    error = system.cross @ (solution.value - Cholesky().solve(system, targets).value)
    assert error.norm() < 0.1 * targets.values.norm()
    # The exact product with K_ZZ counts, too
    step_epochs = 1.0 + M / N
    assert solver.epochs_per_step(system, 2) == step_epochs
    assert solution.epochs <= 500.0
    assert solution.epochs == pytest.approx(solution.steps[0].item() * step_epochs, abs=5.0)


def test_the_noise_adds_no_variance() -> None:
    system = problems.inducing_system(N, M, 1.0)
    A = problems.normal(M, 1)
    # No misfit at A, so that batches alone add no variance to the noise's part either
    f = system.cross @ A
    noise_draw = 10.0 * problems.normal(N, 1, seed=1)
    quiet = gradients(SGD(), system, Targets(f, torch.zeros_like(f)), A, epochs=20)
    noisy = gradients(SGD(), system, Targets(f, noise_draw), A, epochs=20)
    torch.testing.assert_close(noisy.var(0), quiet.var(0))
    assert (noisy.mean(0) - quiet.mean(0)).abs().max() > 0.1


def test_the_misfit_of_the_batch_is_weighted_by_its_noise() -> None:
    system = problems.inducing_system(N, M, problems.vector_noise(N))
    f = problems.normal(N, 2)
    noise_draw = problems.normal(N, 2, seed=1)
    A = problems.normal(M, 2, seed=2)
    index = torch.arange(3, 18)
    gap = SGD().gradient(
        system, f + noise_draw, noise_draw, A, index, torch.Generator(), torch.zeros_like(A)
    )[1]
    expected = (system.cross @ A - f - noise_draw) * (
        system.noise.mean() / system.noise
    ).sqrt().unsqueeze(1)
    torch.testing.assert_close(gap, expected[index])


def test_a_well_conditioned_system_is_solved_as_directly() -> None:
    noise = 0.5 + problems.vector_noise(N)
    system = problems.inducing_system(N, M, noise, spread=10.0)  # far apart: K is nearly diagonal
    targets = Targets(problems.normal(N, 2), problems.normal(N, 2, seed=1))
    solver = SGD(batch_size=B, step_size=0.1, clip=10.0, tolerance=2e-2, max_epochs=1000.0)
    solution = solver.solve(system, targets)
    exact = Cholesky().solve(system, targets)
    assert solution.converged.all(), str(solution)
    assert problems.relative_error(solution.value, exact.value) < 0.03


def test_a_warm_start_at_the_solution_takes_no_step() -> None:
    system = problems.inducing_system(N, M)
    targets = Targets(problems.normal(N, 2), problems.normal(N, 2, seed=1))
    exact = Cholesky().solve(system, targets)
    solution = SGD().solve(system, targets, initial=exact.value)
    assert solution.converged.all() and solution.steps.sum() == 0


def test_the_budget_ends_a_run_that_cannot_know_its_residual() -> None:
    system = problems.inducing_system(N, M, spread=10.0)
    reports = list[Progress]()
    targets = Targets(problems.normal(N, 2), problems.normal(N, 2, seed=1))
    solver = SGD(batch_size=B, max_epochs=30.0, tolerance=0.999)
    solution = solver.solve(system, targets, callback=reports.append)
    assert 30.0 - B / N < solution.epochs <= 30.0
    assert all(report.residual == math.inf for report in reports)
    A, K_XZ, _ = problems.dense_inducing(system)
    rhs = K_XZ.T @ (targets.values + targets.noise_draw) / system.noise
    torch.testing.assert_close(
        solution.residual, (rhs - A @ solution.value).norm(dim=0) / rhs.norm(dim=0)
    )


@pytest.mark.parametrize("step_size", [50.0, 1e6])
def test_any_step_ends_finite_and_no_worse_than_zero(step_size: float) -> None:
    system = problems.inducing_system(N, M, 1e-3)
    targets = Targets(problems.normal(N, 2), 0.03 * problems.normal(N, 2, seed=1))
    solution = SGD(step_size=step_size, batch_size=B, clip=1e3, max_epochs=60.0).solve(
        system, targets
    )
    assert torch.isfinite(solution.value).all()
    assert "step size reduced" in solution.note or "stopped improving" in solution.note
    assert objective(system, *targets, solution.value) <= objective(
        system, *targets, torch.zeros_like(solution.value)
    )


def test_a_right_hand_side_in_one_part_is_refused_with_the_remedy() -> None:
    with pytest.raises(
        TypeError,
        match="`rhs` must be Targets for a method that draws batches of data.*Use `Targets",
    ):
        SGD().solve(problems.inducing_system(N, M), problems.normal(M, 1))


def test_batches_may_be_larger_than_the_number_of_inducing_points() -> None:
    system = problems.inducing_system(N, M)
    targets = Targets(problems.normal(N, 1), problems.normal(N, 1, seed=1))
    solution = SGD(batch_size=N, max_epochs=10.0).solve(system, targets)
    assert solution.steps.item() > 1 and not solution.note
    larger = SGD(batch_size=N + 1, max_epochs=10.0).solve(system, targets)
    assert torch.equal(larger.value, solution.value)
    assert larger.note == "`batch_size` 61 is reduced to n = 60"
