"""Compare the fused Triton kernels with exact products on the CPU:
``TRITON_INTERPRET=1 python -m tests.interpreted_kernels``.

Triton decides when it is imported whether it compiles or interprets, so this needs a process of its
own. Prints the largest error of every case, divided by the rounding error that its sums may have,
as JSON.
"""

import json
import sys
from functools import partial

import torch
from torch import Tensor

from surrogates.operators import cuda
from surrogates.operators.tiles import KernelTiles, StationaryTiles
from tests import problems
from tests.problems import DIM, STATIONARY

KERNELS = ["rbf", "matern12-ard", "scale-matern32", "matern52-active"]

# (rows, columns, weights' columns, programs the columns are spread over)
PRODUCTS = {
    "one-entry": (1, 1, 1, 1),
    "vector": (70, 75, 1, 1),
    "few": (66, 97, 5, 3),
    "many": (3, 130, 32, 1),
}
# (functions, points of each, columns, programs)
ROWWISE = {"one-entry": (1, 1, 1, 1), "short": (3, 2, 75, 1), "long": (2, 67, 97, 6)}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def case_names() -> list[str]:
    """Return the names of all cases: product, kernel, shape and precision."""
    shapes = [("matmul", shape) for shape in PRODUCTS] + [("rowwise", shape) for shape in ROWWISE]
    return [
        f"{what} {name} {shape} {dtype}"
        for what, shape in shapes
        for name in KERNELS
        for dtype in DTYPES
    ]


def error(case: str) -> float:
    """Return the case's largest error in units of the rounding error."""
    what, name, shape, dtype = case.split()
    return {"matmul": matmul_error, "rowwise": rowwise_error}[what](name, shape, DTYPES[dtype])


def matmul_error(name: str, shape: str, dtype: torch.dtype) -> float:
    m, n, s, programs = PRODUCTS[shape]
    tiles, exact = tiles_of(name, m, n, dtype)
    W = problems.normal(n, s, seed=2)
    with_programs(programs)
    product = tiles.fused_matmul(W.to(dtype))
    assert product is not None and product.dtype == dtype
    return scaled_error(product, exact.tile(slice(None), slice(None)) @ W, n)


def rowwise_error(name: str, shape: str, dtype: torch.dtype) -> float:
    s, q, n, programs = ROWWISE[shape]
    tiles, exact = tiles_of(name, s * q, n, dtype)
    W = problems.normal(n, s, seed=2)
    with_programs(programs)
    fused = tiles.fused_rowwise(W.to(dtype))
    assert fused is not None and fused[0].dtype == fused[1].dtype == dtype
    expected = exact.contract(slice(None), slice(None), W.T.unsqueeze(1))
    return max(
        scaled_error(value, reference, n) for value, reference in zip(fused, expected, strict=True)
    )


def tiles_of(
    name: str, m: int, n: int, dtype: torch.dtype
) -> tuple[StationaryTiles, StationaryTiles]:
    """Return the tiles of a kernel in ``dtype`` and, for the same rounded points, in float64."""
    X = problems.uniform(m, DIM, dtype=dtype)
    Z = 1.0 + problems.uniform(n, DIM, seed=1, dtype=dtype)
    tiles = KernelTiles.of(STATIONARY[name]().to(X), X, Z)
    exact = tiles.to(torch.float64)
    assert isinstance(tiles, StationaryTiles) and isinstance(exact, StationaryTiles)
    return tiles, exact


def with_programs(count: int) -> None:
    from surrogates.operators import triton_kernels

    triton_kernels.PROGRAMS = count


def scaled_error(value: Tensor, reference: Tensor, terms: int) -> float:
    assert value.shape == reference.shape
    return (
        (value.double() - reference).abs().max() / (3 * (terms + 3) * torch.finfo(value.dtype).eps)
    ).item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    cuda.DEVICE_TYPES = {"cpu"}
    cuda._kernels_for = partial(cuda._kernels_for, fewest_entries=1)
    sys.stdout.write(json.dumps({case: error(case) for case in case_names()}))
