"""The benchmarks of fits by name: their cells, and choices in place of theirs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from itertools import product
from random import Random
from typing import Any

from benchmarks.fits.batch_sizes import BATCH_METHODS, KERNELS, BatchSizeCell
from benchmarks.fits.cell import FitCell
from benchmarks.fits.grid import KERNELS as GRID_KERNELS
from benchmarks.fits.grid import GridCell
from benchmarks.fits.recovery import OF_FEATURES, STARTS, RecoveryCell
from benchmarks.fits.scores import ScoreCell
from benchmarks.fits.simulators import SIMULATORS
from surrogates import checks


@dataclass(frozen=True)
class FitPreset:
    """A kind of cell, and the values of its arguments: a cell for every combination of those in
    ``grid``.

    Args:
        kind: of the cells.
        grid: values of arguments, of which the first varies slowest and the method fastest.
        fixed: arguments of all cells.
    """

    kind: type[FitCell]
    grid: dict[str, tuple[Any, ...]]
    fixed: dict[str, Any] = field(default_factory=dict)


_ON_DATA = {"method": ("nearest", "uniform", "subsets", "sgpr"), "seed": (0,)}
_NEAREST = {"method": ("nearest",), "seed": (0,)}
_THREE = ("fit", "reference", "likeliest")
_WEAK = (0.0, 0.09, 0.49, 1.0, 4.0)  # the squares of 0, .3, .7, 1, 2
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
    "grid": FitPreset(
        GridCell,
        {
            "data": ("prior", "sine", "ripples"),
            "n": (50, 100, 200, 500, 1500, 5000, 20_000),
            "d": (1, 3, 6, 15),
            "ratio": (0.0, 0.1, 1.0, 10.0, 1000.0),
            "kernel": tuple(name for name in GRID_KERNELS if name != "rq"),
            "dtype": ("float64", "float32"),
            "method": ("fit", "reference"),
        },
    ),
    # Functions no stronger than twice their noise
    "weak": FitPreset(
        GridCell,
        {
            "data": ("prior", "sine", "ripples"),
            "n": (50, 80, 150, 400, 1500),
            "d": (1, 3, 6, 12),
            "ratio": _WEAK,
            "kernel": ("rbf", "scaled", "rq"),
            "method": _THREE,
            "seed": tuple(range(8)),
        },
    ),
    # Functions of one or two of many inputs
    "sparse": FitPreset(
        GridCell,
        {
            "data": ("sine", "two"),
            "n": (50, 80, 150, 200, 400),
            "d": (6, 9, 15),
            "ratio": _WEAK,
            "kernel": ("rbf", "scaled", "matern52"),
            "method": _THREE,
            "seed": tuple(range(100, 108)),
        },
    ),
}


def plan(preset: str, *, sample: int | None = None, **choices: Any) -> list[FitCell]:
    """Return the cells of a preset.

    Args:
        preset: one of ``FIT_PRESETS``.
        sample: so many random combinations of the values, the same every time, by all methods;
            ``None`` for all of them.
        choices: arguments of the cells in place of the preset's, whose names may be in the plural:
            a list is of several values, a cell for each. ``None`` leaves them to the preset.
    Raises:
        TypeError, ValueError: if there is no such preset, it has no such argument, or a value is
            out of range.
    """
    chosen = FIT_PRESETS[checks.one_of("preset", preset, FIT_PRESETS)]
    arguments = {entry.name: entry.default for entry in fields(chosen.kind)}
    grid = dict(chosen.grid)
    fixed = dict(chosen.fixed)
    for option, value in choices.items():
        name = option if option in arguments else option.removesuffix("s")
        if value is None:
            continue
        if name not in arguments:
            raise ValueError(
                f"`{option}` does not go with the preset {preset}, got {value!r}. Leave it out."
            )
        grid.pop(name, None)
        fixed.pop(name, None)
        if isinstance(value, list) and not isinstance(arguments[name], tuple):
            grid[name] = tuple(value)
        else:
            fixed[name] = tuple(value) if isinstance(value, list) else value
    methods = grid.pop("method")
    combinations = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    if sample is not None:
        checks.positive_int("sample", sample)
        numbers = Random(0).sample(range(len(combinations)), min(sample, len(combinations)))
        combinations = [combinations[number] for number in sorted(numbers)]
    return [
        chosen.kind(**fixed | combination | {"method": method})
        for combination in combinations
        for method in methods
    ]
