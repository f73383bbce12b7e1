"""``python -m benchmarks.league`` as a user meets it: records, a table, a plot, and the names of
what is missing.
"""

import json
import re
from pathlib import Path

import pytest

from benchmarks.league import registry
from benchmarks.league.__main__ import league
from tests.command_lines import CommandLine


def test_a_league_writes_records_a_table_and_a_plot_and_is_not_run_twice(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "is_installed", lambda module: module != "cma")
    arguments = (
        *("--problems", "branin-2,sixhumpcamel-2", "--optimisers", "sobol,cma,botorch-turbo"),
        *("--seeds", "0-1", "--batches", "3", "--budget", "6", "--out", str(tmp_path)),
    )
    output = cli(*arguments, of=league)
    assert "Left out: cma (needs cma). Install the extra `league`: pip install '.[league]'" in (
        output.err
    )
    assert re.search(r"sobol on branin-2, q 3, seed 0: regret \S+ after 6", output.err)
    assert "6 evaluations in batches of 3" in output.out
    assert "8 records in" in output.out
    assert max(map(len, output.out.splitlines()[:-1])) <= 80
    names = {file.name for file in tmp_path.iterdir()}
    assert {"optimisers.md", "optimisers_smoke.png"} < names
    record = json.loads((tmp_path / "optimisers_branin-2_sobol_q3_n6_s1.json").read_text())
    assert record["environment"]["device"] == "cpu"
    assert record["settings"]["seed"] == 1
    assert cli(*arguments, of=league).err.count("(kept)") == 8


@pytest.mark.parametrize(
    ("option", "given", "message"),
    [
        ("--subset", "tiny", "`subset` must be one of smoke, .*, got 'tiny'"),
        ("--optimisers", "adam", "`optimiser` must be one of auto, .*, got 'adam'"),
        ("--problems", "hartmann-7", "`dim` = 7 is not possible for Hartmann"),
    ],
)
def test_a_wrong_option_is_one_line(
    cli: CommandLine, option: str, given: str, message: str, tmp_path: Path
) -> None:
    said = cli(option, given, "--out", tmp_path, of=league, code=2).err
    assert re.search(message, said)
    assert len(said.splitlines()) == 1


def test_a_league_of_missing_packages_ends_at_once(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "is_installed", lambda module: False)
    printed = cli("--optimisers", "cma", "--out", tmp_path, of=league, code=2)
    assert "There is nothing left to run." in printed.err
