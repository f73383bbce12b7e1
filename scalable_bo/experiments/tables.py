"""The Markdown tables of the records in a folder, beside the published numbers, and what they are
made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scalable_bo.experiments.formats import markdown, mean_and_error, number, plus_minus
from scalable_bo.experiments.published import (
    DATA_SETS,
    PUBLISHED,
    SCORES,
)
from scalable_bo.experiments.records import Record, records_by_file
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
        make: makes its text.
        unfinished: whether it is of unfinished runs, too.
    """

    name: str
    pattern: str
    experiments: tuple[str, ...]
    make: Callable[[Sequence[Record]], str]
    unfinished: bool = False


def write_table(folder: Path, kind: TableKind) -> Path:
    """Write the tables of the records in a folder, and return the file's path. A record that lacks
    what the tables show is passed over with a warning.

    Args:
        folder: of the records, and of the file.
        kind: such as ``REGRESSION``.
    """
    path = folder / f"{kind.name}.md"
    found = records_by_file(folder, kind.pattern, kind.experiments, unfinished=kind.unfinished)
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
        which = "of the given hyperparameters" if noise is None else f"{noise:g}"
        text += ["", f"## Noise variance {which}"]
        data = sorted({record["settings"]["data"] for record in group}, key=_data_order)
        for metric, title, digits in _METRICS:
            rows = _metric_rows(group, data, metric, digits)
            if rows:
                rows += _published_rows(data, noise, metric)
                text += ["", f"### {title}", "", *markdown([["method", *data], *rows])]
    text += ["", "No records yet."]
    if records:
        text[-1] = (
            "Minutes are those of model and solve, with 64 paths unless the mean alone was asked"
            f" for, on {_devices(records)}. Published minutes are those of the mean alone on a core"
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
                values[record["settings"]["data"]].append(value)
        if any(values.values()):
            cell = _largest if metric == "residual" else _mean_with_error
            rows.append([method, *(cell(entries, digits) for entries in values.values())])
    return rows


def _published_rows(data: list[str], noise: float | None, metric: str) -> list[list[str]]:
    rows = []
    for entry in PUBLISHED:
        if entry.metric == metric and entry.noise == noise and set(data) & set(DATA_SETS):
            printed = dict(zip(DATA_SETS, entry.values, strict=True))
            cells = [_printed(*printed[name]) if name in printed else "–" for name in data]
            rows.append([f"*{entry.method} ({entry.source})*", *cells])
    return rows


def _one_a_split(records: list[Record]) -> list[Record]:
    chosen: dict[tuple[Any, ...], Record] = {}
    for record in records:
        settings = record["settings"]
        key = (settings["data"], settings["split"], _method(record))
        if key not in chosen or not settings.get("mean_only"):
            chosen[key] = record
    return list(chosen.values())


def _method(record: Record) -> str:
    settings = record["settings"]
    variation = ", ".join(settings.get("variation", []))
    return f"{settings['solver']} ({variation})" if variation else str(settings["solver"])


def _data_order(name: str) -> tuple[int, str]:
    return (DATA_SETS.index(name) if name in DATA_SETS else len(DATA_SETS), name)


def fits_table(records: Sequence[Record]) -> str:
    """Return Markdown: a section for each experiment that has records."""
    text = [
        "# Hyperparameters",
        "",
        "Mean ± standard error (number of seeds) where there are several.",
    ]
    for experiment, (title, rows) in _SECTIONS.items():
        group = [record for record in records if record["experiment"] == experiment]
        if group:
            text += ["", f"## {title}", "", *markdown(rows(group))]
    text += ["", "No records yet."]
    if records:
        text[-1] = f"Seconds and memory are those of the fits, on {_devices(records)}."
    return "\n".join(text) + "\n"


def _recovery(records: list[Record]) -> list[list[str]]:
    rows = [["method", "start", "σ_f²", "σ²", "−log p(y) a datum", "seconds a fit"]]
    columns = (("outputscale", 2), ("noise", 3), ("nll", 4), ("seconds", 1))
    for record in records:
        settings = record["settings"]
        cells = [_over(record["estimates"], key, digits) for key, digits in columns]
        rows.append([settings["method"], "({:g}, {:g})".format(*settings["start"]), *cells])
    return rows


def _scores(records: list[Record]) -> list[list[str]]:
    rows = [
        ["data", "training points", "method", "noise, std (true)", "RMSE", "NLL", "seconds", "GiB"]
    ]
    # The settings that are not the seed make a row of their own
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        key = tuple((name, value) for name, value in record["settings"].items() if name != "seed")
        groups.setdefault(key, []).append(record)
    for data in dict.fromkeys(record["settings"]["data"] for record in records):
        own = [group for group in groups.values() if group[0]["settings"]["data"] == data]
        rows += [_score_row(group) for group in own]
        rows += [
            [
                data,
                str(round(0.6 * entry.n)),
                f"*{entry.method} (Chen et al. 2022)*",
                number(entry.noise_std, ".3f"),
                f"{entry.rmse:.3f}",
                number(entry.nll, ".3f"),
                f"{60 * entry.minutes:.0f}",
                "–",
            ]
            for entry in SCORES
            if entry.data == data
        ]
    return rows


def _score_row(records: list[Record]) -> list[str]:
    settings = records[0]["settings"]
    true = records[0]["true_noise_std"]
    return [
        settings["data"],
        str(records[0]["num_train"]),
        settings["method"] + (", all epochs" if settings["tolerance"] == 0 else ""),
        _over(records, "noise_std", 3) + ("" if true is None else f" ({true:g})"),
        _over(records, "rmse", 3),
        _over(records, "nll", 3),
        _over(records, "seconds", 1),
        f"{max(record['peak_memory_bytes'] for record in records) / 2**30:.1f}",
    ]


def _batch_sizes(records: list[Record]) -> list[list[str]]:
    def cells(record: Record) -> list[tuple[int, str]]:
        return [(record["settings"]["batch_size"], f"{record['nll']:.3f} / {record['rmse']:.3f}")]

    return _by_size(records, cells, "−log p(y) a datum / RMSE")


def _of_points(
    what: str, text: Callable[[Record], str]
) -> Callable[[list[Record]], list[list[str]]]:
    """Return what makes the rows of records that have a point for each batch size."""

    def cells(record: Record) -> list[tuple[int, str]]:
        return [(point["batch_size"], text(point)) for point in record["points"]]

    return lambda records: _by_size(records, cells, what)


def _by_size(
    records: list[Record], cells: Callable[[Record], Iterable[tuple[int, str]]], what: str
) -> list[list[str]]:
    """Return a row a method and a column a batch size."""
    rows: dict[str, dict[int, str]] = {}
    for record in records:
        settings = record["settings"]
        words = [settings[name] for name in ("data", "kernel", "method") if name in settings]
        if "batch_size" in settings:
            words.append(f"seed {settings['seed']}")
        rows.setdefault(", ".join(words), {}).update(cells(record))
    sizes = sorted({size for row in rows.values() for size in row})
    return [
        [what, *map(str, sizes)],
        *([name, *(row.get(size, "–") for size in sizes)] for name, row in rows.items()),
    ]


def _over(records: Sequence[Record], key: str, digits: int) -> str:
    return _mean_with_error([r[key] for r in records if r[key] is not None], digits)


def _mean_with_error(values: list[float], digits: int) -> str:
    """Return mean ± standard error (number of values); a dash if there are none."""
    return f"{plus_minus(*mean_and_error(values), digits)} ({len(values)})" if values else "–"


def _largest(values: list[float], digits: int) -> str:
    return f"{max(values):.{digits}e} ({len(values)})" if values else "–"


def _printed(mean: float, error: float) -> str:
    """Return published numbers with the digits of the source: three of minutes above ten."""
    return f"{mean:.{1 if abs(mean) >= 10 else 2}f} ± {error:.2f}"


def _devices(records: Sequence[Record]) -> str:
    environments = [record["environment"] for record in records]
    return "; ".join(sorted({f"{one['device']} ({one['cpu']})" for one in environments}))


_SECTIONS: dict[str, tuple[str, Callable[[list[Record]], list[list[str]]]]] = {
    "recovery": ("Recovery of σ_f² = 4 and σ² = 1", _recovery),
    "scores": ("Simulated and real data", _scores),
    "batch-sizes": ("Kernels over a network, by batch size", _batch_sizes),
    "curvature": (
        "Curvature in the noise, by the size of minibatches",
        _of_points("γ, mean ± std", lambda point: f"{point['mean']:.3f} ± {point['std']:.3f}"),
    ),
    "memory": (
        "Memory that a fit with the attention encoder adds, by batch size",
        _of_points("MiB", lambda point: f"{point['bytes'] / 2**20:.0f}"),
    ),
}


REGRESSION = TableKind("regression", "regression_*.json", ("regression",), regression_table)
THOMPSON = TableKind("thompson", "thompson_*.json", ("thompson",), thompson_table, unfinished=True)
HYPERPARAMETERS = TableKind("hyperparameters", "fit_*.json", tuple(_SECTIONS), fits_table)
