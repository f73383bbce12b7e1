"""Run a small benchmark of Thompson sampling from Python: two solvers, two seeds and random search,
with a table and a plot.

`scalable-bo bench thompson` does the same from the command line, with the published settings as
presets.
"""

# %% Take a preset, and change some of its settings
from dataclasses import replace
from pathlib import Path

from scalable_bo.experiments.cells import run_cells
from scalable_bo.experiments.plots import plot_thompson
from scalable_bo.experiments.presets import find_preset
from scalable_bo.experiments.thompson.cell import ThompsonCell
from scalable_bo.experiments.thompson.table import summarise

preset = replace(find_preset("smoke"), name="example", num_initial=500, num_rounds=4, q=16, dim=6)
out = Path("results/example")

# %% Each cell writes a record with its settings, versions, and the value and cost of every round. A
# finished cell is kept, and an interrupted one continues
cells = [
    ThompsonCell(preset, solver, lengthscale=0.5, seed=seed)
    for solver in ("cg", "sdd")
    for seed in range(2)
]
found = {}
for cell, record, kept in run_cells(cells, out):
    print(cell.describe(record), "(kept)" if kept else "")
    found[cell.name] = record
records = list(found.values())

# %% Compare the runs: mean and standard error over seeds
for row in summarise(records):
    best, error = row.best_noiseless
    print(
        f"{row.name}: best {best:.3f} ± {error:.3f}, random search {row.random_search[0]:.3f},"
        f" worst residual {row.worst_residual:.0e}, {row.seconds_solve:.2f} s solve and"
        f" {row.seconds_acquisition:.2f} s acquisition a round"
    )
file = Path("results/thompson_benchmark.png")
plot_thompson(records, file)
print(f"wrote {file}")
