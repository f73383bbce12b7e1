"""A command line, called in this process as a user calls it."""

import json
from typing import Any, NamedTuple, Protocol

import pytest
import typer


class Printed(NamedTuple):
    """What a command printed, and its exit code."""

    out: str
    err: str
    code: int

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class CommandLine(Protocol):
    """Runs ``scalable-bo``, or the program ``of`` a benchmark.

    Args:
        words: the arguments, which become texts.
        code: the exit code that is required; None stands for any but 0.
        of: the commands of another program.
    """

    def __call__(
        self, *words: object, code: int | None = 0, of: typer.Typer | None = None
    ) -> Printed: ...


def command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    """Return a command line for one test."""
    from scalable_bo.cli.main import app, main

    def call(*words: object, code: int | None = 0, of: typer.Typer | None = None) -> Printed:
        capsys.readouterr()  # of what was printed before
        monkeypatch.setattr("sys.argv", ["scalable-bo", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main(of or app)
        printed = Printed(*capsys.readouterr(), code=int(ended.value.code or 0))
        assert printed.code == code if code is not None else printed.code, printed.err
        return printed

    return call
