"""What the commands share: reading of options, errors as one line, tables,
progress. Quick to import.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

Item = TypeVar("Item")


class _FlagsWithoutType:
    """Shows no type of an option that takes no value."""

    def get_params(self, context: Any) -> list[Any]:
        found: list[Any] = super().get_params(context)  # type: ignore[misc]
        for option in found:
            if getattr(option, "is_flag", False):
                option.metavar = ""
        return found


class _Command(_FlagsWithoutType, TyperCommand):
    """A command made of a function or, where the options are too many for one, of a dataclass: its
    fields are the options, told by ``Args`` in its docstring, and its method ``run`` does the work.
    """

    def invoke(self, context: Any) -> Any:
        result = super().invoke(context)
        return result.run() if hasattr(result, "run") else result


class _Group(_FlagsWithoutType, TyperGroup):
    pass


class Commands(typer.Typer):
    """Commands, or a group, whose help shows no type of a flag, and whose errors are Python's."""

    def __init__(self, **settings: Any):
        super().__init__(
            cls=_Group, add_completion=False, pretty_exceptions_enable=False, **settings
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        def add(function: Any) -> Any:
            about = inspect.getdoc(function)
            if is_dataclass(function):
                about = str(about).partition("\n\nArgs:")[0]
                _document(function)
            return super(Commands, self).command(name, cls=_Command, help=about, **settings)(
                function
            )

        return add


def _document(command: Any) -> None:
    """Make options of the fields of a dataclass, each with what ``Args`` in the docstring of its
    class, or of a base, says of it; one that is false by default is a flag.
    """
    texts: dict[str, str] = {}
    for kind in reversed(command.__mro__):
        arguments = (inspect.getdoc(kind) or "").partition("Args:\n")[2]
        for name, text in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", arguments, re.MULTILINE):
            texts[name] = " ".join(text.split())
    hints = get_type_hints(command, include_extras=True)
    for entry in fields(command):
        if get_origin(hints[entry.name]) is not Annotated:
            flag = [f"--{entry.name.replace('_', '-')}"] if entry.default is False else []
            text = texts[entry.name]
            option = typer.Option(*flag, help=text[0].upper() + text[1:])
            hints[entry.name] = Annotated[hints[entry.name], option]
        command.__init__.__annotations__[entry.name] = hints[entry.name]


def read_names(text: str, option: str) -> list[str]:
    """Read names separated by commas."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError(f"`{option}` must be names separated by commas, got {text!r}.")
    return list(dict.fromkeys(names))


def read_integers(text: str, option: str) -> list[int]:
    """Read `0-4`, `3` or `0,2,5-7`."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not (last.isdecimal() and int(first) <= int(last))):
            raise ValueError(
                f"`{option}` must be whole numbers and ranges such as 0-4 or 0,3, got {text!r}."
            )
        numbers.extend(range(int(first), int(last or first) + 1))
    return list(dict.fromkeys(numbers))


def read_floats(text: str, option: str) -> list[float]:
    """Read numbers separated by commas."""
    try:
        return list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise ValueError(f"`{option}` must be numbers separated by commas, got {text!r}.") from None


def optional(
    read: Callable[[str, str], list[Item]], text: str | None, option: str
) -> list[Item] | None:
    """Read an option that may have been left out."""
    return None if text is None else read(text, option)


def check_folder(folder: Path) -> None:
    """Make the folder; find out now, and not after the first round, if it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"`out` must be a folder to write to, got {folder} ({error.strerror})."
        ) from error
    if not os.access(folder, os.W_OK):
        raise ValueError(f"`out` must be a folder to write to, and {folder} is read-only.")


@contextmanager
def bad_input() -> Iterator[None]:
    """Turn the errors of wrong arguments into one line and exit code 2."""
    try:
        yield
    except (TypeError, ValueError) as error:
        stop(str(error), 2)


@contextmanager
def interruptible(written: Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C into one line that says what has been written,
    and memory that is not there, or a file that cannot be written, into one that says so.
    """
    try:
        yield
    except KeyboardInterrupt:
        stop(f"Interrupted; {written()}.", 130)
    except (MemoryError, OSError) as error:
        stop(f"{str(error).rstrip('.')}. So far: {written()}.", 1)


def stop(message: str, code: int, *, keep_lines: bool = False) -> NoReturn:
    """End the command with a message on stderr, on one line unless it is to keep its lines."""
    typer.echo(message if keep_lines else " ".join(message.split()), err=True)
    raise SystemExit(code)


def print_table(
    title: str, names: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    """Print a table to stdout, narrow enough for 80 columns: columns of names, and those of numbers
    flush right. Texts are printed as they are: units in brackets are no markup.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    for heading in names:
        table.add_column(heading, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(markup=False, emoji=False).print(table)
