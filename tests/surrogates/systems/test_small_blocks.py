"""Small blocks of a system's matrix, evaluated together."""

import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel

from surrogates import KernelSystem, TanimotoKernel, kernel_operator
from tests import problems

KERNELS = {
    "stationary": lambda: ScaleKernel(MaternKernel(1.5)),
    "sum": lambda: RBFKernel(active_dims=(0,)) + MaternKernel(0.5, active_dims=(1, 2)),
    "tanimoto": TanimotoKernel,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", KERNELS)
def test_small_blocks_are_those_of_the_matrix(name: str, dtype: torch.dtype) -> None:
    kernel: Kernel = KERNELS[name]().to(dtype)
    X = problems.uniform(40, 3, dtype=dtype)
    noise = problems.vector_noise(40).to(dtype)
    system = KernelSystem(kernel_operator(kernel, X), noise)
    index = torch.randperm(40, generator=torch.Generator().manual_seed(0)).view(8, 5)
    before = system.entries
    blocks = system.small_blocks(index)
    assert system.entries - before == 8 * 25
    H = system.to_dense()
    torch.testing.assert_close(blocks, torch.stack([H[row][:, row] for row in index]))
