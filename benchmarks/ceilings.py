"""What a device can do at best: matrix products by precision and size, factorisations; and kernel
products beside them.

    python benchmarks/ceilings.py --device cuda --out results/ceilings.json
    python benchmarks/ceilings.py --parts kernels --n 50000 --dtype float64

Products are A @ B of n × n matrices, in 10¹² operations a second (2 n³), with the error relative to
the largest entry of the product in float64; factorisations likewise (n³/3). Kernel products are
rows of K W, Matérn-3/2, n uniform points, every entry evaluated and multiplied by all columns, and
beside them a stored matrix times W; nanoseconds are those of an entry. Every time is the median of
several calls; the record is written after each. It has the rates, too, by which ``Auto`` chooses on
the device, the side of its tiles, and how much less factorising a block costs there beside a
product than on a CPU.
"""

import argparse
import operator
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from gpytorch.kernels import MaternKernel
from torch import Tensor

from benchmarks.scripts import script_parser, write_benchmark
from scalable_bo.cli.console import print_table
from scalable_bo.experiments.records import Stopwatch
from surrogates.operators.kernel_matrix import kernel_operator
from surrogates.operators.linalg import matmul
from surrogates.operators.rates import factorisation_advantage, rates_of
from surrogates.operators.tiles import tile_side

PRODUCTS = ("float32", "float64", "bfloat16")
KEYS = ("tera_operations", "error", "nanoseconds")


def timed(call: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Return the median seconds of a call, after a first one."""
    seconds = []
    for _ in range(repeats + 1):
        with Stopwatch(device) as watch:
            call()
        seconds.append(watch.seconds)
    return statistics.median(seconds[1:])


def matrix_products(
    arguments: argparse.Namespace, device: torch.device
) -> Iterator[dict[str, Any]]:
    for n in arguments.sizes:
        generator = torch.Generator().manual_seed(n)
        A, B = (torch.randn(n, n, generator=generator).to(device).double() for _ in range(2))
        exact = A @ B
        for name in PRODUCTS:
            call = partial(matmul, *(M.to(getattr(torch, name)) for M in (A, B)))
            error = (call().double() - exact).abs().max() / exact.abs().max()
            seconds = timed(call, device, arguments.repeats)
            yield {
                "what": f"product {name}",
                "n": n,
                "tera_operations": 2e-12 * n**3 / seconds,
                "error": error.item(),
            }


def factorisations(arguments: argparse.Namespace, device: torch.device) -> Iterator[dict[str, Any]]:
    for n in arguments.sizes:
        generator = torch.Generator().manual_seed(n)
        A = torch.randn(n, n, generator=generator).to(device).double()
        A = A @ A.T / n + torch.eye(n).to(A)
        for dtype in (torch.float32, torch.float64):
            call = partial(torch.linalg.cholesky, A.to(dtype))
            seconds = timed(call, device, arguments.repeats)
            yield {
                "what": f"cholesky {str(dtype).removeprefix('torch.')}",
                "n": n,
                "tera_operations": 1e-12 * n**3 / 3.0 / seconds,
            }


def kernels(arguments: argparse.Namespace, device: torch.device) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    dtype = getattr(torch, arguments.dtype)

    def drawn(draw: Callable[..., Tensor], *shape: int) -> Tensor:
        return draw(*shape, generator=generator, dtype=dtype).to(device)

    n, rows = arguments.n, min(arguments.rows, arguments.n)
    X = drawn(torch.rand, n, arguments.dim)
    kernel = MaternKernel(nu=1.5).to(X)
    kernel.lengthscale = 0.5
    K = kernel_operator(kernel, X[:rows], X, memory_budget=0)
    stored = drawn(torch.rand, rows, n)
    for columns in arguments.columns:
        W = drawn(torch.randn, n, columns)
        for name, matrix in (("kernel", K), ("stored", stored)):
            seconds = timed(partial(operator.matmul, matrix, W), device, arguments.repeats)
            yield {
                "what": f"{name} product, {columns} columns",
                "n": n,
                "tera_operations": 2e-12 * rows * n * columns / seconds,
                "nanoseconds": 1e9 * seconds / (rows * n),
            }


PARTS = {"products": matrix_products, "factorisations": factorisations, "kernels": kernels}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=tuple(PARTS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--n", type=int, default=20_000, help="points of the kernel products")
    parser.add_argument("--rows", type=int, default=4096, help="of a kernel product")
    parser.add_argument("--dim", type=int, default=8, help="of its points")
    parser.add_argument("--columns", type=int, nargs="+", default=[1, 64, 256, 1000])
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    arguments = parser.parse_args()

    device = torch.device(arguments.device)
    settings = {**vars(arguments), "out": None}
    rates = asdict(rates_of(device)) | {
        "tile_side": tile_side(device),
        "factorisation_advantage": factorisation_advantage(device),
    }
    results: list[dict[str, Any]] = []
    record = {"settings": settings, "rates": rates, "results": results}
    for part in arguments.parts:
        for result in PARTS[part](arguments, device):
            results.append(result)
            write_benchmark(arguments.out, "ceilings", device=device, **record)
    rows = [
        (
            result["what"],
            str(result["n"]),
            *(f"{result[key]:.3g}" if key in result else "" for key in KEYS),
        )
        for result in results
    ]
    numbers = ("n", "10¹² op-\nerations/s", "error", "ns an\nentry")
    print_table(f"{device}", ("",), numbers, rows)


if __name__ == "__main__":
    main()
