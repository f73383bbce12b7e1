"""Draw a Thompson batch for the first page: functions of a posterior, and their maximisers."""

import sys

import matplotlib.pyplot as plt
import torch

import scalable_bo as sbo

X = torch.tensor([[0.04], [0.2], [0.31], [0.56], [0.68], [0.9]], dtype=torch.float64)
Y = torch.sin(9 * X) + 0.4 * torch.cos(23 * X)
model = sbo.PathwiseGP(X, Y, torch.full_like(Y, 1e-4), seed=0)
model.covar_module.lengthscale = 0.08
bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
paths = model.paths(6)
line = torch.linspace(0, 1, 400, dtype=torch.float64).unsqueeze(1)
values = paths(line).detach().squeeze(-1).T

figure, axes = plt.subplots(figsize=(8, 3.2))
axes.plot(line, values, linewidth=1.3, alpha=0.85)
best = values.argmax(0)
for column, row in enumerate(best.tolist()):
    axes.plot(line[row], values[row, column], "v", markersize=9, color=f"C{column}", zorder=3)
axes.plot(X, Y, "ko", markersize=5, label="values so far")
axes.plot([], [], "v", color="grey", label="next batch: where each function is largest")
axes.set(xlim=(0, 1), ylim=(-2.6, 3.4), xlabel="parameter", ylabel="objective")
axes.legend(loc="upper right", fontsize="small")
figure.savefig(sys.argv[1], dpi=110)
