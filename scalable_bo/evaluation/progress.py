"""What a long job shows while it runs: a bar on a terminal or in a notebook, plain lines elsewhere,
and one line after each round. Also, ``fit`` with that bar, and how much memory the process took.
"""

from __future__ import annotations

import logging
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

import surrogates
from acquisition import AcquisitionProgress
from scalable_bo.space.quoting import count
from surrogates import Progress as SolveProgress
from surrogates.rules.hyperparameters import ModelT, StepCallback

_LOGGER = logging.getLogger("surrogates")


class RoundProgress:
    """A context manager that counts rounds, on stderr.

    Args:
        total: number of rounds; ``None`` if nobody knows.
        console: where to write; ``None`` for stderr.
        enabled: write nothing if false; ``None`` for the bar alone, of a job that takes over 5 s.
    """

    def __init__(
        self, total: int | None, *, console: Console | None = None, enabled: bool | None = True
    ) -> None:
        self._console = Console(stderr=True) if console is None else console
        self._enabled = bool(enabled)
        self._pause = 5.0  # in seconds, before the bar, or a line of ``status``
        self._due = time.monotonic() + self._pause
        in_notebook = self._console.is_jupyter and find_spec("ipywidgets") is not None
        self._bar = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            transient=True,
            disable=enabled is False or not (self._console.is_terminal or in_notebook),
        )
        self._task = self._bar.add_task("", total=total)
        self._lines = _LinesOf(self)

    def status(self, text: str, completed: int | None = None) -> None:
        """Say what is happening now, beside the bar, which may move to so many ``completed``.
        Where there can be no bar, print it in a line if nothing has been printed for 5 s; each line
        doubles this pause, up to a minute, until a round or a note ends it.
        """
        self._bar.update(self._task, description=text, completed=completed)
        if time.monotonic() > self._due:
            self._bar.start()
            if self._bar.disable and text:
                self._print(text, min(2.0 * self._pause, 60.0))

    def finish_round(self, line: str) -> None:
        """Count one round and print its line."""
        self.note(line)
        self._bar.update(self._task, advance=1, description="")

    def note(self, line: str) -> None:
        """Print a line between the rounds."""
        self._print(line, 5.0)

    def _print(self, line: str, pause: float) -> None:
        """Print a line, before a pause of so many seconds in what ``status`` prints."""
        if self._enabled:
            self._console.print(line, markup=False, emoji=False, highlight=False, soft_wrap=True)
            self._pause, self._due = pause, time.monotonic() + pause

    def __enter__(self) -> Self:
        self._level_before = _LOGGER.level
        _LOGGER.addHandler(self._lines)
        _LOGGER.setLevel(min(logging.INFO, _LOGGER.getEffectiveLevel()))
        if self._enabled:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()
        _LOGGER.removeHandler(self._lines)
        _LOGGER.setLevel(self._level_before)


def fit(
    model: ModelT,
    method: str | None = None,
    *,
    generator: torch.Generator | None = None,
    callback: StepCallback | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> ModelT:
    """Learn the hyperparameters of ``model`` from its data by a method that suits it; return it.

    Args:
        method: ``"exact"``, ``"subsets"``, ``"minibatch"``, ``"iterative"``, ``"finite_features"``
            or ``"variational"``, the function ``fit_<method>``; ``None`` for that of
            :func:`choose_fit`.
        generator: of what the method draws; seeded by the method if ``None``.
        callback: called after every step with the steps done and the method's own estimate of its
            objective, in nats.
        progress: say on stderr what was chosen and why, and show a bar if that is a terminal, and
            otherwise a line now and then in a fit that takes over 5 s. By default only the bar is
            shown, once a fit has taken 5 s.
        settings: further arguments of the method.

    Raises:
        TypeError, ValueError: if the method does not exist, or does not take the model, its data or
            the settings.
        FloatingPointError: if a hyperparameter stops being finite; the model is then as it was.
        KeyboardInterrupt: passed on; the model has the best hyperparameters so far.
    """
    with RoundProgress(None, enabled=progress) as bar:

        def on_step(step: int, value: float) -> None:
            bar.status(f"step {step}, objective {value:.6g} nats", completed=step)
            if callback is not None:
                callback(step, value)

        return surrogates.fit(model, method, generator=generator, callback=on_step, **settings)


def describe_fit(num_evaluations: int) -> str:
    """Say how far a fit of hyperparameters has got."""
    return f"fitting, {count(num_evaluations, 'evaluation')}"


def describe_solve(progress: SolveProgress) -> str:
    """Say how far a solve has got."""
    done = progress.num_columns - progress.num_active
    return (
        f"solving, {progress.epochs:.1f} of at most {progress.max_epochs:.0f} epochs, residual"
        f" {progress.residual:.1e}, {done}/{progress.num_columns} columns done"
    )


def describe_search(progress: AcquisitionProgress) -> str:
    """Say how far the search for maximisers has got."""
    total = "" if progress.total is None else f"/{progress.total}"
    return f"{progress.stage} {progress.done}{total}"


def status_lines(
    describe: Callable[[Any], str], callback: Callable[[str], None]
) -> Callable[[Any], None]:
    """Return a callback of a job that says in a line how far the job has got."""
    return lambda progress: callback(describe(progress))


class _LinesOf(logging.Handler):
    """Prints what the surrogates' loggers say during a job, such as that a kernel is compiled."""

    def __init__(self, progress: RoundProgress) -> None:
        super().__init__(logging.INFO)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self._progress.note(record.getMessage())


def reset_peak_of_process() -> None:
    """Begin a new measurement of ``peak_of_process``, where the system allows it."""
    with suppress(OSError):  # Linux only
        Path("/proc/self/clear_refs").write_text("5")


def peak_of_process() -> int:
    """Return the most resident memory, in bytes, since ``reset_peak_of_process``; where the system
    cannot reset it (not Linux), the process's peak so far.
    """
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
