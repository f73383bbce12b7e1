"""Do Gaussian process regression on a million rows: hyperparameters come from samples of the data,
predictions and standard deviations from the nearest data of each point.

No matrix of the size of the data is made. `EXAMPLES=small` in the environment leaves 20 000
rows.
"""

# %% A noisy function of three inputs
import os
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel

from scalable_bo import PathwiseGP, fit_sample, predict_by_neighbours

NUM_ROWS = 20_000 if os.environ.get("EXAMPLES") == "small" else 1_000_000
NOISE = 0.1  # standard deviation
generator = torch.Generator().manual_seed(0)


def truth(X: torch.Tensor) -> torch.Tensor:
    return torch.sin(12 * X[:, 0]) * torch.cos(9 * X[:, 1]) + X[:, 2].square()


def uniform(count: int) -> torch.Tensor:
    return torch.rand(count, 3, generator=generator, dtype=torch.float64)


X = uniform(NUM_ROWS)
y = truth(X) + NOISE * torch.randn(NUM_ROWS, generator=generator, dtype=torch.float64)

# %% Learn hyperparameters by the exact likelihood of random samples; the model keeps all rows
start = time.perf_counter()
kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=3))
model = fit_sample(PathwiseGP(X, y.unsqueeze(1), covar_module=kernel))
found = model.likelihood.noise.sqrt().item() * y.std().item()  # the model has standardised y
print(f"fit to {NUM_ROWS} rows: {time.perf_counter() - start:.1f} s, noise ± {found:.3f}")

# %% Predict new points, and measure the errors
start = time.perf_counter()
X_new = uniform(5000)
mean, variance = predict_by_neighbours(model, X_new)
errors = mean.squeeze(1) - truth(X_new)
scores = errors / variance.squeeze(1).sqrt()
print(f"{len(X_new)} predictions: {time.perf_counter() - start:.1f} s")
print(f"root mean square error {errors.square().mean().sqrt():.4f}, the data's is {NOISE}")
print(f"within two standard deviations: {(scores.abs() < 2).double().mean():.1%}")

# %% Plot the prediction along a line through the cube, with the nearest rows
line = torch.full((200, 3), 0.5, dtype=torch.float64)
line[:, 0] = torch.linspace(0, 1, 200)
mean, variance = (values.squeeze(1) for values in predict_by_neighbours(model, line))
near = (X[:, 1:] - 0.5).abs().amax(1) < 0.5 * (100 / NUM_ROWS) ** 0.5
figure, axes = plt.subplots(figsize=(8, 4))
axes.plot(X[near, 0], y[near], ".", color="#BBBBBB", label=f"rows beside the line, {near.sum()}")
band = 2 * variance.sqrt()
axes.fill_between(line[:, 0], mean - band, mean + band, alpha=0.3, label="± 2 standard deviations")
axes.plot(line[:, 0], mean, color="#0072B2", label="mean")
axes.plot(line[:, 0], truth(line), "--", color="#D55E00", label="truth")
axes.set(xlabel="first input, the others 0.5", ylabel="f(x)", xlim=(0, 1))
figure.legend(loc="outside lower center", ncols=4)
Path("results").mkdir(exist_ok=True)
figure.savefig("results/million_rows.png")
print("wrote results/million_rows.png")
