"""The benchmarks of fits by name: their cells, and choices in place of theirs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any

from benchmarks.fits.batch_sizes import (
    BATCH_METHODS,
    KERNELS,
    BatchSizeCell,
    MemoryCell,
)
from benchmarks.fits.cell import FitCell
from benchmarks.fits.curvature import SAMPLINGS, CurvatureCell
from benchmarks.fits.recovery import OF_FEATURES, STARTS, RecoveryCell
from benchmarks.fits.scores import ScoreCell
from benchmarks.fits.simulators import SIMULATORS
from surrogates import checks

SINGULAR = {
    "methods": "method",
    "data_sets": "data",
    "kernels": "kernel",
    "seeds": "seed",
    "batch_sizes": "batch_size",
}


@dataclass(frozen=True)
class FitPreset:
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


_ON_DATA = {"method": ("nearest", "uniform", "subsets", "sgpr"), "seed": (0,)}
_NEAREST = {"method": ("nearest",), "seed": (0,)}
FIT_PRESETS = {
    "recovery": FitPreset(
        RecoveryCell,
        {
            "method": (
                *("uniform", "nearest", "subsets", "iterative", "exact", "sgpr", "scgd"),
                "exact-features",
            ),
            "start": STARTS,
        },
    ),
    "penalty": FitPreset(
        RecoveryCell,
        {"method": tuple(name for name in OF_FEATURES if name != "scgd")},
        {"start": (3.0, 2.0), "seeds": (0, 1, 2)},
    ),
    "simulated": FitPreset(ScoreCell, {"data": tuple(SIMULATORS)} | _ON_DATA),
    "real": FitPreset(ScoreCell, {"data": ("bike", "protein")} | _ON_DATA),
    "epochs": FitPreset(ScoreCell, {"data": ("protein",)} | _NEAREST, {"tolerance": 0}),
    "millions": FitPreset(
        ScoreCell, {"data": ("otl",)} | _NEAREST, {"n": 2_000_000, "max_epochs": 10}
    ),
    "batch-sizes": FitPreset(
        BatchSizeCell,
        {
            "kernel": KERNELS,
            "method": tuple(BATCH_METHODS),
            "batch_size": (32, 128, 512),
            "seed": (0,),
        },
    ),
    "curvature": FitPreset(CurvatureCell, {"method": SAMPLINGS}),
    "memory": FitPreset(MemoryCell, {"method": tuple(BATCH_METHODS)}),
}


def plan(preset: str, **choices: Any) -> list[FitCell]:
    """Return the cells of a preset.

    Args:
        preset: one of ``FIT_PRESETS``.
        choices: arguments of the cells in place of the preset's, or several values under the names
            in ``SINGULAR``; those that are ``None`` are left to the preset.
    Raises:
        TypeError, ValueError: if there is no such preset, it has no such argument, or a value is
            out of range.
    """
    chosen = FIT_PRESETS[checks.one_of("preset", preset, FIT_PRESETS)]
    arguments = {entry.name for entry in fields(chosen.kind)}
    grid = dict(chosen.grid)
    fixed = dict(chosen.fixed)
    for name, value in choices.items():
        if value is None:
            continue
        if name in arguments:
            fixed[name] = tuple(value) if isinstance(value, list) else value
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
