"""What the rounds of the warm-start benchmark are made of: carried functions and noise stay,
fresh ones do not.
"""

import torch
from torch import Tensor

from benchmarks.warm_starts import COARSE, DIM, Draws, system_of
from scalable_bo.experiments.models import matern_kernel
from tests import problems

N = 60
MORE = 20
X = problems.uniform(N + MORE, DIM)
KERNEL = matern_kernel(0.5, 1.0)


def values_of_two_rounds(carry: bool) -> tuple[Tensor, Tensor]:
    draws = Draws(KERNEL, torch.Generator().manual_seed(0))
    return draws.at(X[:N], carry), draws.at(X, carry)


def test_carried_functions_keep_their_values_and_noise() -> None:
    first, second = values_of_two_rounds(carry=True)
    torch.testing.assert_close(second[:N], first, rtol=0, atol=1e-10)


def test_fresh_functions_are_independent_of_the_last() -> None:
    first, second = values_of_two_rounds(carry=False)
    correlation = torch.corrcoef(torch.stack([first.mean(0), second[:N].mean(0)]))[0, 1]
    assert correlation.abs() < 4 / first.shape[1] ** 0.5


def test_conditioned_functions_pass_through_the_data() -> None:
    y = torch.sin(5 * X.sum(1))
    paths = Draws(KERNEL, torch.Generator().manual_seed(0)).paths(X, y, carry=False)
    # Ten standard deviations of the noise
    torch.testing.assert_close(paths(X), y.expand(paths.num_samples, -1), rtol=0, atol=1e-2)


def test_the_start_of_a_subset_solves_its_own_rows() -> None:
    system = system_of(KERNEL, X)
    B = values_of_two_rounds(carry=False)[1]
    W = COARSE["subset"](system)(B)
    m = len(X) // 4
    assert W[m:].eq(0).all()
    torch.testing.assert_close((system @ W)[:m], B[:m])
