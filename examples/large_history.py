"""Expected improvement on a history of 50 000 points: the loop of a SingleTaskGP, with PathwiseGP
in its place.

An exact posterior would factorise a 50 000 × 50 000 matrix every round. Iterative solvers multiply
with its tiles, and factorise small matrices alone. `EXAMPLES=small` in the environment leaves 5000
points.
"""

# %% Maximise Hartmann's function of six inputs, with noise; its maximum is 3.32. Earlier campaigns
# have left many points, none above 2.5
import os
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.optim import optimize_acqf
from botorch.test_functions import Hartmann

from scalable_bo import PathwiseGP, fit

NUM_POINTS = 5_000 if os.environ.get("EXAMPLES") == "small" else 50_000
LARGEST = 2.5
NUM_ROUNDS = 2
hartmann = Hartmann(dim=6, negate=True, noise_std=0.1)
bounds = hartmann.bounds.double()
torch.manual_seed(0)  # noise and BoTorch's starting points come from the global generator
X = torch.rand(2 * NUM_POINTS, 6, dtype=torch.float64)
X = X[hartmann(X, noise=False) < LARGEST][:NUM_POINTS]
Y = hartmann(X).unsqueeze(1)

# %% Learn hyperparameters from a few neighbourhoods of the data
# (fit_gpytorch_mll(ExactMarginalLogLikelihood(...)) would do the same)
start = time.perf_counter()
model = fit(PathwiseGP(X, Y, num_paths=64), "subsets", num_subsets=5, progress=False)
seconds = time.perf_counter() - start
print(f"fit to {NUM_POINTS} points: {seconds:.1f} s, noise {model.likelihood.noise.item():.3f},")
lengthscales = model.covar_module.lengthscale.squeeze(0).tolist()
print("  lengthscales", ", ".join(f"{value:.2f}" for value in lengthscales))

# %% Choose four points a round. The model of the next round includes them, and its solve starts
# from this one's
for number in range(1, NUM_ROUNDS + 1):
    start = time.perf_counter()
    leaders = X[Y.squeeze(1).topk(200).indices]
    best = model.posterior(leaders).mean.max()  # the largest Y is mostly noise
    seconds = time.perf_counter() - start
    improvement = qLogExpectedImprovement(model, best_f=best)
    batch, _ = optimize_acqf(
        improvement, bounds, q=4, num_restarts=2, raw_samples=64, options={"maxiter": 30}
    )
    values = hartmann(batch).unsqueeze(1)
    print(
        f"round {number}: best mean {best:.2f}, best value of the batch"
        f" {hartmann(batch, noise=False).max():.2f}, {seconds:.1f} s for the solve,"
        f" {time.perf_counter() - start - seconds:.1f} s for expected improvement"
    )
    print(f"  {model.solution}")
    model = model.condition_on_observations(batch, values)
    X = torch.cat([X, batch])
    Y = torch.cat([Y, values])

# %% Plot the values of the history and of the rounds
figure, axes = plt.subplots(figsize=(8, 4))
axes.hist(hartmann(X[:NUM_POINTS], noise=False), bins=80, log=True, color="#0072B2")
for number, value in enumerate(hartmann(X[NUM_POINTS:], noise=False).tolist()):
    label = None if number else "points by expected improvement"
    axes.axvline(value, color="#D55E00", linewidth=1, label=label)
axes.axvline(3.32, color="#777777", linestyle="--", label="maximum")
axes.set(xlabel="Hartmann's function, without noise", ylabel=f"of {NUM_POINTS} points")
axes.legend(loc="upper left")
Path("results").mkdir(exist_ok=True)
figure.savefig("results/large_history.png")
print("wrote results/large_history.png")
