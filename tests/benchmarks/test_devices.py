"""Scripts of benchmarks compute on the device that they are told."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import acquired_value, study, warm_starts
from scalable_bo.storage.rounds import Batch
from scalable_bo.study.study import Study
from surrogates import CG
from tests.simulated_device import simulated_device

SCRIPTS = ("acquired_value", "kernel_product", "solver_sweep", "study", "thompson_round")
SCRIPTS += ("ceilings", "fingerprint_pool", "gpu_day", "thompson_system", "warm_starts")
SHARED = ("distributed", "shared_round")


@pytest.fixture
def device() -> Iterator[torch.device]:
    with simulated_device() as there:
        yield there


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_takes_a_device(name: str) -> None:
    source = Path(acquired_value.__file__).with_name(f"{name}.py").read_text()
    assert 'add_argument("--device"' in source
    assert "arguments.device" in source


@pytest.mark.parametrize("name", SHARED)
def test_a_script_of_several_processes_takes_a_device(name: str) -> None:
    source = Path(acquired_value.__file__).with_name(f"{name}.py").read_text()
    assert '"--device", default="cpu", choices=BACKENDS' in source
    assert "run_job(arguments.job" in source


def test_the_paths_of_a_round_are_maximised_there(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acquired_value, "POINTS_A_ROUND", 4)
    monkeypatch.setattr(acquired_value, "NUM_FEATURES", 64)
    few = {"num_candidates": 20, "num_rounds": 2, "num_starts": 2, "num_steps": 3}
    monkeypatch.setattr(acquired_value, "WAYS", {"few": few, "longer": few | {"num_steps": 9}})
    model, paths, bounds = acquired_value.draw_problem("2:40:0.5:2", 3, 0, device)
    held = (model.train_inputs[0], paths.weights, bounds)
    assert {tensor.device for tensor in held} == {device}
    rows = acquired_value.measure("2:40:0.5:2", ["few", "longer"], 3, 0, device)
    assert [row["shortfall"] >= 0.0 for row in rows] == [True, True]


@pytest.mark.slow
def test_warm_starts_are_compared_there(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_starts, "Q", 5)
    monkeypatch.setattr(warm_starts, "NUM_FEATURES", 64)
    run = warm_starts.run_rounds(40, 0.5, 1, 0, dtype=torch.float32, device=device)
    for start in warm_starts.STARTS.values():
        rows = warm_starts.solves(run, 40, CG(tolerance=1e-2), start)
        assert rows[0]["residual"] <= 1e-2
    found = warm_starts.rounds_of(
        40, 0.5, 1, 0, start="mixed-block", solver=CG(tolerance=1e-2), device=device
    )
    assert found["own_square"] > 0.0


@pytest.mark.slow
def test_a_study_is_measured_there(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "RESUMED_ROWS", 40)
    monkeypatch.setattr(study, "RESUMED_Q", 3)
    used = []
    ask = Study.ask

    def noted(self: Study, q: int) -> Batch:
        batch = ask(self, q)
        assert self.model is not None
        used.append(self.model.train_inputs[0].device)
        return batch

    monkeypatch.setattr(Study, "ask", noted)
    runs = study.resume(tmp_path / "study", study.Place(device, torch.float64))
    assert [run["what"] for run in runs] == ["ordinary round", "open and round"]
    assert set(used) == {device}
