"""The tables of fits in Markdown, beside the published numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.fits.grid import is_miss
from scalable_bo.experiments.formats import markdown, number
from scalable_bo.experiments.markdown_tables import TableKind, devices, mean_with_error
from scalable_bo.experiments.records import Record


class PublishedScore(NamedTuple):
    """A method's means on one data set, as printed in Tables 1 to 5 of the sgGP paper (Chen et al.
    2022); ``None`` where not printed.

    Attributes:
        n: points, of which 60 % for training.
        noise_std: learned, on standardised targets.
        minutes: of the fit, on one core of 2014.
    """

    data: str
    n: int
    method: str
    rmse: float
    nll: float | None
    noise_std: float | None
    minutes: float


SCORES = (
    PublishedScore("levy", 10_000, "sgGP (uni)", 0.594, 0.891, 0.549, 0.41),
    PublishedScore("levy", 10_000, "sgGP (nn)", 0.264, 0.034, 0.200, 0.35),
    PublishedScore("levy", 10_000, "SGPR", 0.564, 0.688, 0.265, 3.55),
    PublishedScore("griewank", 10_000, "sgGP (uni)", 0.149, 0.317, 0.010, 0.54),
    PublishedScore("griewank", 10_000, "sgGP (nn)", 0.070, -1.251, 0.071, 0.48),
    PublishedScore("griewank", 10_000, "SGPR", 0.132, -0.350, 0.183, 1.76),
    PublishedScore("borehole", 1_000_000, "sgGP (uni)", 0.173, -0.323, 0.168, 54.82),
    PublishedScore("borehole", 1_000_000, "sgGP (nn)", 0.172, -0.335, 0.171, 65.19),
    PublishedScore("borehole", 1_000_000, "SGPR", 0.178, -0.299, 0.157, 857.60),
    PublishedScore("otl", 2_000_000, "sgGP (nn)", 0.401, None, None, 33.43),
    PublishedScore("wing", 2_000_000, "sgGP (nn)", 0.072, None, None, 78.78),
    PublishedScore("bike", 17_379, "sgGP (uni)", 0.226, 0.238, None, 1.50),
    PublishedScore("bike", 17_379, "sgGP (nn)", 0.221, -0.038, None, 1.55),
    PublishedScore("bike", 17_379, "SGPR", 0.276, -0.150, None, 5.31),
    PublishedScore("protein", 45_730, "sgGP (uni)", 0.829, 1.241, None, 3.12),
    PublishedScore("protein", 45_730, "sgGP (nn)", 0.659, 0.884, None, 2.63),
    PublishedScore("protein", 45_730, "SGPR", 0.715, 0.948, None, 19.55),
)


def fits_table(records: Sequence[Record]) -> str:
    """Return Markdown: a section for each experiment that has records."""
    text = [
        "# Hyperparameters",
        "",
        "Mean ± standard error (number of seeds) where there are several.",
    ]
    for experiment, title, rows in _SECTIONS:
        table = rows([record for record in records if record["experiment"] == experiment])
        if len(table) > 1:
            text += ["", f"## {title}", "", *markdown(table)]
    text += ["", "No records yet."]
    if records:
        text[-1] = f"Seconds and memory are those of the fits, on {devices(records)}."
    if any((r["experiment"], r["settings"].get("data")) == ("scores", "bike") for r in records):
        text[-1] += (
            " The scores on bike do not compare with the published ones: the copy of bike used here"
            " has other inputs, whose sum is the target."
        )
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


def _grid(records: list[Record]) -> list[list[str]]:
    """Return a row for each number of points, ratio and method, over cells all methods have."""
    headings = ["points", "signal / noise", "method", "cells", "RMSE", "NLL", "seconds"]
    rows = [[*headings, "taken for noise", "worse than the reference"]]
    methods = list(dict.fromkeys(record["settings"]["method"] for record in records))
    for (n, ratio), group in _of_all_methods(records, methods, "n", "ratio"):
        for method in methods:
            own = [cell[method] for cell in group]
            numbers = (("rmse", ".3f"), ("nll", ".4f"), ("seconds", ".1f"))
            means = [f"{fmean(record[key] for record in own):{form}}" for key, form in numbers]
            silent = sum(record["chosen"] == "white noise" for record in own)
            pairs = [(cell[method], cell.get("reference", cell[method])) for cell in group]
            missed = sum(is_miss(*pair) for pair in pairs)
            words = [str(n), f"{ratio:g}", method, str(len(own))]
            rows.append([*words, *means, str(silent), str(missed)])
    return rows


def _of_all_methods(
    records: Sequence[Record], methods: Sequence[str], *names: str
) -> list[tuple[tuple[Any, ...], list[dict[str, Record]]]]:
    """Return the cells that all ``methods`` have a record of, by method, in groups of the same
    settings ``names``, in their order.
    """
    cells: dict[tuple[Any, ...], dict[str, Record]] = {}
    for record in records:
        key = tuple(value for name, value in record["settings"].items() if name != "method")
        cells.setdefault(key, {})[record["settings"]["method"]] = record
    groups: dict[tuple[Any, ...], list[dict[str, Record]]] = {}
    for cell in cells.values():
        if cell.keys() >= set(methods):
            settings = cell[methods[0]]["settings"]
            groups.setdefault(tuple(settings[name] for name in names), []).append(cell)
    return sorted(groups.items())


def _batch_sizes(records: list[Record]) -> list[list[str]]:
    """Return a row a method and a column a batch size."""
    rows: dict[str, dict[int, str]] = {}
    for record in records:
        settings = record["settings"]
        name = "{data}, {n} points, {kernel}, {method}, seed {seed}".format(**settings)
        row = rows.setdefault(name, {})
        row[settings["batch_size"]] = f"{record['nll']:.3f} / {record['rmse']:.3f}"
    sizes = sorted({size for row in rows.values() for size in row})
    return [
        ["−log p(y) a datum / RMSE", *map(str, sizes)],
        *([name, *(row.get(size, "–") for size in sizes)] for name, row in rows.items()),
    ]


def _wins(records: list[Record]) -> list[list[str]]:
    """Return a row a kernel, measure and batch size: on how many data sets and seeds a method of
    the paper ends below the best of the existing methods, and on how many it does not.
    """
    ours, existing = ("minimax", "scgd"), ("biased", "svgp")
    rows = [["kernel", "points", "batch size", "measure", *(f"{one}: won, lost" for one in ours)]]
    groups = _of_all_methods(records, (*ours, *existing), "kernel", "n", "batch_size")
    for settings, group in groups:
        for key, measure in (("nll", "−log p(y)"), ("rmse", "RMSE")):
            counts = []
            for method in ours:
                won = sum(
                    cell[method][key] < min(cell[name][key] for name in existing) for cell in group
                )
                counts.append(f"{won}, {len(group) - won}")
            rows.append([*map(str, settings), measure, *counts])
    return rows


def _over(records: Sequence[Record], key: str, digits: int) -> str:
    return mean_with_error([r[key] for r in records if r[key] is not None], digits)


_SECTIONS: tuple[tuple[str, str, Callable[[list[Record]], list[list[str]]]], ...] = (
    ("recovery", "Recovery of σ_f² = 4 and σ² = 1", _recovery),
    ("scores", "Simulated and real data", _scores),
    ("grid", "Known functions and noise", _grid),
    ("batch-sizes", "Kernels over a network, by batch size", _batch_sizes),
    ("batch-sizes", "Wins and losses against biased gradients and SVGP", _wins),
)


HYPERPARAMETERS = TableKind(
    "hyperparameters", "fit_*.json", tuple(dict.fromkeys(one[0] for one in _SECTIONS)), fits_table
)
