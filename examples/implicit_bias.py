"""See where a posterior by stochastic gradient descent is wrong long before its solve converges:
only at the borders of the data.

Figure 4 and Proposition 1 of Lin et al. (2023), "Sampling from Gaussian Process Posteriors using
Stochastic Gradient Descent".
"""

# %% Noisy data in two clusters
import math
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from gpytorch.kernels import RBFKernel
from gpytorch.means import ZeroMean

from scalable_bo import SGD, Cholesky, PathwiseGP, UnsolvedWarning, gaussian_likelihood

# What SGD has reached when it is stopped early is the subject here.
warnings.filterwarnings("ignore", category=UnsolvedWarning)

N = 1000
NOISE = 0.5
NUM_PATHS = 100
BUDGETS = (4, 20, 100)
generator = torch.Generator().manual_seed(0)
clusters = torch.tensor([-2.5, 2.0], dtype=torch.float64).repeat(N // 2)
X = (clusters + 0.7 * torch.randn(N, generator=generator, dtype=torch.float64)).unsqueeze(1)
noise = math.sqrt(NOISE) * torch.randn(X.shape, generator=generator, dtype=torch.float64)
y = torch.sin(2 * X) + torch.cos(5 * X) + noise
x = torch.linspace(-8, 8, 500, dtype=torch.float64).unsqueeze(1)

# %% Condition the same prior paths and noise exactly, and by longer and longer descents
kernel = RBFKernel().double()
kernel.lengthscale = 0.5
prior = {
    "covar_module": kernel,
    "mean_module": ZeroMean(),
    "likelihood": gaussian_likelihood(NOISE).double(),
    "outcome_transform": None,
}
solvers = {"exact": Cholesky()} | {
    f"{epochs} epochs": SGD(batch_size=50, max_epochs=epochs) for epochs in BUDGETS
}
means = {}
stds = {}
weights = {}
samples = {}
for name, solver in solvers.items():
    model = PathwiseGP(X, y, solver=solver, **prior)
    paths = model.paths(NUM_PATHS, generator=torch.Generator().manual_seed(1))
    samples[name] = paths(x)
    means[name] = paths.mean(x)
    weights[name] = paths.mean_weights
    stds[name] = (samples[name] - means[name]).square().mean(0).sqrt()
    print(f"{name}: relative residual of the mean {model.solution.residual[0]:.1e}")

# %% The 2-Wasserstein distance between the normal marginals at each x
labels = [name for name in solvers if name != "exact"]
distances = {
    name: ((means[name] - means["exact"]).square() + (stds[name] - stds["exact"]).square()).sqrt()
    for name in labels
}
density = torch.exp(-0.5 * ((x - X.T) / 0.15).square()).mean(1)
central = density > 0.1 * density.max()
for name in labels:
    print(
        f"{name}: distance {distances[name][central].mean():.3f} where data are dense,"
        f" {distances[name].max():.2f} at most"
    )

# %% Spectral basis functions u_i = Σ_j U_ji k(·, x_j) / √λ_i, with K = U Λ Uᵀ, and the error of the
# mean along each
eigenvalues, U = (part.flip(-1) for part in torch.linalg.eigh(kernel(X).to_dense().detach()))
shown = (1, 2, 3, 6, 12, 24)
index = torch.tensor(shown) - 1
basis = kernel(x, X).to_dense().detach() @ (U[:, index] / eigenvalues[index].sqrt())
# An eigenvector's sign is arbitrary
basis *= basis.gather(0, basis.abs().argmax(0, keepdim=True)).sign()
count = int((eigenvalues > 1e-8 * eigenvalues[0]).sum())
coordinates = {
    name: eigenvalues[:count].sqrt() * (U.T @ w)[:count, 0] for name, w in weights.items()
}
errors = {name: (coordinates[name] - coordinates["exact"]).abs() for name in labels}

# %% Plot
figure, axes = plt.subplots(2, 2, figsize=(11, 6.5))
(fit, distance), (functions, spectrum) = axes
position = x.squeeze(1)
last = labels[-1]
blues = dict(zip(labels, ("#9ECAE1", "#4292C6", "#08519C"), strict=True))
for axis in (fit, distance, functions):
    twin = axis.twinx()
    twin.fill_between(position, density, color="0.85", linewidth=0)
    twin.set(ylim=(0, 4 * density.max()), yticks=[])
    axis.set_zorder(twin.get_zorder() + 1)
    axis.patch.set_visible(False)
    axis.set(xlim=(-8, 8), xlabel="x")
low, high = (means[last] + width * stds[last] for width in (-2, 2))
fit.fill_between(position, low, high, color=blues[last], alpha=0.2, linewidth=0)
few = samples[last][:4].T
fit.plot(position, few[:, 1:], color=blues[last], linewidth=0.5, alpha=0.6)
fit.plot(position, few[:, 0], color=blues[last], linewidth=0.5, alpha=0.6, label="its paths")
fit.plot(position, means[last], color=blues[last], label=f"SGD, {last}: mean ± 2 std")
dashed = {"color": "black", "linewidth": 0.9, "linestyle": "--"}
fit.plot(position, means["exact"], label="exact", **dashed)
for width in (-2, 2):
    fit.plot(position, means["exact"] + width * stds["exact"], **dashed)
fit.set(title="Posterior", ylim=(-4, 4))
for name in labels:
    distance.plot(position, distances[name], color=blues[name], label=f"SGD, {name}")
    spectrum.semilogy(range(1, count + 1), errors[name], color=blues[name], label=f"SGD, {name}")
distance.set(title="2-Wasserstein distance to the exact marginal", ylim=(0, None))
for i, values in zip(shown, basis.T, strict=True):
    functions.plot(
        position, values, color=plt.cm.plasma(0.9 * shown.index(i) / len(shown)), label=f"i = {i}"
    )
functions.set(title="Spectral basis functions (grey: density of the data)")
exact = coordinates["exact"].abs()
spectrum.semilogy(range(1, count + 1), exact, label="exact mean itself", **dashed)
spectrum.set(xlabel="i", xlim=(1, count), ylim=(1e-4, None))
spectrum.set(title="Error of the mean along each basis function")
for axis in axes.flat:
    axis.legend(fontsize=8, loc="best" if axis is not functions else "upper left")
Path("results").mkdir(exist_ok=True)
figure.savefig("results/implicit_bias.png")
print("wrote results/implicit_bias.png")
