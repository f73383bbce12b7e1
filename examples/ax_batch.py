"""Use large Thompson batches in Ax: single trials by its Client,
and one batch trial of 500 arms.
"""

# %% Maximise BoTorch's Hartmann function of six parameters; its maximum is 3.32
import logging
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from botorch.test_functions import Hartmann

from scalable_bo.integrations.ax import pathwise_generation_strategy

logging.disable(logging.INFO)  # Ax prints a line for every trial
NAMES = [f"x{i}" for i in range(6)]
hartmann = Hartmann(dim=6, negate=True)


def value(params: dict[str, float]) -> float:
    return hartmann(torch.tensor([params[name] for name in NAMES], dtype=torch.float64)).item()


client = Client()
client.configure_experiment(
    parameters=[
        RangeParameterConfig(name=name, parameter_type="float", bounds=(0.0, 1.0)) for name in NAMES
    ]
)
client.configure_optimization(objective="hartmann")
strategy = pathwise_generation_strategy(batch_size=40, num_initial=40)
client.set_generation_strategy(strategy)

# %% Rounds of 40 trials: Sobol points, then Thompson batches, each drawn at once
found = []
for number in range(3):
    trials = client.get_next_trials(max_trials=40)
    for index, params in trials.items():
        found.append(value(params))
        client.complete_trial(trial_index=index, raw_data={"hartmann": found[-1]})
    print(f"round {number}: {len(trials)} trials, best {max(found):.3f}")

# %% Ask for a batch trial of 500 arms in one call
start = time.perf_counter()
((run,),) = strategy.gen(experiment=client._experiment, n=500)
values = [value(arm.parameters) for arm in run.arms]
print(
    f"batch trial: {len(values)} arms in {time.perf_counter() - start:.1f} s, best"
    f" {max(values):.3f}, median {sorted(values)[250]:.3f}"
)

# %% Plot the trials in order, and the arms of the batch trial beside them
figure, axes = plt.subplots(figsize=(8, 4))
axes.plot(found, "o", color="#0072B2", markersize=3, label="trials, 40 a round")
axes.plot(range(len(found), len(found) + len(values)), values, "o", color="#D55E00", markersize=2)
axes.plot([], [], "o", color="#D55E00", label="500 arms of one batch trial")
axes.axhline(3.32, color="#777777", linestyle="--", label="maximum")
axes.set(xlabel="evaluation", ylabel="Hartmann's function")
axes.legend(loc="lower right")
Path("results").mkdir(exist_ok=True)
figure.savefig("results/ax_batch.png")
print("wrote results/ax_batch.png")
