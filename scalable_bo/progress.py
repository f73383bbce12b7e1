"""What a long job shows while it runs: a bar on a terminal, one plain line a round elsewhere."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:  # torch need not be there for a bar
    from acquisition import AcquisitionProgress
    from surrogates.solvers.base import Progress as SolveProgress


class RoundProgress:
    """A context manager that counts rounds, on stderr.

    Args:
        total: number of rounds; ``None`` if nobody knows.
        console: where to write; ``None`` for stderr.
        enabled: write nothing if false.
    """

    def __init__(
        self, total: int | None, *, console: Console | None = None, enabled: bool = True
    ) -> None:
        self._console = Console(stderr=True) if console is None else console
        self._enabled = enabled
        self._bar = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=self._console,
            transient=True,
            disable=not (enabled and self._console.is_terminal),
        )
        self._task = self._bar.add_task("", total=total)
        self._log = _LinesOf(self)

    def status(self, text: str, completed: int | None = None) -> None:
        """Say what is happening now, beside the bar, which may move to so many ``completed``;
        a terminal only.
        """
        self._bar.update(self._task, description=text, completed=completed)

    def finish_round(self, line: str) -> None:
        """Count one round and print its line."""
        self._print(line)
        self._bar.update(self._task, advance=1, description="")

    def note(self, line: str) -> None:
        """Print a line between the rounds."""
        self._print(line)

    def __enter__(self) -> Self:
        self._log.attach()
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
        self._log.detach()

    def _print(self, line: str) -> None:
        if self._enabled:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def describe_solve(progress: SolveProgress) -> str:
    """Say how far a solve has got."""
    done = progress.num_columns - progress.num_active
    return (
        f"solving, {progress.epochs:.1f} epochs, residual {progress.residual:.1e},"
        f" {done}/{progress.num_columns} columns done"
    )


def describe_search(progress: AcquisitionProgress) -> str:
    """Say how far the search for maximisers has got."""
    return f"{progress.stage} {progress.done}/{progress.total}"


class _LinesOf(logging.Handler):
    """Prints what the surrogates' loggers say while a job runs,
    such as that a kernel is being compiled.
    """

    def __init__(self, progress: RoundProgress) -> None:
        super().__init__(logging.INFO)
        self._progress = progress
        self._logger = logging.getLogger("surrogates")
        self._level_before = self._logger.level

    def emit(self, record: logging.LogRecord) -> None:
        self._progress._print(record.getMessage())

    def attach(self) -> None:
        self._level_before = self._logger.level
        self._logger.addHandler(self)
        self._logger.setLevel(min(logging.INFO, self._logger.getEffectiveLevel()))

    def detach(self) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level_before)
