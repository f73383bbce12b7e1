"""Solves that were cut short and go on from their last checkpoint."""

import itertools
import math
import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from surrogates import (
    CG,
    SDD,
    SGD,
    Auto,
    Checkpoint,
    IterativeSolver,
    KernelSystem,
    Nystrom,
    Progress,
    SketchAndProject,
    Solution,
    Targets,
)
from surrogates.solvers import checkpoint as files
from surrogates.solvers.checkpoint import FORMAT
from tests import problems
from tests.live_matrices import LiveMatrices
from tests.refusals import assert_refused

N = 60
S = 3
SOLVERS: dict[str, IterativeSolver] = {
    "cg": CG(None, tolerance=1e-3),
    "cg-nystrom": CG(Nystrom(10), tolerance=1e-3),
    "sap": SketchAndProject(block_size=20, tolerance=1e-3),
    "asap": SketchAndProject.asap(block_size=20, tolerance=1e-3),
    "adasap": SketchAndProject.adasap(
        preconditioner=Nystrom(8, sketch="gaussian"), block_size=20, tolerance=1e-3, max_epochs=12.0
    ),
    "leverage": SketchAndProject(block_size=20, blocks="leverage", tolerance=1e-3, max_epochs=8.0),
    "sdd": SDD(batch_size=20, tolerance=0.1, max_epochs=12.0),
    "sgd": SGD(batch_size=20, tolerance=1e-3, max_epochs=8.0),
}


class Interrupted(Exception):
    pass


def columns_of_unlike_difficulty() -> tuple[KernelSystem, Tensor]:
    """Return a system and right-hand sides, some of which are solved early."""
    system = problems.system(N, problems.vector_noise(N))
    _, vectors = torch.linalg.eigh(system.to_dense())
    return system, torch.cat([vectors[:, -1:], problems.normal(N, S - 1)], dim=1)


def solve(
    solver: IterativeSolver,
    folder: Path | None,
    *,
    steps: int | None = None,
    every: int = 3,
    keep: bool = False,
    **arguments: Any,
) -> Any:
    """Solve with a checkpoint every few steps, interrupted in step number ``steps + 1``;
    return the solution and the generator.
    """
    system, rhs = columns_of_unlike_difficulty()
    generator = torch.Generator().manual_seed(5)
    count = itertools.count()

    class Interruptible(type(solver)):  # type: ignore[misc]
        def step(self, *given: Any) -> Any:
            if next(count) == steps:
                raise Interrupted
            return super().step(*given)

    saved = None if folder is None else Checkpoint(folder, None, every, keep_solution=keep)
    same = Interruptible(**vars(solver) | {"checkpoint": saved})
    solution = same.solve(system, arguments.pop("rhs", rhs), generator=generator, **arguments)
    return solution, generator, next(count)


def cut_short(name: str, folder: Path, steps: int, **arguments: Any) -> None:
    with pytest.raises(Interrupted):
        solve(SOLVERS[name], folder, steps=steps, **arguments)


def assert_same(found: tuple[Solution, Any, int], expected: tuple[Solution, Any, int]) -> None:
    """Require the same solution, at the same cost, and the same state of the generator."""
    solution, random, _ = found
    other, other_random, _ = expected
    for field in ("value", "residual", "converged", "steps"):
        assert torch.equal(getattr(solution, field), getattr(other, field))
    assert solution.epochs == other.epochs
    assert torch.equal(random.get_state(), other_random.get_state())


@pytest.mark.parametrize("name", SOLVERS)
def test_an_interrupted_solve_ends_at_the_same_iterates(name: str, tmp_path: Path) -> None:
    whole = solve(SOLVERS[name], tmp_path / "other")
    steps = whole[-1]
    for cut in (4, 2 * steps // 3):
        cut_short(name, tmp_path / "cut", cut)
        resumed = solve(SOLVERS[name], tmp_path / "cut")
        assert resumed[-1] == steps - 3 * (cut // 3)
        assert_same(resumed, whole)


def test_auto_goes_on_within_the_method_that_it_chose(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    system, rhs = columns_of_unlike_difficulty()
    candidates = Auto._candidates
    monkeypatch.setattr(
        Auto,
        "_candidates",
        lambda *given: [c for c in candidates(*given) if c[1].reason == "CG(None)"],
    )
    step = CG.step

    def solve_until(cut: float) -> tuple[Solution, int]:
        count = itertools.count()

        def interruptible(self: CG, *given: Any) -> Any:
            if next(count) == cut:
                raise Interrupted
            return step(self, *given)

        monkeypatch.setattr(CG, "step", interruptible)
        saved = Checkpoint(tmp_path, every_seconds=None, every_steps=3)
        solver = Auto(direct=False, checkpoint=saved, tolerance=5e-4)
        generator = torch.Generator().manual_seed(5)
        return solver.solve(system, rhs, generator=generator), next(count)

    whole, steps = solve_until(math.inf)
    with pytest.raises(Interrupted):
        solve_until(7)
    resumed, rest = solve_until(math.inf)
    assert rest == steps - 6
    assert torch.equal(resumed.value, whole.value)
    assert resumed.epochs == whole.epochs
    assert list(tmp_path.iterdir()) == []


def test_saving_changes_nothing(tmp_path: Path) -> None:
    for name, solver in SOLVERS.items():
        solver = replace(solver, max_epochs=6.0)
        saved = solve(solver, tmp_path, every=1)[0]
        plain = solve(solver, None)[0]
        assert torch.equal(saved.value, plain.value), name
        assert saved.epochs == plain.epochs


def test_an_interrupted_solve_of_two_targets_is_found_again(tmp_path: Path) -> None:
    targets = Targets(problems.normal(N, S), problems.normal(N, S, seed=2))
    others = Targets(targets.noise_draw, targets.values)  # of the same sum
    whole, *_ = solve(SOLVERS["sgd"], None, rhs=targets)
    cut_short("sgd", tmp_path, 10, rhs=targets)
    *_, steps = solve(SOLVERS["sgd"], tmp_path, rhs=others)
    resumed, _, rest = solve(SOLVERS["sgd"], tmp_path, rhs=targets)
    assert rest == steps - 9
    assert torch.equal(resumed.value, whole.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda solver, rhs: (replace(solver, block_size=10), {}),
        lambda solver, rhs: (solver, {"rhs": rhs + 1.0}),
        lambda solver, rhs: (solver, {"initial": 1e-3 * rhs}),
    ],
    ids=["method", "right-hand side", "start"],
)
def test_another_solve_never_takes_a_checkpoint_for_its_own(
    change: Callable[[IterativeSolver, Tensor], tuple[IterativeSolver, dict[str, Any]]],
    tmp_path: Path,
) -> None:
    solver, arguments = change(SOLVERS["asap"], columns_of_unlike_difficulty()[1])
    cut_short("asap", tmp_path, 10)
    with_files, _, steps = solve(solver, tmp_path, **arguments)
    without, _, all_steps = solve(solver, None, **arguments)
    assert torch.equal(with_files.value, without.value)
    assert steps == all_steps
    *_, rest = solve(SOLVERS["asap"], tmp_path)  # whose own files are still there
    assert rest < solve(SOLVERS["asap"], None)[2]


def test_a_time_budget_may_be_raised_for_the_rest(tmp_path: Path) -> None:
    cut_short("asap", tmp_path, 10)
    *_, rest = solve(replace(SOLVERS["asap"], max_seconds=1e4), tmp_path)
    assert rest < solve(SOLVERS["asap"], None)[2]


def test_the_last_two_checkpoints_are_kept_until_the_solve_ends(tmp_path: Path) -> None:
    cut_short("asap", tmp_path, 14)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name.partition(".")[0][-4:] for name in names] == ["0009", "0012"]
    assert all(name.endswith(".0-of-1.safetensors") for name in names)
    solve(SOLVERS["asap"], tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["cg-nystrom", "asap", "sdd"])
def test_a_solution_that_is_kept_is_returned_at_once(name: str, tmp_path: Path) -> None:
    whole = solve(SOLVERS[name], tmp_path, keep=True)
    assert len(list(tmp_path.iterdir())) == 1
    again = solve(SOLVERS[name], tmp_path, keep=True)
    assert whole[-1] > 0 == again[-1]
    assert_same(again, whole)
    assert again[0].note == whole[0].note
    _, rhs = columns_of_unlike_difficulty()
    *_, other = solve(SOLVERS[name], tmp_path, keep=True, rhs=2.0 * rhs)
    assert other > 0


def test_a_solve_that_goes_on_holds_no_more_than_one_that_was_not_cut_short(tmp_path: Path) -> None:
    _, rhs = columns_of_unlike_difficulty()
    with LiveMatrices(rhs) as live:
        solve(SOLVERS["asap"], tmp_path)
        most, live.most = live.most, 0
        cut_short("asap", tmp_path, 7)
        assert len(list(tmp_path.iterdir())) == 2
        live.most = 0
        solve(SOLVERS["asap"], tmp_path)
    assert live.most <= most + 2  # the one that is read, and its copy


def test_what_was_saved_is_not_held_any_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[tuple[int, weakref.ref[Tensor]]] = []
    is_held: list[bool] = []
    save = files.Keeper.save

    def watch(keeper: files.Keeper, steps: int, parts: Any) -> None:
        W = parts["state.W"]
        saved.append((W.shape[1], weakref.ref(W)))
        save(keeper, steps, parts)

    def look(moment: Progress) -> None:
        for columns, W in saved:
            if moment.num_active < columns:
                is_held.append(W() is not None)

    monkeypatch.setattr(files.Keeper, "save", watch)
    solve(SOLVERS["asap"], tmp_path, every=7, callback=look)
    assert is_held and not any(is_held)


def test_a_checkpoint_says_what_it_holds(tmp_path: Path) -> None:
    cut_short("asap", tmp_path, 4)
    (path,) = tmp_path.iterdir()
    saved = files.Saved(path)
    assert len(saved) == len(set(saved)) > 20
    assert saved["state.W"].shape == (N, S) and saved["sweep.steps"] == 3
    assert "state.V" not in saved
    with pytest.raises(KeyError, match="nothing"):
        saved["nothing"]


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    whole, _, steps = solve(SOLVERS["asap"], None)
    cut_short("asap", tmp_path, 14)
    last = max(tmp_path.iterdir())
    last.write_bytes(last.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="cannot be read and was passed over .* an earlier one"):
        resumed, _, rest = solve(SOLVERS["asap"], tmp_path)
    assert rest == steps - 9
    assert torch.equal(resumed.value, whole.value)


def test_checkpoints_of_another_version_are_passed_over(tmp_path: Path) -> None:
    whole, _, steps = solve(SOLVERS["asap"], None)
    cut_short("asap", tmp_path, 14)
    ours, former = (rf"\"format\": {number}".encode() for number in (FORMAT, FORMAT - 1))
    for path in tmp_path.iterdir():
        assert ours in (content := path.read_bytes())
        path.write_bytes(content.replace(ours, former))
    with pytest.warns(UserWarning, match="of another version of scalable_bo.*or begins anew"):
        again, _, taken = solve(SOLVERS["asap"], tmp_path)
    assert taken == steps
    assert torch.equal(again.value, whole.value)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_half_written_is_as_if_it_had_not_been_begun(tmp_path: Path) -> None:
    cut_short("asap", tmp_path, 14)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with (
        patch.object(os, "fsync", side_effect=OSError("no space left")),
        pytest.raises(OSError, match="could not be written: no space left. Free space"),
    ):
        solve(SOLVERS["asap"], tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_checkpoints_come_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    # A second from look to look: one a step, and one for every checkpoint
    clock = itertools.count()
    monkeypatch.setattr(files.time, "monotonic", clock.__next__)
    monkeypatch.setattr(
        files.Keeper,
        "save",
        lambda self, steps, parts: saved.append(steps) or setattr(self, "_saved_at", next(clock)),
    )
    system, rhs = columns_of_unlike_difficulty()
    solver = replace(SOLVERS["asap"], checkpoint=Checkpoint(tmp_path, every_seconds=4.0))
    solver.solve(system, rhs)
    assert saved[:3] == [4, 8, 12]


def test_the_folder_stays_the_one_that_was_named_wherever_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    solver = replace(SOLVERS["asap"], checkpoint=Checkpoint("kept", keep_solution=True))
    monkeypatch.chdir("/")
    solver.solve(*columns_of_unlike_difficulty())
    assert list((tmp_path / "kept").iterdir())


def test_settings_that_make_no_sense_are_refused() -> None:
    assert_refused(TypeError, Checkpoint, folder=[3])
    of_folder = partial(Checkpoint, "x")
    assert_refused(ValueError, of_folder, every_seconds=[-1.0], every_steps=[0])
    with pytest.raises(ValueError, match="`every_seconds` or `every_steps` must be given"):
        Checkpoint("x", every_seconds=None)


def test_a_folder_in_place_of_a_checkpoint_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"`checkpoint` must be a Checkpoint, got str. Use `Checkpoint\(folder\)`"
    ):
        CG(checkpoint="folder")  # type: ignore[arg-type]
