"""Add 2500 past observations and ask for a batch of 50 points;
with SCALE = 1, 100 000 observations and 500 points.
"""

# %% Make a table of past observations, as from a database; some of its rows failed
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from scalable_bo import Categorical, Float, Space, Study

SCALE = 40
NUM_ROWS = 100_000 // SCALE
NUM_POINTS = max(50, 500 // SCALE)
space = Space(
    temperature=Float(20, 120),
    time=Float(1, 100, log=True),
    ratio=Float(0, 1),
    solvent=Categorical(["water", "ethanol"]),
)


def yield_of(frame: pd.DataFrame) -> pd.Series:
    """The yield of a reaction, at most 0.95, at 80 degrees, 20 minutes, ratio 0.6 in ethanol."""
    distance = (
        ((frame["temperature"] - 80) / 40) ** 2
        + np.log10(frame["time"] / 20) ** 2
        + (frame["ratio"] - 0.6) ** 2
    )
    return 0.95 * np.exp(-distance) * np.where(frame["solvent"] == "ethanol", 1.0, 0.7)


random = np.random.default_rng(0)
history = pd.DataFrame(
    {
        "temperature": random.uniform(20, 120, NUM_ROWS),
        "time": 10 ** random.uniform(0, 2, NUM_ROWS),
        "ratio": random.uniform(0, 1, NUM_ROWS),
        "solvent": random.choice(["water", "ethanol"], NUM_ROWS),
    }
)
history["yield"] = yield_of(history) + 0.05 * random.standard_normal(NUM_ROWS)
history.loc[::100, "yield"] = np.nan

# %% Read the columns by name; a second run adds nothing. Then ask for a batch, whose points each
# maximise a function of their own
with tempfile.TemporaryDirectory() as folder:
    history.to_parquet(file := Path(folder) / "history.parquet")
    with Study(space, maximize=True, seed=0, path=Path(folder) / "study") as study:
        start = time.perf_counter()
        study.add_data(file, target="yield")
        study.add_data(file, target="yield")  # does nothing
        added = time.perf_counter() - start
        batch = study.ask(NUM_POINTS)
        values = yield_of(pd.DataFrame(batch.params))
        study.tell(batch.ids, values)
        report = study.last_ask
        print(
            f"{study.num_observations} values, {study.num_failed} failed; added in {added:.1f} s,"
            f" {NUM_POINTS} points: fit {report.seconds_fit:.1f} s, solve"
            f" {report.seconds_solve:.1f} s, search {report.seconds_acquisition:.1f} s"
        )
        print(
            f"median yields, without noise: {yield_of(history).median():.2f} of the past,"
            f" {values.median():.2f} of the batch, whose best is {values.max():.3f}"
        )

# %% Plot the yields of the past and of the batch, without noise
figure, axes = plt.subplots(figsize=(8, 4))
for name, yields in (("past observations", yield_of(history)), ("batch", values)):
    axes.hist(yields, bins=40, range=(0, 1), density=True, alpha=0.7, label=name)
axes.set(xlabel="yield", ylabel="density", xlim=(0, 1))
axes.legend(loc="upper left")
Path("results").mkdir(exist_ok=True)
figure.savefig("results/past_observations.png")
print("wrote results/past_observations.png")
