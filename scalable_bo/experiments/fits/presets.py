"""The benchmarks of fits by name: which cells, and what may be chosen in their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any

from scalable_bo.experiments.fits.batch_sizes import BatchSizeCell, MemoryCell
from scalable_bo.experiments.fits.cells import FitCell
from scalable_bo.experiments.fits.curvature import CurvatureCell
from scalable_bo.experiments.fits.recovery import STARTS, RecoveryCell
from scalable_bo.experiments.fits.scores import ScoreCell
from scalable_bo.experiments.regression_data import existing_data_set
from scalable_bo.experiments.simulators import SIMULATORS
from surrogates import checks

SINGULAR = {
    "methods": "method",
    "data_sets": "data",
    "kernels": "kernel",
    "seeds": "seed",
    "batch_sizes": "batch_size",
}


@dataclass(frozen=True)
class Preset:
    """A kind of cell, and the values of its arguments: a cell for every combination of those in
    ``grid``.

    Args:
        kind: of the cells.
        grid: values of arguments, the first varies slowest.
        fixed: arguments of all cells.
    """

    kind: type[FitCell]
    grid: dict[str, tuple[Any, ...]]
    fixed: dict[str, Any] = field(default_factory=dict)


PRESETS = {
    "recovery": Preset(
        RecoveryCell,
        {
            "method": (
                "uniform",
                "nearest",
                "subsets",
                "iterative",
                "exact",
                "sgpr",
                "scgd",
                "exact-features",
            ),
            "start": STARTS,
        },
    ),
    "penalty": Preset(
        RecoveryCell,
        {
            "method": (
                "minimax-0",
                "minimax-1",
                "minimax-10",
                "minimax-100",
                "minimax-1000",
                "exact-features",
            )
        },
        {"start": (3.0, 2.0), "seeds": (0, 1, 2)},
    ),
    "simulated": Preset(
        ScoreCell,
        {
            "data": tuple(SIMULATORS),
            "method": ("nearest", "uniform", "subsets", "sgpr"),
            "seed": (0,),
        },
    ),
    "real": Preset(
        ScoreCell,
        {
            "data": ("bike", "protein"),
            "method": ("nearest", "uniform", "subsets", "sgpr"),
            "seed": (0,),
        },
    ),
    "epochs": Preset(
        ScoreCell, {"data": ("protein",), "method": ("nearest",), "seed": (0,)}, {"tolerance": 0}
    ),
    "millions": Preset(
        ScoreCell,
        {"data": ("otl",), "method": ("nearest",), "seed": (0,)},
        {"n": 2_000_000, "max_epochs": 10},
    ),
    "batch-sizes": Preset(
        BatchSizeCell,
        {
            "kernel": ("linear", "gaussian"),
            "method": ("scgd", "minimax", "biased", "svgp"),
            "batch_size": (32, 128, 512),
            "seed": (0,),
        },
    ),
    "curvature": Preset(CurvatureCell, {"method": ("uniform", "nearest")}),
    "memory": Preset(MemoryCell, {"method": ("scgd", "minimax", "biased", "svgp")}),
}


def plan(preset: str, **choices: Any) -> list[FitCell]:
    """Return the cells of a preset.

    Args:
        preset: one of ``PRESETS``.
        choices: arguments of the cells in place of the preset's, or several values under the names
            in ``SINGULAR``; those that are ``None`` are left to the preset.
    Raises:
        TypeError, ValueError: if there is no such preset, it has no such argument, or a value is
            out of range.
    """
    chosen = PRESETS[checks.one_of("preset", preset, PRESETS)]
    arguments = {entry.name for entry in fields(chosen.kind)}
    grid = dict(chosen.grid)
    fixed = dict(chosen.fixed)
    for name, value in choices.items():
        if value is None:
            continue
        if name in arguments:
            fixed[name] = value
        elif SINGULAR.get(name) in arguments:
            single = SINGULAR[name]
            fixed.pop(single, None)
            grid[single] = tuple(value)
        else:
            raise ValueError(
                f"`{name}` does not go with the preset {preset}, got {value!r}. Leave it out."
            )
    return [
        chosen.kind(**fixed, **dict(zip(grid, values, strict=True)))
        for values in product(*grid.values())
    ]


def check_files(cells: Sequence[FitCell]) -> None:
    """Raise if a data set is not there, without reading it.

    Raises:
        ValueError: naming what is missing, and where it comes from.
    """
    for cell in cells:
        name = getattr(cell, "data", None)
        if name is not None and name not in SIMULATORS:
            existing_data_set(name, cell.data_dir)  # type: ignore[attr-defined]
