"""Run a small Thompson-sampling benchmark from Python: two solvers, two seeds, random search
beside, a table and a plot.

`scalable-bo bench thompson` does the same from the command line, with the published settings as
presets.
"""

# %% Settings are a preset, or one with changes
from dataclasses import replace
from pathlib import Path

from scalable_bo.experiments.plots import plot_thompson
from scalable_bo.experiments.presets import find_preset
from scalable_bo.experiments.records import write_record
from scalable_bo.experiments.thompson import ThompsonRun, describe_round, run_thompson, summarise

preset = replace(find_preset("smoke"), name="example", num_initial=500, num_rounds=4, q=16, dim=6)
out = Path("results/example")

# %% A run returns its record: settings, versions, and what every round found and cost
records = []
for solver in ("cg", "sdd"):
    for seed in range(2):
        run = ThompsonRun(preset, solver, lengthscale=0.5, seed=seed)
        record = run_thompson(run)
        print(describe_round(record))
        write_record(out / f"{run.name}.json", record)
        records.append(record)

# %% Compare the runs: mean and standard error over seeds
for row in summarise(records):
    best, error = row.best_noiseless
    print(
        f"{row.solver}: best {best:.3f} ± {error:.3f}, random search {row.random_search[0]:.3f},"
        f" worst residual {row.worst_residual:.0e}, {row.seconds_solve:.2f} s solve and"
        f" {row.seconds_acquisition:.2f} s acquisition a round"
    )
plot_thompson(records, out / "thompson.png")
print(f"wrote {out / 'thompson.png'}")
