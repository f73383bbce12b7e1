"""Two ways to optimise beside each other: the league's runs by one and by the other that share
problem, seed, budget, size of batches and noise. Is one better?

    python -m benchmarks.league --subset mixed --optimisers auto --out results/before
    python -m benchmarks.league --subset mixed --optimisers auto --out results/after  # changed
    python benchmarks/paired.py before=results/before after=results/after --out results/paired.json
    python benchmarks/paired.py auto=results/after:auto turbo=results/after:turbo

A ratio is the second way's regret over the first's. Regrets below 1e-4 of a problem's range count
as that, so that solved is solved; where its optimum is not known there is none, and costs that
differ by less than 1e-4 of those that both runs have found are alike. The standard error is that of
the geometric mean, as a factor.
"""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.league.standings import SOLVED
from benchmarks.scripts import script_parser, write_benchmark
from scalable_bo.cli.console import print_table
from scalable_bo.experiments.formats import number
from scalable_bo.experiments.records import Record, read_records

SHARED = ("problem", "q", "budget", "noise", "seed")
MEASURES = ("regret_recommended", "regret")
Runs = dict[tuple[Any, ...], Record]  # by what they share with the others'


def read_side(text: str) -> tuple[str, Runs]:
    """Return label and runs of the way that is written as ``LABEL=FOLDER`` or
    ``LABEL=FOLDER:OPTIMISER``.
    """
    label, _, place = text.partition("=")
    if not (label and place):
        raise ValueError(f"A side must be LABEL=FOLDER or LABEL=FOLDER:OPTIMISER, got {text!r}.")
    folder, _, optimiser = place.partition(":")
    runs: Runs = {}
    for record in read_records(Path(folder), "*.json", ("optimisers",)).values():
        settings = record["settings"]
        if optimiser and settings["optimiser"] != optimiser:
            continue
        key = tuple(settings[name] for name in SHARED)
        if key in runs:
            raise ValueError(
                f"{text!r} must have one optimiser, got {runs[key]['settings']['optimiser']}"
                f" and {settings['optimiser']}. Write LABEL=FOLDER:OPTIMISER."
            )
        runs[key] = record
    return label, runs


def pair(key: tuple[Any, ...], first: Record, second: Record, measure: str) -> dict[str, Any]:
    """Return the row of a pair: both regrets, and how the second compares."""
    values = [float(first[measure]), float(second[measure])]
    ratio = None
    if first["optimum"] is None:
        costs = [cost for record in (first, second) for _, cost in record["trace"]]
        difference = values[1] - values[0]
        alike = abs(difference) <= SOLVED * (max(costs) - min(costs))
        sign = 0.0 if alike else math.copysign(1.0, difference)
    else:
        solved = SOLVED * first["range"]
        ratio = max(values[1], solved) / max(values[0], solved)
        sign = math.log(ratio)
    verdict = "better" if sign < 0 else "worse" if sign > 0 else "alike"
    return {
        **dict(zip(SHARED, key, strict=True)),
        "first": values[0],
        "second": values[1],
        "ratio": ratio,
        "second_is": verdict,
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how often the second way did better, and the geometric mean of the ratios."""
    verdicts = [row["second_is"] for row in rows]
    logarithms = [math.log(row["ratio"]) for row in rows if row["ratio"] is not None]
    found: dict[str, Any] = {name: verdicts.count(name) for name in ("better", "worse", "alike")}
    found["pairs"] = len(rows)
    found["ratios"] = len(logarithms)
    found["geometric_mean_ratio"] = math.exp(statistics.fmean(logarithms)) if logarithms else None
    found["its_standard_error_as_a_factor"] = (
        math.exp(statistics.stdev(logarithms) / len(logarithms) ** 0.5)
        if len(logarithms) > 1
        else None
    )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = script_parser(__doc__)
    parser.add_argument("first", help="LABEL=FOLDER[:OPTIMISER] of league records")
    parser.add_argument("second", help="the other, in the same way")
    parser.add_argument("--measure", choices=MEASURES, default=MEASURES[0])
    parser.add_argument("--note", default=None, help="for the record: what the two ways are")
    options = parser.parse_args(arguments)

    (first, before), (second, after) = read_side(options.first), read_side(options.second)
    shared = sorted(before.keys() & after.keys())
    if not shared:
        raise SystemExit(
            f"{first} and {second} must have runs of the same problem, seed, budget, size of"
            f" batches and noise, got {len(before)} and {len(after)} others. Run the same subset"
            " and seeds by both."
        )
    rows = [pair(key, before[key], after[key], options.measure) for key in shared]
    problems = {row["problem"]: [r for r in rows if r["problem"] == row["problem"]] for row in rows}
    parts = {name: summary(own) for name, own in problems.items()} | {"all": summary(rows)}
    print_table(
        f"{options.measure} of {second} beside {first}",
        ("problem",),
        ("pairs", "better", "worse", "alike", "mean ratio", "± factor"),
        [[name, *_cells(part)] for name, part in parts.items()],
    )
    origins = {
        label: {
            name: sorted({runs[key]["environment"][name] for key in shared})
            for name in ("commit", "device", "cpu")
        }
        for label, runs in ((first, before), (second, after))
    }
    settings = {"first": first, "second": second, "measure": options.measure}
    settings |= {"solved": SOLVED, "note": options.note}
    whole = parts["all"]
    write_benchmark(options.out, "paired", settings=settings, origins=origins, **whole, runs=rows)


def _cells(part: dict[str, Any]) -> list[str]:
    counts = [str(part[name]) for name in ("pairs", "better", "worse", "alike")]
    means = (part["geometric_mean_ratio"], part["its_standard_error_as_a_factor"])
    return [*counts, *(number(mean, ".3g") for mean in means)]


if __name__ == "__main__":
    main()
