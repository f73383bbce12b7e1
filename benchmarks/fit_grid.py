"""Whether ``fit`` takes noise for signal: a grid of data with a known function and known noise.

    python benchmarks/fit_grid.py --subset small --out benchmarks/results/fit_grid.json
    python benchmarks/fit_grid.py --subset whole --sizes 1500 --sample 60
    python benchmarks/fit_grid.py --subset spread --methods fit,reference
    python benchmarks/fit_grid.py --subset weak --methods fit,reference,likeliest
    python benchmarks/fit_grid.py --subset sparse --methods fit,reference,likeliest --sample 60

A cell draws n uniform points in d dimensions, a function of variance 1 (``prior``: random features
of the cell's own kernel; ``sine``: a sine of the first input; ``two``: a function of the first two;
``ripples``: several inputs with unequal lengthscales) and noise of variance 1 / ratio, or noise
alone where the ratio is 0. Four fits are compared:

* ``fit``: ``fit(model)``;
* ``reference``: ``fit_exact`` on 1000 random points, its hyperparameters used with all data;
* ``likeliest``: ``fit_exact`` of 1000 random points without any prior;
* ``former``: nearest-neighbour minibatches, refined on all data up to 10 000 points.

Each record has the noise relative to the truth, the root mean squared error to the noiseless
function at new points, the log density of noisy values there (nats a point), processor seconds,
and the commit. Predictions are exact up to 5000 points and by 256 nearest neighbours beyond.
Finished cells of the record are kept, so that a run goes on where it was stopped; ``--table`` has
the mean error and density for every number of data and ratio; ``--misses``
lists those where ``fit`` has an error above 1.1 times the reference's, a log density more than 0.02
nats below it, or, where the reference finds it, a noise off by more than a tenth.
"""

import argparse
import json
import math
import random
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from scalable_bo.experiments.records import describe_environment
from surrogates import (
    Cholesky,
    PathwiseGP,
    PriorPaths,
    fit,
    fit_exact,
    fit_iterative,
    fit_minibatch,
    memory,
    predict_by_neighbours,
)
from surrogates.atomic import write_atomically
from surrogates.fitting.choice import FIT_EXACT_UP_TO, REFINE_UP_TO, REFINEMENT

NUM_TEST = 1000
EXACT_UP_TO = 5000
NUM_NEIGHBOURS = 256
NUM_FEATURES = 8192
WEAK = (0.0, 0.09, 0.49, 1.0, 4.0)  # the squares of 0, .3, .7, 1, 2
KERNELS = ("rbf", "matern32", "matern52", "scaled", "matern12")
SOURCES = ("prior", "sine", "ripples")
SMOOTHNESS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
DTYPES = ("float64", "float32")
DIMS = (1, 3, 6, 15)
RATIOS = (0.0, 0.1, 1.0, 10.0, 1000.0)


@dataclass(frozen=True)
class Cell:
    source: str
    n: int
    d: int
    ratio: float
    kernel: str
    dtype: str = "float64"
    seed: int = 0

    @property
    def name(self) -> str:
        return "-".join(str(value) for value in asdict(self).values())


@dataclass(frozen=True)
class Data:
    X: Tensor
    y: Tensor
    test_X: Tensor
    test_f: Tensor
    test_y: Tensor


def some(
    sources: tuple[str, ...],
    sizes: tuple[int, ...],
    dims: tuple[int, ...],
    ratios: tuple[float, ...],
    kernels: tuple[str, ...],
    dtypes: tuple[str, ...] = ("float64",),
) -> Iterator[Cell]:
    for values in product(sources, sizes, dims, ratios, kernels, dtypes):
        cell = Cell(*values)
        if cell.ratio > 0.0 or cell.source == sources[0]:  # noise alone has no source
            yield cell


def spread(n: int, *, sparse: bool = False) -> Iterator[Cell]:
    """Yield a cell for every number of inputs and ratio, of which neighbours differ in all else;
    ``sparse`` leaves two ratios for every number of inputs.
    """
    for i, d in enumerate(DIMS):
        for j, ratio in enumerate(RATIOS):
            if sparse and (2 * i + j) % 5 not in (0, 2):
                continue
            source = SOURCES[(i + j) % len(SOURCES)]
            kernel = KERNELS[(i + 2 * j) % len(KERNELS)]
            yield Cell(source, n, d, ratio, kernel, DTYPES[(i + j) % len(DTYPES)])


def weak() -> Iterator[Cell]:
    """Yield cells of little signal, eight seeds of each."""
    for seed, n, d, ratio, kernel in product(
        range(8), (50, 80, 150, 400, 1500), (1, 3, 6, 12), WEAK, ("rbf", "scaled", "rq")
    ):
        yield Cell(SOURCES[seed % len(SOURCES)], n, d, ratio, kernel, seed=seed)


def sparse() -> Iterator[Cell]:
    """Yield cells of functions of one or two of many inputs, and noise, eight seeds of each."""
    for seed, n, d, ratio, kernel in product(
        range(8), (50, 80, 150, 200, 400), (6, 9, 15), WEAK, ("rbf", "scaled", "matern52")
    ):
        yield Cell(("sine", "two")[seed % 2], n, d, ratio, kernel, seed=100 + seed)


SUBSETS: dict[str, Callable[[], Iterator[Cell]]] = {
    "smoke": lambda: some(("sine",), (1100,), (2,), (1.0,), ("matern52",)),
    "small": lambda: some(("prior", "sine"), (1500,), (6, 3, 15, 1), RATIOS, ("matern52",)),
    "kernels": lambda: some(
        ("ripples",), (1500,), (3, 6), (0.1, 1.0, 1000.0), KERNELS, ("float32", "float64")
    ),
    "middle": lambda: some(("sine", "prior"), (5000,), (3, 6), RATIOS, ("rbf",)),
    "large": lambda: some(("sine", "prior"), (20_000,), (3, 6), RATIOS, ("matern32",)),
    "whole": lambda: some(SOURCES, (1500, 5000, 20_000), DIMS, RATIOS, KERNELS, DTYPES),
    "weak": weak,
    "sparse": sparse,
    "few": lambda: chain(spread(50), spread(100)),
    "spread": lambda: chain(spread(200), spread(500), spread(5000), spread(20_000, sparse=True)),
}


def kernel_of(cell: Cell) -> Kernel | None:
    """Return a fresh kernel; ``None`` for the model's default, an RBF kernel."""
    if cell.kernel == "rbf":
        return None
    if cell.kernel == "scaled":
        return ScaleKernel(RBFKernel(ard_num_dims=cell.d))
    if cell.kernel == "rq":
        return RQKernel(ard_num_dims=cell.d)
    return MaternKernel(nu=SMOOTHNESS[cell.kernel], ard_num_dims=cell.d)


def draw(cell: Cell, device: torch.device | str = "cpu") -> Data:
    """Return the data of a cell; cells that differ in kernel or dtype alone share points, noise."""
    seed = zlib.crc32(f"{cell.n} {cell.d} {cell.seed}".encode())
    generator = torch.Generator().manual_seed(seed)
    total = cell.n + NUM_TEST
    X = torch.rand(total, cell.d, generator=generator, dtype=torch.float64)
    noise = torch.randn(total, 1, generator=generator, dtype=torch.float64)
    f = torch.zeros_like(noise) if cell.ratio == 0.0 else function(cell, X, generator)
    y = f + (noise if cell.ratio == 0.0 else noise / math.sqrt(cell.ratio))
    dtype = getattr(torch, cell.dtype)
    X, f, y = (values.to(device, dtype) for values in (X, f, y))
    n = cell.n
    return Data(X[:n], y[:n], X[n:], f[n:], y[n:])


def function(cell: Cell, X: Tensor, generator: torch.Generator) -> Tensor:
    """Return values (n, 1) of mean 0 and variance 1 over the points."""
    if cell.source == "sine":
        f = torch.sin(6.0 * X[:, :1])
    elif cell.source == "two":
        f = torch.sin(5.0 * X[:, :1]) + 2.0 * (X[:, 1:2] - 0.3).square()
    elif cell.source == "ripples":
        frequencies = 8.0 / torch.arange(1, cell.d + 1, dtype=X.dtype)
        f = torch.cos(X * frequencies).sum(1, keepdim=True) + torch.sin(5.0 * X[:, :1] * X[:, -1:])
    else:
        kernel = kernel_of(cell) or RBFKernel()
        kernel = getattr(kernel, "base_kernel", kernel).to(X)
        kernel.lengthscale = 0.3 * math.sqrt(cell.d)
        paths = PriorPaths.draw(
            kernel, cell.d, 1, num_features=NUM_FEATURES, generator=generator, like=X
        )
        f = paths(X).T
    return (f - f.mean()) / f.std()


def model_of(cell: Cell, X: Tensor, y: Tensor) -> PathwiseGP:
    kernel = kernel_of(cell)
    return PathwiseGP(X, y, covar_module=None if kernel is None else kernel.to(X))


def by_fit(cell: Cell, data: Data) -> PathwiseGP:
    return fit(model_of(cell, data.X, data.y))


def by_reference(cell: Cell, data: Data) -> PathwiseGP:
    return by_sample(cell, data, model_of)


def by_likeliest(cell: Cell, data: Data) -> PathwiseGP:
    return by_sample(cell, data, model_without_priors)


def model_without_priors(cell: Cell, X: Tensor, y: Tensor) -> PathwiseGP:
    model = model_of(cell, X, y)
    for part in model.modules():
        getattr(part, "_priors", {}).clear()
    return model


def by_sample(
    cell: Cell, data: Data, model_of: Callable[[Cell, Tensor, Tensor], PathwiseGP]
) -> PathwiseGP:
    chosen = torch.randperm(cell.n, generator=torch.Generator().manual_seed(7))[:FIT_EXACT_UP_TO]
    chosen = chosen.to(data.X.device)
    small = fit_exact(model_of(cell, data.X[chosen], data.y[chosen]))
    model = model_of(cell, data.X, data.y)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), small.parameters(), strict=True):
            parameter.copy_(value)
    return model


def by_former(cell: Cell, data: Data) -> PathwiseGP:
    model = fit_minibatch(model_of(cell, data.X, data.y))
    return fit_iterative(model, **REFINEMENT) if cell.n <= REFINE_UP_TO else model


METHODS = {"fit": by_fit, "reference": by_reference, "likeliest": by_likeliest, "former": by_former}


@torch.no_grad()
def measure(cell: Cell, data: Data, model: PathwiseGP) -> dict[str, Any]:
    """Return what the hyperparameters of ``model`` are worth."""
    if cell.n <= EXACT_UP_TO:
        exact = PathwiseGP(
            data.X.double(),
            data.y.double(),
            likelihood=GaussianLikelihood().double().to(data.X.device),
            covar_module=model.covar_module.double(),
            mean_module=model.mean_module.double(),
            solver=Cholesky(),
        )
        exact.likelihood.noise = model.noise.double()
        posterior = exact.posterior(data.test_X.double())
        mean = posterior.mean
        variance = posterior.variance
        noise = exact.noise * data.y.double().var()
    else:
        mean, variance = predict_by_neighbours(model, data.test_X, num_neighbours=NUM_NEIGHBOURS)
        noise = model.noise.double() * data.y.double().var()
    variance = variance.double() + noise
    squares = (data.test_y.double() - mean.double()).square()
    density = -0.5 * (squares / variance + variance.log() + math.log(2.0 * math.pi))
    true_noise = 1.0 if cell.ratio == 0.0 else 1.0 / cell.ratio
    return {
        "noise": round(noise.item() / true_noise, 4),
        "rmse": float(f"{(mean - data.test_f).square().mean().sqrt().item():.4g}"),
        "density": round(density.mean().item(), 4),
    }


def run(
    cell: Cell,
    methods: list[str],
    done: dict[str, Any],
    commit: str,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """Return the record of a cell: what was ``done`` before, and the other ``methods``."""
    data = draw(cell, device)
    record = dict(done)
    for name in methods:
        if name in record:
            continue
        start = time.process_time()
        model = METHODS[name](cell, data)
        memory.wait_for(data.X.device)
        seconds = time.process_time() - start
        record[name] = {"commit": commit, "device": str(device), "seconds": round(seconds, 1)}
        if name == "fit":
            record[name]["chosen"] = model.fit_account.chosen
        record[name] |= measure(cell, data, model)
    return record


def verdict(record: dict[str, Any]) -> dict[str, Any]:
    """Return the comparisons that the grid is for, of one cell; none without ``fit``."""
    if "fit" not in record:
        return {}
    ours = record["fit"]
    theirs = record.get("reference", ours)
    return {
        "rmse_ratio": round(ours["rmse"] / max(theirs["rmse"], 1e-12), 3),
        "density_gain": round(ours["density"] - theirs["density"], 4),
        "noise": ours["noise"],
        "noise_of_reference": theirs["noise"],
    }


def is_miss(record: dict[str, Any]) -> bool:
    found = verdict(record)
    can_tell = abs(found["noise_of_reference"] - 1.0) < 0.1
    return (
        found["rmse_ratio"] > 1.1
        or found["density_gain"] < -0.02
        or (can_tell and abs(found["noise"] - 1.0) > 0.1)
    )


def print_table(cells: dict[str, Any]) -> None:
    """Print the mean error and log density of every method, over the cells that all have."""
    methods = [name for name in METHODS if any(name in cell for cell in cells.values())]
    groups: dict[tuple[int, float], list[dict[str, Any]]] = {}
    for name, record in cells.items():
        if set(methods) <= set(record):
            _, size, _, ratio_of_cell, *_ = name.split("-")
            groups.setdefault((int(size), float(ratio_of_cell)), []).append(record)
    for (n, ratio), records in sorted(groups.items()):
        silent = fmean(record["fit"]["chosen"] == "white noise" for record in records)
        parts = [
            f"{method} {fmean(record[method]['rmse'] for record in records):.3f}"
            f" {fmean(record[method]['density'] for record in records):+.4f}"
            for method in methods
        ]
        print(f"n {n} ratio {ratio}: {len(records)} cells, white {silent:.2f};", "; ".join(parts))


def write(path: Path, environment: dict[str, Any], cells: dict[str, Any]) -> None:
    """Write the record with one line a cell."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(cells[name])}" for name in sorted(cells))
    text = f'{{"environment": {json.dumps(environment)},\n"cells": {{\n{lines}\n}}}}\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subset", default="small", choices=SUBSETS)
    parser.add_argument("--sizes", help="only these numbers of points, separated by commas")
    parser.add_argument("--sample", type=int, help="so many random cells, the same every time")
    parser.add_argument("--methods", default="fit,reference,former")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/fit_grid.json"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--misses", action="store_true", help="list what the record has, and end")
    parser.add_argument("--table", action="store_true", help="sum the record up, and end")
    options = parser.parse_args()
    cells: dict[str, Any] = {}
    if options.out.exists():
        cells = json.loads(options.out.read_text())["cells"]
    if options.table:
        print_table(cells)
        return
    if options.misses:
        judged = {name: cell for name, cell in cells.items() if {"fit", "reference"} <= set(cell)}
        missed = [name for name in judged if is_miss(judged[name])]
        for name in missed:
            print(name, verdict(cells[name]), cells[name]["fit"]["chosen"])
        print(f"{len(missed)} of {len(judged)} cells")
        return
    environment = describe_environment(torch.device(options.device))
    commit = str(environment["commit"])[:7]
    for cell in chosen_cells(options.subset, options.sizes, options.sample):
        done = cells.get(cell.name, {})
        cells[cell.name] = run(cell, options.methods.split(","), done, commit, options.device)
        print(cell.name, verdict(cells[cell.name]), cells[cell.name], flush=True)
        write(options.out, environment, cells)


def chosen_cells(subset: str, sizes: str | None, sample: int | None) -> list[Cell]:
    found = list(SUBSETS[subset]())
    if sizes is not None:
        found = [cell for cell in found if cell.n in map(int, sizes.split(","))]
    if sample is not None:
        random.Random(0).shuffle(found)
    return found[:sample]


if __name__ == "__main__":
    main()
