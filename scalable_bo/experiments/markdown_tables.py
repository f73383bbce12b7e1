"""The Markdown tables of the records in a folder, beside the published numbers, and what they are
made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scalable_bo.experiments.formats import exact, markdown, mean_and_error, plus_minus
from scalable_bo.experiments.published import DATA_SETS, PUBLISHED
from scalable_bo.experiments.records import Record, read_records
from scalable_bo.experiments.thompson.table import thompson_table
from surrogates.atomic import write_atomically
from surrogates.callers import warn

_METRICS = (
    ("rmse", "RMSE", 3),
    ("nll", "Negative log likelihood", 3),
    ("minutes", "Minutes", 2),
    ("residual", "Relative residual, the largest over splits and columns", 1),
)


class TableKind(NamedTuple):
    """A table of the records in a folder.

    Attributes:
        name: of the file, but for its ending ``.md``.
        pattern, experiments: of the files and the records in them that it is of.
        unfinished: whether it is of unfinished runs, too.
    """

    name: str
    pattern: str
    experiments: tuple[str, ...]
    make: Callable[[Sequence[Record]], str]
    unfinished: bool = False


def write_markdown(folder: Path, kind: TableKind) -> Path:
    """Write the tables of the records in a folder, such as ``REGRESSION``, and return the file's
    path. A record that lacks what the tables show is passed over with a warning.
    """
    path = folder / f"{kind.name}.md"
    found = read_records(folder, kind.pattern, kind.experiments, unfinished=kind.unfinished)
    records = [record for file, record in found.items() if _is_whole(file, record, kind)]
    write_atomically(path, kind.make(records).encode())
    return path


def _is_whole(file: Path, record: Record, kind: TableKind) -> bool:
    """Return whether a table can be made of this record alone; warn if not."""
    try:
        kind.make([record])
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        warn(
            f"{file} lacks what a record of {kind.experiments[0]} has ({error!r}) and was passed"
            " over. Move it away."
        )
        return False
    return True


def regression_table(records: Sequence[Record]) -> str:
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
        group = _one_a_split([r for r in records if r["settings"].get("noise") == noise])
        which = "of the given hyperparameters" if noise is None else exact(noise)
        text += ["", f"## Noise variance {which}"]
        found = set(map(_data, group))
        data = [*filter(found.__contains__, DATA_SETS), *sorted(found.difference(DATA_SETS))]
        for metric, title, digits in _METRICS:
            rows = _metric_rows(group, data, metric, digits)
            if rows:
                rows += [
                    [f"*{one.method} ({one.source})*", *(one.values.get(n, "–") for n in data)]
                    for one in PUBLISHED
                    if (one.metric, one.noise) == (metric, noise) and set(data) & set(DATA_SETS)
                ]
                text += ["", f"### {title}", "", *markdown([["method", *data], *rows])]
    text += ["", "No records yet."]
    if records:
        text[-1] = (
            "Minutes are those of model and solve, with 64 paths unless the mean alone was asked"
            f" for, on {devices(records)}. Published minutes are those of the mean alone on a core"
            " of a TPUv2, and the published likelihoods are of paths with other random features."
        )
    return "\n".join(text) + "\n"


def _metric_rows(
    records: list[Record], data: list[str], metric: str, digits: int
) -> list[list[str]]:
    rows = []
    for method in dict.fromkeys(map(_method, records)):
        values: dict[str, list[float]] = {name: [] for name in data}
        for record in records:
            value = record["seconds"] / 60 if metric == "minutes" else record[metric]
            if _method(record) == method and value is not None:
                values[_data(record)].append(value)
        if any(values.values()):
            cell = _largest if metric == "residual" else mean_with_error
            rows.append([method, *(cell(entries, digits) for entries in values.values())])
    return rows


def _one_a_split(records: list[Record]) -> list[Record]:
    chosen: dict[tuple[Any, ...], Record] = {}
    for record in records:
        settings = record["settings"]
        key = (_data(record), settings["split"], _method(record))
        if key not in chosen or not settings.get("mean_only"):
            chosen[key] = record
    return list(chosen.values())


def _method(record: Record) -> str:
    settings = record["settings"]
    variation = ", ".join(settings.get("variation", []))
    return f"{settings['solver']} ({variation})" if variation else str(settings["solver"])


def _data(record: Record) -> str:
    """Return the data set's name, and of a user's table the beginning of its digest, too."""
    settings = record["settings"]
    return f"{settings['data']} {settings.get('sha256', '')[:8]}".rstrip()


def mean_with_error(values: list[float], digits: int) -> str:
    """Return mean ± standard error (number of values); a dash if there are none."""
    return f"{plus_minus(*mean_and_error(values), digits)} ({len(values)})" if values else "–"


def _largest(values: list[float], digits: int) -> str:
    return f"{max(values):.{digits}e} ({len(values)})" if values else "–"


def devices(records: Sequence[Record]) -> str:
    """Name the devices and processors of the records."""
    environments = [record["environment"] for record in records]
    return "; ".join(sorted({f"{one['device']} ({one['cpu']})" for one in environments}))


REGRESSION = TableKind("regression", "regression_*.json", ("regression",), regression_table)
THOMPSON = TableKind("thompson", "thompson_*.json", ("thompson",), thompson_table, unfinished=True)
