"""Draw functions from a posterior, evaluate them anywhere, and plot them."""

# %% Forty noisy observations of a function of one variable
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from scalable_bo import PathwiseGP, fit_exact

generator = torch.Generator().manual_seed(0)
X = torch.rand(40, 1, generator=generator, dtype=torch.float64)
X = 0.6 * X + 0.4 * (X > 0.5)  # none between 0.3 and 0.7
noise = 0.1 * torch.randn(40, 1, generator=generator, dtype=torch.float64)
y = torch.sin(12 * X) + 2 * X + noise

# %% A path is a function: the same call always returns the same values, at any number of points and
# with gradients
model = fit_exact(PathwiseGP(X, y))
paths = model.paths(200)
x = torch.linspace(-0.3, 1.3, 400, dtype=torch.float64).unsqueeze(1)
x.requires_grad_()
values = paths(x)
(slopes,) = torch.autograd.grad(values[0].sum(), x)
print(
    f"{paths.num_samples} paths at {x.shape[0]} points: {tuple(values.shape)}; steepest slope of"
    f" the first: {slopes.abs().max():.1f}"
)

# %% The paths spread like the posterior
mean = paths.mean(x).detach()
std = model.posterior(x).variance.sqrt().squeeze(-1).detach()
inside = ((values.detach() - mean).abs() < 2 * std).double().mean()
print(
    f"{100 * inside:.1f} % of their values lie within two posterior standard deviations of the mean"
)

# %% Plot
figure, axes = plt.subplots(figsize=(8, 4.5))
position = x.detach().squeeze(1)
axes.fill_between(
    position,
    mean - 2 * std,
    mean + 2 * std,
    color="#0072B2",
    alpha=0.15,
    linewidth=0,
    label="mean ± 2 standard deviations",
)
for i, path in enumerate(values.detach()[:12]):
    axes.plot(
        position,
        path,
        color="#0072B2",
        linewidth=0.7,
        alpha=0.7,
        label=None if i else "sample paths",
    )
axes.plot(position, mean, color="black", linewidth=1.5, label="posterior mean")
axes.plot(X, y, "o", color="#D55E00", markersize=4, label="observations")
axes.set(xlabel="x", ylabel="f(x)", xlim=(-0.3, 1.3))
figure.legend(loc="outside lower center", ncols=4)
Path("results").mkdir(exist_ok=True)
figure.savefig("results/sample_paths.png")
print("wrote results/sample_paths.png")
