"""The Markdown table of the regressions: what is averaged, and what stands beside it."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from scalable_bo.experiments.markdown_tables import (
    REGRESSION,
    THOMPSON,
    TableKind,
    regression_table,
    write_markdown,
)
from scalable_bo.experiments.published import DATA_SETS, PUBLISHED
from scalable_bo.experiments.records import read_records


def record(
    data: str = "pol", split: int = 0, solver: str = "cg", rmse: float = 0.1, **settings: Any
) -> dict[str, Any]:
    mean_only = settings.get("mean_only", False)
    return {
        "experiment": "regression",
        "settings": {
            "data": data,
            "split": split,
            "solver": solver,
            "noise": None,
            "variation": [],
            **settings,
        },
        "environment": {"device": "cpu", "cpu": "a processor"},
        "rmse": rmse,
        "nll": None if mean_only else -1.0,
        "seconds": 90.0,
        "residual": 0.01 * (split + 1),
    }


def rows(
    table: str, heading: str, section: str = "## Noise variance of the given hyperparameters"
) -> dict[str, list[str]]:
    """Return the rows of the table below a heading, by their first cell."""
    text = (
        table.split(f"{section}\n")[1].split("\n## ")[0].split(f"### {heading}")[1].split("### ")[0]
    )
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    assert len({len(line) for line in lines}) == 1
    return {line[0].strip(): [cell.strip() for cell in line[1:]] for line in lines}


def test_cells_are_means_and_standard_errors_over_splits() -> None:
    table = regression_table(
        [record(split=split, rmse=rmse) for split, rmse in enumerate([0.1, 0.2, 0.3])]
        + [record("bike", rmse=0.05)]
    )
    rmse = rows(table, "RMSE")
    assert rmse["method"] == ["pol", "bike"]  # in the papers' order
    assert rmse["cg"] == [f"0.200 ± {0.1 / math.sqrt(3):.3f} (3)", "0.050 (1)"]
    assert rows(table, "Minutes")["cg"][1] == "1.50 (1)"
    assert rows(table, "Relative residual")["cg"] == ["3.0e-02 (3)", "1.0e-02 (1)"]


def test_published_numbers_stand_below_ours_for_the_data_at_hand() -> None:
    table = regression_table([record("protein"), record("bike"), record("homes", solver="svgp")])
    rmse = rows(table, "RMSE")
    assert rmse["method"] == ["bike", "protein", "homes"]
    assert rmse["*SGD (Lin et al. 2023, Table 1)*"] == ["0.11 ± 0.00", "0.51 ± 0.00", "–"]
    assert rmse["*SVGP (Lin et al. 2023, Table 1)*"] == ["0.07 ± 0.00", "0.57 ± 0.00", "–"]
    assert rows(table, "Negative log")["*CG (Lin et al. 2023, Table 1)*"] == [
        "-2.62 ± 0.06",
        "0.62 ± 0.01",
        "–",
    ]
    assert rmse["svgp"] == ["–", "–", "0.100 (1)"]


def test_low_noise_is_a_table_of_its_own_with_its_published_numbers() -> None:
    table = regression_table([record(rmse=0.1), record(rmse=0.4, noise=1e-6)])
    assert rows(table, "RMSE")["cg"] == ["0.100 (1)"]
    low = rows(table, "RMSE", "## Noise variance 1e-06")
    assert low["cg"] == ["0.400 (1)"]
    assert low["*CG (Lin et al. 2023, Table 1)*"] == ["0.16 ± 0.01"]
    assert "*SVGP (Lin et al. 2023, Table 1)*" not in low


def test_a_table_of_other_data_alone_has_no_published_numbers() -> None:
    assert "Lin et al." not in regression_table([record("homes")])


def test_tables_of_one_name_and_noises_alike_are_told_apart() -> None:
    table = regression_table(
        [
            record("homes.price", rmse=rmse, sha256=8 * rest)
            for rmse, rest in ((0.1, "a"), (0.2, "b"))
        ]
        + [record(noise=noise) for noise in (1e-6, 1.0000001e-6)]
    )
    assert "| method | homes.price aaaaaaaa | homes.price bbbbbbbb |" in table
    assert rows(table, "RMSE")["cg"] == ["0.100 (1)", "0.200 (1)"]
    assert "## Noise variance 1e-06\n" in table and "## Noise variance 1.0000001e-06\n" in table


def test_a_full_run_counts_where_the_mean_alone_was_run_too() -> None:
    alone = record(rmse=0.5, mean_only=True)
    full = record(rmse=0.1, mean_only=False)
    for records in ([alone, full], [full, alone]):
        table = regression_table(records)
        assert rows(table, "RMSE")["cg"] == ["0.100 (1)"]
        assert rows(table, "Negative log")["cg"] == ["-1.000 (1)"]
    assert "### Negative log" not in regression_table([alone])


def test_other_budgets_are_rows_of_their_own() -> None:
    table = regression_table(
        [record(solver="sgd"), record(solver="sgd", rmse=0.3, variation=["sgd_steps=1000"])]
    )
    rmse = rows(table, "RMSE")
    assert (rmse["sgd"], rmse["sgd (sgd_steps=1000)"]) == (["0.100 (1)"], ["0.300 (1)"])


def test_all_records_of_a_folder_are_read_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "regression_pol_0_cg.json").write_text(json.dumps(record()))
    (tmp_path / "regression_broken.json").write_text("{")
    (tmp_path / "regression_other.json").write_text('{"experiment": "thompson"}')
    (tmp_path / "thompson.json").write_text(json.dumps(record(solver="sdd")))
    found = [*read_records(tmp_path, "regression_*.json", ["regression"]).values()]
    assert [entry["settings"]["solver"] for entry in found] == ["cg"]
    path = write_markdown(tmp_path, REGRESSION)
    assert path == tmp_path / "regression.md"
    assert "| cg | 0.100 (1) |" in path.read_text()


def test_an_empty_folder_has_a_table_that_says_so(tmp_path: Path) -> None:
    assert "No records yet." in write_markdown(tmp_path, REGRESSION).read_text()


@pytest.mark.parametrize(
    "entry", PUBLISHED, ids=lambda entry: f"{entry.method}-{entry.metric}-{entry.noise}"
)
def test_published_rows_have_a_number_for_every_data_set(entry: Any) -> None:
    for name in DATA_SETS:
        assert all(float(number) < 100 for number in entry.values[name].split(" ± "))
    assert entry.metric in ("rmse", "nll", "minutes")
    assert entry.noise in (None, 1e-6)


@pytest.mark.parametrize("kind", [REGRESSION, THOMPSON], ids=lambda kind: kind.name)
def test_the_records_of_the_repository_make_its_tables(kind: TableKind, tmp_path: Path) -> None:
    folder = Path(__file__).parents[3] / "benchmarks" / "results" / kind.name
    shutil.copytree(folder, tmp_path / kind.name)
    expected = (folder / f"{kind.name}.md").read_text()
    assert write_markdown(tmp_path / kind.name, kind).read_text() == expected
