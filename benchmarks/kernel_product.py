"""Speed of the kernel product K(A, X) @ W against products with a stored matrix and the eager
whole-row version.

    python benchmarks/kernel_product.py --out benchmarks/results/kernel_product.json

Matérn-3/2, d = 8, float32 by default. Every method is timed in turn, several times over, and
medians are reported, so that ratios hold on a noisy machine. ``gemm`` is a stored K times W.
``fraction_of_gemm`` compares the whole tiled product, kernel evaluation included, with it.
"""

import argparse
import operator
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from gpytorch.kernels import MaternKernel, ScaleKernel
from torch import Tensor

from benchmarks.scripts import print_rows, script_parser, write_benchmark
from surrogates.operators.kernel_matrix import Tiled, kernel_operator

LENGTHSCALE = 0.5


def eager_rows(X: Tensor, lengthscale: float, rows: int, W: Tensor) -> Tensor:
    """Return the plain product: 512 whole rows at a time,
    every elementwise operation over all of them.
    """
    parts = []
    for start in range(0, rows, 512):
        r = 3.0**0.5 * torch.cdist(X[start : start + 512], X) / lengthscale
        parts.append(((1.0 + r) * torch.exp(-r)) @ W)
    return torch.cat(parts)


def with_mode(mode: str, product: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def run() -> Tensor:
        os.environ["SCALABLE_BO_COMPILE"] = mode
        return product()

    return run


def time_in_turn(
    methods: dict[str, Callable[[], Tensor]], repeats: int, device: torch.device
) -> dict[str, float]:
    """Return the median seconds of each method, all of them timed once in every repeat."""
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for repeat in range(repeats + 1):
        for name, method in methods.items():
            started = time.perf_counter()
            method()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if repeat:  # the first call warms up, and compiles
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=4096, help="rows of the product that are timed")
    parser.add_argument("--dim", type=int, default=8)
    parser.add_argument("--columns", type=int, nargs="+", default=[1, 64, 256, 1000])
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()

    device = torch.device(arguments.device)
    results = measure(arguments, device)
    print_rows(
        f"k(A, X) @ W, {arguments.rows} x {arguments.n}, d = {arguments.dim}, {arguments.dtype}:"
        " ns an entry",
        ("columns", *map(str, arguments.columns)),
        rows_of(results),
        num_words=0,
    )
    settings = {**vars(arguments), "out": None, "lengthscale": LENGTHSCALE, "kernel": "Matérn-3/2"}
    write_benchmark(
        arguments.out, "kernel_product", device=device, settings=settings, results=results
    )


def measure(arguments: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """Return a row for each number of columns."""
    generator = torch.Generator().manual_seed(0)

    def drawn(draw: Callable[..., Tensor], *shape: int) -> Tensor:
        dtype = getattr(torch, arguments.dtype)
        return draw(*shape, generator=generator, dtype=dtype).to(device)

    X = drawn(torch.rand, arguments.n, arguments.dim)
    kernel = ScaleKernel(MaternKernel(nu=1.5)).to(X)
    kernel.base_kernel.lengthscale = LENGTHSCALE
    kernel.outputscale = 1.0
    K = kernel_operator(kernel, X[: arguments.rows], X, memory_budget=0)
    assert isinstance(K, Tiled)
    stored = drawn(torch.rand, arguments.rows, arguments.n)
    entries = arguments.rows * arguments.n
    results = []
    for columns in arguments.columns:
        W = drawn(torch.randn, arguments.n, columns)
        methods: dict[str, Callable[[], Tensor]] = {
            "gemm": partial(torch.matmul, stored, W),
            "tiled_compiled": with_mode("always", partial(operator.matmul, K, W)),
            "tiled_eager": with_mode("never", partial(operator.matmul, K, W)),
            "whole_rows_eager": partial(eager_rows, X, LENGTHSCALE, arguments.rows, W),
        }
        medians = time_in_turn(methods, arguments.repeats, device)
        results.append(
            {
                "columns": columns,
                "nanoseconds_per_entry": {
                    name: 1e9 * value / entries for name, value in medians.items()
                },
                "gflops": {
                    name: 2e-9 * entries * columns / value for name, value in medians.items()
                },
                "fraction_of_gemm": medians["gemm"] / medians["tiled_compiled"],
                "speedup_over_whole_rows": medians["whole_rows_eager"] / medians["tiled_compiled"],
            }
        )
    return results


def rows_of(results: list[dict[str, Any]]) -> list[list[str]]:
    """Return a row a method, and one for the comparison with a stored matrix."""
    times = [result["nanoseconds_per_entry"] for result in results]
    rows = [[name, *(f"{of[name]:.2f}" for of in times)] for name in times[0]]
    fractions = [f"{result['fraction_of_gemm']:.0%}" for result in results]
    return [*rows, ["tiled_compiled of gemm", *fractions]]


if __name__ == "__main__":
    main()
