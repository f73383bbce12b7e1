"""Draw mean ranks in two leagues, and the seconds of a Thompson round, from the records."""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt

from benchmarks.league.standings import divisions, standings
from scalable_bo.experiments.records import read_records

RESULTS = Path("benchmarks/results")
LEAGUES = {
    "optimisers": ("60 evaluations in batches of 5", "32 problems, 60 evaluations by 5"),
    "optimisers_large": ("1000 evaluations in batches of 100", "20 to 100 dimensions, 1000 by 100"),
}
NAMES = {"auto": "scalable_bo", "cma": "pycma", "sobol": "Sobol points"}
OURS, OTHERS = "#3949ab", "#b0b4c8"

figure, panels = plt.subplots(1, 3, figsize=(11, 3.2))


def bars(axes, values, title, label):
    names = sorted(values, key=values.get, reverse=True)
    colours = [OURS if name.startswith("scalable_bo") else OTHERS for name in names]
    drawn = axes.barh(names, [values[name] for name in names], color=colours)
    axes.bar_label(drawn, fmt="%.2f", padding=3, fontsize="small")
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel(label)
    axes.margins(x=0.15)


for axes, (folder, (wanted, title)) in zip(panels, LEAGUES.items(), strict=False):
    records = read_records(RESULTS / folder, "optimisers_*.json", ("optimisers",)).values()
    (division,) = (one for one in divisions(list(records)) if one.title == wanted)
    ranks = standings(division).set_index("optimiser")["mean_rank"].rename(NAMES)
    bars(axes, ranks.to_dict(), title, "mean rank, 1 is best")

seconds = {}
for record, way, name in (
    ("thompson_laptop", "cholesky", "scalable_bo, Cholesky()"),
    ("thompson_round", "botorch-10", "botorch, 10 paths\nat a time"),
    ("thompson_round", "botorch", "botorch, 100 paths\nat once"),
):
    summary = json.loads((RESULTS / f"{record}.json").read_text(encoding="utf-8"))["summary"][way]
    seconds[name] = summary["seconds_solve"] + summary["seconds_acquisition"]
bars(panels[2], seconds, "round of 100 among 5000 points", "seconds")
figure.savefig(sys.argv[1], dpi=110)
