"""What the rounds of the warm-start benchmark are made of: kept functions and noise stay,
and fresh ones are others.
"""

import torch
from torch import Tensor

from benchmarks.warm_starts import DIM, STARTS, Columns, Q
from scalable_bo.experiments.models import matern_kernel
from surrogates import CG, Cholesky
from tests import problems

N = 60
MORE = 20
X = problems.uniform(N + MORE, DIM)
Y = torch.sin(5 * X.sum(1))
KERNEL = matern_kernel(0.5, 1.0)


def columns(start: str) -> Columns:
    return Columns(KERNEL, STARTS[start], torch.Generator().manual_seed(0))


def values_of_two_rounds(start: str) -> tuple[Tensor, Tensor]:
    rounds = columns(start)
    return rounds.functions_at(X[:N]), rounds.functions_at(X)


def test_kept_functions_keep_their_values_and_noise() -> None:
    first, second = values_of_two_rounds("kept-block")
    torch.testing.assert_close(second[:N], first, rtol=0, atol=1e-10)


def test_fresh_functions_are_independent_of_the_last() -> None:
    first, second = values_of_two_rounds("zero")
    correlation = torch.corrcoef(torch.stack([first.mean(0), second[:N].mean(0)]))[0, 1]
    assert correlation.abs() < 4 / first.shape[1] ** 0.5


def test_the_weights_of_the_last_round_solve_its_rows_of_the_next() -> None:
    rounds = columns("kept-block")
    rounds.solve(X[:N], Y[:N], Cholesky())
    second = rounds.solve(X, Y, CG(tolerance=1e-9))
    assert second.initial is not None
    # Without what the new points add, which vanishes at zero
    weights = torch.cat([second.initial[:N], torch.zeros(MORE, 1 + Q).double()])
    torch.testing.assert_close((second.system @ weights)[:N], second.B[:N])
    torch.testing.assert_close((second.system @ second.initial)[N:], second.B[N:])
    exact = Cholesky().solve(second.system, second.B).value
    torch.testing.assert_close(
        second.system.to_dense() @ second.solution.value,
        second.system.to_dense() @ exact,
        rtol=0,
        atol=1e-6,
    )


def test_only_the_mean_goes_on_beside_fresh_functions() -> None:
    rounds = columns("mean-block")
    first = rounds.solve(X[:N], Y[:N], Cholesky())
    initial = rounds.solve(X, Y, Cholesky()).initial
    assert initial is not None
    assert torch.equal(initial[:N, 0], first.solution.value[:, 0])
    assert initial[:, 1:].eq(0).all()


def test_conditioned_functions_pass_through_the_data() -> None:
    paths = columns("zero").paths(X, Y, Cholesky())[0]
    # Ten standard deviations of the noise
    torch.testing.assert_close(paths(X), Y.expand(paths.num_samples, -1), rtol=0, atol=1e-2)
