"""The command line: the commands for studies, and ``scalable-bo bench`` with its own.

Heavy imports happen inside the commands, so that ``--help`` is quick.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from scalable_bo._packages import MissingPackageError, installed_version
from scalable_bo.cli.bench import bench
from scalable_bo.cli.console import Commands, stop
from scalable_bo.cli.serving import ServeCommand, WorkCommand
from scalable_bo.cli.study_commands import COMMANDS, correct

app = Commands(
    name="scalable-bo",
    help="Bayesian optimisation with Gaussian processes on large data and in large batches.",
    no_args_is_help=True,
)
app.add_typer(bench, name="bench")
for command in COMMANDS:
    # A negative value, which `correct` takes, looks like an option
    app.command(context_settings={"ignore_unknown_options": command is correct})(command)
app.command("serve")(ServeCommand)
app.command("work")(WorkCommand)


def main(commands: typer.Typer = app) -> None:
    """Run the command line, or other ``commands`` in the same way. An error is one line on stderr
    with exit code 2; Ctrl-C is exit code 130.
    """
    try:
        code = commands(standalone_mode=False)
        if code == 130:  # a command's own work says more, see `interruptible`
            stop("Interrupted; nothing has been written.", code)
        sys.exit(code)
    except MissingPackageError as error:
        stop(str(error), 2)
    except Exception as error:
        # Typer's errors of usage know their message and exit code; any other exception is a defect
        # and keeps its trace.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        if not message:  # without a subcommand, Typer has shown the help already
            sys.exit(2)
        stop(message, getattr(error, "exit_code", 2))


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"scalable-bo {installed_version()}")
        raise typer.Exit


if __name__ == "__main__":
    main()
