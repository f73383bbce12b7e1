"""Tune a scikit-learn model without waiting: a free worker gets a point at once,
while the others continue.
"""

# %% Train a model: that takes up to a second, depending on the parameters, and each run is recorded
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib.pyplot as plt
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.model_selection import cross_val_score

from scalable_bo import Float, Int, Space, Study

NUM_WORKERS = 2
X, y = load_breast_cancer(return_X_y=True)
space = Space(
    trees=Int(5, 50, log=True),
    depth=Int(1, 5),
    rate=Float(0.01, 1.0, log=True),
    share=Float(0.3, 1.0),
)
runs = []


def loss(params: dict) -> float:
    """The cross-validated log loss of boosted trees."""
    start = time.perf_counter()
    model = GradientBoostingClassifier(
        n_estimators=params["trees"],
        max_depth=params["depth"],
        learning_rate=params["rate"],
        subsample=params["share"],
        random_state=0,
    )
    value = -cross_val_score(model, X, y, cv=2, scoring="neg_log_loss").mean()
    runs.append((threading.get_ident(), start, time.perf_counter(), value))
    return value


# %% Optimise: the study asks ahead, so that a free worker finds a point
study = Study(space, maximize=False, seed=0)
with ThreadPoolExecutor(NUM_WORKERS) as workers:
    result = study.optimize(loss, rounds=3, batch=10, executor=workers, asynchronous=True)
print(f"log loss {result.best_value:.3f} with {result.best_params}")
busy = sum(end - start for _, start, end, _ in runs)
span = max(end for _, _, end, _ in runs) - min(start for _, start, _, _ in runs)
print(f"workers were busy {busy / (NUM_WORKERS * span):.0%} of {span:.1f} s")

# %% Plot the evaluations of each worker over time; darker is better
figure, axes = plt.subplots(figsize=(8, 2.5))
threads = sorted({thread for thread, *_ in runs})
begin = min(start for _, start, _, _ in runs)
shades = plt.get_cmap("viridis")
for thread, start, end, value in runs:
    row = threads.index(thread)
    color = shades(min(value / 0.5, 1.0))
    axes.barh(row, end - start, left=start - begin, color=color, edgecolor="white")
axes.set(xlabel="seconds", ylabel="worker", yticks=range(len(threads)))
Path("results").mkdir(exist_ok=True)
figure.savefig("results/tune_asynchronously.png")
print("wrote results/tune_asynchronously.png")
