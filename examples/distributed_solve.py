"""Solve for a posterior with the data shared by several processes:
``torchrun --nproc-per-node 2 examples/distributed_solve.py``.
"""

import torch
from gpytorch.kernels import MaternKernel

import scalable_bo as sbo

# %% Every process runs this program on rows of its own; started without torchrun, it is the only
# one
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
    x = torch.full((1, 3), 0.5, device=device)
    mean = paths.mean(x).item()
    spread = paths(x).std().item()
    if system.rows.rank == 0:
        print(f"{system.rows.size} processes, {system.bytes_moved / 1e6:.1f} MB moved: {solution}")
        print(
            f"f(0.5, 0.5, 0.5) is about {mean:.2f} ± {spread:.2f}; the truth is"
            f" {3.0 * torch.sin(torch.tensor(3.0)):.2f}"
        )
