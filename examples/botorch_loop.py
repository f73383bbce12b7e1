"""Use PathwiseGP where a BoTorch script has SingleTaskGP: with `optimize_acqf`,
and with large Thompson batches.
"""

# %% Maximise BoTorch's Hartmann function, six inputs on the unit cube; its maximum is 3.32
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.optim import optimize_acqf
from botorch.test_functions import Hartmann

from scalable_bo import ParallelThompsonSampling, PathwiseGP, fit_exact

problem = Hartmann(dim=6, negate=True)
bounds = problem.bounds.double()
torch.manual_seed(0)  # BoTorch's own starting points come from the global generator
X_initial = torch.rand(200, 6, dtype=torch.float64)
Y_initial = problem(X_initial).unsqueeze(1)
print(f"best of {len(X_initial)} random points: {Y_initial.max():.3f}")

# %% Choose four points a round by expected improvement
X = X_initial
Y = Y_initial
for number in range(1, 3):
    model = fit_exact(PathwiseGP(X, Y))
    improvement = qLogExpectedImprovement(model, best_f=Y.max())
    candidates, _ = optimize_acqf(
        improvement, bounds, q=4, num_restarts=2, raw_samples=32, options={"maxiter": 20}
    )
    X = torch.cat([X, candidates])
    Y = torch.cat([Y, problem(candidates).unsqueeze(1)])
    print(f"expected improvement, round {number}: {len(X)} points, best {Y.max():.3f}")

# %% Choose a hundred points a round by Thompson sampling: each maximises its own posterior path
Y_improved = Y
X = X_initial
Y = Y_initial
for number in range(1, 4):
    model = fit_exact(PathwiseGP(X, Y))
    sampler = ParallelThompsonSampling(
        model,
        bounds,
        num_candidates=2000,
        num_rounds=5,
        num_starts=5,
        learning_rate=0.01,
        seed=number,
    )
    candidates = sampler.generate(100)
    X = torch.cat([X, candidates])
    Y = torch.cat([Y, problem(candidates).unsqueeze(1)])
    print(f"Thompson sampling, round {number}: {len(X)} points, best {Y.max():.3f}")

# %% Plot the best value so far
figure, axes = plt.subplots(figsize=(8, 4))
for name, values in (("expected improvement, 4 a round", Y_improved), ("Thompson, 100 a round", Y)):
    best = values.squeeze(1).cummax(0).values
    axes.plot(range(len(X_initial), len(best) + 1), best[len(X_initial) - 1 :], label=name)
axes.axhline(3.32, color="#777777", linestyle="--", label="maximum")
axes.set(xlabel="evaluations", ylabel="best value so far")
axes.legend(loc="lower right")
Path("results").mkdir(exist_ok=True)
figure.savefig("results/botorch_loop.png")
print("wrote results/botorch_loop.png")
