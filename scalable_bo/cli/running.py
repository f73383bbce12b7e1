"""How the commands of ``bench`` run their cells: a line a step, and a last word if ended early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scalable_bo.cli.console import count, interruptible, lines_of
from scalable_bo.evaluation.progress import RoundProgress
from scalable_bo.experiments.cells import Cell, run_cells
from scalable_bo.experiments.records import Record
from scalable_bo.experiments.tables import TableKind, write_table


def run_and_show(
    cells: Sequence[Cell[Any]],
    out: Path,
    *,
    rerun: bool,
    table: TableKind | None = None,
    draw: Callable[[list[Record]], None] | None = None,
    written: Callable[[list[Record]], str] | None = None,
) -> list[Record]:
    """Run the cells with a line a step on stderr, and return their records. Ctrl-C, memory that
    is not there, or a file that cannot be written, ends the command with one line that says what
    has been written.

    Args:
        cells: what to run.
        out: folder of the records.
        rerun: run also what the folder has a record of.
        table: of the folder, which is written after Ctrl-C, too.
        draw: draws the records, likewise.
        written: says what has been written; ``None`` for the complete runs, and the table.
    """
    found: dict[str, Record] = {}
    steps: dict[str, int] = {}
    and_table = ""

    def said() -> str:
        records = list(found.values())
        if written is not None:
            return written(records)
        return f"{complete(cells, records)}{and_table} in {out}"

    with interruptible(said):
        can_write = True
        try:
            with RoundProgress(sum(cell.num_steps for cell in cells)) as progress:
                status = lines_of(progress.status)
                for cell, record, kept in run_cells(cells, out, rerun=rerun, on_status=status):
                    found[cell.name] = record
                    progress.note(f"{cell.describe(record)}{' (kept)' if kept else ''}")
                    steps[cell.name] = 1 if cell.steps is None else len(record[cell.steps])
                    progress.status("", sum(steps.values()))
        except OSError:
            can_write = False
            raise
        finally:
            if table is not None and can_write:
                and_table = f" and {write_table(out, table).name}"
            if draw is not None and found and can_write:
                draw(list(found.values()))
    return list(found.values())


def complete(cells: Sequence[Cell[Any]], records: list[Record]) -> str:
    """Say how many runs are complete, and how far the last one is, or how many failed."""
    whole = [record for record in records if record.get("complete", True)]
    words = count(whole, "complete run")
    if len(whole) == len(records):
        return words
    cell = cells[len(records) - 1]
    if cell.steps is None:
        return f"{words} and {count(len(records) - len(whole), 'failed one')}"
    return f"{words} and {count(records[-1][cell.steps], cell.steps[:-1])} of {cell.name}"
