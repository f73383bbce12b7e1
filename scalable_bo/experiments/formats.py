"""Numbers with their errors, and tables, as text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error, NaN for fewer than two values."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), error


def plus_minus(mean: float, error: float, digits: int) -> str:
    """Return mean ± error; the mean alone if the error is not a number."""
    return f"{mean:.{digits}f}" if error != error else f"{mean:.{digits}f} ± {error:.{digits}f}"


def number(value: float | None, digits: str) -> str:
    """Return a number in the given format, or a dash where there is none."""
    return "–" if value is None else f"{value:{digits}}"


def exact(value: float) -> str:
    """Return a number in six digits, or in all that it has if those are of another number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def markdown(rows: list[list[str]]) -> list[str]:
    """Return the lines of a table, the first row its header."""
    header, *body = [f"| {' | '.join(row)} |" for row in rows]
    return [header, f"|{'---|' * len(rows[0])}", *body]
