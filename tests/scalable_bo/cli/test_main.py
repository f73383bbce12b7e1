"""The command line, as a user meets it: what is printed where, and the exit codes."""

import errno
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas
import pytest
import typer
from typer.testing import CliRunner

from scalable_bo.cli import console
from scalable_bo.cli.console import read_integers
from scalable_bo.cli.main import app
from scalable_bo.experiments.presets import THOMPSON_PRESETS
from scalable_bo.experiments.regression.methods import REGRESSION_METHODS
from scalable_bo.experiments.regression.regression_cell import RegressionCell
from scalable_bo.experiments.thompson.cell import ThompsonCell
from surrogates.solvers.registry import SOLVERS
from tests.command_lines import CommandLine
from tests.toy_regression import toy_table


def test_a_benchmark_writes_a_record_a_run_a_plot_and_a_table(
    cli: CommandLine, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "folder"
    options = "--preset smoke --solver cg,cholesky --seeds 0-1 --q 4 --num-initial 50"
    output = cli(*f"bench thompson {options} --out {out}".split())
    files = sorted(file.name for file in out.iterdir())
    runs = [
        f"thompson_smoke_{solver}_l0.5_s{seed}.json"
        for solver in ("cg", "cholesky")
        for seed in (0, 1)
    ]
    assert files == sorted([*runs, "thompson.md", "thompson_smoke.png"])
    record = json.loads((out / runs[0]).read_text())
    assert record["complete"]
    assert record["settings"]["preset"]["q"] == 4
    assert [entry["num_points"] for entry in record["rounds"]] == [54, 58]
    assert "4 records in" in output.out
    assert "over 2 seeds" in output.out
    assert re.search(r"^cholesky +0\.5 +-?\d\.\d{3} ± \d\.\d{3} ", output.out, re.MULTILINE)
    assert max(map(len, output.out.splitlines()[:-1])) <= 80
    assert "…" not in output.out
    # Beside these a slow machine tells of phases that take long
    told = r"^(cg|cholesky) lengthscale 0.5 seed [01] round [12]/2: n \d+, best "
    assert len(re.findall(told, output.err, re.MULTILINE)) == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "bench thompson --preset smoke --solver cg,lu",
            "`solver` must be one of auto, cholesky, cg, sdd, .*, got 'lu'",
        ),
        (
            "bench thompson --preset smoke --solver cg,",
            "`solver` must be names separated by commas, got 'cg,'",
        ),
        ("bench thompson --preset smoke --seeds 3-1", "`seeds` must be whole numbers.*got '3-1'"),
        ("bench thompson --preset smoke --seeds -1", "`seeds` must be whole numbers.*got '-1'"),
        (
            "bench thompson --preset smoke --lengthscale long",
            "`lengthscale` must be numbers.*got 'long'",
        ),
        ("bench thompson --preset smoke --rounds many", "'--rounds'.*valid integer"),
        (
            "bench thompson --preset smoke --dtype half",
            "`dtype` must be float32 or float64, got 'half'",
        ),
        (
            "bench thompson --preset smoke --device warp",
            "`device` must name a torch device, got 'warp'",
        ),
        ("bench thompson --preset smoke --colour red", "No such option.*--colour"),
        ("bench regression --data nope --data-dir /", "`data` must be one of the data sets in /"),
        ("bench nope", "No such command 'nope'"),
    ],
)
def test_bad_input_is_one_line_on_stderr_and_exit_code_2_before_any_work(
    cli: CommandLine, arguments: str, message: str, tmp_path: Path
) -> None:
    out = [] if "nope" in arguments.split()[:2] else ["--out", str(tmp_path / "out")]
    output = cli(*arguments.split(), *out, code=2)
    assert output.out == ""
    assert len(output.err.splitlines()) == 1
    assert re.search(message, output.err)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_bad_input(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    output = cli("bench", "thompson", "--preset", "smoke", "--out", tmp_path / "file", code=2)
    assert "`out` must be a folder to write to" in output.err


def interrupt_after(
    steps: int, monkeypatch: pytest.MonkeyPatch, error: type[BaseException] = KeyboardInterrupt
) -> None:
    """Let the description of the step after so many fail."""
    describe = ThompsonCell.describe
    count = 0

    def described(cell: Any, record: dict[str, Any]) -> str:
        nonlocal count
        count += 1
        if count > steps:
            raise error("out of memory: 9 GiB.")
        return describe(cell, record)

    monkeypatch.setattr(ThompsonCell, "describe", described)


def test_ctrl_c_exits_with_130_and_says_what_has_been_written(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(2, monkeypatch)
    arguments = [
        *("bench", "thompson", "--preset", "smoke"),
        *("--solver", "cg", "--seeds", "0-3", "--out", str(tmp_path)),
    ]
    last = cli(*arguments, code=130).err.splitlines()[-1]
    assert (
        last
        == f"Interrupted; 1 complete run and 1 round of thompson_smoke_cg_l0.5_s1 in {tmp_path};"
        " the same command goes on."
    )
    assert json.loads((tmp_path / "thompson_smoke_cg_l0.5_s0.json").read_text())["complete"]
    assert not json.loads((tmp_path / "thompson_smoke_cg_l0.5_s1.json").read_text())["complete"]
    assert "| cg | 0.5 |" in (tmp_path / "thompson.md").read_text()
    assert (tmp_path / "thompson_smoke.png").exists()


def test_an_interrupted_benchmark_goes_on_and_keeps_what_is_finished(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = f"bench thompson --preset smoke --solver cg,svgp --out {tmp_path}".split()
    with monkeypatch.context() as patch:
        interrupt_after(2, patch)
        cli(*arguments, code=130)
    output = cli(*arguments)
    kept, resumed = output.err.splitlines()
    assert re.match(r"cg lengthscale 0.5 seed 0 round 2/2: .* \(kept\)$", kept)
    assert re.match(
        r"svgp lengthscale 0.5 seed 0 round 2/2: n 216, .*, solve \d+\.\d s, acquisition \d+\.\d s"
        r" \(resumed\)$",
        resumed,
    )
    assert re.search(r"^svgp .* – ", output.out, re.MULTILINE)
    assert not list(tmp_path.glob("*.safetensors"))

    assert "preset.q is 8 there, 4 now" in cli(*arguments, "--q", "4", code=2).err
    assert "(kept)" not in cli(*arguments, "--q", "4", "--rerun").err


def test_a_request_that_cannot_fit_is_one_line(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(0, monkeypatch, MemoryError)
    assert cli("bench", "thompson", "--preset", "smoke", "--out", tmp_path, code=1).err.startswith(
        "out of memory: 9 GiB. So far: 0 complete runs and 1 round of"
    )


def no_space(number: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("thompson_smoke_cg_l0.5_s0.json", "Move the folder of that name away"),
        ("thompson_smoke.png", "Move the folder of that name away"),
        ("thompson.md", "Move the folder of that name away"),
        (None, "No space left on device. Free space or repair the disk"),
    ],
)
def test_a_file_that_cannot_be_written_is_named_on_one_line(
    cli: CommandLine, name: str | None, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name is None:
        monkeypatch.setattr(os, "fsync", no_space)
    else:
        (tmp_path / name).mkdir()
    arguments = ("--preset", "smoke", "--solver", "cg", "--rounds", "1", "--out", str(tmp_path))
    last = cli("bench", "thompson", *arguments, code=1).err.splitlines()[-1]
    path = tmp_path / (name or "thompson_smoke_cg_l0.5_s0.solve")
    assert re.match(rf"{path}\S* could not be written: ", last)
    assert remedy in last
    assert re.search(rf"So far: [01] complete runs? in {tmp_path}; the same command", last)


def test_regression_writes_records_and_a_table_and_keeps_what_is_finished(
    cli: CommandLine, data_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    toy = f"bench regression --data toy --data-dir {data_dir} --split 0-1"
    arguments = f"{toy} --mean-only --out {out}".split()
    output = cli(*arguments, "--solver", "cg,svgp")
    names = [
        f"regression_toy_{split}_{solver}_mean.json"
        for split in (0, 1)
        for solver in ("cg", "svgp")
    ]
    assert sorted(file.name for file in out.iterdir()) == sorted([*names, "regression.md"])
    lines = re.findall("^regression_toy_.*: RMSE .*", output.err, re.MULTILINE)
    assert len(lines) == 4
    assert re.match(
        r"regression_toy_0_cg_mean: RMSE 0\.\d{4}, residual .*, epochs .*, seconds", lines[0]
    )
    assert (
        f"4 records in {out}, with all others there in {out / 'regression.md'}"
        in output.out.replace("\n", "")
    )
    assert re.search(r"\| cg \| 0\.\d{3} ± 0\.\d{3} \(2\) \|", (out / "regression.md").read_text())

    earlier = out / names[0]  # as if from before errors of solves were recorded
    record = json.loads(earlier.read_text())
    earlier.write_text(json.dumps({key: record[key] for key in record if key != "error"}))
    told = cli(*arguments, "--solver", "cg,cholesky").err
    lines = re.findall("^regression_toy_.*: RMSE .*", told, re.MULTILINE)
    assert [line.endswith("(kept)") for line in lines] == [True, False, True, False]
    assert {"| cg |", "| svgp |", "| cholesky |"} <= {
        line[: line.index("|", 2) + 1] for line in read_rows(out / "regression.md")
    }
    assert "(kept)" not in cli(*arguments, "--solver", "cg", "--rerun").err


def test_several_budgets_of_a_regression_are_a_run_each(
    cli: CommandLine, data_dir: Path, tmp_path: Path
) -> None:
    where = ("--data", "toy", "--data-dir", str(data_dir), "--out", str(tmp_path))
    budgets = ("--max-epochs", "2,4", "--tolerance", "1e-7", "--solver", "asap,cholesky")
    cli("bench", "regression", *where, *budgets)
    epochs = {
        file.stem: json.loads(file.read_text())["epochs"] for file in tmp_path.glob("*asap*.json")
    }
    assert len(epochs) == 2
    assert epochs["regression_toy_0_asap_tolerance=1e-07_max_epochs=2"] <= 2.0
    assert 2.0 < epochs["regression_toy_0_asap_tolerance=1e-07_max_epochs=4"] <= 4.0
    assert len(list(tmp_path.glob("*cholesky*.json"))) == 1  # which has no budget


def read_rows(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.startswith("| ")]


def test_options_of_regression_reach_the_run(
    cli: CommandLine, data_dir: Path, tmp_path: Path
) -> None:
    toy = f"bench regression --data toy --data-dir {data_dir} --out {tmp_path} --mean-only"
    options = "--solver sgd,subset --noise 1e-3 --sgd-steps 20 --num-points 40 --dtype float64"
    cli(*f"{toy} {options}".split())
    (sgd,) = tmp_path.glob("regression_toy_0_sgd_noise0.001_mean_sgd_steps=20_dtype=float64.json")
    (subset,) = tmp_path.glob("*subset*.json")
    assert json.loads(sgd.read_text())["settings"]["budget"] == {"sgd_steps": 20}
    assert json.loads(subset.read_text())["num_weights"] == 40
    assert "## Noise variance 0.001" in (tmp_path / "regression.md").read_text()


def test_a_regression_record_with_other_settings_is_not_replaced(
    cli: CommandLine, data_dir: Path, tmp_path: Path
) -> None:
    toy = f"bench regression --data toy --data-dir {data_dir} --out {tmp_path} --mean-only"
    cli(*toy.split())
    file = tmp_path / "regression_toy_0_cg_mean.json"
    record = json.loads(file.read_text())
    record["settings"]["budget"]["tolerance"] = 0.01  # as by an earlier default
    file.write_text(json.dumps(record))
    said = cli(*toy.split(), code=2).err
    assert "with other settings: budget.tolerance is 0.01 there, None now" in said
    assert json.loads(file.read_text()) == record
    cli(*f"{toy} --rerun".split())
    assert json.loads(file.read_text())["settings"] != record["settings"]


def test_a_solver_that_cannot_be_made_is_named(cli: CommandLine, tmp_path: Path) -> None:
    said = cli(*f"bench thompson --solver math:sin --out {tmp_path}".split(), code=2).err
    assert "`solver` must make a Solver, got TypeError" in said and "'math:sin'" in said


def test_a_user_s_table_is_measured(cli: CommandLine, tmp_path: Path) -> None:
    pandas.DataFrame(toy_table(), columns=["a", "b", "c", "price"]).to_parquet(
        tmp_path / "homes.parquet"
    )
    homes = f"bench regression --data {tmp_path}/homes.parquet --out {tmp_path}/out --mean-only"
    options = "--target price --split 0,11 --test-fraction 0.25 --solver cholesky"
    cli(*f"{homes} {options}".split())
    name = "regression_homes.price_11_cholesky_mean_test_fraction=0.25_*.json"
    (file,) = (tmp_path / "out").glob(name)
    record = json.loads(file.read_text())
    assert (record["num_train"], record["num_test"]) == (90, 30)
    assert "got 'prize'. Near it: price." in cli(*f"{homes} --target prize".split(), code=2).err


def test_an_interrupted_regression_leaves_its_records_and_the_table(
    cli: CommandLine, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_one = RegressionCell.run

    def interrupted(cell: RegressionCell, *arguments: Any) -> Iterator[dict[str, Any]]:
        if cell.split == 1:
            raise KeyboardInterrupt
        return run_one(cell, *arguments)

    monkeypatch.setattr(RegressionCell, "run", interrupted)
    toy = f"bench regression --data toy --data-dir {data_dir} --split 0-1"
    assert (
        cli(*f"{toy} --mean-only --out {tmp_path}".split(), code=130).err.splitlines()[-1]
        == f"Interrupted; 1 complete run and regression.md in {tmp_path};"
        " the same command goes on."
    )
    assert (tmp_path / "regression_toy_0_cg_mean.json").is_file()
    assert any(line.startswith("| cg | 0.") for line in read_rows(tmp_path / "regression.md"))


def test_the_table_is_made_again_without_a_run(
    cli: CommandLine, data_dir: Path, tmp_path: Path
) -> None:
    toy = f"bench regression --data toy --data-dir {data_dir}"
    cli(*f"{toy} --mean-only --out {tmp_path}".split())
    written = (tmp_path / "regression.md").read_text()
    (tmp_path / "regression.md").unlink()
    cli("bench", "table", "--out", tmp_path)
    assert (tmp_path / "regression.md").read_text() == written


def test_help_of_regression_names_every_method(cli: CommandLine) -> None:
    text = re.sub(r"[\s│]+", " ", cli("bench", "regression", "--help").out)
    assert ", ".join(REGRESSION_METHODS) in text


def test_help_names_every_preset_and_solver(cli: CommandLine) -> None:
    text = re.sub(r"[\s│]+", " ", cli("bench", "thompson", "--help").out)
    for name in (*THOMPSON_PRESETS, *SOLVERS, "svgp"):
        assert name in text


@pytest.mark.parametrize("command", ["", "bench", "bench thompson", "status"])
def test_help_shows_no_type_of_a_flag(cli: CommandLine, command: str) -> None:
    text = cli(*command.split(), "--help").out
    assert "--help" in text and "bool" not in text.lower()


def seconds_of_children() -> float:
    """Return the processor seconds of all children so far: of a busy machine, too."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_and_version_import_nothing_heavy_and_answer_at_once() -> None:
    script = (
        "import sys, scalable_bo, scalable_bo.cli.main as cli\n"
        "sys.argv[0] = 'scalable-bo'\n"
        "try:\n    cli.main()\n"
        "except SystemExit as ended:\n    assert not ended.code\n"
        "assert not {'torch', 'numpy', 'gpytorch', 'botorch', 'matplotlib'} & set(sys.modules)\n"
    )
    seconds = []
    for option in ("--help", "--version", "bench thompson --help"):
        start = seconds_of_children()
        command = [sys.executable, "-c", script, *option.split()]
        run = subprocess.run(command, capture_output=True, text=True)
        seconds.append(seconds_of_children() - start)
        assert (run.returncode, run.stderr) == (0, "")
        assert "scalable-bo" in run.stdout or "Usage" in run.stdout
    assert min(seconds) < 0.5


@dataclass(frozen=True)
class Greeting:
    """Greet somebody.

    Args:
        times: how often, which may be
            never.
        loudly: in capitals.
    """

    name: Annotated[str, typer.Option(help="Whom to greet.")]
    times: int = 1
    loudly: bool = False

    def run(self) -> None:
        text = " ".join([self.name] * self.times)
        typer.echo(text.upper() if self.loudly else text)


def test_a_command_may_be_a_dataclass_of_its_options() -> None:
    app = console.Commands()
    app.command("greet")(Greeting)
    run = CliRunner()
    assert run.invoke(app, ["--name", "Ada"]).stdout == "Ada\n"
    assert run.invoke(app, ["--name", "Ada", "--times", "3"]).stdout == "Ada Ada Ada\n"
    assert run.invoke(app, ["--name", "Ada", "--loudly"]).stdout == "ADA\n"
    assert run.invoke(app, ["--times", "3"]).exit_code == 2
    shown = run.invoke(app, ["--help"]).stdout
    for text in ("Greet somebody.", "Whom to greet.", "How often, which may be never."):
        assert text in shown
    assert "[default: 1]" in shown and "Args" not in shown and "--no-loudly" not in shown


def test_every_command_is_described_in_a_line() -> None:
    def commands(group: Any) -> Iterator[Any]:
        for command in group.commands.values():
            yield from commands(command) if hasattr(command, "commands") else (command,)

    found = list(commands(typer.main.get_command(app)))
    assert len(found) > 10
    for command in found:
        assert "\n" not in command.help.partition("\n\n")[0].strip(), command.name


def test_seeds_are_read_from_lists_and_ranges() -> None:
    assert read_integers("0-2,7, 5-5", "seeds") == [0, 1, 2, 7, 5]
