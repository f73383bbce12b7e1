"""Sums and products of kernels, whose tiles are made of their parts'."""

from collections.abc import Callable
from itertools import combinations_with_replacement

import pytest
import torch
from gpytorch.kernels import (
    AdditiveKernel,
    AdditiveStructureKernel,
    Kernel,
    LinearKernel,
    ProductKernel,
    ProductStructureKernel,
    RBFKernel,
)

from surrogates import TanimotoKernel
from surrogates.operators.expressions import kernel_values
from surrogates.operators.tiles import GenericTiles, KernelTiles
from tests import problems
from tests.problems import DIM

ATOMS: dict[str, Callable[[], Kernel]] = {
    "rbf": lambda: problems.rbf(active_dims=[0, 2]),
    "matern12": lambda: problems.scaled(problems.matern(0.5), 0.7),
    "linear": lambda: LinearKernel(active_dims=[1]),
    "tanimoto": lambda: problems.scaled(TanimotoKernel(active_dims=[0, 1]), 2.0),
    "sum": lambda: problems.rbf() + problems.matern(2.5, active_dims=[1]),
    "product": lambda: problems.rbf() * problems.matern(1.5),
}


@pytest.mark.parametrize("composed", [AdditiveKernel, ProductKernel])
@pytest.mark.parametrize("names", [*combinations_with_replacement(ATOMS, 2)], ids="-".join)
def test_values_and_slopes_are_those_of_the_whole(
    composed: type[Kernel], names: tuple[str, str]
) -> None:
    kernel = problems.scaled(composed(*(ATOMS[name]() for name in names)), 1.3).double()
    X = problems.uniform(6, DIM).round(decimals=1)
    Z = problems.uniform(9, DIM, seed=1).round(decimals=1)
    own = GenericTiles(kernel, X, Z)
    made = KernelTiles.of(kernel, X, Z)
    rows, columns = slice(2, 6), slice(1, 9)
    close = torch.testing.assert_close
    close(made.tile(rows, columns), own.tile(rows, columns))
    close(made.rows(rows).columns(columns).tile(slice(None), slice(None)), own.tile(rows, columns))
    close(made.diagonal(), own.diagonal())
    for shape in ((2, 1, 8), (2, 2, 8), (1, 4, 8)):
        weights = problems.normal(shape[0] * shape[1], shape[2], seed=2).view(shape)
        for part, expected in zip(
            made.contract(rows, columns, weights), own.contract(rows, columns, weights), strict=True
        ):
            close(part, expected)


def test_a_whole_that_is_no_plain_sum_evaluates_itself() -> None:
    class Doubled(AdditiveKernel):
        def forward(self, *points: torch.Tensor, **options: object) -> torch.Tensor:
            return 2.0 * super().forward(*points, **options)

    X = problems.uniform(3, DIM)
    for kernel in (
        Doubled(problems.rbf(), problems.matern(1.5)),
        AdditiveKernel(problems.rbf(batch_shape=torch.Size([2])), problems.matern(1.5)),
    ):
        assert isinstance(KernelTiles.of(kernel, X, X), GenericTiles)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", [AdditiveStructureKernel, ProductStructureKernel])
@pytest.mark.parametrize("shared", [True, False])
def test_a_kernel_of_every_input_is_the_sum_or_product_of_its_inputs(
    kind: type[Kernel], shared: bool
) -> None:
    lengths = torch.linspace(0.4, 0.8, DIM)
    base = (
        RBFKernel() if shared else problems.with_lengthscale(RBFKernel(ard_num_dims=DIM), lengths)
    )
    kernel = kind(base, DIM).double()
    X = problems.uniform(6, DIM)
    Z = problems.uniform(9, DIM, seed=1)
    made = KernelTiles.of(kernel, X, Z)
    expected = problems.own_evaluation(kernel, X, Z)
    torch.testing.assert_close(made.tile(slice(None), slice(None)), expected)
    torch.testing.assert_close(kernel_values(kernel, X, Z), expected)
    # GPyTorch does not evaluate the diagonal of the product
    variances = problems.own_evaluation(kernel, X, X).diagonal()
    torch.testing.assert_close(KernelTiles.of(kernel, X, X).diagonal(), variances)
