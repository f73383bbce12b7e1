"""A week in a laboratory, by commands alone: past experiments with gaps, points as a sheet, results
in parts, a correction and a report. No number is lost, and the surrogates have every one.
"""

import math
import random
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("pydantic")

from scalable_bo.cli.config import read_config
from scalable_bo.study.ask_inputs import AskInputs
from tests.command_lines import CommandLine

CONFIG = """
[study]
path = "week"
objectives = { "Yield (%)" = "maximize", "Cost [EUR]" = "minimize" }
outcome_constraints = { Impurity = { at_most = 1.5 } }
seed = 1

[space]
"Temp [°C]" = { type = "float", low = 20, high = 120, step = 0.5 }
"Cat. loading [mol%]" = { type = "float", low = 0.1, high = 10.0, log = true }
Solvent = { type = "categorical", choices = ["MeCN", "DMF", "toluene"] }

[[data]]
file = "past.csv"
"""
OUTCOMES = ("Yield (%)", "Cost [EUR]", "Impurity")


def measured(params: dict[str, Any]) -> dict[str, float]:
    """Return the outcomes of an experiment, to a digit as a laboratory notes them."""
    hot = (params["Temp [°C]"] - 70.0) / 50.0
    load = math.log10(params["Cat. loading [mol%]"])
    solvent = {"MeCN": 0.0, "DMF": 5.0, "toluene": -5.0}[params["Solvent"]]
    return {
        "Yield (%)": round(80.0 - 30.0 * hot**2 - 10.0 * (load - 0.3) ** 2 + solvent, 1),
        "Cost [EUR]": round(5.0 + params["Cat. loading [mol%]"] + solvent / 5.0, 2),
        "Impurity": round(1.0 + hot + 0.1 * load, 2),
    }


def write_past(path: Path, num_rows: int) -> list[dict[str, Any]]:
    """Write experiments with gaps as a spreadsheet of another country does; return them."""
    source = random.Random(0)
    rows = []
    lines = ["Nr;" + ";".join([" Temp [°C]", "Cat. loading [mol%] ", "Solvent", *OUTCOMES])]
    for number in range(num_rows):
        params = {
            "Temp [°C]": round(source.uniform(20, 120), 1),  # of which few are steps of 0.5
            "Cat. loading [mol%]": round(10 ** source.uniform(-1, 1), 2),
            "Solvent": source.choice(["MeCN", "DMF", "toluene"]),
        }
        found = {n: y for n, y in measured(params).items() if source.random() > 0.2}
        found = found or {"Impurity": measured(params)["Impurity"]}  # without any it has failed
        rows.append({**params, **found})
        cells = [str(params[name]) for name in params]
        cells += [str(found.get(name, source.choice(["", "n/a", "-"]))) for name in OUTCOMES]
        lines.append(f"{number + 1};" + ";".join(cell.replace(".", ",") for cell in cells))
    path.write_bytes("\r\n".join(lines).encode("cp1252"))
    return rows


def audited(file: Path, expected: list[dict[str, float]]) -> None:
    """Require that a study has these numbers, row by row, and its surrogates have each."""
    with read_config(file).open_study() as study:
        frame = study.to_dataframe()
        kept = [
            {name: row[name] for name in OUTCOMES if not math.isnan(row[name])}
            for _, row in frame.iterrows()
        ]
        assert kept == expected
        known = AskInputs(study.space, study._record)
        counts = [len(part.U) for part in known.outcome_data(known.num_observed)]
        assert counts == [sum(name in row for row in expected) for name in OUTCOMES]
        assert study.num_failed == 0


@pytest.mark.parametrize("num_past", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_no_number_of_a_week_is_lost(cli: CommandLine, num_past: int, tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(CONFIG, encoding="utf-8")
    past = write_past(tmp_path / "past.csv", num_past)
    expected = [{name: row[name] for name in OUTCOMES if name in row} for row in past]

    assert cli("check", file).out.startswith(f"{num_past} rows now")
    sheet = tmp_path / "next.xlsx"
    assert "Wrote 6 points" in cli("ask", file, "-q", "6", "--out", sheet).out
    expected += [{} for _ in range(6)]
    audited(file, expected)

    # Half of the results come back, some of them without an outcome; the rest comes later
    asked = pd.read_excel(sheet)
    results = [measured(params) for params in asked.to_dict("records")]
    for told in (range(3), range(6)):
        filled = asked.copy()
        for place in told:
            for name in OUTCOMES:
                if len(told) == 6 or (place, name) not in {(0, "Impurity"), (2, "Yield (%)")}:
                    filled.loc[place, name] = results[place][name]
                    expected[num_past + place][name] = results[place][name]
        filled.to_excel(sheet, index=False)
        cli("tell", file, sheet)
        audited(file, expected)

    id = num_past + 3
    said = cli("correct", file, id, "Cost [EUR]=7.25", "--why", "a typo").out
    assert f"corrected {id}" in said and "a typo" in said
    expected[id]["Cost [EUR]"] = 7.25
    audited(file, expected)

    cli("report", file)
    page = (tmp_path / "week" / "report.html").read_text(encoding="utf-8")
    assert all(text in page for text in ("Cat. loading [mol%]", "Yield (%)", "Impurity"))
    cli("export", file, tmp_path / "all.csv")
    table = pd.read_csv(tmp_path / "all.csv")
    assert len(table) == num_past + 6
    assert int(table[list(OUTCOMES)].notna().to_numpy().sum()) == sum(map(len, expected))
