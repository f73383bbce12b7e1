"""Choose a Thompson batch of 1000 points with a large history. A joint acquisition function would
optimise 6000 variables at once.
"""

# %% Maximise Hartmann's function of six inputs, with noise and a history of random points; its
# maximum is 3.32
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from botorch.test_functions import Hartmann

from scalable_bo import ParallelThompsonSampling, PathwiseGP, fit

NUM_POINTS = 10_000
BATCH_SIZE = 1000
hartmann = Hartmann(dim=6, negate=True, noise_std=0.1)
bounds = hartmann.bounds.double()
torch.manual_seed(0)  # of the noise
X = torch.rand(NUM_POINTS, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = hartmann(X).unsqueeze(1)
model = fit(PathwiseGP(X, Y), "subsets", num_subsets=3, num_steps=30, progress=False)

# %% Draw a thousand functions, and find the maximiser of each
start = time.perf_counter()
paths = model.paths(BATCH_SIZE)
print(f"{BATCH_SIZE} paths in {time.perf_counter() - start:.1f} s: {model.solution}")
start = time.perf_counter()
sampler = ParallelThompsonSampling(
    model, bounds, num_candidates=2000, num_rounds=3, num_starts=1, num_steps=20
)
batch = sampler.generate(BATCH_SIZE, paths=paths)
print(f"their maximisers in {time.perf_counter() - start:.1f} s")

# %% Evaluate the batch
values = hartmann(batch, noise=False)
distances = torch.pdist(batch)
for name, points in (("history", hartmann(X, noise=False)), ("batch", values)):
    print(f"{name}: best {points.max():.2f}, median {points.median():.2f}")
print(
    f"distances within the batch: at least {distances.min():.4f}, median {distances.median():.2f}"
)

# %% Plot the values of the history and of the batch
figure, axes = plt.subplots(figsize=(8, 4))
for name, points in (("history", hartmann(X, noise=False)), ("batch of 1000", values)):
    axes.hist(points, bins=60, range=(0, 3.4), density=True, alpha=0.7, label=name)
axes.axvline(3.32, color="#777777", linestyle="--", label="maximum")
axes.set(yscale="log", xlabel="Hartmann's function, without noise", ylabel="density")
axes.legend(loc="upper center")
Path("results").mkdir(exist_ok=True)
figure.savefig("results/thousand_points.png")
print("wrote results/thousand_points.png")
