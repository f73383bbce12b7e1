"""Options of a command that a dataclass holds."""

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from scalable_bo.cli.options import taking


@dataclass(frozen=True)
class Greeting:
    name: Annotated[str, typer.Option(help="Whom to greet.")]
    times: Annotated[int, typer.Option(help="How often.")] = 1


def test_the_fields_of_a_dataclass_are_the_options_of_a_command() -> None:
    given = []
    app = typer.Typer()

    @app.command()
    @taking(Greeting)
    def greet(options: Greeting) -> None:
        """Greet somebody."""
        given.append(options)

    run = CliRunner()
    assert run.invoke(app, ["--name", "Ada"]).exit_code == 0
    assert run.invoke(app, ["--name", "Ada", "--times", "3"]).exit_code == 0
    assert given == [Greeting("Ada"), Greeting("Ada", 3)]
    assert run.invoke(app, ["--times", "3"]).exit_code == 2
    shown = run.invoke(app, ["--help"]).stdout
    assert "Greet somebody." in shown
    assert "Whom to greet." in shown
    assert "How often." in shown
