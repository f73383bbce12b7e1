"""Keep known constraints on inputs and measured constraints on outcomes:
qLogEI chooses a few points, a Thompson batch many.
"""

# %% Gramacy's problem: minimise x₀ + x₁ where two functions are at most 0, here also with x₀ ≥ x₁
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.acquisition.objective import GenericMCObjective
from botorch.optim import optimize_acqf
from botorch.test_functions.synthetic import ConstrainedGramacy

from scalable_bo import ParallelThompsonSampling, PathwiseGP, fit_exact

gramacy = ConstrainedGramacy()
bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
# BoTorch's form: x₀ − x₁ ≥ 0
half = [(torch.tensor([0, 1]), torch.tensor([1.0, -1.0], dtype=torch.float64), 0.0)]


def measure(X: torch.Tensor) -> torch.Tensor:
    """Return three outcomes (n, 3): what to minimise, and two that are feasible where ≤ 0."""
    return torch.cat([gramacy(X).unsqueeze(1), -gramacy.evaluate_slack(X)], 1)


def smallest(X: torch.Tensor, Y: torch.Tensor) -> float:
    """Return the smallest feasible value."""
    feasible = (Y[:, 1:] <= 0).all(1) & (X[:, 0] >= X[:, 1])
    return Y[feasible, 0].min().item() if feasible.any() else float("inf")


side = torch.linspace(0.0, 1.0, 1001, dtype=torch.float64)
grid = torch.cartesian_prod(side, side)
outcomes = measure(grid)
print(f"smallest feasible value on a grid of {len(grid)} points: {smallest(grid, outcomes):.4f}")
X_initial = torch.rand(12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y_initial = measure(X_initial)
print(f"in {len(X_initial)} random points: {smallest(X_initial, Y_initial):.4f}")

# %% Choose three points a round by expected improvement
torch.manual_seed(0)  # BoTorch's own starting points come from the global generator
X = X_initial
Y = Y_initial
for number in range(1, 4):
    improvement = qLogExpectedImprovement(
        fit_exact(PathwiseGP(X, Y)),
        best_f=-smallest(X, Y),
        objective=GenericMCObjective(lambda samples, X=None: -samples[..., 0]),
        constraints=[lambda samples: samples[..., 1], lambda samples: samples[..., 2]],
    )
    batch, _ = optimize_acqf(
        improvement, bounds, q=3, num_restarts=4, raw_samples=64, inequality_constraints=half
    )
    X = torch.cat([X, batch])
    Y = torch.cat([Y, measure(batch)])
    print(
        f"expected improvement, round {number}: {len(X)} points, smallest feasible value"
        f" {smallest(X, Y):.4f}"
    )

# %% Choose twenty points a round by Thompson sampling: each is the best feasible point of a joint
# draw of the three outcomes
X = X_initial
Y = Y_initial
batches = []
for number in range(1, 4):
    sampler = ParallelThompsonSampling(
        fit_exact(PathwiseGP(X, Y)),
        bounds,
        objective=lambda values: values[..., 0],
        outcome_constraints=[lambda values: values[..., 1], lambda values: values[..., 2]],
        inequality_constraints=half,
        maximize=False,
        num_candidates=2000,
        num_rounds=5,
        num_starts=5,
        seed=number,
    )
    batch = sampler.generate(20)
    batches.append(batch)
    X = torch.cat([X, batch])
    Y = torch.cat([Y, measure(batch)])
    share = (Y[-20:, 1:] <= 0).all(1).double().mean()
    print(
        f"Thompson sampling, round {number}: {len(X)} points, smallest feasible value"
        f" {smallest(X, Y):.4f}, {share:.0%} of the batch feasible"
    )

# %% Plot
figure, axes = plt.subplots(figsize=(6, 6))
feasible = ((outcomes[:, 1:] <= 0).all(1) & (grid[:, 0] >= grid[:, 1])).reshape(1001, 1001).T
axes.contourf(side, side, feasible, levels=[0.5, 1.5], colors=["0.9"])
axes.plot(side, side, color="0.5", linewidth=1, linestyle="--")
axes.plot(*X_initial.T, "x", color="0.4", markersize=5, clip_on=False, label="random points")
blues = ("#9ECAE1", "#4292C6", "#08306B")
for number, (batch, color) in enumerate(zip(batches, blues, strict=True), 1):
    style = {"color": color, "markersize": 9 - 2 * number, "clip_on": False}
    axes.plot(*batch.T, "o", label=f"Thompson batch {number}", **style)
best = grid[torch.where(feasible.T.flatten(), outcomes[:, 0], torch.inf).argmin()]
axes.plot(*best, "*", color="#D55E00", markersize=20, fillstyle="none", label="optimum")
axes.set(
    xlim=(0, 1), ylim=(0, 1), xlabel="x₀", ylabel="x₁", aspect="equal", title="Feasible where grey"
)
figure.legend(loc="outside lower center", ncols=3)
Path("results").mkdir(exist_ok=True)
figure.savefig("results/constrained.png")
print("wrote results/constrained.png")
