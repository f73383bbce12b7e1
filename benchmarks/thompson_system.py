"""Ten epochs of every iterative solver on the system of a Thompson round, side by side in one run.

    python benchmarks/thompson_system.py --out benchmarks/results/thompson_system.json

Matérn-3/2, d = 8, n = 20 000 uniform points, σ² = 1e-6, 100 columns of noisy prior draws, float32.
`adasap` has the published settings of the Bayesian optimisation experiments (blocks of n/5, Nyström
sketches of rank 100, acceleration with μ = σ², tail averaging), `auto` is kept from the direct
solve, and `auto-0.9` has nine tenths of the epochs. The kernel matrix is kept, so that products
cost the same to all.
"""

from typing import Any

import torch
from gpytorch.kernels import MaternKernel
from rich.console import Console

from scalable_bo.experiments.scripts import script_parser, write_benchmark
from surrogates import (
    CG,
    SDD,
    Auto,
    KernelSystem,
    PriorPaths,
    SketchAndProject,
    Solver,
    kernel_operator,
)

DIM = 8
NOISE = 1e-6
UNREACHED = 1e-7  # a tolerance that makes every solver spend its budget


def solvers(n: int, epochs: float, block_size: int | None = None) -> dict[str, Solver]:
    """Return the solvers by name; ``block_size`` takes the place of n/5."""
    budget: dict[str, Any] = {"tolerance": UNREACHED, "max_epochs": epochs}
    blocks: dict[str, Any] = {"block_size": block_size or n // 5}
    return {
        "adasap": SketchAndProject.adasap(**blocks, **budget),
        "auto": Auto(tolerance=1e-4, max_epochs=epochs, direct=False),
        "auto-0.9": Auto(tolerance=1e-4, max_epochs=0.9 * epochs, direct=False),
        "asap": SketchAndProject.asap(**budget),
        "asap-n/5": SketchAndProject.asap(**blocks, **budget),
        "sap-n/5": SketchAndProject.sap(**blocks, **budget),
        "cg": CG(**budget),
        "sdd": SDD(**budget),
    }


def drawn_system(
    n: int, columns: int, lengthscale: float, device: torch.device
) -> tuple[KernelSystem, torch.Tensor]:
    """Return the system of n uniform points, and noisy prior draws at them."""
    generator = torch.Generator().manual_seed(0)
    kernel = MaternKernel(nu=1.5).requires_grad_(False)
    kernel.lengthscale = lengthscale
    kernel.to(device)
    X = torch.rand(n, DIM, generator=generator).to(device)
    prior = PriorPaths.draw(kernel, DIM, columns, num_features=2000, generator=generator, like=X)
    B = prior(X) + NOISE**0.5 * torch.randn(columns, n, generator=generator).to(device)
    return KernelSystem(kernel_operator(kernel, X), NOISE), B.T.contiguous()


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument(
        "--epochs", type=float, default=10.0, help="budget, the evaluation of the residual included"
    )
    parser.add_argument("--lengthscales", default="0.5,2")
    parser.add_argument("--block-size", type=int, default=None, help="in place of n/5")
    parser.add_argument("--solvers", default=None, help="only these, separated by commas")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    wanted = None if arguments.solvers is None else arguments.solvers.split(",")
    settings = {
        "n": arguments.n,
        "dim": DIM,
        "noise": NOISE,
        "columns": arguments.columns,
        "epochs": arguments.epochs,
        "block_size": arguments.block_size,
    }
    console = Console()
    runs = []
    for lengthscale in map(float, arguments.lengthscales.split(",")):
        system, B = drawn_system(arguments.n, arguments.columns, lengthscale, device)
        for name, solver in solvers(arguments.n, arguments.epochs, arguments.block_size).items():
            if wanted is not None and name not in wanted:
                continue
            solution = solver.solve(system, B)
            runs.append(
                {
                    "lengthscale": lengthscale,
                    "solver": name,
                    "residual_median": solution.residual.median().item(),
                    "residual_max": solution.residual.max().item(),
                    "epochs": solution.epochs,
                    "seconds": solution.seconds,
                    "note": solution.note,
                }
            )
            row = runs[-1]
            console.print(
                f"lengthscale {lengthscale:g} {name:9s} residual {row['residual_median']:.1e}"
                f" (largest {row['residual_max']:.1e}), {row['epochs']:.1f} epochs,"
                f" {row['seconds']:.1f} s  {row['note']}",
                soft_wrap=True,
                highlight=False,
            )
            write_benchmark(
                arguments.out, "thompson_system", device=device, settings=settings, runs=runs
            )


if __name__ == "__main__":
    main()
