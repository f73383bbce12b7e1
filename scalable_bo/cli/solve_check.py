"""``scalable-bo check --n … --ranks …``: what a solve shared over processes will take,
in memory, traffic and time. Quick to import.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import typer

from scalable_bo.cli.console import new_table, print_table

if TYPE_CHECKING:
    from scalable_bo.cli.costs import Costs, Rates
    from scalable_bo.cli.search_costs import RoundCosts

UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
DTYPES = ("float32", "float64")
# The option of a rate, the rate's name, and its unit
_RATES = {
    "entry_ns": ("entry_seconds", 1e-9),
    "gemm_gflops": ("gemm_flops", 1e9),
    "bandwidth": ("network_bytes", 1e9),
    "slope_ns": ("slope_seconds", 1e-9),
}


def check_solve(
    n: int,
    dim: int,
    samples: int,
    ranks: list[int],
    solver: str,
    *,
    block_size: int | None,
    rank: int | None,
    dtype: str,
    threads: int,
    rates: Mapping[str, float | None],
    epochs: float = 10.0,
    as_json: bool,
) -> None:
    """Print the prediction for each number of processes: of a solve and, if there are samples, of a
    Thompson round with it.

    The rates by the names of their options stand in for measured ones where they are not ``None``.

    Raises:
        TypeError, ValueError: if a number is out of range, or a name unknown.
    """
    if dtype not in DTYPES:
        raise ValueError(f"`dtype` must be float32 or float64, got {dtype!r}.")

    import torch

    from scalable_bo.cli.costs import Shape, measure_rates, predict
    from scalable_bo.cli.search_costs import measure_slopes, predict_round
    from surrogates import checks

    checks.integer("samples", samples, 0)
    checks.positive_int("threads", threads)
    checks.positive_float("epochs", epochs)
    kind = getattr(torch, dtype)
    shapes = [Shape(n, dim, 1 + samples, p, solver, block_size, rank, kind.itemsize) for p in ranks]
    given = {
        name: checks.positive_float(option, value) * unit
        for option, (name, unit) in _RATES.items()
        if (value := rates.get(option)) is not None
    }
    slope = given.pop("slope_seconds", None)
    with _with_threads(threads):
        measured = replace(measure_rates(dim, 1 + samples, kind), **given)
        slope = measure_slopes(dim, kind) if samples and slope is None else slope
    found = [predict(shape, measured) for shape in shapes]
    rounds = []
    if samples and slope is not None:
        rounds = [predict_round(shape, measured, slope, epochs) for shape in shapes]
    if as_json:
        described = [
            asdict(costs)
            | {
                "total_memory": costs.total_memory,
                "seconds_per_epoch": costs.seconds_per_epoch,
            }
            for costs in found
        ]
        parts: dict[str, Any] = {"rates": asdict(measured), "predictions": described}
        if rounds:
            parts |= {"slope_seconds": slope, "rounds": [asdict(costs) for costs in rounds]}
        typer.echo(json.dumps(parts))
    else:
        _print(found, measured)
        if rounds:
            _print_rounds(rounds, epochs)


def _print(found: list[Costs], rates: Rates) -> None:
    shape = found[0].shape
    batch = shape.footprint.batch
    of_blocks = f"blocks of {batch}" if batch < shape.n else "all rows a step"
    typer.echo(
        f"{shape.solver}, {of_blocks}: n = {shape.n}, d = {shape.dim}, {shape.columns} right-hand"
        f" sides, {8 * shape.itemsize} bits"
    )
    typer.echo(
        f"each process: {1e9 * rates.entry_seconds:.3g} ns a kernel entry,"
        f" {rates.gemm_flops / 1e9:.0f} GFLOP/s, {rates.network_bytes / 1e9:.2f} GB/s to others"
    )
    numbers = (
        "memory of\neach",
        "sent by\neach a step",
        "time of\na step",
        "of it\nnetwork",
        "an epoch",
    )
    table = new_table("Predicted", ("processes",), numbers)
    for costs in found:
        table.add_row(
            str(costs.shape.ranks),
            describe_bytes(costs.total_memory),
            describe_bytes(costs.network_bytes),
            describe_seconds(costs.seconds_per_step),
            f"{costs.seconds['network'] / costs.seconds_per_step:.0%}",
            describe_seconds(costs.seconds_per_epoch),
        )
    print_table(table)
    last = found[-1]
    parts = sorted(last.memory.items(), key=lambda part: -part[1])
    typer.echo(
        f"memory with {last.shape.ranks}: "
        + ", ".join(f"{name} {describe_bytes(size)}" for name, size in parts if size)
    )


def _print_rounds(rounds: list[RoundCosts], epochs: float) -> None:
    q = rounds[0].shape.columns - 1
    numbers = (
        "memory of\neach",
        "sent by\neach, solve",
        "between",
        "time of\nsolve",
        "screening",
        "ascent",
        "a round",
    )
    title = f"A Thompson round of {q} points, a solve of {epochs:g} epochs"
    table = new_table(title, ("processes",), numbers)
    for costs in rounds:
        table.add_row(
            str(costs.shape.ranks),
            describe_bytes(costs.total_memory),
            describe_bytes(costs.solve_bytes),
            describe_bytes(costs.network_bytes),
            describe_seconds(costs.solve_seconds),
            describe_seconds(costs.seconds["screening"]),
            describe_seconds(costs.seconds["ascent"]),
            describe_seconds(costs.total_seconds),
        )
    print_table(table)


def describe_bytes(number: int) -> str:
    """Return a number of bytes with its unit, in two to four digits."""
    for size, unit in UNITS:
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"


def describe_seconds(seconds: float) -> str:
    """Return a time in the largest unit of which it has two."""
    for size, unit in ((86_400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2.0 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2g} s"


@contextmanager
def _with_threads(threads: int) -> Iterator[None]:
    """Compute with so many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
