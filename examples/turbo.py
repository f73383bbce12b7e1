"""TuRBO with batches of 100: Thompson sampling in a trust region that grows with success and
shrinks with failure.

The league in `benchmarks/` compares it with BoTorch's TuRBO tutorial, which uses a SingleTaskGP and
random candidates.
"""

# %% Maximise Ackley's function of 20 inputs, scaled to the unit cube; its maximum is 0
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from botorch.test_functions import Ackley
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.constraints import Interval
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood

from scalable_bo import ParallelThompsonSampling, PathwiseGP, TrustRegion, fit_subsets

DIM = 20
BATCH_SIZE = 100
NUM_INITIAL = 200
NUM_ROUNDS = 6
SEARCH = {"num_candidates": 5000, "num_rounds": 5, "num_starts": 5, "num_steps": 50}
ackley = Ackley(dim=DIM, negate=True, bounds=[(-5.0, 10.0)] * DIM)
bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64).repeat(1, DIM)


def evaluate(X: torch.Tensor) -> torch.Tensor:
    return ackley(15.0 * X - 5.0).unsqueeze(1)


X = draw_sobol_samples(bounds, NUM_INITIAL, 1, seed=0).squeeze(1)
Y = evaluate(X)
print(f"best of {NUM_INITIAL} Sobol points: {Y.max():.2f}")

# %% The region is a value: each round returns the next region, which gives the part of the box
# around the best point
region = TrustRegion(DIM, BATCH_SIZE).update(Y)
# Bounds keep a fit to a few hundred values from taking a function of many inputs for noise, or for
# one of a few inputs alone; every fit starts where the last one ended
scales = Interval(0.005, 4.0)
kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=DIM, lengthscale_constraint=scales)).double()
likelihood = GaussianLikelihood(noise_constraint=Interval(1e-8, 1e-3)).double()
for number in range(1, NUM_ROUNDS + 1):
    start = time.perf_counter()
    model = PathwiseGP(X, Y, covar_module=kernel, likelihood=likelihood)
    fit_subsets(model, num_subsets=2, num_steps=30)
    batch = ParallelThompsonSampling(model, bounds, trust_region=region, **SEARCH).generate(
        BATCH_SIZE
    )
    seconds = time.perf_counter() - start
    values = evaluate(batch)
    X = torch.cat([X, batch])
    Y = torch.cat([Y, values])
    region = region.update(values)
    print(
        f"round {number}: {len(X)} evaluations, best {Y.max():.2f}, median of the batch"
        f" {values.median():.2f}, next length {region.length:g}, {seconds:.1f} s"
    )
    if region.restart:
        break  # it has shrunk to nothing: begin another from new points

# %% Compare with random search
random = torch.rand(len(X), DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
print(f"random search: {len(X)} evaluations, best {evaluate(random).max():.2f}")

# %% Plot each value, and the best so far
figure, axes = plt.subplots(figsize=(8, 4))
axes.plot(Y.squeeze(1), "o", color="#0072B2", markersize=2, alpha=0.5, label="an evaluation")
axes.plot(Y.squeeze(1).cummax(0).values, color="#D55E00", label="best so far")
best_at_random = evaluate(random).squeeze(1).cummax(0).values
axes.plot(best_at_random, color="#777777", linestyle="--", label="random search")
axes.set(xlabel="evaluations", ylabel="Ackley's function, negated")
axes.legend(loc="lower right")
Path("results").mkdir(exist_ok=True)
figure.savefig("results/turbo.png")
print("wrote results/turbo.png")
