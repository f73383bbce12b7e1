"""The Thompson benchmark over interruptions: complete runs are kept,
others go on after their last finished round.
"""

import json
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from acquisition import ParallelThompsonSampling
from scalable_bo.experiments.cells import run_cell, run_cells
from scalable_bo.experiments.presets import THOMPSON_PRESETS
from scalable_bo.experiments.thompson import cell as cell_module
from scalable_bo.experiments.thompson.cell import ThompsonCell, ThompsonRounds, check_settings
from surrogates import CG, Checkpoint, PathwiseGP

TINY = replace(
    THOMPSON_PRESETS["smoke"],
    name="tiny",
    num_initial=60,
    num_rounds=3,
    q=6,
    dim=2,
    num_candidates=200,
    dtype="float64",
)


def cell(solver: str = "sdd", **changes: Any) -> ThompsonCell:
    return ThompsonCell(replace(TINY, **changes), solver, 0.5, 0)


def interrupt_after(round_number: int, run: ThompsonCell, folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        for _, record, _ in run_cells([run], folder):
            if len(record["rounds"]) == round_number:
                raise KeyboardInterrupt


def run_in(folder: Path, *runs: ThompsonCell, **options: Any) -> list[dict[str, Any]]:
    found = {run.name: record for run, record, _ in run_cells(runs, folder, **options)}
    return list(found.values())


def results(record: dict[str, Any]) -> list[float]:
    """Return all numbers of a record that are no measurements of time or memory."""
    rounds = [record["initial"], *record["rounds"], *record["random_search"]["rounds"]]
    keys = ("num_points", "best_noiseless", "best_observed", "residual", "epochs")
    return [entry[key] for entry in rounds for key in keys if entry.get(key) is not None]


@cache
def whole_results(solver: str = "sdd") -> list[float]:
    """Return the results of a run that nothing interrupts."""
    return results(run_cell(cell(solver)))


@pytest.mark.parametrize(
    ("solver", "after"), [("sdd", 1), ("sdd", 2), ("cg", 1), ("svgp", 1), ("cholesky", 2)]
)
def test_an_interrupted_run_ends_where_an_uninterrupted_one_does(
    solver: str, after: int, tmp_path: Path
) -> None:
    run = cell(solver)
    interrupt_after(after, run, tmp_path)
    assert len(json.loads((tmp_path / f"{run.name}.json").read_text())["rounds"]) == after
    (resumed,) = run_in(tmp_path, run)
    assert resumed["complete"]
    assert [entry["after_round"] for entry in resumed["resumed"]] == [after]
    assert results(resumed) == whole_results(solver)
    assert [file.name for file in tmp_path.iterdir()] == [f"{run.name}.json"]
    assert json.loads((tmp_path / f"{run.name}.json").read_text())["complete"]


def test_a_run_may_be_interrupted_again_and_in_the_middle_of_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = cell("cg")
    interrupt_after(1, run, tmp_path)
    solve = CG.solve

    def in_the_middle(self: CG, *arguments: Any, generator: Any, **options: Any) -> Any:
        solve(self, *arguments, generator=generator, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CG, "solve", in_the_middle)
        with pytest.raises(KeyboardInterrupt):
            run_in(tmp_path, run)
    interrupt_after(2, run, tmp_path)
    (resumed,) = run_in(tmp_path, run)
    assert results(resumed) == results(run_cell(run))
    assert [entry["after_round"] for entry in resumed["resumed"]] == [1, 2]
    assert "(resumed)" in run.describe(resumed)
    assert "(resumed)" not in run.describe(resumed | {"resumed": resumed["resumed"][:1]})


def test_a_run_interrupted_within_a_solve_goes_on_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = cell("cg")
    every_step = partial(Checkpoint, every_seconds=None, every_steps=1)
    monkeypatch.setattr(cell_module, "Checkpoint", every_step)
    step = CG.step
    taken: list[int] = []

    def steps_of(cut: int | None) -> list[dict[str, Any]]:
        taken.clear()

        def counted(self: CG, *given: Any) -> Any:
            if len(taken) == cut:
                raise KeyboardInterrupt
            taken.append(1)
            return step(self, *given)

        monkeypatch.setattr(CG, "step", counted)
        return run_in(tmp_path, run)

    (whole,) = steps_of(None)
    all_steps = len(taken)
    (tmp_path / f"{run.name}.json").unlink()
    with pytest.raises(KeyboardInterrupt):
        steps_of(2)
    (resumed,) = steps_of(None)
    assert len(taken) == all_steps - 2
    assert results(resumed) == results(whole)
    assert [file.name for file in tmp_path.iterdir()] == [f"{run.name}.json"]


def test_a_run_interrupted_after_a_solve_does_not_solve_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = cell("cg")
    with monkeypatch.context() as patch:
        patch.setattr(ParallelThompsonSampling, "generate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_in(tmp_path, run)
    solves = []
    step = CG.step

    def noting(self: CG, system: Any, *given: Any) -> Any:
        solves.append(system.n)
        return step(self, system, *given)

    monkeypatch.setattr(CG, "step", noting)
    (resumed,) = run_in(tmp_path, run)
    assert run.preset.num_initial not in solves
    assert results(resumed) == results(run_cell(run))
    assert [file.name for file in tmp_path.iterdir()] == [f"{run.name}.json"]


def interrupt(*given: Any, **named: Any) -> None:
    raise KeyboardInterrupt


def test_finished_rounds_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = cell()
    interrupt_after(2, run, tmp_path)
    proposed = []
    propose = ThompsonRounds.propose
    monkeypatch.setattr(
        ThompsonRounds,
        "propose",
        lambda self, X, y, n: proposed.append((n, len(X))) or propose(self, X, y, n),
    )
    run_in(tmp_path, run)
    assert proposed == [(3, TINY.num_initial + 2 * TINY.q)]


def test_a_rerun_begins_with_the_first_round(tmp_path: Path) -> None:
    run = cell()
    interrupt_after(2, run, tmp_path)
    (record,) = run_in(tmp_path, run, rerun=True)
    assert "resumed" not in record


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "format"])
def test_from_a_damaged_state_a_run_starts_again_with_a_warning(
    damage: str, tmp_path: Path
) -> None:
    run = cell()
    interrupt_after(1, run, tmp_path)
    state = tmp_path / f"{run.name}.safetensors"
    content = bytearray(state.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
    elif damage == "format":
        content = content.replace(b'"format":"1"', b'"format":"9"')
    else:
        content = content[: len(content) // 2 if damage == "cut" else 0]
    assert content != state.read_bytes()
    state.write_bytes(content)
    with pytest.warns(
        UserWarning,
        match=f"{run.name}.safetensors is damaged and was passed over .*The run starts again",
    ):
        (record,) = run_in(tmp_path, run)
    assert "resumed" not in record
    assert results(record) == whole_results()


@pytest.mark.parametrize("complete", [False, True])
def test_a_record_of_other_settings_is_neither_resumed_nor_replaced(
    complete: bool, tmp_path: Path
) -> None:
    run = cell()
    other = cell(num_screenings=7, num_starts=7)
    if complete:
        run_in(tmp_path, run)
    else:
        interrupt_after(1, run, tmp_path)
    check_settings([run, cell("cg", num_starts=7)], tmp_path)
    changes = "preset.num_screenings is 5 there, 7 now, preset.num_starts is 5 there, 7 now"
    with pytest.raises(
        ValueError, match=f"`out` has a record of {run.name} with other settings: {changes}"
    ):
        check_settings([other], tmp_path)
    if not complete:
        (tmp_path / f"{run.name}.json").unlink()
        with pytest.raises(ValueError, match="num_starts is 5 there, 7 now.* add --rerun"):
            check_settings([other], tmp_path)
        with pytest.raises(ValueError, match="num_starts is 5 there, 7 now"):
            run_in(tmp_path, other)


def test_the_state_is_small_as_the_seed_decides_target_and_initial_data(tmp_path: Path) -> None:
    run = cell("cholesky", num_initial=500, num_rounds=2)
    interrupt_after(1, run, tmp_path)
    rows = 2 * 2 * TINY.q * (TINY.dim + 2)
    generators = 8 * 5056
    assert (tmp_path / f"{run.name}.safetensors").stat().st_size < 8 * (
        500 + rows
    ) + generators + 20_000


def test_a_round_is_proposed_again_where_its_solve_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    propose = ThompsonRounds.propose

    def interrupted_once(self: ThompsonRounds, *given: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(PathwiseGP, "paths", interrupt)
            with pytest.raises(KeyboardInterrupt):
                propose(self, *given)
        return propose(self, *given)

    expected = whole_results("cg")
    monkeypatch.setattr(ThompsonRounds, "propose", interrupted_once)
    assert results(run_cell(cell("cg"))) == expected


def test_svgp_proposes_from_the_closed_form_optimum() -> None:
    cell = ThompsonCell(THOMPSON_PRESETS["smoke"], "svgp", 0.5, 0)
    record = run_cell(cell)
    for number, entry in enumerate(record["rounds"], start=1):
        assert entry["num_points"] == 200 + 8 * number
        num_inducing = entry["num_points"] - 8  # as many as there are data, up to 1024
        note = f"{num_inducing} inducing points, closed-form optimum in place of steps of Adam"
        assert entry["note"] == note
        assert entry["residual"] is entry["epochs"] is None
    assert (
        record["rounds"][-1]["best_noiseless"]
        > record["random_search"]["rounds"][-1]["best_noiseless"]
    )
    assert "residual" not in cell.describe(record)
    assert "None" not in cell.describe(record)


@pytest.mark.gpu
@pytest.mark.parametrize("solver", ["cg", "svgp"])
def test_a_run_on_the_gpu_goes_on_there(solver: str, tmp_path: Path) -> None:
    run = replace(cell(solver), device="cuda")
    interrupt_after(1, run, tmp_path)
    (resumed,) = run_in(tmp_path, run)
    values, expected = (
        [entry["best_noiseless"] for entry in record["rounds"]]
        for record in (resumed, run_cell(run))
    )
    assert values == pytest.approx(expected, rel=1e-6)
