"""Stochastic gradient descent: its gradients against autograd of the exact objective,
and what it promises of its steps.
"""

from collections.abc import Callable

import pytest
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates import SGD, KernelSystem, Targets, kernel_operator
from surrogates.solvers.run import Start
from tests import problems

N = 60
B = 15
WITHOUT_FEATURES = problems.COMPOSED | problems.GENERIC


def objective(system: KernelSystem, f: Tensor, noise_draw: Tensor, A: Tensor) -> Tensor:
    """Return σ² / 2n · Σ over columns of (f − K a)ᵀ Σ⁻¹ (f − K a) + (a − Σ⁻¹ε)ᵀ K (a − Σ⁻¹ε),
    σ² the mean noise.
    """
    noise = system.noise.expand(system.n).unsqueeze(1)
    K = system.to_dense() - torch.diag(noise.squeeze(1))
    misfit = f - K @ A
    shifted = A - noise_draw / noise
    return (
        0.5
        * noise.mean()
        / system.n
        * ((misfit.square() / noise).sum() + (shifted * (K @ shifted)).sum())
    )


def gradients(
    solver: SGD, system: KernelSystem, f: Tensor, noise_draw: Tensor, A: Tensor, epochs: int
) -> Tensor:
    """Return stochastic gradients (draws, n, s) over whole epochs of batches."""
    generator = torch.Generator().manual_seed(0)
    draws = []
    for _ in range(epochs):
        for index in torch.randperm(system.n, generator=generator).split(B):
            draws.append(
                solver.gradient(system, f + noise_draw, noise_draw, A, index, generator)[0]
            )
    return torch.stack(draws)


def test_the_gradient_is_that_of_the_objective_in_expectation() -> None:
    system = problems.system(N, problems.vector_noise(N))
    f = problems.normal(N, 2)
    noise_draw = problems.normal(N, 2, seed=1)
    A = problems.normal(N, 2, seed=2).requires_grad_()
    (exact,) = torch.autograd.grad(objective(system, f, noise_draw, A), A)
    draws = gradients(SGD(num_features=200), system, f, noise_draw, A.detach(), epochs=500)
    error = (draws.mean(0) - exact).norm()
    assert error < 4 * (draws.var(0).sum() / len(draws)).sqrt()
    assert error < 0.1 * exact.norm()


def test_splitting_the_targets_lowers_the_variance() -> None:
    # Where noise dominates, a ≈ Σ⁻¹ε: both parts of the split gradient nearly vanish at the
    # solution.
    system = problems.system(200, 1.0)
    f = system.kernel.tiles.X1.sum(1, keepdim=True).sin()
    noise_draw = problems.normal(200, 1, seed=1)
    solution = torch.linalg.solve(system.to_dense(), f + noise_draw)
    for A, most in ((solution, 0.2), (torch.zeros_like(f), 1.0)):
        split = gradients(SGD(), system, f, noise_draw, A, epochs=50)
        unsplit = gradients(SGD(), system, f + noise_draw, torch.zeros_like(f), A, epochs=50)
        assert split.var(0).sum() < most * unsplit.var(0).sum()


@pytest.mark.parametrize("averaging", [0.0, 0.25])
def test_steps_are_nesterovs_on_clipped_gradients(averaging: float) -> None:
    system = problems.system(N, 0.3)
    rhs = problems.normal(N, 2)
    solver = SGD(0.4, B, momentum=0.8, clip=0.05, averaging=averaging)
    start = torch.zeros(N, 2, dtype=torch.float64)
    ours, theirs = (torch.Generator().manual_seed(0) for _ in range(2))
    state, order = (solver.init(system, Start(rhs, start, rhs, None)) for _ in range(2))
    monitor = order.monitor
    A = start
    V = start
    mean = start
    for step in range(1, 8):
        state = solver.step(system, rhs, state, ours)
        index, monitor = monitor.deal(B, theirs)
        g, gap = solver.gradient(system, rhs, torch.zeros_like(rhs), A + 0.8 * V, index, theirs)
        monitor = monitor.observe(gap)
        V = 0.8 * V - 0.4 * g * (0.05 / g.norm(dim=0)).clamp_max(1.0)
        A = A + V
        mean = mean + (A - mean) * max(1 / step, averaging)
        torch.testing.assert_close(state.average, mean, rtol=1e-10, atol=1e-12)


def test_the_residual_of_the_batch_is_that_of_the_system() -> None:
    system = problems.system(N, 0.3)
    rhs = problems.normal(N, 2)
    noise_draw = problems.normal(N, 2, seed=1)
    A = problems.normal(N, 2, seed=2)
    index = torch.arange(3, 18)
    gap = SGD().gradient(system, rhs, noise_draw, A, index, torch.Generator())[1]
    torch.testing.assert_close(gap, (system @ A - rhs)[index])


@pytest.mark.parametrize(
    "split", [pytest.param(False, marks=pytest.mark.slow), True], ids=["one_part", "two_parts"]
)
def test_a_well_conditioned_system_is_solved(split: bool) -> None:
    # Far apart: K is nearly diagonal
    system = problems.system(noise=1.0, X=10.0 * problems.uniform(N, 2))
    f = problems.normal(N, 2)
    noise_draw = problems.normal(N, 2, seed=1)
    solver = SGD(
        batch_size=30,
        step_size=0.5,
        num_features=1000,
        clip=10.0,
        tolerance=5e-2,
        max_epochs=2000.0,
    )
    rhs = Targets(f, noise_draw) if split else f + noise_draw
    solution = solver.solve(system, rhs)
    assert solution.converged.all(), str(solution)
    exact = torch.linalg.solve(system.to_dense(), f + noise_draw)
    assert ((solution.value - exact).norm(dim=0) <= 5e-2 * (f + noise_draw).norm(dim=0)).all()


@pytest.mark.parametrize("make", WITHOUT_FEATURES.values(), ids=WITHOUT_FEATURES.keys())
def test_without_a_closed_form_the_batches_of_an_epoch_give_the_exact_gradient(
    make: Callable[[], Kernel],
) -> None:
    kernel = make().double().requires_grad_(False)
    K = kernel_operator(kernel, problems.uniform(N, problems.DIM))
    system = KernelSystem(K, problems.vector_noise(N))
    f = problems.normal(N, 2)
    noise_draw = problems.normal(N, 2, seed=1)
    A = problems.normal(N, 2, seed=2).requires_grad_()
    (exact,) = torch.autograd.grad(objective(system, f, noise_draw, A), A)
    draws = gradients(SGD(), system, f, noise_draw, A.detach(), epochs=1)
    torch.testing.assert_close(draws.mean(0), exact)
    solution = torch.linalg.solve(system.to_dense(), f + noise_draw)
    at_solution = gradients(SGD(), system, f, noise_draw, solution, epochs=1)
    assert at_solution.abs().max() < 1e-9 * draws.abs().max()


def test_samples_may_take_another_step_than_the_mean() -> None:
    system = problems.system(N, 0.1)
    noise_draw = problems.normal(N, 2, seed=1)
    noise_draw[:, 0] = 0.0  # of the mean
    targets = Targets(problems.normal(N, 2), noise_draw)
    limits = {"max_epochs": 20.0, "tolerance": 1e-9, "keep_descent": True}
    mean, sample, both = (
        SGD(**settings, **limits).solve(system, targets)  # type: ignore[arg-type]
        for settings in (
            {"step_size": 0.3},
            {"step_size": 0.02},
            {"step_size": 0.3, "sample_step_size": 0.02},
        )
    )
    torch.testing.assert_close(both.value[:, 0], mean.value[:, 0])
    torch.testing.assert_close(both.value[:, 1], sample.value[:, 1])
    assert not both.note
