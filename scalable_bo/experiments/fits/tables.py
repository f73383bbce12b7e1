"""The Markdown tables of the fits in a folder, beside the published numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from scalable_bo.console import number
from scalable_bo.experiments.fits.published import SCORES
from scalable_bo.experiments.records import read_record
from scalable_bo.experiments.tables import markdown, mean_with_error

FITS_TABLE = "hyperparameters.md"


def write_fits_table(folder: Path) -> Path:
    """Write ``hyperparameters.md``, the tables of all fits recorded in the folder,
    and return its path.
    """
    path = folder / FITS_TABLE
    path.write_text(fits_table(read_fit_records(folder)), encoding="utf-8")
    return path


def read_fit_records(folder: Path) -> list[dict[str, Any]]:
    """Return the records of fits in the folder, by name; files that are none are passed over."""
    records = []
    for path in sorted(folder.glob("fit_*.json")):
        try:
            record = read_record(path)
        except ValueError:
            continue
        if record.get("experiment") in _SECTIONS:
            records.append(record)
    return records


def fits_table(records: Sequence[dict[str, Any]]) -> str:
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
    if records:
        devices = sorted(
            {
                f"{record['environment']['device']} ({record['environment']['cpu']})"
                for record in records
            }
        )
        text += ["", f"Seconds and memory are those of the fits, on {'; '.join(devices)}."]
    else:
        text += ["", "No records yet."]
    return "\n".join(text) + "\n"


def _recovery(records: list[dict[str, Any]]) -> list[list[str]]:
    rows = [["method", "start", "σ_f²", "σ²", "−log p(y) a datum", "seconds a fit"]]
    for record in records:
        settings = record["settings"]
        cells = [
            _over(record["estimates"], key, digits)
            for key, digits in (("outputscale", 2), ("noise", 3), ("nll", 4), ("seconds", 1))
        ]
        rows.append([settings["method"], "({:g}, {:g})".format(*settings["start"]), *cells])
    return rows


def _scores(records: list[dict[str, Any]]) -> list[list[str]]:
    rows = [
        ["data", "training points", "method", "noise, std (true)", "RMSE", "NLL", "seconds", "GiB"]
    ]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        settings = record["settings"]
        # the settings that are not the seed make a row of their own
        key = tuple((name, value) for name, value in settings.items() if name != "seed")
        groups.setdefault(key, []).append(record)
    for data in dict.fromkeys(record["settings"]["data"] for record in records):
        for key, group in groups.items():
            settings = dict(key)
            if settings["data"] != data:
                continue
            true = group[0]["true_noise_std"]
            noise = _over(group, "noise_std", 3) + ("" if true is None else f" ({true:g})")
            epochs = ", all epochs" if settings["tolerance"] == 0 else ""
            memory = f"{max(record['peak_memory_bytes'] for record in group) / 2**30:.1f}"
            scores = [_over(group, "rmse", 3), _over(group, "nll", 3), _over(group, "seconds", 1)]
            rows.append(
                [
                    data,
                    str(group[0]["num_train"]),
                    settings["method"] + epochs,
                    noise,
                    *scores,
                    memory,
                ]
            )
        for entry in SCORES:
            if entry.data == data:
                scores = [
                    number(entry.noise_std, ".3f"),
                    f"{entry.rmse:.3f}",
                    number(entry.nll, ".3f"),
                    f"{60 * entry.minutes:.0f}",
                    "–",
                ]
                rows.append(
                    [
                        data,
                        str(round(0.6 * entry.n)),
                        f"*{entry.method} (Chen et al. 2022)*",
                        *scores,
                    ]
                )
    return rows


def _batch_sizes(records: list[dict[str, Any]]) -> list[list[str]]:
    return _by_size(
        records,
        lambda r: [(r["settings"]["batch_size"], f"{r['nll']:.3f} / {r['rmse']:.3f}")],
        "−log p(y) a datum / RMSE",
    )


def _curvature(records: list[dict[str, Any]]) -> list[list[str]]:
    return _by_size(
        records,
        lambda r: [(p["batch_size"], f"{p['mean']:.3f} ± {p['std']:.3f}") for p in r["points"]],
        "γ, mean ± std",
    )


def _memory(records: list[dict[str, Any]]) -> list[list[str]]:
    return _by_size(
        records,
        lambda r: [(p["batch_size"], f"{p['bytes'] / 2**20:.0f}") for p in r["points"]],
        "MiB",
    )


def _by_size(
    records: list[dict[str, Any]],
    cells: Callable[[dict[str, Any]], Iterable[tuple[int, str]]],
    what: str,
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


def _over(records: Sequence[dict[str, Any]], key: str, digits: int) -> str:
    values = [record[key] for record in records if record[key] is not None]
    return mean_with_error(values, digits)


_SECTIONS: dict[str, tuple[str, Callable[[list[dict[str, Any]]], list[list[str]]]]] = {
    "recovery": ("Recovery of σ_f² = 4 and σ² = 1", _recovery),
    "scores": ("Simulated and real data", _scores),
    "batch-sizes": ("Kernels over a network, by batch size", _batch_sizes),
    "curvature": ("Curvature in the noise, by the size of minibatches", _curvature),
    "memory": ("Memory that a fit with the attention encoder adds, by batch size", _memory),
}
