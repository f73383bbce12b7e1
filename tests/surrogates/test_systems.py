"""The system K + Σ: products, parts, and the noise it accepts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from surrogates import Dense, KernelSystem, Targets, Tiled
from tests import problems

N = 25


@pytest.mark.parametrize("kind", [Dense, Tiled])
@pytest.mark.parametrize("noise", [0.3, problems.vector_noise(N)], ids=["scalar", "vector"])
def test_every_part_is_that_of_the_dense_matrix(kind: type, noise: float | torch.Tensor) -> None:
    system = problems.system(N, noise, kind=kind)
    H = system.kernel.to_dense() + torch.as_tensor(noise, dtype=torch.float64).expand(N).diag()
    W, index = problems.normal(N, 3), torch.tensor([3, 1, 20, 7])
    torch.testing.assert_close(system.to_dense(), H)
    torch.testing.assert_close(system @ W, H @ W)
    torch.testing.assert_close(system.rows_matmul(index, W), (H @ W)[index])
    torch.testing.assert_close(system.block(index), H[index][:, index])
    torch.testing.assert_close(system.columns(index), system.kernel.to_dense()[:, index])


@pytest.mark.parametrize("kind", [Dense, Tiled])
def test_reading_the_matrix_leaves_the_kernel_without_noise(kind: type) -> None:
    system = problems.system(N, 0.3, kind=kind)
    before = system.kernel.to_dense().clone()
    system.to_dense(), system.block(torch.arange(4)), system @ problems.normal(N, 2)
    assert torch.equal(system.kernel.to_dense(), before)


def test_entries_are_counted_in_epochs() -> None:
    system = problems.system(N)
    system @ problems.normal(N, 7)
    assert system.epochs == 1.0  # whatever the number of columns
    system.rows_matmul(torch.arange(5), problems.normal(N, 1))
    assert system.epochs == pytest.approx(1.2)
    system.block(torch.arange(5))
    system.columns(torch.arange(5))
    assert system.epochs == pytest.approx(1.2 + 0.04 + 0.2)


def test_the_right_hand_side_is_values_plus_noise() -> None:
    f, e = problems.normal(N, 2), problems.normal(N, 2, seed=1)
    assert torch.equal(problems.system(N).rhs(Targets(f, e)), f + e)


@given(bad=st.sampled_from([0.0, -1e-6, float("nan"), float("inf"), -float("inf")]), place=st.integers(-1, N - 1))
def test_noise_that_is_no_variance_is_refused(bad: float, place: int) -> None:
    noise = torch.tensor(bad) if place < 0 else torch.full((N,), 0.1).index_fill(0, torch.tensor(place), bad)
    with pytest.raises(ValueError, match="`noise` must be finite variances above 0, got .*Use a small value such as 1e-6"):
        problems.system(N, noise)


@pytest.mark.parametrize("shape", [(N + 1,), (N, 1), (1, 1)])
def test_noise_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"`noise` must be a scalar or have shape \({N},\)"):
        problems.system(N, torch.ones(shape))


def test_an_operator_over_two_sets_of_points_is_refused() -> None:
    kernel = problems.operator(Dense, problems.rbf(), problems.uniform(4, 2), problems.uniform(4, 2))
    with pytest.raises(ValueError, match="`kernel` must be an operator over one set of points"):
        KernelSystem(kernel, 0.1)
