"""What a device is good at, which choices of methods rest on.

Costs are counted in floating-point operations of a large product of float32 matrices; only their
ratios matter. Those of a CPU come from a sweep over systems easy and hard
(``benchmarks/results/solver_sweep.json``). Those of a CUDA device are measured when they are first
asked for, in about a second, and kept as long as the process runs. They are rounded to powers of
two, so that measuring again seldom leads to another choice.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from surrogates import memory
from surrogates.operators.forms import PROFILES
from surrogates.operators.linalg import matmul


@dataclass(frozen=True)
class Rates:
    """Operations that things are worth; those of a CPU by default."""

    evaluate: float = 300.0  # a kernel entry, evaluated
    read: float = 20.0  # likewise read, one after another
    gather: float = 160.0  # likewise read in random blocks
    column: float = 2.2  # a float32 entry's product with a column
    double_column: float = 2.2  # likewise in float64
    double: float = 2.0  # an operation of a factorisation in float64
    factorise: float = 1.2  # one in float32, of a large matrix
    block_factorise: float = 1.5  # likewise of a smaller one
    copy: float = 400.0  # an entry of a matrix to be factorised, brought into place
    call: float = 0.0  # the overhead of a call of PyTorch; 0 on a CPU, where the others include it


OF_A_CPU = Rates()


def rates_of(device: torch.device) -> Rates:
    """Return the rates of ``device``; those of a CPU for a device of another kind."""
    return _measured(device) if device.type in memory.DEVICE_TYPES else OF_A_CPU


def factorisation_advantage(device: torch.device) -> float:
    """Return how much less a block's factor costs, beside wide products, than on a CPU; 1 there."""
    own, of_a_cpu = (rates.column / rates.block_factorise for rates in (rates_of(device), OF_A_CPU))
    return own / of_a_cpu


@cache
def _measured(device: torch.device) -> Rates:
    return memory.halving(lambda n: measured_rates(device, n), 8192, "A trial matrix")


@torch.no_grad()
def measured_rates(
    device: torch.device, n: int, num_columns: int = 512, block: int = 2048
) -> Rates:
    """Return the rates of ``device``, measured on matrices of n rows and columns, products with
    ``num_columns``, and factors of ``block`` rows. On fewer, overhead would dominate.
    """
    generator = memory.generator_for(torch.Generator().manual_seed(0), device, n**2)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=generator.device).to(device)

    points = uniform(n, 8)
    A = uniform(n, n)
    W = uniform(n, num_columns)
    H = A @ A.T / n + torch.eye(n, device=device)
    order = torch.randperm(n, generator=generator, device=generator.device).to(device)
    operation = memory.seconds(lambda: matmul(A, W), device) / (2.0 * n**2 * num_columns)

    def worth(call: Callable[[], Any], count: float) -> float:
        """Return the operations that one of ``count`` parts of a call is worth."""
        return 2.0 ** round(math.log2(memory.seconds(call, device) / count / operation))

    def factorised(matrix: Tensor) -> float:
        return worth(lambda: torch.linalg.cholesky_ex(matrix), len(matrix) ** 3 / 3.0)

    factorise = factorised(H)
    doubles = points.double()
    doubled = A.double()
    W_doubled = W.double()
    return Rates(
        evaluate=worth(lambda: evaluated(points, points), n**2),
        read=worth(lambda: matmul(A, W[:, :1]), n**2),
        gather=worth(lambda: A.index_select(0, order).index_select(1, order), n**2),
        column=worth(lambda: matmul(A, W), n**2 * num_columns),
        double_column=worth(lambda: matmul(doubled, W_doubled), n**2 * num_columns),
        double=max(1.0, factorised(H.double()) / factorise),
        factorise=factorise,
        block_factorise=factorised(H[:block, :block]),
        copy=worth(lambda: evaluated(doubles, doubles).clone(), n**2),
        call=worth(lambda: [order[:1].add(1) for _ in range(100)], 200),
    )


def evaluated(X: Tensor, Z: Tensor) -> Tensor:
    """Return a tile of a Matérn-3/2 kernel, evaluated as tiles are."""
    d2 = matmul(X, -2.0 * Z.T)
    return PROFILES["matern32"].value_(d2.view(-1), d2.new_ones(())).view_as(d2)
