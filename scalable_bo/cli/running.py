"""How benchmarks run from the command line: options whose cells run with a line a step, and what is
said of them in the end. Quick to import.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from scalable_bo.cli.console import bad_input, check_folder, interruptible, stop
from scalable_bo.space.quoting import count

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from scalable_bo.experiments.cells import Cell
    from scalable_bo.experiments.markdown_tables import TableKind
    from scalable_bo.experiments.records import Record


class BenchmarkPlan(NamedTuple):
    """What a benchmark runs, and what is made of the records.

    Attributes:
        cells: in the order in which they run.
        show: prints a summary of the records.
        table: of the folder, which is written after Ctrl-C, too.
    """

    cells: Sequence[Cell[Any]]
    show: Callable[[list[Record]], None] | None = None
    table: TableKind | None = None
    draw: Callable[[list[Record], Path], None] | None = None
    picture: str = ""


@dataclass(frozen=True)
class Benchmark(ABC):
    """The options that all benchmarks share; a benchmark's own make its cells.

    Args:
        rerun: run cells that have a record again, from the start.
        device: device to compute on: cpu, cuda, cuda:1.
        out: folder for the records, tables and plots, made if needed.
    """

    rerun: bool = False
    device: str = "cpu"
    out: Path = Path("results")

    @abstractmethod
    def plan(self) -> BenchmarkPlan:
        """Return what is run; raise TypeError or ValueError if an option is wrong."""

    def run(self) -> None:
        """Run the cells, together with the other processes that ``torchrun`` has started, of which
        the first alone prints and writes. Ctrl-C, memory that is not there, or a file that cannot
        be written, ends the command with one line that says what has been written.
        """
        if "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
            self._run()
            return
        from scalable_bo.experiments.torchrun import one_voice

        with one_voice() as own:
            replace(self, **own)._run()

    def _run(self) -> None:
        with bad_input():
            from surrogates import checks

            plan = self.plan()
            checks.device("device", self.device)
            for cell in {(type(cell), cell.source): cell for cell in plan.cells}.values():
                cell.check_files()
            check_folder(self.out)
        records = run_and_show(plan, self.out, rerun=self.rerun)
        whole = [record for record in records if record.get("complete", True)]
        if plan.show is not None:
            plan.show(whole)
        said = f"{count(whole, 'record')} in {self.out}"
        if plan.table is not None:
            said += f", with all others there in {self.out / f'{plan.table.name}.md'}"
        if (self.out / plan.picture).is_file():
            said += f", plot in {self.out / plan.picture}"
        typer.echo(said)
        if failed := len(records) - len(whole):
            stop(f"{count(failed, 'run')} failed; the same command runs them.", 1)


def arguments_for(command: DataclassInstance, kind: type[DataclassInstance]) -> dict[str, Any]:
    """Return the options of a command that ``kind`` takes as arguments of the same names."""
    names = {entry.name for entry in fields(command)}
    return {e.name: getattr(command, e.name) for e in fields(kind) if e.name in names}


def run_and_show(plan: BenchmarkPlan, out: Path, *, rerun: bool) -> list[Record]:
    """Run the cells of a plan with a line a step on stderr, and return their records; with
    ``rerun``, also those that the folder has a record of.
    """
    from scalable_bo.evaluation.progress import RoundProgress
    from scalable_bo.experiments.cells import run_cells
    from scalable_bo.experiments.markdown_tables import write_markdown

    found: dict[str, Record] = {}
    steps: dict[str, int] = {}
    and_table = ""

    def said() -> str:
        words = f"{_complete(plan.cells, list(found.values()))}{and_table} in {out}"
        return f"{words}; the same command{' without --rerun' if rerun else ''} goes on"

    with interruptible(said):
        can_write = True
        try:
            with RoundProgress(sum(cell.num_steps for cell in plan.cells)) as progress:
                ran = run_cells(plan.cells, out, rerun=rerun, on_status=progress.status)
                for cell, record, kept in ran:
                    found[cell.name] = record
                    progress.note(f"{cell.describe(record)}{' (kept)' if kept else ''}")
                    steps[cell.name] = 1 if cell.steps is None else len(record[cell.steps])
                    progress.status("", sum(steps.values()))
        except OSError:
            can_write = False
            raise
        finally:
            if plan.table is not None and can_write:
                table = write_markdown(out, plan.table)
                and_table = "" if plan.table.unfinished else f" and {table.name}"
            if plan.draw is not None and found and can_write:
                plan.draw(list(found.values()), out / plan.picture)
    return list(found.values())


def _complete(cells: Sequence[Cell[Any]], records: list[Record]) -> str:
    """Say how many runs are complete, and how far the last one is, or how many failed."""
    whole = [record for record in records if record.get("complete", True)]
    words = count(whole, "complete run")
    if len(whole) == len(records):
        return words
    cell = cells[len(records) - 1]
    if cell.steps is None:
        return f"{words} and {count(len(records) - len(whole), 'failed one')}"
    return f"{words} and {count(records[-1][cell.steps], cell.steps[:-1])} of {cell.name}"
