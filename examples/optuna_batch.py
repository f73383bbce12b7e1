"""Use large Thompson batches in Optuna: the sampler takes mixed parameters,
and is asked for a hundred trials at once.
"""

# %% Minimise a cost of a float, a log-scaled float, an integer and a category
import math
from itertools import accumulate
from pathlib import Path

import matplotlib.pyplot as plt
import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from scalable_bo.integrations.optuna import ThompsonSampler

optuna.logging.set_verbosity(optuna.logging.WARNING)
SPACE = {
    "momentum": FloatDistribution(0.0, 0.99),
    "rate": FloatDistribution(1e-5, 1.0, log=True),
    "layers": IntDistribution(1, 8),
    "activation": CategoricalDistribution(["relu", "gelu", "tanh"]),
}


def cost(params: dict) -> float:
    """Smallest, 0, at momentum = 0.9, rate = 0.003, three layers, gelu."""
    activation = {"relu": 0.2, "gelu": 0.0, "tanh": 0.5}[params["activation"]]
    return (
        (params["momentum"] - 0.9) ** 2
        + math.log10(params["rate"] / 0.003) ** 2
        + 0.1 * (params["layers"] - 3) ** 2
        + activation
    )


# %% Ask for a hundred trials a round, evaluate them anywhere, and tell their values
study = optuna.create_study(sampler=ThompsonSampler(batch_size=100, n_startup_trials=20, seed=0))
for number in range(3):
    trials = [study.ask(SPACE) for _ in range(100)]
    for trial in trials:
        study.tell(trial, cost(trial.params))
    print(f"round {number}: {len(study.trials)} trials, best {study.best_value:.4f}")
print(study.best_params)

# %% Compare with random search
random = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
for _ in range(300):
    trial = random.ask(SPACE)
    random.tell(trial, cost(trial.params))
print(f"random search: {len(random.trials)} trials, best {random.best_value:.4f}")

# %% Plot the best value so far
figure, axes = plt.subplots(figsize=(8, 4))
for name, run in (("Thompson batches of 100", study), ("random search", random)):
    axes.plot(list(accumulate((trial.value for trial in run.trials), min)), label=name)
axes.set(yscale="log", xlabel="trials", ylabel="best value so far")
axes.legend(loc="upper right")
Path("results").mkdir(exist_ok=True)
figure.savefig("results/optuna_batch.png")
print("wrote results/optuna_batch.png")
