"""The table of Thompson sampling in Markdown, and the summaries that it shows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scalable_bo.experiments.formats import exact, markdown, mean_and_error, number, plus_minus
from scalable_bo.experiments.presets import THOMPSON_PRESETS
from scalable_bo.experiments.published import PUBLISHED_IMPROVEMENT, PUBLISHED_RUNS, THOMPSON_SOURCE
from scalable_bo.experiments.records import Record

# What a preset has in common with the published codes, in words
_AS_PUBLISHED = (
    ("share_features", True, "the target's own features"),
    ("coordinate_features", True, "features of a product of one-dimensional kernels"),
    ("candidate_weights", "published", "candidates by y + min y"),
)


@dataclass(frozen=True)
class Summary:
    """The last round of the runs of one solver at one lengthscale: (mean, standard error) over
    seeds.

    ``improvement`` is (best − best of random search) / |best of random search|, in per cent; the
    errors are NaN for one seed. ``worst_residual`` is ``None`` where no round has one.
    ``name`` is the solver's, and says how far its runs are where they are not complete.
    """

    name: str
    lengthscale: float
    num_seeds: int
    best_noiseless: tuple[float, float]
    random_search: tuple[float, float]
    improvement: tuple[float, float]
    worst_residual: float | None
    seconds_solve: float
    seconds_acquisition: float


def comparable(records: Sequence[Record]) -> dict[tuple[str, float], list[Record]]:
    """Return the runs of one preset by solver and lengthscale, in the order of first appearance:
    the complete ones or, where none is, those begun, cut to the rounds that all of these have.
    """
    groups: dict[tuple[str, float], list[Record]] = {}
    for record in records:
        if record["rounds"]:
            settings = record["settings"]
            groups.setdefault((settings["solver"], settings["lengthscale"]), []).append(record)
    for key, runs in groups.items():
        chosen = [run for run in runs if run["complete"]] or runs
        common = slice(min(len(run["rounds"]) for run in chosen))
        groups[key] = [
            run
            | {
                "rounds": run["rounds"][common],
                "random_search": {"rounds": run["random_search"]["rounds"][common]},
            }
            for run in chosen
        ]
    return groups


def solver_and_progress(runs: Sequence[Record]) -> str:
    """Return the solver of comparable runs, and how far these are where they are not complete."""
    settings = runs[0]["settings"]
    done, planned = len(runs[0]["rounds"]), settings["preset"]["num_rounds"]
    solver = str(settings["solver"])
    return solver if done == planned else f"{solver}, {done} of {planned} rounds"


def summarise(records: Sequence[Record]) -> list[Summary]:
    """Summarise the comparable runs of one preset; seconds are means over rounds and seeds."""
    summaries = []
    for (_, lengthscale), runs in comparable(records).items():
        best = [run["rounds"][-1]["best_noiseless"] for run in runs]
        random = [run["random_search"]["rounds"][-1]["best_noiseless"] for run in runs]
        rounds = [entry for run in runs for entry in run["rounds"]]
        residuals = [entry["residual"] for entry in rounds if entry["residual"] is not None]
        improvement = [100 * (b - r) / abs(r) for b, r in zip(best, random, strict=True)]
        summary = Summary(
            name=solver_and_progress(runs),
            lengthscale=lengthscale,
            num_seeds=len(runs),
            best_noiseless=mean_and_error(best),
            random_search=mean_and_error(random),
            improvement=mean_and_error(improvement),
            worst_residual=max(residuals, default=None),
            seconds_solve=statistics.fmean(entry["seconds_solve"] for entry in rounds),
            seconds_acquisition=statistics.fmean(entry["seconds_acquisition"] for entry in rounds),
        )
        summaries.append(summary)
    return summaries


def thompson_table(records: Sequence[Record]) -> str:
    """Return Markdown: for each preset a table of solvers and lengthscales, and published results.

    A cell is mean ± standard error (number of seeds); the improvement is (best − random) /
    |random|, in per cent. Presets of one name that differ in their sizes are tables of their own.
    """
    text = [
        "# Thompson sampling",
        "",
        "After the last round, mean ± standard error (number of seeds); seconds are a round's.",
    ]
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        preset = record["settings"]["preset"]
        groups.setdefault((preset["name"], _sizes(record)), []).append(record)
    for (name, sizes), group in groups.items():
        # The preset that a varied one was made from
        base = next((one for one in THOMPSON_PRESETS if name.startswith(f"{one}-")), name)
        machine = "On {device} ({cpu}, {threads} threads).".format(**group[0]["environment"])
        about = f"{sizes}. {machine}{PUBLISHED_RUNS.get(base, '')}"
        text += ["", f"## {name}", "", about, "", *markdown(_rows(base, summarise(group)))]
    return "\n".join([*text, "", *([] if records else ["No records yet."])]) + "\n"


def _rows(preset: str, summaries: list[Summary]) -> list[list[str]]:
    headings = ["solver", "lengthscale", "best", "random search", "better by (%)"]
    headings += ["solve (s)", "acquire (s)"]
    compared = any(name == preset for name, _, _ in PUBLISHED_IMPROVEMENT)
    rows = [headings + [f"*published (%), {THOMPSON_SOURCE}*"] * compared]
    for row in sorted(summaries, key=lambda row: (row.lengthscale, row.name)):
        cells = [
            row.name,
            exact(row.lengthscale),
            f"{plus_minus(*row.best_noiseless, 3)} ({row.num_seeds})",
            f"{plus_minus(*row.random_search, 3)} ({row.num_seeds})",
            f"{plus_minus(*row.improvement, 2)} ({row.num_seeds})",
            f"{row.seconds_solve:.1f}",
            f"{row.seconds_acquisition:.1f}",
        ]
        published = PUBLISHED_IMPROVEMENT.get((preset, row.name, row.lengthscale))
        rows.append(cells + [number(published, ".2f")] * compared)
    return rows


def _sizes(record: Record) -> str:
    preset = record["settings"]["preset"]
    words = [
        f"{preset['num_initial']} points, {preset['num_rounds']} rounds of {preset['q']}, "
        f"features {preset['target_features']} (target) and {preset['path_features']} (paths)"
    ]
    if preset.get("scale", 1.0) < 1.0:
        words.append(
            f"scaled by {preset['scale']:g}, so that the published numbers are of a larger problem"
        )
    words += [words_of for key, value, words_of in _AS_PUBLISHED if preset.get(key) == value]
    return "; ".join(words)
