"""Solve for a posterior with the data shared by several processes:
``torchrun --nproc-per-node 2 examples/distributed_solve.py``.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from gpytorch.kernels import MaternKernel

import scalable_bo as sbo

# %% Every process runs this program on its own rows; without torchrun there is one process
with sbo.processes(timeout_seconds=60.0) as device:
    n = 3000
    kernel = MaternKernel(nu=1.5).to(device)
    kernel.lengthscale = 0.5
    rows = sbo.own_rows(n)
    # Large data: read these rows alone
    X = torch.rand(n, 3, generator=torch.Generator().manual_seed(1))[rows].to(device)
    y = torch.sin(6.0 * X).sum(1)

    # %% One solve of all data: the mean and 16 sample paths, saved every ten minutes in case the
    # run is cut short
    system = sbo.DistributedKernelSystem(kernel, X, noise=0.01)
    solver = sbo.SketchAndProject.asap(checkpoint=sbo.Checkpoint("results/distributed_solve"))
    paths, solution = sbo.shared_paths(system, y, num_samples=16, solver=solver)

    # %% All processes evaluate the paths together, and get the same values
    along = torch.linspace(0.0, 1.0, 101)
    x = along[:, None].repeat(1, 3).to(device)
    mean = paths.mean(x).cpu()
    drawn = paths(x).cpu()
    if system.rows.rank == 0:
        print(f"{system.rows.size} processes, {system.bytes_moved / 1e6:.1f} MB moved: {solution}")
        print(
            f"f(0.5, 0.5, 0.5) is about {mean[50]:.2f} ± {drawn[:, 50].std():.2f}; the truth is"
            f" {3.0 * torch.sin(torch.tensor(3.0)):.2f}"
        )
        # %% Plot: the paths along the diagonal
        figure, axes = plt.subplots(figsize=(8, 4))
        axes.plot(along, drawn.T, color="#0072B2", linewidth=0.7, alpha=0.6)
        axes.plot([], [], color="#0072B2", label="sample paths")
        axes.plot(along, mean, color="black", label="mean")
        axes.plot(along, 3.0 * torch.sin(6.0 * along), "--", color="#D55E00", label="truth")
        axes.set(xlabel="x, along (x, x, x)", ylabel="f(x)", xlim=(0, 1))
        axes.legend(loc="upper right")
        Path("results").mkdir(exist_ok=True)
        figure.savefig("results/distributed_solve.png")
        print("wrote results/distributed_solve.png")
