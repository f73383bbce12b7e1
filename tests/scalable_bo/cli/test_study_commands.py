"""The commands for studies, as a user meets them: configurations, resuming, Ctrl-C,
lines in and out.
"""

import codecs
import json
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scalable_bo.cli.config import read_config
from scalable_bo.cli.study_commands import read_results
from scalable_bo.evaluation.evaluator import MAX_REASON, MOST_BYTES
from scalable_bo.space.constraints import LinearConstraint
from scalable_bo.space.parameters import Categorical, Float, Int
from scalable_bo.space.space import Space
from scalable_bo.study import prediction
from scalable_bo.study.answers import read_snapshot
from scalable_bo.study.study import Study
from surrogates.atomic import write_atomically
from tests.command_lines import CommandLine, Printed
from tests.waiting import eventually

CONFIG = """
[study]
path = "kept"
maximize = true
seed = 3
num_initial = 1000

[space]
x = { type = "float", low = 0.0, high = 1.0 }
n = { type = "int", low = 1, high = 64, log = true }
kind = { type = "categorical", choices = ["a", "b"] }
fixed = "yes"

[[constraints]]
coefficients = { n = 1 }
at_most = 32

[objective]
function = "objective_of_the_test:score"

[run]
rounds = 2
batch = 5
executor = "none"
"""
LINEAR = "coefficients = { n = 1 }\nat_most = 32"
ENVIRONMENT = {
    "PYTHONPATH": str(Path(__file__).parents[3]),
    "PATH": "/usr/bin:/bin",
    "OMP_NUM_THREADS": "1",
}
OBJECTIVE = """
def score(params):
    if params["x"] > 0.8:
        raise ValueError("too <large>")
    return params["x"] + (params["kind"] == "b")

def fits(params):
    return params["n"] <= 4 or params["kind"] == "a"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "objective_of_the_test.py").write_text(OBJECTIVE)
    path = tmp_path / "study.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(autouse=True)
def _modules_and_paths_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "objective_of_the_test", raising=False)


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_a_configuration_describes_the_space_that_python_would(file: Path) -> None:
    space = Space(
        LinearConstraint({"n": 1}, at_most=32),
        x=Float(0.0, 1.0),
        n=Int(1, 64, log=True),
        kind=Categorical(["a", "b"]),
        fixed="yes",
    )
    with read_config(file).open_study() as study:
        assert study.space.to_dict() == space.to_dict()
    Study(space, maximize=True, seed=3, path=file.parent / "kept").close()


def test_a_configuration_may_name_the_strategy(file: Path) -> None:
    change(file, "seed = 3", 'seed = 3\nstrategy = "turbo"')
    with read_config(file).open_study() as study:
        assert study._record.settings["strategy"] == "turbo"
    change(file, '"turbo"', '"logei"')
    with pytest.raises(ValueError, match="got 'logei'. Did you mean `log-ei`?"):
        read_config(file)
    change(file, '"logei"', '"best"')
    with pytest.raises(
        ValueError, match="`study.strategy`: .*'auto', 'thompson', 'turbo', 'regions' or 'log-ei'"
    ):
        read_config(file)


def test_a_function_among_the_constraints_is_that_of_the_file_and_met_by_every_point(
    file: Path,
) -> None:
    change(file, LINEAR, 'function = "objective_of_the_test:fits"')
    config = read_config(file)
    assert "objective_of_the_test" not in sys.modules
    with config.open_study() as study:
        points = study.ask(40).params
    kinds = {
        point["kind"]: {other["n"] for other in points if other["kind"] == point["kind"]}
        for point in points
    }
    assert max(kinds["b"]) <= 4 < max(kinds["a"])


def test_a_run_ends_and_the_same_command_goes_on(cli: CommandLine, file: Path) -> None:
    output = cli("run", file)
    assert re.fullmatch(
        r"best \d\.\d+ at x = \S+, n = \d+, kind = b, fixed = yes\n\d values, \d failed, 0 pending"
        r" in .*kept\n",
        output.out,
    )
    lines = output.err.splitlines()
    assert [line[:10] for line in lines] == ["round 1/2:", "round 2/2:"]
    before = cli("run", file, "--json").json
    assert before["num_observations"] + before["num_failed"] == 10
    change(file, "rounds = 2", "rounds = 3")
    change(file, 'executor = "none"', 'executor = "threads"\nworkers = 2\ntimeout = 60')
    output = cli("run", file, "--json")
    assert output.err.startswith("round 3/3:")
    after = json.loads(output.out)
    assert after["num_observations"] + after["num_failed"] == 15
    assert after["best_params"]["fixed"] == "yes"


WATCHED = """
def watch(study, report):
    print("round", report.number)
    if report.number == 2:
        study.stop()
"""


def test_a_run_that_keeps_its_workers_busy_asks_for_no_more_points_than_configured(
    cli: CommandLine, file: Path
) -> None:
    change(file, 'executor = "none"', "workers = 8\nasynchronous = true")
    change(file, "rounds = 2\nbatch = 5", "rounds = 5\nbatch = 2")
    for _ in range(2):  # in two asks, for 8 and for 2 points, and in none
        found = cli("run", file, "--json").json
        assert found["num_observations"] + found["num_failed"] == 10
    change(file, "rounds = 5", "rounds = 6")
    found = cli("run", file, "--json").json
    assert found["num_observations"] + found["num_failed"] == 12


def test_a_callback_of_the_file_may_stop_a_run_and_the_same_command_goes_on(
    cli: CommandLine, file: Path
) -> None:
    (file.parent / "objective_of_the_test.py").write_text(OBJECTIVE + WATCHED)
    callbacks = 'executor = "none"\ncallbacks = ["objective_of_the_test:watch"]'
    change(file, 'executor = "none"', callbacks)
    change(file, "rounds = 2", "rounds = 5")
    assert cli("run", file).out.startswith("round 1\nround 2\nbest")
    assert cli("run", file).out.startswith("round 3\nround 4\nround 5\nbest")


def test_a_run_begins_nothing_after_its_seconds(cli: CommandLine, file: Path) -> None:
    change(file, 'executor = "none"', 'executor = "none"\nseconds = 1e-9')
    assert cli("run", file, "--json").json["num_observations"] == 0


def test_a_run_in_which_all_fails_ends_without_a_best_value(cli: CommandLine, file: Path) -> None:
    (file.parent / "objective_of_the_test.py").write_text("def score(params):\n    return None\n")
    change(file, "rounds = 2\nbatch = 5", "rounds = 1\nbatch = 2")
    for _ in range(2):
        assert cli("run", file).out == f"0 values, 2 failed, 0 pending in {file.parent}/kept\n"
    assert cli("run", file, "--json").json["best_value"] is None


@pytest.mark.parametrize("error", ["ZeroDivisionError", "MemoryError", "SystemError"])
def test_a_run_that_is_stopped_says_how_to_go_on(cli: CommandLine, file: Path, error: str) -> None:
    change(file, "batch = 5", "batch = 5\nmax_failures = 0")
    file = file.rename(file.parent / "a study.toml")
    code = f"def score(params):\n    raise {error}('of the test')\n"
    (file.parent / "objective_of_the_test.py").write_text(code)
    why, stopped = cli("run", file, code=1).err.splitlines()[-2:]
    assert f"the last reason: {error}: of the test" in why
    said, command = stopped.split(" Go on with: ")
    assert said == f"Stopped; what was told is in {file.parent}/kept."
    assert shlex.split(command) == ["scalable-bo", "run", str(file)]


def test_an_export_is_whole_and_holds_no_formula(
    cli: CommandLine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(file, 'fixed = "yes"', '"=fixed" = "@yes"')
    cli("ask", file, "-q", "3")
    answers = file.parent / "answers"
    reasons = ["=1+1", "+1", "\\tx"]
    lines = [f'{{"id": {number}, "error": "{reason}"}}' for number, reason in enumerate(reasons)]
    answers.write_text("\n".join(lines))
    cli("tell", file, answers)
    out = file.parent / "rows.csv"
    cli("export", file, out)
    frame = pd.read_csv(out, keep_default_na=False)
    assert frame["reason"].tolist() == ["'=1+1", "'+1", "'\tx"]
    assert frame["'=fixed"].tolist() == ["'@yes"] * 3
    before = out.read_bytes()

    def fail(*arguments: object, **options: object) -> None:
        Path(str(arguments[1])).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pd.DataFrame, "to_csv", fail)
        refused = cli("export", file, out, code=2)
    assert "`out` must be a file that can be written, got" in refused.err
    assert out.read_bytes() == before
    assert not list(file.parent.glob("*.tmp"))


def test_what_is_wrong_with_a_study_is_not_said_of_the_file_to_write(
    cli: CommandLine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("ask", file)
    rows = file.parent / "rows.csv"

    def fail(*arguments: object, **options: object) -> None:
        raise OSError("The database could not be reached.")

    with monkeypatch.context() as patch:
        patch.setattr("scalable_bo.study.answers.read_snapshot", fail)
        assert cli("export", file, rows, code=1).err == "The database could not be reached.\n"
    with monkeypatch.context() as patch:
        patch.setattr(Study, "ask", fail)
        said = cli("ask", file, "--out", rows, code=1).err
        assert said == "The database could not be reached.\n"
    nowhere = file.parent / "nowhere" / "rows.csv"
    said = cli("ask", file, "--out", nowhere, code=2).err
    assert "`out` must be a file that can be written" in said
    assert "(No such file or directory)" in said
    assert json.loads(cli("status", file, "--json").out)["num_pending"] == 1
    assert not rows.exists() and not list(file.parent.glob("*.tmp"))


def test_a_check_asks_for_the_program(
    cli: CommandLine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "_rehearse", lambda space, dtype: (1.0, 0.05, 0.025))
    change(file, 'function = "objective_of_the_test:score"', 'command = "./simulate --quick"')
    assert "`command` must name a program that can be run, got './simulate'" in (
        cli("check", file, code=2).err
    )
    (file.parent / "simulate").write_text("#!/bin/sh\n")
    (file.parent / "simulate").chmod(0o755)
    cli("check", file)


def test_a_check_refuses_points_that_cannot_be_evaluated(cli: CommandLine, file: Path) -> None:
    file.write_text(f'{file.read_text()}\n[[enqueue]]\nx = 0.5\nn = 33\nkind = "a"\n')
    message = "[[enqueue]]: `enqueue` must meet the constraints of the space"
    assert message in cli("check", file, code=2).err


def test_another_direction_is_refused_with_the_difference(cli: CommandLine, file: Path) -> None:
    cli("ask", file)
    change(file, "maximize = true", "maximize = false")
    said = [cli(command, file, code=2).err for command in ("run", "check")]
    assert "  direction: stored maximize, given minimize\n" in said[0]
    assert said[0] == said[1]


@pytest.mark.parametrize("place", ['path = "kept"', 'storage = "sqlite:///{}/db"\nname = "n"'])
def test_a_check_compares_with_what_is_stored_and_changes_nothing(
    cli: CommandLine, file: Path, place: str
) -> None:
    change(file, 'path = "kept"', place.format(file.parent))
    change(file, "[objective]", "[unused]")
    file.write_text(file.read_text().partition("[unused]")[0])
    cli("ask", file)
    assert "1 row now" in cli("check", file).out
    before = contents(file.parent)
    for old, new in (("seed = 3", "seed = 4"), ("high = 1.0", "high = 2.0")):
        change(file, old, new)
        assert "was made with other settings" in cli("check", file, code=2).err
        change(file, new, old)
    assert contents(file.parent) == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_point_may_be_enqueued_with_a_choice_that_is_none(cli: CommandLine, file: Path) -> None:
    change(file, '["a", "b"]', '[{ none = true }, "b"]')
    file.write_text(f"{file.read_text()}\n[[enqueue]]\nx = 0.5\nn = 2\nkind = {{ none = true }}\n")
    (line,) = cli("ask", file, "--json").out.splitlines()
    assert json.loads(line)["params"] == {"x": 0.5, "n": 2, "kind": None, "fixed": "yes"}


def test_points_go_out_and_values_come_in_as_lines(cli: CommandLine, file: Path) -> None:
    points = [json.loads(line) for line in cli("ask", file, "-q", "3", "--json").out.splitlines()]
    assert [point["id"] for point in points] == [0, 1, 2]
    assert set(points[0]["params"]) == {"x", "n", "kind", "fixed"}
    answers = file.parent / "answers"
    answers.write_text('{"id": 0, "value": 1.5, "noise": 0.1}\n\n{"id": 2, "error": "it rained"}\n')
    assert cli("tell", file, answers).out == "told 1 value and 1 failure\n"
    answers.write_text('{"id": 0, "value": "1.50", "noise": 0.1}\n')  # the same as a text
    assert cli("tell", file, answers).out == "told 1 value and 0 failures\n"
    status = cli("status", file, "--json").json
    assert status["best_value"] == 1.5
    counts = ("num_observations", "num_failed", "num_pending", "num_asks")
    assert [status[name] for name in counts] == [1, 1, 1, 1]
    out = file.parent / "rows.csv"
    cli("export", file.parent / "kept", out)
    frame = pd.read_csv(out, keep_default_na=False)
    assert frame["reason"].tolist() == ["", "", "it rained"]
    assert frame["status"].tolist() == ["observed", "pending", "failed"]
    assert "1 point to evaluate" in cli("ask", file).out


def test_points_go_out_and_values_come_in_as_a_sheet(cli: CommandLine, file: Path) -> None:
    sheet = file.parent / "next.csv"
    assert cli("ask", file, "-q", "3", "--out", sheet).out == f"Wrote 3 points to {sheet}\n"
    frame = pd.read_csv(sheet)
    assert list(frame.columns) == ["id", "x", "n", "kind", "fixed", "value", "reason"]
    frame["reason"] = frame["reason"].astype(object)
    frame.loc[0, "value"] = 1.5
    frame.loc[2, "reason"] = "it rained"
    frame.to_csv(sheet, index=False)
    for told in ("told 1 value and 1 failure", "told 0 values and 0 failures"):
        assert cli("tell", file, sheet).out == f"{told}; 1 point pending in all\n"
    frame.loc[1, "value"] = 2.5
    frame["x"] += 0.25
    frame.to_csv(sheet, index=False)
    error = cli("tell", file, sheet, code=2).err
    assert "Nothing was told, since in the sheet" in error
    assert "row 3, column `x`:" in error
    printed = cli("ask", file, "--out", "next.pdf", code=2)
    assert "`out` must end in .csv or .xlsx, got next.pdf" in printed.err
    cli("export", file, file.parent / "rows.xlsx")
    assert len(pd.read_excel(file.parent / "rows.xlsx")) == 3


def test_the_endings_of_files_are_read_in_capitals_too(cli: CommandLine, file: Path) -> None:
    capitals = file.rename(file.with_name("STUDY.TOML"))
    for ending in (".CSV", ".XLSX"):
        sheet = file.parent / f"SHEET{ending}"
        cli("ask", capitals, "--out", sheet)
        assert cli("tell", capitals, sheet).out.startswith("told 0 values and 0 failures")
    for ending, read in ((".CSV", pd.read_csv), (".XLSX", pd.read_excel), (".Parquet", None)):
        rows = file.parent / f"ROWS{ending}"
        cli("export", capitals, rows)
        assert len((read or pd.read_parquet)(rows)) == 2


def test_the_commands_take_a_study_in_a_database(
    cli: CommandLine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "_rehearse", lambda space, dtype: (1.0, 0.05, 0.025))
    change(file, 'path = "kept"', f'storage = "sqlite:///{file.parent}/shared.db"\nname = "tuning"')
    cli("ask", file, "-q", "2", "--json")
    answers = file.parent / "answers"
    answers.write_text('{"id": 1, "value": 0.5}\n')
    cli("tell", file, answers)
    assert "in 'tuning' in a database" in cli("run", file).out
    status = cli("status", file, "--json").json
    assert (status["num_asks"], status["num_rows"], status["num_pending"]) == (2, 7, 1)
    for command, out in (("export", "rows.csv"), ("report", "page.html")):
        option = ["--out"] if command == "report" else []
        cli(command, file, *option, file.parent / out)
        assert (file.parent / out).stat().st_size > 100
    for command in ("repair", "report"):
        printed = cli(command, file, code=2)
        assert "The study must be in a folder for this, got 'tuning'" in printed.err
    assert cli("check", file, "--json").json["num_rows"] == 7
    assert not (file.parent / "kept").exists()
    change(file, 'name = "tuning"', 'name = "tuning"\npath = "kept"')
    message = "Either `study.path` must be given, or `study.storage` and `study.name`.\n"
    assert cli("status", file, code=2).err == message


def test_the_commands_take_the_url_of_a_database_and_a_name(
    cli: CommandLine, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/shared.db"
    tuning = (url, "--name", "tuning")
    for command in ("status", "ask"):
        said = cli(command, *tuning, code=2).err
        assert f"`name` must be that of a study in {url}, got 'tuning'. There are none." in said
    assert not list(tmp_path.iterdir())  # to look makes no database
    Study(Space(x=Float(0.0, 1.0)), maximize=True, storage=url, name="tuning").close()
    cli("ask", *tuning, "-q", "2", "--json")
    answers = tmp_path / "answers"
    answers.write_text('{"id": 1, "value": 0.5}\n')
    cli("tell", *tuning, answers)
    cli("correct", *tuning, "1", "0.75")
    status = cli("status", *tuning, "--json").json
    assert (status["best_value"], status["num_rows"], status["num_pending"]) == (0.75, 2, 1)
    cli("correct", *tuning, "1", "-0.5", "--noise", "0.1")
    assert cli("status", *tuning, "--json").json["best_value"] == -0.5
    assert "got '--nois 0.1'" in cli("correct", *tuning, "1", "--nois", "0.1", code=2).err
    cli("export", *tuning, tmp_path / "rows.csv")
    assert pd.read_csv(tmp_path / "rows.csv")["status"].tolist() == ["pending", "observed"]
    cli("report", *tuning, "--out", tmp_path / "page.html")
    assert "tuning" in (tmp_path / "page.html").read_text()
    for command, remedy in (("report", "Give `--out`."), ("repair", "from its backup")):
        said = cli(command, *tuning, code=2).err
        assert "must be in a folder for this, got 'tuning' in a database" in said
        assert remedy in said
    assert "`name` must be a text" in cli("status", url, code=2).err
    for command in ("check", "run"):
        assert "Give a TOML file with `study.storage`" in cli(command, url, code=2).err


@pytest.mark.parametrize("command", ["ask", "check", "repair", "report", "run", "serve", "status"])
def test_no_command_prints_a_password(cli: CommandLine, tmp_path: Path, command: str) -> None:
    name = [] if command in ("check", "run") else ["--name", "tuning"]
    file = ["--token-file", str(tmp_path / "token")] if command == "serve" else []
    for url in (
        "postgresql+psycopg://user:secret@localhost:1/database",
        "postgresql://user:secret@localhost:port/database",
        "postgresql+nothing://user:secret@localhost/database",
        "oracle://user:secret@localhost/database",
        "postgresql:://user:secret@localhost/database",
    ):
        said = cli(command, url, *name, *file, code=None)
        assert said.code in (1, 2) and said.err
        assert "secret" not in said.err + said.out
        assert "Traceback" not in said.err


SEVERAL = """
[study]
path = "kept"
objectives = { "Yield (%)" = "maximize", Cost = "minimize", Impurity = "minimize" }
[space]
x = { type = "float", low = 0.0, high = 1.0 }
"""


def test_status_says_the_goal_the_front_and_what_limits_are_broken(
    cli: CommandLine, tmp_path: Path
) -> None:
    file = tmp_path / "study.toml"
    limits = "[study.outcome_constraints]\nImpurity = { at_least = 0, at_most = 1.0 }\n[space]"
    file.write_text(SEVERAL.replace("[space]", limits))

    def status() -> tuple[list[str], dict[str, Any]]:
        lines = cli("status", file).out.splitlines()
        return lines, cli("status", file, "--json").json

    with read_config(file).open_study() as study:
        assert study._record.goal.constraints == {"Impurity": (0.0, 1.0)}
        study.tell(study.ask(2), [(70, 20, 3.0), (60, 10, 1.5)])
        lines, summary = status()
        assert lines[0] == "maximize Yield (%), minimize Cost, minimize Impurity, seed 0, 1 ask"
        assert lines[-1].startswith("no point is feasible; the nearest breaks Impurity by 0.5")
        assert summary["least_violating"]["excess"] == {"Impurity": 0.5}
        study.tell(study.ask(1), [(50, 10, 0.5)])
    lines, summary = status()
    assert lines[-1].startswith("1 point on the front, hypervolume 2.5 from Yield (%) = 45, Cost")
    assert (summary["direction"], summary["best_value"]) == (None, None)
    assert summary["objectives"]["Cost"] == "minimize" and len(summary["front"]) == 1
    assert summary["reference_point"]["Impurity"] == 1.0


def test_outcomes_come_in_one_by_one_and_are_shown_as_pending(
    cli: CommandLine, tmp_path: Path
) -> None:
    file = tmp_path / "study.toml"
    file.write_text(SEVERAL)
    answers = tmp_path / "answers"

    def tell(*lines: dict[str, Any], code: int = 0) -> Printed:
        answers.write_text("\n".join(map(json.dumps, lines)))
        return cli("tell", file, answers, code=code)

    def status() -> Any:
        return cli("status", file, "--json").json

    cli("ask", file, "-q", "3", "--json")
    refused = tell({"id": 1, "value": {"Yeild (%)": 70, "Cost": 20, "Impurity": 1}}, code=2)
    assert "got 'Yeild (%)'; the nearest is 'Yield (%)'" in refused.err
    assert status()["num_pending"] == 3
    told = tell(
        {"id": 0, "value": {"Yield (%)": 70, "Cost": "20.5", "Impurity": 1}},
        {"id": 1, "value": {"Cost": 30, "Impurity": None}, "error": None},
        {"id": 2, "error": "it rained " * 100},
    )
    assert told.out == "told 1 value and 1 failure; 1 point still pending\n"
    assert status()["partial"] == {"1": {"Cost": 30.0}}
    assert (
        "1 pending\npending with some of their outcomes: 1 (Cost = 30)\n" in cli("status", file).out
    )
    for out in ("rows.csv", "rows.parquet"):
        cli("export", file, tmp_path / out)
    for frame in (pd.read_csv(tmp_path / "rows.csv"), pd.read_parquet(tmp_path / "rows.parquet")):
        assert frame["status"].tolist() == ["observed", "pending", "failed"]
        assert len(frame["reason"][2]) <= MAX_REASON
        assert frame["Cost"].tolist()[:2] == [20.5, 30.0]
        assert frame["Impurity"].isna().tolist() == [False, True, True]
    cli("report", file)
    refused = tell({"id": 1, "value": {"Cost": 31, "Impurity": 2}}, code=2)
    assert "Cost of 1 was 30.0 and is 31.0 now" in refused.err
    tell({"id": 1, "value": {"Yield (%)": 60, "Impurity": 2}})
    assert status()["num_observations"] == 2
    assert status()["partial"] == {}


def test_lines_that_tell_nothing_are_refused_and_nothing_is_told(
    cli: CommandLine, file: Path
) -> None:
    cli("ask", file)
    answers = file.parent / "answers"
    for line, message in (
        ("garbage", "Line 1 must be JSON, got b'garbage"),
        ("[" * 100_000, "Line 1 must be JSON"),
        ("[1]", "Line 1 must be an object with an `id`, a whole number"),
        ('{"value": 1}', "Line 1 must be an object with an `id`"),
        ('{"id": "0", "value": 1}', "Line 1 must be an object with an `id`"),
        ('{"id": true, "value": 1}', "Line 1 must be an object with an `id`"),
        ('{"id": 0}', "Line 1 must have either `value` or `error`"),
        ('{"id": 0, "value": 1, "error": "x"}', "Line 1 must have either `value` or `error`"),
        ('{"id": 0, "vaule": 1}', "Line 1 must have either `value` or `error`"),
        (
            '{"id": 0, "value": 1, "nosie": 1}',
            "Line 1 must have `id`, `value` or `error`, and `noise`, got `nosie`",
        ),
        ('{"id": 9, "value": 1}', "`ids` must have been asked, got unknown 9"),
        ('{"id": 0, "value": [1.5, 0.1]}', "`values` must have shape (n,), got (1, 2). Give one"),
        ("x" * (2**20 + 1), "Line 1 must have at most 1048576 bytes"),
    ):
        answers.write_text(f"{line}\n")
        assert message in cli("tell", file, answers, code=2).err
    assert cli("status", file, "--json").json["num_pending"] == 1


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=st.binary(max_size=60))
def test_any_results_are_read_or_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "results"
    path.write_bytes(content)
    try:
        assert all(isinstance(line["id"], int) for line in read_results(str(path)))
    except ValueError as error:
        assert str(error).startswith("Line ")


SCORE = '"objective_of_the_test:score"'
WRONG = [
    ("seed = 3", "sede = 3", r"`study.sede` is not known. Did you mean `seed`\? Known are path, "),
    ("[run]", "[rnu]", r"`rnu` is not known. Did you mean `run`\? Known are study, space"),
    ("maximize = true", "", "`study.maximize` must be given"),
    *(
        ('path = "kept"', new, "`study.path` must be given, or `study.storage` and `study.name`")
        for new in ("", 'path = "kept"\nname = "tuning"', 'storage = "sqlite://"', 'name = "n"')
    ),
    (
        'path = "kept"',
        'path = "postgresql://me:secret@host/database"',
        "^`study.path` must be a folder, got the URL of a database. Give the URL as `study.storage`"
        ", and `study.name`.\n$",
    ),
    ("seed = 3", "seed = '3'", "`study.seed`: Input should be a valid integer, got '3'"),
    ("batch = 5", "batch = 0", "`run.batch`: Input should be greater than or equal to 1, got 0"),
    (
        '"float"',
        '"floot"',
        r"`space.x.type` must be float, int, cat.*floot'. Did you mean `float`\?",
    ),
    (
        "high = 1.0",
        "hihg = 1.0",
        r"`space.x.high` must be given.\n.*`space.x.hihg` is not known. Did you mean `high`\?",
    ),
    ("high = 1.0", f"high = 1{'0' * 400}", "`space.x`: `high` must be finite, got a huge int"),
    ('"float"', '["float"]', r"`space.x.type` must be float, int, .*, got \['float'\]"),
    ('fixed = "yes"', "fixed = [1]", r"Parameter `fixed` must be a .* or a fixed value, got \[1\]"),
    ("{ n = 1 }", "{ m = 1 }", "A constraint must be on parameters that vary, .*, got `m`"),
    ("at_most", "atmost", r"`constraints.0.atmost` is not known. Did you mean `at_most`\?"),
    (LINEAR, "", "`constraints.0`: .* must have either `coefficients` with limits, or `function`"),
    (
        "coefficients = { n = 1 }",
        'function = "objective_of_the_test:fits"',
        "`constraints.0`: .*`at_most` go with `coefficients`",
    ),
    (LINEAR, 'function = "objective"', '`constraints.0.function` must be "module:function"'),
    (LINEAR, 'function = "math:none"', "`constraints.0.function` must be importable.*none"),
    (LINEAR, 'function = "math:pi"', "`constraints.0.function` must be a function, .* is float"),
    (SCORE, '"objective"', "`objective.function`: String should match pattern"),
    (SCORE, '"objective_of_the_test:none"', "`objective.function` must be importable.*none"),
    (SCORE, '"nowhere:score"', "`objective.function` must be importable.*No module named"),
    (SCORE, '"math:pi"', "must be a function, got .*which is float"),
    (
        'function = "',
        'command = "run"\nfunction = "',
        "`objective` must have either `function`.*or `command`",
    ),
    (
        'executor = "none"',
        'executor = "none"\nasynchronous = true',
        '`run.asynchronous` needs an executor.*got `executor` = "none"',
    ),
    (
        'executor = "none"',
        'executor = "none"\nworkers = 3',
        '`run.workers` needs an executor, got `executor` = "none". Leave',
    ),
    *(
        (
            'executor = "none"',
            f'executor = "{other}"\nscheduler = "tcp://cluster:8786"',
            f"`run.scheduler` needs `executor` = \"dask\", .*, got '{other}'. Leave `scheduler`",
        )
        for other in ("none", "threads", "processes")
    ),
    (
        'executor = "none"',
        'callbacks = ["math:none"]',
        "`run.callbacks.0` must be importable.*none",
    ),
    ('executor = "none"', 'executor = "process"', "got 'process'. Did you mean `processes`"),
    ("[study]", "[study", "study.toml is no TOML"),
    ("[study]", "x = " + "[" * 10_000, "study.toml is no TOML"),
    ("[study]", "#" * MOST_BYTES + "\n[study]", f"must have at most {MOST_BYTES} bytes"),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG)
def test_a_wrong_configuration_is_refused_with_the_place_and_the_nearest_name(
    cli: CommandLine, file: Path, old: str, new: str, message: str
) -> None:
    change(file, old, new)
    output = cli("run", file, code=2)
    assert output.out == ""
    assert re.search(message, output.err)
    assert not any((file.parent / name).exists() for name in ("kept", "postgresql:"))


def test_a_configuration_that_is_not_there_is_refused(cli: CommandLine) -> None:
    printed = cli("run", "nowhere.toml", code=2)
    assert printed.err == "nowhere.toml cannot be read: No such file or directory.\n"


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_damage_to_a_configuration_is_read_or_refused(
    data: st.DataObject, tmp_path: Path
) -> None:
    content = CONFIG.encode()
    start = data.draw(st.integers(0, len(content)))
    damaged = content[:start] + data.draw(
        st.binary(max_size=5) | st.sampled_from([b"[[run]]\n", b"= 1\n", b"{}"])
    )
    damaged += content[data.draw(st.integers(start, min(start + 20, len(content)))) :]
    path = tmp_path / "study.toml"
    path.write_bytes(damaged)
    try:
        assert read_config(path).build_space().dim >= 1
    except (ValueError, TypeError) as error:
        assert str(error)


def test_the_status_says_that_its_best_point_is_the_best_observed(
    cli: CommandLine, tmp_path: Path
) -> None:
    with Study(Space(x=Float(0.0, 1.0)), maximize=True, path=tmp_path / "kept") as study:
        study.add_data([{"x": 0.25}, {"x": 0.5}], [1.5, 0.5])
    assert "best observed 1.5 at x = 0.25\n" in cli("status", tmp_path / "kept").out


def test_a_configuration_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_bytes(codecs.BOM_UTF8 + CONFIG.encode())
    assert read_config(path).build_space().dim >= 1


def test_a_check_predicts_and_touches_nothing(
    cli: CommandLine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "_rehearse", lambda space, dtype: (1.0, 0.05, 0.025))
    pd.DataFrame({"x": [0.5] * 600, "n": 2, "kind": "a", "y": 1.0}).to_csv(file.parent / "old.csv")
    change(file, "num_initial = 1000", "num_initial = 601")
    file.write_text(file.read_text() + '\n[[data]]\nfile = "old.csv"\ntarget = "y"\n')
    found = cli("check", file, "--json").json
    assert found["rounds"] == 2
    assert found["num_rows"] == 605  # at the last ask
    assert (
        found["seconds_asks"]
        == found["seconds_last_ask"]
        == pytest.approx(1 + 0.5 * 0.5 * 1.21**2 + 0.5 * 0.25 * 1.21)
    )
    assert found["fits"]
    assert not (file.parent / "kept").exists()
    change(file, "batch = 5", "batch = 2_000_000")
    assert "The run will not fit in memory" in cli("check", file, code=1).err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('maximize = true\ndevice = "gpu"', "`device` must name a torch device, got 'gpu'"),
        (
            "maximize = true\nask_seconds = 5\noutcome_constraints = { w = { at_most = 2 } }",
            "`ask_seconds` must be None with several outcomes, got 5",
        ),
        (
            'strategy = "turbo"\nobjectives = { a = "minimize", b = "minimize" }',
            "`strategy` must be one of auto, thompson, log-ei, got 'turbo'",
        ),
    ],
)
def test_a_check_refuses_what_a_run_refuses_at_once(
    cli: CommandLine, file: Path, settings: str, message: str
) -> None:
    change(file, "maximize = true", settings)
    said = [cli(command, file, code=2).err for command in ("check", "run")]
    assert said[0] == said[1]
    assert message in said[0]
    assert not (file.parent / "kept").exists()


@pytest.mark.parametrize("command", ["ask", "check", "run"])
def test_a_file_of_data_that_is_not_there_is_named_by_its_place(
    cli: CommandLine, file: Path, command: str
) -> None:
    file.write_text(file.read_text() + '\n[[data]]\nfile = "no.csv"\ntarget = "y"\n')
    message = "`data.0.file` must be the path of a file, got 'no.csv', and there is no file "
    assert cli(command, file, code=2).err.startswith(message + str(file.parent / "no.csv"))


def by_hand(file: Path) -> None:
    """Leave no [objective] and no [run] in a configuration, which has two outcomes then."""
    text = file.read_text().split("[objective]")[0]
    file.write_text(text)
    change(file, "maximize = true", 'objectives = { cost = "minimize", gain = "maximize" }')


def test_a_study_by_hand_is_checked_without_an_objective(cli: CommandLine, file: Path) -> None:
    by_hand(file)
    past = {"x": [0.5, 0.6], "n": 2, "kind": "a", "cost": [1.0, 2.0], "gain": [None, 3.0]}
    pd.DataFrame(past).to_csv(file.parent / "old.csv")
    file.write_text(file.read_text() + '\n[[data]]\nfile = "old.csv"\n')
    file = file.rename(file.parent / "a study.toml")
    assert cli("check", file).out == f"2 rows now. Continue with: scalable-bo ask '{file}'\n"
    assert not (file.parent / "kept").exists()
    pd.DataFrame(past).drop(columns="gain").to_csv(file.parent / "old.csv")
    assert "must have the column 'gain'" in cli("check", file, code=2).err


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        (["cost"], "`VALUE` must be NAME=VALUE of several outcomes, got 'cost'"),
        (["cost=much"], "`VALUE` must be a number, got 'much'"),
        (["prize=1"], "prize"),
    ],
)
def test_a_correction_by_the_command_line_keeps_what_was_told(
    cli: CommandLine, values: list[str], fault: str, file: Path
) -> None:
    by_hand(file)
    with read_config(file).open_study() as study:
        study.tell(study.ask(2), [(1.0, 2.0), (3.0, 4.0)])
    assert fault in cli("correct", file, "1", *values, code=2).err
    printed = cli("correct", file, "1", "cost=2.5", "--why", "a slip")
    assert printed.out == "corrected 1, which was cost = 3, gain = 4: a slip\n"
    with read_config(file).open_study() as study:
        assert study.result.outcomes.tolist() == [[1.0, 2.0], [2.5, 4.0]]


def test_external_programs_are_run_from_the_folder_of_the_configuration(
    cli: CommandLine, file: Path
) -> None:
    (file.parent / "simulate.py").write_text(
        "import json, sys\nfor line in sys.stdin:\n    point = json.loads(line)\n"
        '    print(json.dumps({"id": point["id"], "value": point["params"]["x"]}), flush=True)\n'
    )
    change(
        file,
        'function = "objective_of_the_test:score"',
        f'command = ["{sys.executable}", "-IS", "simulate.py"]',
    )
    assert cli("run", file, "--json").json["num_observations"] == 10


def test_a_study_is_beside_its_configuration_wherever_the_objective_goes(
    cli: CommandLine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    (file.parent / "elsewhere").mkdir()
    code = "import os\nos.chdir('elsewhere')\n" + OBJECTIVE
    (file.parent / "objective_of_the_test.py").write_text(code)
    cli("run", file.name)
    assert not list((file.parent / "elsewhere").iterdir())
    assert cli("status", file, "--json").json["num_asks"] == 2


@pytest.mark.slow
@pytest.mark.distributed
def test_a_configuration_can_ask_for_processes_or_dask(file: Path) -> None:
    for number, executor in enumerate(("processes", "dask"), 1):
        text = re.sub(
            "executor = .*",
            f'executor = "{executor}"\nworkers = 2',
            re.sub("rounds = .", f"rounds = {number}", CONFIG),
        )
        file.write_text(text)
        command = [
            sys.executable,
            "-c",
            "from scalable_bo.cli.main import main; main()",
            "run",
            str(file),
            "--json",
        ]
        found = subprocess.run(
            command, cwd=file.parent, env=ENVIRONMENT, capture_output=True, text=True, timeout=120
        )
        assert found.returncode == 0, found.stderr
        result = json.loads(found.stdout)
        assert result["num_observations"] + result["num_failed"] == 5 * number
        assert re.fullmatch(rf"round {number}/{number}: .*\n", found.stderr)


@pytest.mark.parametrize(
    "signals",
    [
        [signal.SIGINT],
        pytest.param([signal.SIGINT] * 2, marks=pytest.mark.slow),
        pytest.param([signal.SIGTERM], marks=pytest.mark.slow),
    ],
    ids=["once", "twice", "term"],
)
def test_ctrl_c_keeps_what_finished_and_says_how_to_go_on(
    file: Path, signals: list[signal.Signals]
) -> None:
    waits = signals == [signal.SIGINT]
    seconds = file.parent / "seconds"
    begun = file.parent / "begun"
    seconds.write_text("0.01")
    change(file, "objective_of_the_test:score", "tests.scalable_bo.objectives:note_and_wait")
    change(file, 'executor = "none"', 'executor = "threads"\nworkers = 2')
    change(file, "rounds = 2\nbatch = 5", "rounds = 1\nbatch = 400")
    command = [
        sys.executable,
        "-c",
        "from scalable_bo.cli.main import main; main()",
        "run",
        str(file),
    ]
    with subprocess.Popen(
        command, cwd=file.parent, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        try:
            eventually(lambda: begun.exists() and begun.read_text().count("\n") >= 10)
            long = "1.5" if waits else "60"
            write_atomically(seconds, long.encode())  # which the threads read meanwhile
            eventually(lambda: begun.read_text().split()[-2:] == [long] * 2)
            num_ended = begun.read_text().count("\n") - 2
            eventually(lambda: read_snapshot(file.parent / "kept").rows.num_told >= num_ended)
            for number in signals:
                process.send_signal(number)
                time.sleep(1.0)  # or two would be one
            _, errors = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 128 + signals[-1]
    message = re.search(
        r"Interrupted; (\d+) values, 0 failed, (\d+) pending in \S+kept. Go on with: scalable-bo"
        r" run \S+study.toml",
        errors,
    )
    assert message is not None
    told, pending = map(int, message.groups())
    assert told + pending == 400
    assert told == begun.read_text().count("\n") - (0 if waits else 2)
    with read_config(file).open_study() as study:
        assert (study.num_observations, len(study.pending.ids)) == (told, pending)


def test_a_damaged_study_is_repaired_and_what_is_lost_is_said(cli: CommandLine, file: Path) -> None:
    cli("ask", file, "-q", "3")
    folder = file.parent / "kept"
    assert cli("repair", file).out.splitlines()[-1] == f"The study in {folder} is whole."
    with read_config(file).open_study() as study:
        study.ask(2)
    (folder / "backup.sqlite").unlink()
    with sqlite3.connect(folder / "study.sqlite") as connection:
        connection.execute("UPDATE writes SET digest = 'another' WHERE number = 3")
    connection.close()
    assert f"`scalable-bo repair {folder}`" in cli("status", file, code=1).err
    assert cli("repair", folder).out.splitlines() == [
        f"Restored the study in {folder}; lost: the last 1 of 3 writes."
    ]
    cli("repair", file.parent / "elsewhere", code=2)
    with read_config(file).open_study() as study:
        assert study.pending.ids == [0, 1, 2]


def test_units_in_brackets_are_printed_as_they_are(cli: CommandLine, file: Path) -> None:
    name = "Cat. loading [mol%]"
    change(file, 'kind = { type = "categorical", choices = ["a", "b"] }', "")
    change(file, "x = { type", f'"{name}" = {{ type')
    change(file, 'fixed = "yes"', '"[red]solvent[/red]" = ":smile:"')
    printed = cli("ask", file, "-q", "2").out
    for text in (name, "[red]solvent[/red]", ":smile:"):
        assert text in printed
    cli("status", file)
