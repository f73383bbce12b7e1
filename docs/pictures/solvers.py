"""Draw how solvers get on with one system: the residual over the kernel entries that they took."""

import sys

import matplotlib.pyplot as plt
import torch
from gpytorch.kernels import MaternKernel

import scalable_bo as sbo
from surrogates import KernelSystem, kernel_operator

n = 1500
generator = torch.Generator().manual_seed(0)
X = torch.rand(n, 4, generator=generator, dtype=torch.float64)
kernel = MaternKernel(nu=1.5).double()
kernel.lengthscale = 0.5
system = KernelSystem(kernel_operator(kernel, X), 1e-3)
rhs = torch.randn(n, 4, generator=generator, dtype=torch.float64)
solvers = {
    "conjugate gradients": sbo.CG(None, tolerance=1e-3, max_epochs=60),
    "preconditioned": sbo.CG(sbo.Nystrom(200), tolerance=1e-3, max_epochs=60),
    "sketch-and-project": sbo.SketchAndProject.asap(tolerance=1e-3, max_epochs=60),
    "stochastic dual descent": sbo.SDD(tolerance=1e-3, max_epochs=60),
}

figure, axes = plt.subplots(figsize=(8, 3.4))
for name, solver in solvers.items():
    moments = []
    solver.solve(system, rhs, callback=moments.append)
    seen = [moment for moment in moments if moment.residual < float("inf")]
    axes.plot([moment.epochs for moment in seen], [moment.residual for moment in seen], label=name)
axes.set(yscale="log", xlabel="epochs of n² kernel entries", ylabel="relative residual")
figure.legend(loc="outside lower center", ncols=4, fontsize="small")
figure.savefig(sys.argv[1], dpi=110)
