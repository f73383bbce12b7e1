"""``python -m benchmarks.traces`` as a user meets it: options, records and a plot."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.traces.__main__ import traces
from tests.command_lines import CommandLine


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--problem sampling", "`problem` must be thompson, got 'sampling'"),
        (
            "--problem thompson --n 20001",
            "`exact`: .* up to 20000 points, got 20001. Use --no-exact",
        ),
        ("--data-dir nowhere", "`data_dir` must be.*nowhere is not there"),
    ],
)
def test_bad_input_is_named(cli: CommandLine, arguments: str, message: str, tmp_path: Path) -> None:
    output = cli(*arguments.split(), "--out", tmp_path / "out", of=traces, code=2)
    assert re.search(message, output.err)


def test_solvers_are_traced_and_drawn(cli: CommandLine, data_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = "--data toy --solver cg,sdd --epochs 8 --points 3"
    arguments = [*options.split(), "--data-dir", str(data_dir), "--out", str(out)]
    output = cli(*arguments, of=traces)
    assert sorted(file.name for file in out.iterdir()) == [
        "solvers_toy_0.png",
        "solvers_toy_0_cg.json",
        "solvers_toy_0_sdd.json",
    ]
    assert output.err.count("test RMSE") == 6
    assert re.search(r"^sdd +\d", output.out, re.MULTILINE)
    record = json.loads((out / "solvers_toy_0_cg.json").read_text())
    assert [checkpoint["budget"] for checkpoint in record["checkpoints"]] == pytest.approx(
        [1.0, 8.0**0.5, 8.0]
    )
