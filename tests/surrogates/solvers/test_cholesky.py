"""The direct solve beyond the contract: jitter, memory."""

from unittest.mock import Mock

import pytest
import torch

from surrogates import (
    Cholesky,
    InducingSystem,
    KernelSystem,
    Targets,
    UnsolvedWarning,
    kernel_operator,
)
from surrogates.solvers import cholesky
from surrogates.solvers.cholesky import factorise
from tests import problems


def test_a_float32_system_is_factorised_in_float64_without_jitter() -> None:
    X = problems.uniform(300, 2, dtype=torch.float32)
    rhs = torch.sin(3.0 * X)  # which takes no large weights
    kernel = problems.rbf(2.0)
    system = KernelSystem(kernel_operator(kernel, X), 1e-5)
    solution = Cholesky().solve(system, rhs)
    assert solution.epochs == 2.0 and system.entries == 2 * 300**2  # a factor, and the residual
    assert solution.note == "" and solution.value.dtype == torch.float32
    exact = KernelSystem(kernel_operator(kernel.double(), X.double()), 1e-5).to_dense()
    expected = torch.linalg.solve(exact, rhs.double())
    assert problems.relative_error(solution.value.double(), expected) < 1e-6


def test_jitter_is_added_only_after_a_failure_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelSystem, "precise", lambda self: self)  # too large for float64
    X = problems.uniform(40, 2, dtype=torch.float32).repeat(4, 1)
    system = KernelSystem(problems.operator(problems.OPERATORS[0], problems.rbf(5.0), X), 1e-12)
    rhs = system.kernel @ torch.ones(160, 1)
    solution = Cholesky().solve(system, rhs)
    assert "jitter" in solution.note
    assert solution.value.isfinite().all()
    factorised = Mock(wraps=cholesky.factorise)
    monkeypatch.setattr(cholesky, "factorise", factorised)
    inverse = Cholesky().inverse(system, 1, seed=0, what="Values")
    for seed in range(2):
        with pytest.warns(UnsolvedWarning, match="Values are those of an unsolved linear system"):
            inverse(problems.normal(160, 1, dtype=torch.float32, seed=seed))
    factorised.assert_called_once()


def test_an_indefinite_matrix_is_refused() -> None:
    matrix = torch.eye(3)
    matrix[0, 1] = matrix[1, 0] = 5.0
    with pytest.raises(ValueError, match="`system` must be positive definite"):
        factorise(matrix)


def test_a_matrix_that_does_not_fit_is_refused_before_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("surrogates.memory.available", lambda device: 1000)
    system = problems.system(90)
    with pytest.raises(
        MemoryError,
        match=r"Cholesky\(\) of 90 points needs .* GiB .* Use an iterative solver such as CG\(\).",
    ):
        Cholesky().solve(system, problems.normal(90, 1))
    assert system.entries == 0


@pytest.mark.parametrize("noise", [0.1, problems.vector_noise(60)], ids=["scalar", "vector"])
def test_inducing_weights_are_those_of_dense_algebra(noise: float | torch.Tensor) -> None:
    system = problems.inducing_system(60, 20, noise)
    f = problems.normal(60, 2)
    e = problems.normal(60, 2, seed=1)
    A, K_XZ, _ = problems.dense_inducing(system)
    rhs = K_XZ.T @ ((f + e) / system.noise.expand(60).unsqueeze(1))
    solution = Cholesky().solve(system, Targets(f, e))
    torch.testing.assert_close(solution.value, torch.linalg.solve(A, rhs), rtol=1e-8, atol=1e-8)
    gap = (rhs - A @ solution.value).norm(dim=0) / rhs.norm(dim=0)
    torch.testing.assert_close(solution.residual, gap, rtol=0, atol=1e-12)
    assert solution.converged.all()
    # B, the matrices, the residual
    assert solution.epochs == pytest.approx(1 + (1 + 20 / 60) + (1 + 20 / 60))


def test_whitening_keeps_what_the_normal_equations_lose_in_single_precision() -> None:
    X = problems.uniform(200, 2)
    y = problems.normal(200, 1)
    exact = InducingSystem(problems.rbf(0.7).double(), X, X[:60], 1e-2)
    A, K_XZ, _ = problems.dense_inducing(exact)
    reference = K_XZ @ Cholesky().solve(exact, Targets(y, torch.zeros_like(y))).value
    single = InducingSystem(problems.rbf(0.7), X.float(), X[:60].float(), 1e-2)
    targets = Targets(y.float(), torch.zeros(200, 1))
    whitened = K_XZ @ Cholesky().solve(single, targets).value.double()
    rhs = single.rhs(targets)
    normal = K_XZ @ torch.cholesky_solve(rhs, factorise(A.float())[0]).double()
    error = (whitened - reference).norm()
    assert error < 0.01 * reference.norm()
    assert error < 0.1 * (normal - reference).norm()
