"""Thompson runs whose records share a folder: complete ones are kept,
interrupted ones go on after their last finished round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scalable_bo.experiments.records import existing_record, finished_record, write_record
from scalable_bo.experiments.resuming import load_state, require_same_settings
from scalable_bo.experiments.thompson import ThompsonRun, run_thompson


def run_cells(
    runs: Sequence[ThompsonRun],
    folder: Path,
    *,
    rerun: bool = False,
    on_round: Callable[[dict[str, Any]], None] | None = None,
    on_status: Callable[[str], None] | None = None,
) -> Iterator[tuple[dict[str, Any], bool]]:
    """Run the cells one after the other, each record written after every round; yield it when
    complete, and whether it was kept.

    Args:
        runs: the cells.
        folder: of the records. A complete record with the same settings is kept and its cell not
            run; an interrupted run goes on after its last finished round.
        rerun: run all of them, from the first round.
        on_round: called with the record so far when it has been written.
        on_status: called with a few words on what is happening now.
    """
    for run in runs:
        path, state = _paths(run, folder)
        record = None if rerun else finished_record(path, run.settings())
        kept = record is not None and bool(record["complete"])
        if rerun or kept:
            state.unlink(missing_ok=True)
        if record is None or not kept:

            def keep(record: dict[str, Any], path: Path = path) -> None:
                write_record(path, record)
                if on_round is not None:
                    on_round(record)

            record = run_thompson(run, on_round=keep, on_status=on_status, state=state)
        yield record, kept


def check_settings(runs: Sequence[ThompsonRun], folder: Path) -> None:
    """Require that what the folder has of these runs, complete or not, was made with the same
    settings.

    Raises:
        ValueError: naming the first that was not, and what differs.
    """
    for run in runs:
        path, state = _paths(run, folder)
        saved = load_state(state)
        for found in (existing_record(path), None if saved is None else saved.record):
            if found is not None:
                require_same_settings(run.name, found, run.settings())


def _paths(run: ThompsonRun, folder: Path) -> tuple[Path, Path]:
    """Return the files of the run's record and of its state between two rounds."""
    return folder / f"{run.name}.json", folder / f"{run.name}.safetensors"
