"""Optimise a black box with a Study: by hand with ask and tell, or with optimize."""

# %% Minimise a cost of two parameters on different scales; some evaluations fail
import math
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt

from scalable_bo import Float, ParallelThompsonSampling, Space, Study


def cost(params: dict[str, float]) -> float:
    """Smallest, 0.1, at rate = 0.003 and width = 40; fails for large rates on wide models."""
    rate = params["rate"]
    width = params["width"]
    if rate * width > 20:
        return math.nan
    return 0.1 + math.log10(rate / 0.003) ** 2 + ((width - 40) / 60) ** 2


space = Space(rate=Float(1e-5, 1.0, log=True), width=Float(1, 200))

# %% Ask for points, evaluate them anywhere, and tell their values in any order. NaN means that an
# evaluation failed
sampler = partial(
    ParallelThompsonSampling, num_candidates=2000, num_rounds=10, num_starts=10, learning_rate=0.01
)
study = Study(space, maximize=False, seed=0, sampler=sampler)
for _ in range(3):
    batch = study.ask(10)
    study.tell(batch.ids, [cost(params) for params in batch.params])
print(
    f"ask and tell: {study.num_observations} values, {study.result.num_failed} failed, best"
    f" {study.result.best_value:.4f}"
)

# %% Or let the study do that for some more rounds
result = study.optimize(cost, rounds=3, batch=20)
print(
    f"optimize: {len(result.values)} values, best {result.best_value:.4f} at {result.best_params}"
)

# %% Plot all points, later ones darker
figure, axes = plt.subplots(figsize=(8, 4.5))
X = result.X.numpy()
points = axes.scatter(X[:, 0], X[:, 1], c=range(len(X)), cmap="Blues", edgecolors="#0072B2", s=25)
best = result.best_params
axes.plot(best["rate"], best["width"], "*", color="#D55E00", markersize=16, label="best")
axes.plot([20 / 200, 1.0], [200, 20], color="#777777", linestyle="--", label="fails beyond")
axes.set(xscale="log", xlabel="rate", ylabel="width", ylim=(0, 205))
axes.legend(loc="lower left")
figure.colorbar(points, label="evaluation")
Path("results").mkdir(exist_ok=True)
figure.savefig("results/optimize_black_box.png")
print("wrote results/optimize_black_box.png")
