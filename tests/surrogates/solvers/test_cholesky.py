"""The direct solve beyond the contract: jitter, memory."""

import pytest
import torch

from surrogates import Cholesky, KernelSystem
from surrogates.solvers.cholesky import factorise
from tests import problems


def test_no_jitter_is_added_where_none_is_needed() -> None:
    system, rhs = problems.system(60, 1e-3), problems.normal(60, 2)
    solution = Cholesky().solve(system, rhs)
    assert not solution.note
    assert solution.residual.max() < 1e-10


def test_jitter_is_added_only_after_a_failure_and_reported() -> None:
    X = problems.uniform(40, 2, dtype=torch.float32).repeat(4, 1)
    system = KernelSystem(problems.operator(problems.OPERATORS[0], problems.rbf(5.0), X), 1e-12)
    rhs = system.kernel @ torch.ones(160, 1)
    solution = Cholesky().solve(system, rhs)
    assert "jitter" in solution.note
    assert solution.value.isfinite().all()


def test_the_factor_is_that_of_the_matrix_plus_the_reported_jitter() -> None:
    A = problems.normal(20, 5)
    matrix = A @ A.T - 1e-9 * torch.eye(20, dtype=A.dtype)
    factor, jitter = factorise(matrix.clone())
    assert 1e-9 < jitter < 1e-6
    torch.testing.assert_close(factor @ factor.T, matrix + jitter * torch.eye(20, dtype=A.dtype))


def test_an_indefinite_matrix_is_refused() -> None:
    matrix = torch.eye(3)
    matrix[0, 1] = matrix[1, 0] = 5.0
    with pytest.raises(ValueError, match="`system` must be positive definite"):
        factorise(matrix)


def test_a_matrix_that_does_not_fit_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surrogates.memory.available", lambda device: 1000)
    system = problems.system(90)
    with pytest.raises(MemoryError, match=r"Cholesky\(\) of 90 points needs .* GiB .* Use an iterative solver such as CG\(\)."):
        Cholesky().solve(system, problems.normal(90, 1))
    assert system.entries == 0
