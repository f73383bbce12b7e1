"""What the scripts under ``benchmarks/`` share: their arguments and a record."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from scalable_bo.experiments.records import describe_environment, write_record


def script_parser(doc: str | None, out: str = "JSON record to write") -> argparse.ArgumentParser:
    """Return a parser with a script's docstring as its help, and the option ``--out``."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=None, help=out)
    return parser


def write_benchmark(
    path: Path | None, name: str, *, device: torch.device | str = "cpu", **parts: Any
) -> None:
    """Write the parts of a script's record, its name and environment; nothing without a path."""
    if path is not None:
        environment = describe_environment(torch.device(device))
        write_record(path, {"benchmark": name, "environment": environment, **parts})
