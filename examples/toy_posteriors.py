"""Compare posteriors by SGD, conjugate gradients and inducing points with the exact one, for dense
data and for data over a growing range.

Figure 1 of Lin et al. (2023), "Sampling from Gaussian Process Posteriors using Stochastic Gradient
Descent", with 2000 in place of 10 000 data.
"""

# %% Make two problems: more and more data in one place, which makes the kernel matrix
# ill-conditioned, and data over more and more space
import math
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from gpytorch.kernels import RBFKernel
from gpytorch.means import ZeroMean

from scalable_bo import CG, SGD, PathwiseGP, VariationalGP, gaussian_likelihood

N = 2000
NOISE = 0.5
NUM_PATHS = 100
generator = torch.Generator().manual_seed(0)
kernel = RBFKernel()
kernel.lengthscale = 0.5
prior = {"covar_module": kernel, "mean_module": ZeroMean(), "outcome_transform": None}
problems = {
    "infill": (torch.randn(N, 1, generator=generator), torch.linspace(-6, 6, 400)),
    "large domain": (0.25 * torch.arange(N).unsqueeze(1), torch.linspace(-3, 15, 400)),
}


def exact_posterior(
    X: torch.Tensor, y: torch.Tensor, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and standard deviation at x, in double precision."""
    K, k_x = (kernel(a, X).to_dense().detach().double() for a in (X, x))
    factor = torch.linalg.cholesky(K + NOISE * torch.eye(len(X)))
    half = torch.linalg.solve_triangular(factor, torch.cat([k_x.T, y.double()], 1), upper=False)
    features = half[:, :-1]
    targets = half[:, -1]
    return features.T @ targets, (1.0 - features.square().sum(0)).sqrt()


# %% Use three methods. The inducing points are ample for the first problem; the second has one for
# every five lengthscales
def models(name: str, X: torch.Tensor, y: torch.Tensor) -> dict[str, PathwiseGP]:
    shared = {**prior, "likelihood": gaussian_likelihood(NOISE)}
    step_size, num_inducing = {"infill": (0.5, 20), "large domain": (5.0, 200)}[name]
    sgd = SGD(step_size=step_size, batch_size=64, max_epochs=60)
    cg = CG(preconditioner=None, max_epochs=11)  # one product is for the residual
    return {
        "SGD, 60 epochs": PathwiseGP(X, y, solver=sgd, **shared),
        "CG, 10 iterations": PathwiseGP(X, y, solver=cg, **shared),
        "SVGP": VariationalGP(
            X, y, inducing_points=num_inducing, inducing_method="neighbours", **shared
        ),
    }


# %% Fit, compare and plot: a method in colour, the exact posterior dashed
BLUE = {"color": "#0072B2"}
DASHED = {"color": "black", "linewidth": 0.9, "linestyle": "--"}
figure, axes = plt.subplots(2, 3, figsize=(11, 5.5), sharex="row", sharey="row")
for row, (name, (X, x)) in zip(axes, problems.items(), strict=True):
    noise = math.sqrt(NOISE) * torch.randn(X.shape, generator=generator)
    y = torch.sin(2 * X) + torch.cos(5 * X) + noise
    x = x.unsqueeze(1)
    exact_mean, exact_std = exact_posterior(X, y, x)
    for axis, (method, model) in zip(row, models(name, X, y).items(), strict=True):
        started = time.perf_counter()
        paths = model.paths(NUM_PATHS, generator=torch.Generator().manual_seed(1))
        mean = paths.mean(x)
        values = paths(x)
        std = (values - mean).square().mean(0).sqrt()
        seconds = time.perf_counter() - started
        # Of two normal distributions, at each x
        distance = ((mean - exact_mean).square() + (std - exact_std).square()).sqrt()
        print(
            f"{name}, {method}: 2-Wasserstein distance {distance.mean():.2f} on average,"
            f" {distance.max():.2f} at most, {seconds:.1f} s"
        )

        shown = x.max() >= X
        position = x.squeeze(1)
        size = 2 if shown.sum() > 500 else 4
        dots = {"color": "#D55E00", "alpha": 0.35, "markeredgewidth": 0, "zorder": 1}
        axis.plot(X[shown], y[shown], "o", markersize=size, label="data", **dots)
        band = axis.fill_between(position, mean - 2 * std, mean + 2 * std, alpha=0.2, **BLUE)
        band.set(linewidth=0, label="mean ± 2 standard deviations")
        axis.plot(position, values[1:5].T, **BLUE, linewidth=0.5, alpha=0.6)
        axis.plot(position, values[0], **BLUE, linewidth=0.5, alpha=0.6, label="sample paths")
        axis.plot(position, mean, **BLUE, linewidth=1.5, label="mean")
        axis.plot(position, exact_mean, **DASHED, label="exact")
        for width in (-2, 2):
            axis.plot(position, exact_mean + width * exact_std, **DASHED)
        note = f", {len(model.inducing_points)} inducing points" if method == "SVGP" else ""
        axis.set_title(f"{name}: {method}{note}", fontsize=10)
        axis.set(ylim=(-4, 4), xlim=(x[0].item(), x[-1].item()))
handles = axes[0, 0].get_legend_handles_labels()
figure.legend(*handles, loc="outside lower center", ncols=5)
Path("results").mkdir(exist_ok=True)
figure.savefig("results/toy_posteriors.png")
print("wrote results/toy_posteriors.png")
