"""The posterior mean over two parameters, as the report and the live page draw it."""

from __future__ import annotations

import numpy as np
import torch

from scalable_bo.report.charts import WIDTH, Panel, Scale, figure, shorten
from scalable_bo.report.plots import LONGEST_NAME, Chart, Slice, scale_of, thin
from scalable_bo.report.snapshot import Snapshot

SIDE = 41  # points along a parameter
NUM_LEVELS = 10
FAINTEST = 0.05  # opacity of the lowest level
MAX_DOTS = 200
HEIGHT = 320.0


def contour_of_mean(snapshot: Snapshot, slices: list[Slice], best: int) -> Chart | None:
    """Draw the mean over the two parameters along which it changes most, all others as in row
    ``best``, and the observed points; ``None`` where there are not two.
    """
    if len(slices) < 2 or snapshot.mean is None:
        return None
    names = [found.name for found in slices[:2]]
    params = [snapshot.space.params[name] for name in names]
    columns = [snapshot.space.names.index(name) for name in names]
    x, y = (param.spread(SIDE).numpy() for param in params)
    X = snapshot.rows.X[best].repeat(len(y) * len(x), 1)
    X[:, columns[0]] = torch.from_numpy(np.tile(x, len(y)))
    X[:, columns[1]] = torch.from_numpy(np.repeat(y, len(x)))
    mean = snapshot.mean(snapshot.space.completed(X)).numpy().reshape(len(y), len(x))
    across, up = map(scale_of, params)
    box = (70.0, 28.0, WIDTH - 80, HEIGHT)
    panel = Panel(across, up, *box)
    panel.axes(shorten(names[0], LONGEST_NAME), shorten(names[1], LONGEST_NAME))
    cells = Panel(Scale(0, 1), Scale(0, 1), *box)
    _fill(cells, across.place(x), up.place(y), mean)
    ids = np.array(snapshot.rows.observed)
    kept = ids[thin(len(ids), MAX_DOTS)]
    at = snapshot.rows.X.numpy()[:, columns]
    kept = kept[np.isfinite(at[kept]).all(1)]
    dots = Panel(across, up, *box)
    values = snapshot.rows.values.numpy()
    titles = [f"row {row}: {values[row]:.6g}" for row in kept]
    dots.dots(at[kept, 0], at[kept, 1], "point", titles)
    dots.dots(at[[best], 0], at[[best], 1], "best", [f"row {best}, the best"], radius=5)
    notes = [f"The stronger the blue, the higher: from {mean.min():.4g} to {mean.max():.4g}."]
    notes += [f"{len(kept)} of {len(ids)} points are drawn."] * (len(kept) < len(ids))
    return Chart(
        figure(
            [*panel.parts, *cells.parts, *dots.parts],
            WIDTH,
            HEIGHT + 76,
            f"posterior mean over {names[0]} and {names[1]}",
        ),
        " ".join(notes),
    )


def _fill(panel: Panel, x: np.ndarray, y: np.ndarray, mean: np.ndarray) -> None:
    """Draw an area for each run of cells of one level in a row, about places x and y."""
    low = mean.min()
    spread = mean.max() - low or 1.0
    levels = np.minimum((NUM_LEVELS * (mean - low) / spread).astype(int), NUM_LEVELS - 1)
    across = _edges(x)
    up = _edges(y)
    for row, of_row in enumerate(levels):
        ends = np.append(np.flatnonzero(np.diff(of_row)) + 1, len(x))
        for start, end in zip(np.append(0, ends), ends, strict=False):
            opacity = FAINTEST + (1 - FAINTEST) * of_row[start] / (NUM_LEVELS - 1)
            panel.area((across[start], across[end]), (up[row], up[row + 1]), "level", opacity)


def _edges(places: np.ndarray) -> np.ndarray:
    """Return the edges of cells about places in [0, 1], from 0 to 1."""
    return np.concatenate([[0.0], (places[1:] + places[:-1]) / 2, [1.0]])
