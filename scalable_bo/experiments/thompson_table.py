"""The Markdown table of the Thompson runs in a folder, beside the published numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalable_bo.experiments.presets import PRESETS
from scalable_bo.experiments.published import PUBLISHED_IMPROVEMENT, THOMPSON_SOURCE
from scalable_bo.experiments.records import read_record
from scalable_bo.experiments.tables import markdown, mean_with_error

THOMPSON_TABLE = "thompson.md"


def write_thompson_table(folder: Path) -> Path:
    """Write ``thompson.md``, a table of all Thompson records in the folder, and return its path."""
    path = folder / THOMPSON_TABLE
    path.write_text(thompson_markdown(read_thompson_records(folder)), encoding="utf-8")
    return path


def read_thompson_records(folder: Path) -> list[dict[str, Any]]:
    """Return the records of complete Thompson runs in the folder, by name;
    files that are none are passed over.
    """
    records = []
    for path in sorted(folder.glob("thompson_*.json")):
        try:
            record = read_record(path)
        except ValueError:
            continue
        if record.get("experiment") == "thompson" and record.get("complete"):
            records.append(record)
    return records


def thompson_markdown(records: Sequence[dict[str, Any]]) -> str:
    """Return Markdown: for each preset a table of solvers and lengthscales, the published
    improvement in the last column.

    A cell is mean ± standard error (number of seeds); the improvement is (best − random) /
    |random|, in per cent.
    """
    text = [
        "# Thompson sampling",
        "",
        "After the last round, mean ± standard error (number of seeds); seconds are a round's.",
    ]
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["settings"]["preset"]["name"], []).append(record)
    for name, group in groups.items():
        text += ["", f"## {name}", "", _describe(group[0]), "", *markdown(_rows(group))]
    return "\n".join([*text, "", *([] if records else ["No records yet."])]) + "\n"


def _rows(records: list[dict[str, Any]]) -> list[list[str]]:
    numbers = ("best", "random search", "better by (%)", "solve (s)", "acquire (s)")
    rows = [["solver", "lengthscale", *numbers, f"*published (%), {THOMPSON_SOURCE}*"]]
    keys = dict.fromkeys(
        (record["settings"]["solver"], record["settings"]["lengthscale"]) for record in records
    )
    for solver, lengthscale in sorted(keys, key=lambda key: (key[1], key[0])):
        own = [
            r
            for r in records
            if (r["settings"]["solver"], r["settings"]["lengthscale"]) == (solver, lengthscale)
        ]
        best = [record["rounds"][-1]["best_noiseless"] for record in own]
        random = [record["random_search"]["rounds"][-1]["best_noiseless"] for record in own]
        rounds = [entry for record in own for entry in record["rounds"]]
        published = PUBLISHED_IMPROVEMENT.get(
            (base_name(own[0]["settings"]["preset"]["name"]), solver, lengthscale)
        )
        rows.append(
            [
                solver,
                f"{lengthscale:g}",
                mean_with_error(best, 3),
                mean_with_error(random, 3),
                mean_with_error(
                    [100.0 * (b - r) / abs(r) for b, r in zip(best, random, strict=True)], 2
                ),
                *(
                    f"{sum(entry[key] for entry in rounds) / len(rounds):.1f}"
                    for key in ("seconds_solve", "seconds_acquisition")
                ),
                "–" if published is None else f"{published:.2f}",
            ]
        )
    return rows


def base_name(name: str) -> str:
    """Return the preset that a varied one was made from."""
    return max(
        (known for known in PRESETS if name == known or name.startswith(f"{known}-")),
        key=len,
        default=name,
    )


def _describe(record: dict[str, Any]) -> str:
    preset = record["settings"]["preset"]
    environment = record["environment"]
    words = [
        f"{preset['num_initial']} points, {preset['num_rounds']} rounds of {preset['q']}, "
        f"features {preset['target_features']} (target) and {preset['path_features']} (paths)"
    ]
    if preset.get("scale", 1.0) < 1.0:
        words.append(
            f"scaled by {preset['scale']:g}, so that the published numbers are of a larger problem"
        )
    words += [
        words_of
        for key, value, words_of in (
            ("share_features", True, "the target's own features"),
            ("coordinate_features", True, "features of a product of one-dimensional kernels"),
            ("candidate_weights", "published", "candidates by y + min y"),
        )
        if preset.get(key) == value
    ]
    return (
        f"{'; '.join(words)}. On {environment['device']} ({environment['cpu']},"
        f" {environment['threads']} threads)."
    )
