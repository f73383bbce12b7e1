"""The tables of the page of measurements, made from the records in ``benchmarks/results/``.

``python docs/measured.py`` renews them in ``docs/measured.md``, and a test checks that page and
records agree. A figure without a record does not belong on the page.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.league.standings import divisions, standings
from scalable_bo.experiments.formats import markdown, mean_and_error, plus_minus
from scalable_bo.experiments.markdown_tables import REGRESSION, THOMPSON, TableKind
from scalable_bo.experiments.records import read_records

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/measured.md"
Rows = list[list[str]]

# A table, and the line of its origin with its mark
BLOCK = re.compile(r"(?:^\|.*\n)+\n\*.*\* <!-- (\w+) -->$", flags=re.MULTILINE)
FAILING = ("auto", "optuna-tpe", "botorch-qlognei", "botorch-qlognei-worst")
FITS = ("fit_grid", "fit_grid_large", "fit_grid_weak", "fit_grid_sparse")
LEAGUES = ("", "_noise", "_mixed", "_large", "_thousand")
KINDS = {
    "_mixed": "mixed parameters, ",
    "_valleys": "rotated valleys, ",
    "_fronts": "several objectives, ",
}
SHARED = ("shared_round", "shared_round_50000_native", "shared_round_million_four")


def load(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def environments(content: Any) -> Iterator[dict[str, Any]]:
    """Yield the environments in a record, wherever it keeps them."""
    if isinstance(content, dict):
        if isinstance(content.get("environment"), dict):
            yield content["environment"]
        for value in content.values():
            yield from environments(value)
    elif isinstance(content, list):
        for value in content:
            yield from environments(value)


def origin(command: str, *names: str) -> str:
    """Return the line below a table: its records, their command, commits, machine and days."""
    files = [file for name in names for file in sorted(RESULTS.glob(name))]
    found = [one for file in files for one in environments(json.loads(file.read_text("utf-8")))]
    dated = sorted((one["date"][:10], one["commit"][:7]) for one in found if one["commit"])
    commits = list(dict.fromkeys(commit for _, commit in dated))
    some = f"commit {commits[0]}" if len(commits) == 1 else f"commits {commits[0]} … {commits[-1]}"
    days = " to ".join(dict.fromkeys((dated[0][0], dated[-1][0])))
    threads = " or ".join(sorted({str(one["threads"]) for one in found}))
    machines = ", ".join(sorted({one["cpu"] for one in found}))
    plural = "" if threads == "1" else "s"
    shown = ", ".join(f"`{name}`" for name in names)
    return f"*{shown}: `{command}`, {some}, {machines}, {threads} thread{plural}, {days}.*"


def made_table(kind: TableKind, folder: str, heading: str, keep: Sequence[str] = ()) -> list[str]:
    """Return the first table below a heading of the tables that a benchmark makes of its records.

    Args:
        kind: the benchmark's tables.
        folder: of the records, in ``benchmarks/results/``.
        heading: a line of the benchmark's Markdown.
        keep: the beginnings of the rows to keep; all rows by default.
    """
    found = read_records(
        RESULTS / folder, kind.pattern, kind.experiments, unfinished=kind.unfinished
    )
    lines = iter(kind.make(list(found.values())).splitlines())
    next(line for line in lines if line == heading)
    table = [next(line for line in lines if line.startswith("|"))]
    for line in lines:
        if not line.startswith("|"):
            break
        table.append(line)
    wanted = tuple(f"| {start}" for start in keep)
    return table[:2] + [row for row in table[2:] if not keep or row.startswith(wanted)]


def spread(values: Iterable[float], digits: int = 2) -> str:
    return plus_minus(*mean_and_error(list(values)), digits)


def league(folders: Sequence[str]) -> Rows:
    """Return the mean rank of each optimiser in each kind of run, and its seconds for an ask."""
    columns = {}
    for folder in folders:
        records = read_records(
            RESULTS / f"optimisers{folder}", "optimisers_*.json", ("optimisers",)
        ).values()
        for division in divisions(list(records)):
            found = standings(division)
            count = int(found["num_problems"].max())
            runs = f"{count} problem{'s' * (count > 1)}, "
            kind = KINDS.get(folder, "")
            title = division.title.replace(" evaluations", "").replace("in batches of ", "by ")
            title = title.replace(" of the interquartile range", "")
            columns[runs + kind + title] = {
                one.optimiser: f"{one.mean_rank:.2f}, {one.seconds_ask:.2g} s"
                for one in found.itertuples()
            }
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [[name, *(column.get(name, "–") for column in columns.values())] for name in names]
    return [["optimiser", *columns], *rows]


def failing() -> Rows:
    runs = load("failing_regions")["runs"]
    rows = [["failing region, values", *FAILING]]
    found = {(run["problem"], run["optimiser"]): run for run in runs if run["seed"] == 0}
    for problem in dict.fromkeys(run["problem"] for run in runs):
        own = [found[problem, name] for name in FAILING]
        rows.append(
            [problem, *(f"{run['failed']}, {round(run['regret'], 3) + 0.0:.3f}" for run in own)]
        )
    totals = (sum(found[key]["failed"] for key in found if key[1] == name) for name in FAILING)
    return [*rows, ["all, failed of 400", *map(str, totals)]]


def asynchronous() -> Rows:
    runs = load("asynchronous")["runs"]
    ways = ("rounds", "asynchronous")
    return [
        ["", *ways],
        *(
            [label, *(spread((run[key][way] for run in runs), digits) for way in ways)]
            for label, key, digits in (
                ("seconds for 384 values", "seconds", 1),
                ("regret after 384 values", "regret", 3),
            )
        ),
    ]


def thompson_round() -> Rows:
    rows = [["route", "record", "solve, s", "search, s", "peak, GiB", "best value, seeds"]]
    for name, wanted in (
        ("thompson_laptop", ("cholesky", "cg", "sdd")),
        ("thompson_round", ("cholesky", "botorch-10", "botorch")),
    ):
        for way, own in load(name)["summary"].items():
            if way in wanted:
                times = [f"{own['seconds_solve']:.1f}", f"{own['seconds_acquisition']:.1f}"]
                best = f"{spread(own['best_noiseless'])} ({len(own['best_noiseless'])})"
                rows.append([way, name, *times, f"{own['peak_memory_bytes'] / 2**30:.1f}", best])
    return rows


def searches() -> Rows:
    rows = [["search", "problems × seeds", "mean shortfall", "processor s"]]
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in load("acquired_value")["rows"]:
        if row["way"] in ("reference", "fixed", "fixed, published rate", "pruned"):
            groups.setdefault(row["way"], []).append(row)
    for row in load("acquired_value_50000")["rows"]:
        groups[f"50 000 points, 1000 paths: {row['way']}"] = [row]
    for way, own in groups.items():
        shortfall = f"{fmean(row['shortfall'] for row in own):.4f}"
        rows.append(
            [way, str(len(own)), shortfall, f"{fmean(row['processor_seconds'] for row in own):.1f}"]
        )
    return rows


def ten_epochs() -> Rows:
    runs = {(run["lengthscale"], run["solver"]): run for run in load("thompson_system")["runs"]}
    rows = [["solver", *(f"ℓ = {length:g}: median residual, s" for length in (0.5, 2))]]
    for name in ("auto", "asap", "sap-n/5", "adasap", "sdd", "cg"):
        own = [runs[length, name] for length in (0.5, 2)]
        rows.append([name, *(f"{run['residual_median']:.1e}, {run['seconds']:.0f}" for run in own)])
    return rows


def sweep() -> Rows:
    """Return the time of `auto` over those of other solvers, where both reach an error of 0.1."""
    ratios: dict[int, list[dict[str, float]]] = {}
    for content in load("solver_sweep")["cells"].values():
        seconds = {
            name: fmean(run["seconds"] for run in runs)
            for name, runs in content["solvers"].items()
            if fmean(run["error"] for run in runs) <= 0.1
        }
        if "auto" not in seconds or len(seconds) == 1:
            continue
        own = seconds.pop("auto")
        found = {name: own / other for name, other in seconds.items()}
        ratios.setdefault(content["cell"]["n"], []).append(found | {"best": max(found.values())})
    names = ("best", "cholesky", "asap", "cg")
    rows = [["n", "systems", *(f"over {name}" for name in ("the fastest", *names[1:]))]]
    for n, found in ratios.items():
        columns = [[one[name] for one in found if name in one] for name in names]
        cells = [f"{median(column):.2f} ({max(column):.1f})" for column in columns]
        rows.append([str(n), str(len(found)), *cells])
    return rows


def warm() -> Rows:
    rows = [
        ["ℓ", "solver, tolerance", "best value", "epochs of a later round", "z² beside own points"]
    ]
    groups: dict[tuple[float, str], list[dict[str, Any]]] = {}
    for run in load("warm_rounds")["rounds"]:
        limit = f"a residual of {run['tolerance']:g}" if run["tolerance"] else "an error of 0.1"
        name = "exact" if run["solver"] == "cholesky" else f"{run['solver']}, {limit}"
        if name == "cg, a residual of 0.01" or (name == "exact" and run["tolerance"]):
            continue
        groups.setdefault((run["lengthscale"], name), []).append(run)
    for (length, name), own in groups.items():
        later = fmean(epochs for run in own for epochs in run["epochs"][1:])
        numbers = [spread(run["best"][-1] for run in own), f"{later:.1f}"]
        rows.append([f"{length:g}", name, *numbers, spread(run["own_square"] for run in own)])
    return rows


def fits() -> Rows:
    """Return how `fit` does beside the exact fit of at most 1000 of the same points."""
    headings = [
        "record",
        "points",
        "problems",
        "error over the exact fit's",
        "log density above it",
    ]
    rows = [[*headings, "seconds of both"]]
    for name in FITS:
        groups: dict[str, list[dict[str, Any]]] = {}
        for key, cell in load(name)["cells"].items():
            if {"fit", "reference"} <= cell.keys():
                size = "50 … 200" if name in FITS[2:] else key.split("-")[1]
                groups.setdefault(size, []).append(cell)
        for size in sorted(groups, key=lambda words: int(words.split()[0])):
            pairs = [(cell["fit"], cell["reference"]) for cell in groups[size]]
            ratios = [ours["rmse"] / exact["rmse"] for ours, exact in pairs]
            gains = [ours["density"] - exact["density"] for ours, exact in pairs]
            times = (fmean(pair[place]["seconds"] for pair in pairs) for place in (0, 1))
            rows.append(
                [
                    *(name, size, str(len(pairs))),
                    f"{median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f})",
                    f"{median(gains):+.3f} ({min(gains):+.3f} … {max(gains):+.3f})",
                    ", ".join(f"{time:.1f}" for time in times),
                ]
            )
    runs = load("several_tasks")["runs"]
    ours, exact = runs["fit"], runs["exact"]
    error, noisy = (ours[name] / exact[name] for name in ("rmse_of_functions", "rmse"))
    rows.append(
        [
            *("several_tasks", str(ours["rows"]), "1"),
            f"{error:.2f} (of noisy values {noisy:.2f})",
            f"{exact['nll'] - ours['nll']:+.3f}",
            f"{ours['seconds']:.1f}, {exact['seconds']:.1f}",
        ]
    )
    return rows


def shared() -> Rows:
    rows = [["n", "processes", "solve, processor s", "search", "speed-up", "peak of each, MiB"]]
    for name in SHARED:
        for one in sorted(load(name)["rounds"], key=lambda found: found["ranks"]):
            gain = "–" if len(load(name)["rounds"]) == 1 else f"{one['speed_up_cpu']:.2f}"
            sizes = [str(one["n"]), str(one["ranks"])]
            times = [f"{one['solve_cpu']:.1f}", f"{one['search_cpu']:.1f}"]
            rows.append([*sizes, *times, gain, f"{one['peak'] / 2**20:.0f}"])
    return rows


def pools() -> Rows:
    rows = [["rows of the pool", "threads", "processor µs a row", "peak, GiB"]]
    for name in ("fingerprint_pool", "fingerprint_pool_whole"):
        settings, found = (load(name)[key] for key in ("settings", "results"))
        speed = f"{found['processor_microseconds_a_row']:.0f}"
        sizes = [f"{settings['rows']:,}".replace(",", " "), str(settings["threads"])]
        rows.append([*sizes, speed, f"{found['peak_bytes'] / 2**30:.2f}"])
    return rows


def served() -> Rows:
    rows = [
        [
            "load of the machine",
            "runs",
            "asks and tells a second",
            "ask, ms: 50 %, 99 %",
            "tell, ms: 50 %, 99 %",
        ]
    ]
    runs = [run for run in load("serve")["runs"] if run["points"] == "design"]
    groups = {}
    for run in runs:
        groups.setdefault("idle" if run["load_of_the_machine"] < 2 else "ten others", []).append(
            run
        )
    for name, own in groups.items():
        rates = (
            f"{median(run[key] for run in own):.0f}" for key in ("asks_a_second", "tells_a_second")
        )
        times = (
            ", ".join(f"{median(run[key][part] for run in own):.1f}" for part in ("50", "99"))
            for key in ("ask_ms", "tell_ms")
        )
        rows.append([name, str(len(own)), ", ".join(rates), *times])
    return rows


TABLES: dict[str, tuple[Callable[[], Rows | list[str]], str, tuple[str, ...]]] = {
    "league": (
        lambda: league(LEAGUES),
        "python -m benchmarks.league --subset small | noisy | mixed | large | thousand`, and"
        " `--problems bbob-f1-d5,… --batches 1,5 --budget 100 --noise 0.1 | 0.3 | 1",
        ("optimisers*/optimisers_*.json",),
    ),
    "fronts": (
        lambda: league(["_valleys", "_fronts"]),
        "python -m benchmarks.league --subset valleys | fronts | fronts-large",
        ("optimisers_valleys/optimisers_*.json", "optimisers_fronts/optimisers_*.json"),
    ),
    "failing": (
        failing,
        f"python benchmarks/failing_regions.py {' '.join(FAILING)}",
        ("failing_regions.json",),
    ),
    "asynchronous": (asynchronous, "python benchmarks/asynchronous.py", ("asynchronous.json",)),
    "round": (
        thompson_round,
        "python benchmarks/thompson_round.py",
        ("thompson_laptop.json", "thompson_round.json"),
    ),
    "scaled": (
        lambda: made_table(
            THOMPSON, "thompson", "## adasap2025-x0.04", ("auto", "adasap |", "cg", "sdd-1")
        ),
        "scalable-bo bench thompson --preset adasap2025 --scale 0.04",
        ("thompson/thompson_adasap2025-x0.04_*.json",),
    ),
    "searches": (
        searches,
        "python benchmarks/acquired_value.py",
        ("acquired_value.json", "acquired_value_50000.json"),
    ),
    "epochs": (ten_epochs, "python benchmarks/thompson_system.py", ("thompson_system.json",)),
    "sweep": (sweep, "python benchmarks/solver_sweep.py", ("solver_sweep.json",)),
    "warm": (warm, "python benchmarks/warm_starts.py", ("warm_rounds.json",)),
    "fits": (
        fits,
        "python -m benchmarks.fits --preset grid | weak | sparse`,"
        " `python benchmarks/several_tasks.py",
        (*(f"{name}.json" for name in FITS), "several_tasks.json"),
    ),
    "regression": (
        lambda: made_table(
            REGRESSION,
            "regression",
            "### RMSE",
            ("auto", "cg", "sdd", "svgp", "*SGD", "*CG", "*SVGP"),
        ),
        "scalable-bo bench regression",
        ("regression/regression_*.json",),
    ),
    "shared": (
        shared,
        "python benchmarks/shared_round.py",
        tuple(f"{name}.json" for name in SHARED),
    ),
    "pools": (
        pools,
        "python benchmarks/fingerprint_pool.py",
        ("fingerprint_pool.json", "fingerprint_pool_whole.json"),
    ),
    "served": (served, "python benchmarks/serve.py", ("serve.json",)),
}


def renewed(page: str) -> str:
    """Return a page with each table that has a mark, such as ``<!-- league -->``, made anew."""

    def table(found: re.Match[str]) -> str:
        make, command, names = TABLES[found[1]]
        made = make()
        lines = made if isinstance(made[0], str) else markdown(made)
        return "\n".join([*lines, "", f"{origin(command, *names)} <!-- {found[1]} -->"])

    return BLOCK.sub(table, page)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
