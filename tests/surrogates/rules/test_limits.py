"""The range of lengthscales."""

import pytest
import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan
from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel

from surrogates.rules.limits import assign, clamp_lengthscales, lengthscale_limits
from tests import problems

# Values 0, 1, 2, …, 10 of the first input, and 0, 100, …, 1000 of the second; a constant
X = torch.linspace(0.0, 10.0, 11, dtype=torch.float64).unsqueeze(1) * torch.tensor([1.0, 100.0, 0])
LOWER = torch.tensor([0.1, 10.0, 0.1], dtype=torch.float64)
UPPER = torch.tensor([1e4, 1e6, 1e3], dtype=torch.float64)


@pytest.mark.parametrize(
    ("kernel", "columns"),
    [
        (MaternKernel(ard_num_dims=3), [0, 1, 2]),
        (ScaleKernel(RBFKernel(ard_num_dims=2, active_dims=[1, 0])), [1, 0]),
        (RBFKernel(active_dims=[2]), [2]),
    ],
    ids=["ard", "scaled and selected", "constant input"],
)
def test_the_range_follows_the_gaps_and_the_range_of_each_input(
    kernel: Kernel, columns: list[int]
) -> None:
    ((_, lower, upper),) = lengthscale_limits(kernel, X)
    torch.testing.assert_close(lower, LOWER[columns].unsqueeze(0))
    torch.testing.assert_close(upper, UPPER[columns].unsqueeze(0))


def test_values_equal_up_to_the_rounding_of_their_squares_leave_no_gap() -> None:
    copies = torch.cat([X, X + 1e-10 * X.amax(0), X - 1e-10 * X.amax(0)])
    ((_, lower, _),) = lengthscale_limits(MaternKernel(ard_num_dims=3), copies)
    torch.testing.assert_close(lower, LOWER.unsqueeze(0))


def test_one_lengthscale_of_several_inputs_has_the_widest_range() -> None:
    ((_, lower, upper),) = lengthscale_limits(RBFKernel(), X)
    assert (lower.item(), upper.item()) == pytest.approx((0.1, 1e6))


def test_parts_of_a_kernel_have_ranges_of_their_own() -> None:
    kernel = RBFKernel(active_dims=[0]) + ScaleKernel(RBFKernel(active_dims=[1]))
    uppers = [upper.item() for _, _, upper in lengthscale_limits(kernel, X)]
    assert uppers == pytest.approx([1e4, 1e6])
    assert not lengthscale_limits(PeriodicKernel(), X)


def test_what_lies_outside_is_put_on_the_bound_and_what_is_not_learned_stays() -> None:
    kernel = problems.rbf(torch.tensor([[1e-3, 1e19, 5.0]]), ard_num_dims=3).double()
    clamp_lengthscales(kernel, X)
    expected = torch.tensor([[0.1, 1e6, 5.0]], dtype=torch.float64)
    torch.testing.assert_close(kernel.lengthscale.detach(), expected)
    fixed = problems.rbf(1e19).double().requires_grad_(False)
    clamp_lengthscales(fixed, X)
    assert fixed.lengthscale.item() > 1e18


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        (None, [0.1, 1.0, 10.0]),
        (Interval(0.5, 4.0), [0.55, 1.0, 3.6]),
        (Interval(1.5, 1.6), [1.55, 1.55, 1.55]),
        (GreaterThan(1.0), [1.1, 1.1, 10.0]),
        (LessThan(4.0), [0.1, 1.0, 3.6]),
    ],
)
def test_what_a_constraint_excludes_goes_inside_of_its_nearest_bound(
    bounds: Interval | None, expected: list[float]
) -> None:
    kernel = RBFKernel(ard_num_dims=3, lengthscale_constraint=bounds).double()
    assign(kernel, "lengthscale", torch.tensor([0.1, 1.0, 10.0]))
    assert kernel.lengthscale.flatten().tolist() == pytest.approx(expected)


def test_a_range_beyond_the_constraint_of_a_kernel_ends_there() -> None:
    kernel = RBFKernel(lengthscale_constraint=Interval(0.005, 4.0)).double()
    clamp_lengthscales(kernel, 1e9 * X[:, :1])
    assert kernel.lengthscale.item() == pytest.approx(3.6)
