"""The kernel of sums of functions of one input each: its formula, gradients and features."""

import torch

from surrogates import PathwiseGP, fit
from surrogates.operators.main_effects import MainEffectsKernel
from tests import problems

LENGTHSCALES = (0.2, 0.5, 1.5)


def main_effects() -> MainEffectsKernel:
    kernel = MainEffectsKernel(3).double()
    kernel.lengthscale = torch.tensor(LENGTHSCALES, dtype=torch.float64)
    return kernel


def test_the_kernel_is_the_mean_of_matern_kernels_of_one_input_each() -> None:
    m, n = 6, 4
    X = problems.uniform(m, 3)
    Z = problems.uniform(n, 3, seed=1)
    parts = [
        problems.own_evaluation(problems.matern(2.5, length), X[:, [i]], Z[:, [i]])
        for i, length in enumerate(LENGTHSCALES)
    ]
    kernel = main_effects()
    expected = torch.stack(parts).mean(0)
    torch.testing.assert_close(kernel(X, Z).to_dense(), expected)
    torch.testing.assert_close(kernel.summands()(X, Z).to_dense(), expected)
    few = min(m, n)
    torch.testing.assert_close(kernel(X[:few], Z[:few], diag=True), expected.diagonal())


def test_gradients_in_points_and_lengthscales_are_those_of_differences() -> None:
    X = problems.uniform(3, 3)
    X[1, 0] = X[0, 0]  # where |x − z| has none
    Z = problems.uniform(2, 3, seed=1)

    def values(points: torch.Tensor, lengthscale: torch.Tensor) -> torch.Tensor:
        kernel = MainEffectsKernel(3).double()
        raw = kernel.raw_lengthscale_constraint.inverse_transform(lengthscale)
        return torch.func.functional_call(
            kernel, {"raw_lengthscale": raw.reshape(1, 3)}, (points, torch.cat([Z, X[:1]]))
        ).to_dense()

    lengthscale = torch.tensor(LENGTHSCALES, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(values, (X.requires_grad_(), lengthscale))


def test_lengthscales_are_learned_of_every_input_by_itself() -> None:
    X = problems.uniform(60, 2)
    Y = torch.sin(9.0 * X[:, :1]) + 0.01 * X[:, 1:]
    model = fit(PathwiseGP(X, Y, covar_module=MainEffectsKernel(2).double()))
    varying, flat = model.covar_module.lengthscale.squeeze()
    assert varying < flat
