"""What the scripts under ``benchmarks/`` share: their arguments, a printed table and a record."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from scalable_bo.experiments.records import describe_environment, write_record


def script_parser(doc: str | None, out: str = "JSON record to write") -> argparse.ArgumentParser:
    """Return a parser with a script's docstring as its help, and the option ``--out``."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=None, help=out)
    return parser


def print_rows(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], num_words: int = 1
) -> None:
    """Print a table, all columns after the first ``num_words`` flush right."""
    table = Table(title=title, title_justify="left")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index < num_words else "right")
    for row in rows:
        table.add_row(*row)
    Console(markup=False, emoji=False).print(table)


def write_benchmark(
    path: Path | None, name: str, *, device: torch.device | str = "cpu", **parts: Any
) -> None:
    """Write the parts of a script's record, its name and environment; nothing without a path."""
    if path is not None:
        environment = describe_environment(torch.device(device))
        write_record(path, {"benchmark": name, "environment": environment, **parts})
