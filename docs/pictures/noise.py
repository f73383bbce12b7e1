"""Draw why the luckiest value is not the best point: noisy values, and the mean of a posterior."""

import sys

import matplotlib.pyplot as plt
import torch

import scalable_bo as sbo

generator = torch.Generator().manual_seed(4)
X = torch.rand(60, 1, generator=generator, dtype=torch.float64)
noise = 0.3 * torch.randn(60, 1, generator=generator, dtype=torch.float64)
Y = torch.sin(3 * X) + noise
model = sbo.fit_exact(sbo.PathwiseGP(X, Y))
line = torch.linspace(0, 1, 200, dtype=torch.float64).unsqueeze(1)
posterior = model.posterior(line)
mean = posterior.mean.detach().squeeze(1)
band = 2 * posterior.variance.detach().sqrt().squeeze(1)
recommended = int(model.posterior(X).mean.argmax())
luckiest = int(Y.argmax())

figure, axes = plt.subplots(figsize=(8, 3.2))
axes.fill_between(line[:, 0], mean - band, mean + band, alpha=0.2, linewidth=0)
axes.plot(line, mean, label="posterior mean, ± 2 standard deviations")
axes.plot(line, torch.sin(3 * line), "--", color="grey", label="the truth")
axes.plot(X, Y, "k.", markersize=5, label="values")
axes.plot(X[luckiest], Y[luckiest], "^", color="C3", markersize=10, label="the largest value")
axes.plot(X[recommended], Y[recommended], "s", color="C2", markersize=9, label="best_params")
axes.set(xlim=(0, 1), ylim=(-0.75, 2), xlabel="parameter", ylabel="objective")
axes.legend(loc="lower center", ncols=3, fontsize="small")
figure.savefig(sys.argv[1], dpi=110)
