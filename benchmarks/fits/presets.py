"""The benchmarks of fits by name: their cells, and choices in place of theirs."""

from __future__ import annotations

from typing import Any

from benchmarks.fits.batch_sizes import BATCH_METHODS, KERNELS, BatchSizeCell
from benchmarks.fits.grid import GRID_METHODS, GridCell
from benchmarks.fits.grid import KERNELS as GRID_KERNELS
from benchmarks.fits.recovery import OF_FEATURES, STARTS, RecoveryCell
from benchmarks.fits.scores import ScoreCell
from benchmarks.fits.simulators import SIMULATORS
from scalable_bo.experiments.cells import Grid

_SCORED: dict[str, tuple[Any, ...]] = {
    "method": ("nearest", "uniform", "subsets", "sgpr"),
    "seed": (0,),
}
_NEAREST = _SCORED | {"method": ("nearest",)}
_WEAK = (0.0, 0.09, 0.49, 1.0, 4.0)  # the squares of 0, .3, .7, 1, 2
FIT_PRESETS = {
    "recovery": Grid(
        RecoveryCell,
        {
            "method": (
                *("uniform", "nearest", "subsets", "iterative", "exact", "sgpr", "scgd"),
                "exact-features",
            ),
            "start": STARTS,
        },
    ),
    "penalty": Grid(
        RecoveryCell,
        {"method": tuple(name for name in OF_FEATURES if name != "scgd")},
        {"start": (3.0, 2.0), "seeds": (0, 1, 2)},
    ),
    "simulated": Grid(ScoreCell, {"data": tuple(SIMULATORS)} | _SCORED),
    "real": Grid(ScoreCell, {"data": ("bike", "protein")} | _SCORED),
    "epochs": Grid(ScoreCell, {"data": ("protein",)} | _NEAREST, {"tolerance": 0}),
    "millions": Grid(ScoreCell, {"data": ("otl",)} | _NEAREST, {"n": 2_000_000, "max_epochs": 10}),
    "batch-sizes": Grid(
        BatchSizeCell,
        {
            "kernel": KERNELS,
            "method": tuple(BATCH_METHODS),
            "batch_size": (32, 128, 512),
            "seed": (0,),
        },
    ),
    "grid": Grid(
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
    "weak": Grid(
        GridCell,
        {
            "data": ("prior", "sine", "ripples"),
            "n": (50, 80, 150, 400, 1500),
            "d": (1, 3, 6, 12),
            "ratio": _WEAK,
            "kernel": ("rbf", "scaled", "rq"),
            "method": tuple(GRID_METHODS),
            "seed": tuple(range(8)),
        },
    ),
    # Functions of one or two of many inputs
    "sparse": Grid(
        GridCell,
        {
            "data": ("sine", "two"),
            "n": (50, 80, 150, 200, 400),
            "d": (6, 9, 15),
            "ratio": _WEAK,
            "kernel": ("rbf", "scaled", "matern52"),
            "method": tuple(GRID_METHODS),
            "seed": tuple(range(100, 108)),
        },
    ),
}
