"""Calls of the programs in ``benchmarks/``, as a user makes them."""

import sys

import pytest
import typer

from scalable_bo.cli.main import main


def call(monkeypatch: pytest.MonkeyPatch, commands: typer.Typer, *arguments: str) -> int:
    """Run a command line in this process, and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["program", *arguments])
    with pytest.raises(SystemExit) as ended:
        main(commands)
    return int(ended.value.code or 0)
