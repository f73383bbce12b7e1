"""The Markdown table of the regressions in a folder, beside the published numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalable_bo.experiments.published import DATA_SETS, PUBLISHED
from scalable_bo.experiments.records import read_record

REGRESSION_TABLE = "regression.md"
_METRICS = (
    ("rmse", "RMSE", 3),
    ("nll", "Negative log likelihood", 3),
    ("minutes", "Minutes", 2),
    ("residual", "Relative residual, the largest over splits and columns", 1),
)


def write_regression_table(folder: Path) -> Path:
    """Write ``regression.md``, a table of all regression records in the folder,
    and return its path.
    """
    path = folder / REGRESSION_TABLE
    path.write_text(regression_table(read_regression_records(folder)), encoding="utf-8")
    return path


def read_regression_records(folder: Path) -> list[dict[str, Any]]:
    """Return the regression records in the folder, by name; files that are none are passed over."""
    records = []
    for path in sorted(folder.glob("regression_*.json")):
        try:
            record = read_record(path)
        except ValueError:
            continue
        if record.get("experiment") == "regression":
            records.append(record)
    return records


def regression_table(records: Sequence[dict[str, Any]]) -> str:
    """Return Markdown: for each noise and metric a table of methods (rows) and data sets, the
    published rows below ours.

    A cell is mean ± standard error over splits, with the number of splits. Where a split has a run
    of the mean alone beside a full one, the full one counts.
    """
    noises: list[float | None] = sorted(
        {record["settings"].get("noise") for record in records}, key=lambda noise: noise or 0.0
    )
    text = [
        "# Regression",
        "",
        "Mean ± standard error (number of splits), on standardised targets.",
    ]
    for noise in noises:
        group = _one_a_split(
            [record for record in records if record["settings"].get("noise") == noise]
        )
        text += [
            "",
            (
                "## Noise variance of the given hyperparameters"
                if noise is None
                else f"## Noise variance {noise:g}"
            ),
        ]
        data = sorted({record["settings"]["data"] for record in group}, key=_data_order)
        for metric, title, digits in _METRICS:
            text += _metric_table(group, data, noise, metric, title, digits)
    return "\n".join([*text, "", *_footer(records)]) + "\n"


def _metric_table(
    records: list[dict[str, Any]],
    data: list[str],
    noise: float | None,
    metric: str,
    title: str,
    digits: int,
) -> list[str]:
    rows = []
    for method in dict.fromkeys(map(_method, records)):
        values = [
            [
                _value(r, metric)
                for r in records
                if _method(r) == method and r["settings"]["data"] == name
            ]
            for name in data
        ]
        present = [[value for value in entries if value is not None] for entries in values]
        if any(present):
            rows.append(
                [
                    method,
                    *(
                        _largest(p) if metric == "residual" else mean_with_error(p, digits)
                        for p in present
                    ),
                ]
            )
    if not rows:
        return []
    for entry in PUBLISHED:
        if entry.metric == metric and entry.noise == noise and set(data) & set(DATA_SETS):
            printed = dict(zip(DATA_SETS, entry.values, strict=True))
            cells = [_printed(*printed[name]) if name in printed else "–" for name in data]
            rows.append([f"*{entry.method} ({entry.source})*", *cells])
    return ["", f"### {title}", "", *markdown([["method", *data], *rows])]


def _footer(records: Sequence[dict[str, Any]]) -> list[str]:
    if not records:
        return ["No records yet."]
    devices = sorted(
        {
            f"{record['environment']['device']} ({record['environment']['cpu']})"
            for record in records
        }
    )
    return [
        "Minutes are those of model and solve, with 64 paths unless the mean alone was asked for,"
        f" on {'; '.join(devices)}. Published minutes are those of the mean alone on a core of a"
        " TPUv2, and the published likelihoods are of paths with other random features."
    ]


def _one_a_split(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    chosen: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in records:
        settings = record["settings"]
        key = (settings["data"], settings["split"], _method(record))
        if key not in chosen or not settings.get("mean_only"):
            chosen[key] = record
    return list(chosen.values())


def _method(record: dict[str, Any]) -> str:
    settings = record["settings"]
    variation = settings.get("variation", [])
    return (
        f"{settings['solver']} ({', '.join(variation)})" if variation else str(settings["solver"])
    )


def _value(record: dict[str, Any], metric: str) -> float | None:
    return record["seconds"] / 60 if metric == "minutes" else record[metric]


def _printed(mean: float, error: float) -> str:
    """Return published numbers with the digits of the source: three of minutes above ten."""
    return f"{mean:.{1 if abs(mean) >= 10 else 2}f} ± {error:.2f}"


def mean_with_error(values: list[float], digits: int) -> str:
    """Return mean ± standard error (number of values); a dash if there are none."""
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.{digits}f}"
    if len(values) < 2:
        return f"{mean} (1)"
    return (
        f"{mean} ± {statistics.stdev(values) / math.sqrt(len(values)):.{digits}f} ({len(values)})"
    )


def _largest(values: list[float]) -> str:
    return f"{max(values):.1e} ({len(values)})" if values else "–"


def _data_order(name: str) -> tuple[int, str]:
    return (DATA_SETS.index(name) if name in DATA_SETS else len(DATA_SETS), name)


def markdown(rows: list[list[str]]) -> list[str]:
    """Return the lines of a table, the first row its header."""
    header, *body = [f"| {' | '.join(row)} |" for row in rows]
    return [header, f"|{'---|' * len(rows[0])}", *body]
