"""The commands of studies that workers share: ``serve`` and ``work``. Quick to import."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalable_bo.cli.study_commands import (
    StudyPlace,
    end_at_once,
    folder_of,
    locate,
    open_study,
    refusals,
)
from scalable_bo.space.quoting import count

if TYPE_CHECKING:
    from collections.abc import Callable

    from scalable_bo.evaluation.evaluator import Evaluation


@dataclass(frozen=True)
class ServeCommand:
    """Serve a study to workers on this machine or others, see `work`.

    The study has a live page at the address that is printed. Ctrl-C or SIGTERM ends the server.
    Workers wait until the same command is run again.

    Args:
        host: address to listen at.
        port: port to listen at, 0 for any.
        lease: seconds after which another worker gets the point of a silent one.
        batch: smallest number of points to ask the study for at once.
        evaluations: number of points after which workers end.
        certificate: file with the certificate of this machine, for TLS.
        key: file with the key of the certificate, if it is a separate file.
        plain: serve other machines without TLS, behind a proxy that encrypts.
        token_file: file with the token, made if it is not there; by default `token` in the folder
            of the study.
        name: name of a study in a database.
    """

    place: StudyPlace
    host: str = "127.0.0.1"
    port: int = 8765
    lease: float = 60.0
    batch: int = 8
    evaluations: int | None = None
    certificate: Path | None = None
    key: Path | None = None
    plain: bool = False
    token_file: Path | None = None
    name: str | None = None

    def run(self) -> None:
        with refusals():
            from scalable_bo.serving.server import Server

            kept = locate(self.place, self.name)
            file = self.token_file or folder_of(kept, "Give `--token-file`.") / "token"
            study = open_study(self.place, self.name)
            try:
                options = {**vars(self), "token_file": file}
                del options["place"], options["name"]
                server = Server(study, **options)
            except BaseException:
                study.close()
                raise
        typer.echo(f"{server.url} serves {kept}; the token is in {file}")
        sys.stdout.flush()
        with study, study.optimizing(0):  # points that are not told in the end are left to others
            is_over = server.run()
        values = count(study.num_observations, "value")
        typer.echo(f"Stopped; {values}, {study.num_failed} failed in {kept}")
        if not is_over:  # an ask computes on, whose points nobody will get
            end_at_once(0)


@dataclass(frozen=True)
class WorkCommand:
    """Evaluate the points of a served study, see `serve`, until there are no more.

    After Ctrl-C the running evaluation is finished and told. A second Ctrl-C, SIGTERM or SIGHUP
    ends at once, and another worker gets the point.

    Args:
        token_file: file with the token of the server.
        function: function to evaluate, such as train:loss.
        command: program to run instead of a function.
        timeout: time limit of an evaluation in seconds.
        max_failures: number of failures beyond which this worker ends.
        patience: seconds to wait for a server that is down.
        certificate: file with the certificates to trust, in place of the system's.
        plain: allow http to another machine, which exposes the token.
    """

    url: Annotated[str, typer.Argument(help="Where the study is served.")]
    token_file: Path
    function: str | None = None
    command: str | None = None
    timeout: float | None = None
    max_failures: int | None = None
    patience: float = 300.0
    certificate: Path | None = None
    plain: bool = False

    def run(self) -> None:
        with refusals():
            from scalable_bo.evaluation import processes
            from scalable_bo.evaluation.evaluator import call, timed
            from scalable_bo.evaluation.external import Command
            from scalable_bo.evaluation.functions import load_function
            from scalable_bo.evaluation.interruption import Interruption, signals_as_interruptions
            from scalable_bo.serving.client import RemoteStudy
            from scalable_bo.serving.worker import work as work_for

            # Whatever the objective starts ends with this worker
            processes.join(processes.own_mark())
            if (self.function is None) == (self.command is None):
                raise ValueError("Either `--function` or `--command` must be given.")
            program = None if self.command is None else Command(self.command)
            if program is not None:
                program.require_program()
                evaluate: Callable[..., Evaluation] = program.evaluate
            else:
                evaluate = partial(call, load_function("--function", str(self.function), Path()))
            study = RemoteStudy(
                self.url,
                token_file=self.token_file,
                patience=self.patience,
                certificate=self.certificate,
                plain=self.plain,
            )
        stop = Interruption()
        try:
            with refusals(), signals_as_interruptions():
                evaluate = partial(timed, evaluate, self.timeout, outcomes=study.outcomes)
                with stop:
                    num_told = work_for(
                        study,
                        evaluate,
                        stopped=lambda: stop.requested,
                        max_failures=self.max_failures,
                    )
        except KeyboardInterrupt as error:
            number = getattr(error, "number", signal.SIGINT)
            end_at_once(128 + number, "Interrupted; the point goes to another worker.")
        finally:
            if program is not None:
                program.close()
            study.close()
        typer.echo(f"{study.worker} evaluated {count(num_told, 'point')}")
