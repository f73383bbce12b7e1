"""Speed of the kernel product K(A, X) @ W against the eager whole-row version and the machine's GEMM rate.

    python benchmarks/kernel_product.py --out benchmarks/results/kernel_product.json

Matérn-3/2, d = 8, float32 by default. Every method is timed in turn, several times over, and medians are reported, so that ratios
hold on a noisy machine. ``fraction_of_gemm`` compares the whole product, kernel evaluation included, with a stored K times W.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from gpytorch.kernels import MaternKernel, ScaleKernel
from rich.console import Console
from rich.table import Table
from torch import Tensor

from scalable_bo.experiments.records import describe_environment, write_record
from surrogates.operators import KernelTiles
from surrogates.operators.tiles import tiled_matmul


def eager_rows(X: Tensor, lengthscale: float, rows: int) -> Callable[[Tensor], Tensor]:
    """Return the plain product: 512 whole rows at a time, every elementwise operation over all of them."""

    def product(W: Tensor) -> Tensor:
        parts = []
        for start in range(0, rows, 512):
            r = 3.0**0.5 * torch.cdist(X[start : start + 512], X) / lengthscale
            parts.append(((1.0 + r) * torch.exp(-r)) @ W)
        return torch.cat(parts)

    return product


def with_mode(mode: str, product: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def run(W: Tensor) -> Tensor:
        os.environ["SCALABLE_BO_COMPILE"] = mode
        return product(W)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=4096, help="rows of the product that are timed")
    parser.add_argument("--dim", type=int, default=8)
    parser.add_argument("--columns", type=int, nargs="+", default=[1, 64, 256, 1000])
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=None, help="JSON record to write")
    arguments = parser.parse_args()

    generator = torch.Generator().manual_seed(0)
    dtype, device, lengthscale = getattr(torch, arguments.dtype), torch.device(arguments.device), 0.5
    X = torch.rand(arguments.n, arguments.dim, generator=generator, dtype=dtype).to(device)
    kernel = ScaleKernel(MaternKernel(nu=1.5)).to(X)
    kernel.base_kernel.lengthscale, kernel.outputscale = lengthscale, 1.0
    tiles = KernelTiles.of(kernel, X[: arguments.rows], X)
    stored = torch.rand(arguments.rows, arguments.n, generator=generator, dtype=dtype).to(device)
    methods: dict[str, Callable[[Tensor], Tensor]] = {
        "gemm": lambda W: stored @ W,
        "tiled_compiled": with_mode("always", lambda W: tiled_matmul(tiles, W)),
        "tiled_eager": with_mode("never", lambda W: tiled_matmul(tiles, W)),
        "whole_rows_eager": eager_rows(X, lengthscale, arguments.rows),
    }

    results, entries = [], arguments.rows * arguments.n
    for columns in arguments.columns:
        W = torch.randn(arguments.n, columns, generator=generator, dtype=dtype).to(device)
        seconds: dict[str, list[float]] = {name: [] for name in methods}
        for repeat in range(arguments.repeats + 1):
            for name, method in methods.items():
                started = time.perf_counter()
                method(W)
                if device.type == "cuda":
                    torch.cuda.synchronize()
                if repeat:  # the first call warms up, and compiles
                    seconds[name].append(time.perf_counter() - started)
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        results.append(
            {
                "columns": columns,
                "nanoseconds_per_entry": {name: 1e9 * value / entries for name, value in medians.items()},
                "gemm_gflops": 2e-9 * entries * columns / medians["gemm"],
                "fraction_of_gemm": medians["gemm"] / medians["tiled_compiled"],
                "speedup_over_whole_rows": medians["whole_rows_eager"] / medians["tiled_compiled"],
            }
        )

    table = Table(title=f"k(A, X) @ W, {arguments.rows} x {arguments.n}, d = {arguments.dim}, {arguments.dtype}: ns an entry")
    for heading in ("columns", *methods, "of GEMM rate", "over whole rows"):
        table.add_column(heading, justify="right")
    for result in results:
        times = [f"{result['nanoseconds_per_entry'][name]:.2f}" for name in methods]
        table.add_row(str(result["columns"]), *times, f"{result['fraction_of_gemm']:.0%}", f"{result['speedup_over_whole_rows']:.1f}x")
    Console().print(table)
    if arguments.out is not None:
        settings = {**vars(arguments), "out": None, "lengthscale": lengthscale, "kernel": "Matérn-3/2"}
        write_record(
            arguments.out,
            {"benchmark": "kernel_product", "settings": settings, "environment": describe_environment(device), "results": results},
        )


if __name__ == "__main__":
    main()
