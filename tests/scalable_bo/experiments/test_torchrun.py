"""Benchmarks under torchrun: shared systems give what one process gives, one process writes,
and what cannot be shared says so.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scalable_bo.experiments import torchrun
from scalable_bo.experiments.models import matern_kernel
from surrogates import CG
from tests.command_lines import CommandLine
from tests.scalable_bo.experiments import shared_rounds
from tests.surrogates import shared_rows
from tests.surrogates.shared_rows import as_text
from tests.toy_regression import write_toy_folder


def test_one_process_solves_as_ever(generator: torch.Generator) -> None:
    X = torch.rand(50, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(50, generator=generator, dtype=torch.float64)
    kernel = matern_kernel(0.5, 1.0)
    exact = torch.linalg.solve(kernel(X).to_dense() + 1e-2 * torch.eye(50, dtype=torch.float64), y)
    solution = torchrun.solve(kernel, X, y, 1e-2, CG(None, tolerance=1e-10), generator=generator)
    assert torch.allclose(solution.value.squeeze(1), exact, atol=1e-7)
    assert torchrun.of_first({"a": 1}) == {"a": 1}
    torchrun.check_methods(["svgp"])


def test_methods_that_need_all_rows_are_refused_in_several_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torchrun, "num_processes", lambda: 2)
    with pytest.raises(
        ValueError,
        match=(
            "`solver` must be one whose rows several processes can share, got 'cholesky'. Use auto"
        ),
    ):
        torchrun.check_methods(["cg", "cholesky"])
    torchrun.check_methods(["cg", "auto", "adasap", "sdd", "sgd"])


def test_one_voice_speaks_where_there_is_one_process(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.setenv("WORLD_SIZE", "1")
    write_toy_folder(tmp_path)
    toy = f"bench regression --data toy --data-dir {tmp_path} --out {tmp_path}/out"
    cli(*toy.split(), "--solver", "cholesky")
    assert len(list((tmp_path / "out").glob("*.json"))) == 1


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_find_what_one_finds_and_the_first_writes_it(
    cli: CommandLine, tmp_path: Path
) -> None:
    write_toy_folder(tmp_path)
    names = ["cg", "asap"]
    solvers = f"--solver {','.join(names)} --tolerance 1e-4 --dtype float64"
    options = f"--data toy --data-dir {tmp_path} {solvers}".split()
    cli("bench", "regression", *options, "--out", tmp_path / "one")
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "scalable_bo.cli.main",
    ]
    command = [*torchrun, "bench", "regression", *options, "--out", str(tmp_path / "two")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    runs = [
        subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        for _ in range(2)
    ]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr
    for run in runs:
        assert run.stdout.count("Regression on standardised targets") == 1
    assert runs[1].stderr.count("(kept)") == len(names)
    folders = [tmp_path / "one", tmp_path / "two"]
    written = [sorted(file.name for file in folder.iterdir()) for folder in folders]
    assert written[0] == written[1]
    for path in sorted(folders[0].glob("*.json")):
        alone, together = (json.loads((folder / path.name).read_text()) for folder in folders)
        assert (alone["environment"]["processes"], together["environment"]["processes"]) == (1, 2)
        assert together["residual"] < 1e-4
        assert together["rmse"] == pytest.approx(alone["rmse"], rel=1e-3)
        # Half the relative scatter of variances by 64 other paths, of a mean over points
        assert together["nll"] == pytest.approx(alone["nll"], abs=0.5 * (2 / 64) ** 0.5)


@pytest.mark.distributed
def test_thompson_rounds_go_on_after_a_process_was_lost(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for process in shared_rows.start(shared_rounds.run_rounds, 2, tmp_path / "cut", folder, 2):
        process.join(300)
    cut = shared_rows.load_file(tmp_path / "cut" / "0.safetensors")
    assert "lost contact with another" in as_text(cut["message"])
    assert cut["rounds"] == 1 and len(list(folder.glob("*.safetensors"))) == 1
    parts = shared_rows.results(shared_rounds.run_rounds, 2, tmp_path / "on", folder, None)
    whole = shared_rows.results(shared_rounds.run_rounds, 2, tmp_path / "not", tmp_path / "b", None)
    for part in parts:
        assert part["rounds"] == 2
        assert torch.equal(part["best"], whole[0]["best"])
    (record,) = folder.glob("*.json")
    found = json.loads(record.read_text())
    assert found["complete"] and found["environment"]["processes"] == 2


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_make_a_thompson_run(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "scalable_bo.cli.main", "bench", "thompson", "--preset", "smoke", "--seeds", "0"),
        *("--lengthscale", "0.5", "--solver", "cholesky,asap,svgp", "--out", str(tmp_path)),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("Best value after") == 1
    records = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert [record["complete"] for record in records] == [True] * 3
    assert {record["environment"]["processes"] for record in records} == {2}
