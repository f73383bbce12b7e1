"""Stop stochastic gradient steps early instead of using a penalty: Figure 1 of Lin and Rosasco
(2017), and the same method as a regressor.

One hundred noisy values of f(x) = |x − 1/2| − 1/2; the noise, of standard deviation 1, hides nearly
all of f.
"""

# %% Fifty data sets, and the distance to f at 2000 points
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV

from scalable_bo import NystromSGM
from surrogates.regressors.nystrom_steps import descend, inverse_root

NUM_TRIALS = 50
N = 100
BANDWIDTH = 0.2
NUM_PASSES = 150
LEVELS = (2, 4, 6, 8, 10, 12)
generator = torch.Generator().manual_seed(0)


def f(x: torch.Tensor) -> torch.Tensor:
    return (x - 0.5).abs() - 0.5


def kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.exp(-0.5 * ((a.unsqueeze(-1) - b.unsqueeze(-2)) / BANDWIDTH).square())


def distances_by_pass(step_size: torch.Tensor, decay: float = 0.0) -> torch.Tensor:
    """Return the distances after every pass, (passes, trials), for all data sets at once."""
    start = torch.zeros(NUM_TRIALS, m, 1, dtype=torch.float64)
    passes = descend(lambda j: features[:, j], y, start, step_size, 1, NUM_PASSES, generator, decay)
    return torch.stack([distance((features_x @ c).squeeze(-1)) for c in passes])


def distance(predictions: torch.Tensor) -> torch.Tensor:
    return (predictions - f(x)).square().mean(-1).sqrt()


X = torch.rand(NUM_TRIALS, N, generator=generator, dtype=torch.float64)
y = f(X) + torch.randn(NUM_TRIALS, N, generator=generator, dtype=torch.float64)
x = torch.rand(2000, generator=generator, dtype=torch.float64)

# %% Take a step for each datum, with step size 1/(8n) and m centres, and measure the distance after
# every pass
step_size = torch.tensor([1 / (8 * N)], dtype=torch.float64)
curves = {}
for m in LEVELS:
    centers = X[:, :m]
    features = torch.zeros(NUM_TRIALS, N, m, dtype=torch.float64)
    features_x = torch.zeros(NUM_TRIALS, len(x), m, dtype=torch.float64)
    for trial, Z in enumerate(centers):
        root = inverse_root(kernel(Z, Z))
        features[trial, :, : root.shape[1]] = kernel(X[trial], Z) @ root
        features_x[trial, :, : root.shape[1]] = kernel(x, Z) @ root
    curves[m] = distances_by_pass(step_size)
    best = int(curves[m].mean(1).argmin())
    mean = curves[m][best].mean()
    spread = curves[m][best].std()
    print(
        f"m = {m:2d}: smallest distance {mean:.3f} ± {spread:.3f} after {best + 1} passes,"
        f" {curves[m][-1].mean():.3f} after {NUM_PASSES}"
    )

# %% Let the steps decay, η_t = η t^(−θ), η such that they are as long in all as the constant ones
for decay in (0.25, 0.5):
    longer = step_size * (1 - decay) * (N * NUM_PASSES) ** decay
    decayed = distances_by_pass(longer, decay)
    best = int(decayed.mean(1).argmin())
    print(
        f"m = {m:2d}, θ = {decay}: smallest distance {decayed[best].mean():.3f} after {best + 1}"
        " passes"
    )

# %% Without knowing f, stop by held-out data, or choose a penalty by cross-validation
step = 1 / (8 * N**0.5)
sgm = NystromSGM(BANDWIDTH, num_centers=8, step_size=step, validation_fraction=0.2, random_state=0)
penalties = {"alpha": [0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]}
kernel_ridge = KernelRidge(kernel="rbf", gamma=0.5 / BANDWIDTH**2)
search = GridSearchCV(kernel_ridge, penalties, scoring="neg_mean_squared_error")
data = list(zip(X.unsqueeze(-1).numpy(), y.numpy(), strict=True))
points = x.unsqueeze(-1).numpy()
stopped, ridge = (
    torch.stack([distance(torch.from_numpy(model.fit(*one).predict(points))) for one in data])
    for model in (sgm, search)
)
zero = distance(torch.zeros_like(x))
print(f"NystromSGM, passes chosen on a held-out fifth: {stopped.mean():.3f} ± {stopped.std():.3f}")
print(
    f"kernel ridge regression, penalty chosen by cross-validation: {ridge.mean():.3f} ±"
    f" {ridge.std():.3f}; f = 0: {zero:.3f}"
)

# %% Plot
figure, axes = plt.subplots(2, 3, figsize=(9, 5), sharex=True, sharey=True)
position = torch.arange(1, NUM_PASSES + 1)
blue = {"color": "#0072B2"}
for axis, m in zip(axes.flat, LEVELS, strict=True):
    mean = curves[m].mean(1)
    spread = curves[m].std(1)
    best = int(curves[m].mean(1).argmin())
    band = axis.fill_between(position, mean - spread, mean + spread, alpha=0.15, **blue)
    band.set(linewidth=0, label="± 1 standard deviation")
    axis.plot(position, mean, label="Nyström SGM, mean of 50", **blue)
    axis.plot(best + 1, mean[best], "o", markersize=5, label="smallest", **blue)
    axis.axhline(
        ridge.mean(), color="#D55E00", linewidth=1, linestyle="--", label="cross-validated ridge"
    )
    below = {"xytext": (0, -13), "textcoords": "offset points", "ha": "center"}
    axis.annotate(f"{mean[best]:.3f}", (best + 1, mean[best]), **below, **blue)
    axis.set_title(f"m = {m} centres", fontsize=10)
axes[0, 0].set(xlim=(0, NUM_PASSES), ylim=(0, None))
for axis in axes[1]:
    axis.set_xlabel("passes over the data")
figure.supylabel("distance to f (root mean square)", fontsize=10)
figure.legend(
    *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9
)
Path("results").mkdir(exist_ok=True)
figure.savefig("results/nystrom_sgm.png")
print("wrote results/nystrom_sgm.png")
