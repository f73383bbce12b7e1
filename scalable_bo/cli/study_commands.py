"""The commands for studies, from ``run`` to ``repair``. Quick to import."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from scalable_bo._packages import require
from scalable_bo.cli.console import print_table, stop
from scalable_bo.space.quoting import count, legible

if TYPE_CHECKING:
    from scalable_bo.cli.config import Config, RunSection
    from scalable_bo.storage.places import Place
    from scalable_bo.storage.rounds import Result
    from scalable_bo.study.study import Study


def _read_file(text: str) -> Path:
    if "://" in text:
        raise typer.BadParameter("Give a TOML file with `study.storage` and `study.name`.")
    return Path(text)


ConfigFile = Annotated[
    Path,
    typer.Argument(metavar="STUDY.TOML", help="Configuration of the study.", parser=_read_file),
]
StudyPlace = Annotated[
    str,
    typer.Argument(
        metavar="STUDY",
        help="Configuration of a study, its folder, or the URL of its database with `--name`.",
    ),
]
StudyName = Annotated[str | None, typer.Option("--name", help="Name of a study in a database.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def run(file: ConfigFile, as_json: AsJson = False) -> None:
    """Run or continue a study until all rounds are done.

    Pending points are evaluated first. After Ctrl-C running evaluations are awaited and stored; a
    second Ctrl-C, SIGTERM or SIGHUP ends at once. The same command continues the study.
    """
    with refusals():
        from scalable_bo.cli.config import read_config
        from scalable_bo.evaluation.external import Command
        from scalable_bo.evaluation.interruption import signals_as_interruptions
        from scalable_bo.study.optimize import Run

        config = read_config(file)
        section = config.require_run()
        objective = config.build_objective()
        callbacks = config.load_callbacks()
        executor = config.make_executor()
        study = config.open_study()
    again = f"Go on with: scalable-bo run {shlex.quote(str(file))}"
    try:
        with signals_as_interruptions():
            config.add_data(study)
            rounds = _rounds_left(study, section)
            if rounds or study.unfinished().ids:
                given = section.model_dump(exclude={"workers", "scheduler"}) | {
                    "rounds": rounds,
                    "executor": executor,
                    "callbacks": callbacks,
                    "asynchronous": section.asynchronous and section.workers,
                }
                Run(study, objective, **given)()
    except KeyboardInterrupt as error:
        number = getattr(error, "number", signal.SIGINT)
        said = f"Interrupted; {_describe_numbers(_counts(study))} in {config.place}. {again}"
        end_at_once(128 + number, said)
    except (TypeError, ValueError) as error:
        stop(str(error), 2, keep_lines=True)
    except (RuntimeError, MemoryError, OSError) as error:
        why = str(error) or type(error).__name__
        said = f"Stopped; what was told is in {config.place}. {again}"
        stop(f"{why}\n{said}", 1, keep_lines=True)
    finally:
        if isinstance(objective, Command):
            objective.close()
        study.close()
    summary = _counts(study) | _found(study.result if study.num_observations else None)
    if as_json:
        typer.echo(json.dumps(summary))
        return
    _echo_found(summary)
    typer.echo(f"{_describe_numbers(summary)} in {config.place}")


def ask(
    place: StudyPlace,
    name: StudyName = None,
    q: Annotated[int, typer.Option("-q", help="How many points.")] = 1,
    as_json: AsJson = False,
    out: Annotated[
        Path | None, typer.Option(help="Sheet to write and fill in, .csv or .xlsx.")
    ] = None,
) -> None:
    """Ask for points to evaluate, which are pending until they are told.

    --json prints a line for each point, as `run` gives it to a program. --out writes a sheet with
    an empty column for each outcome, to fill in and give to `tell`.
    """
    with refusals(), open_study(place, name) as study:
        write = None if out is None else _writer(out, (".csv", ".xlsx"))
        batch = study.ask(q)
        if write is not None:
            write(study.sheet(batch), study.space, study.outcomes)
            typer.echo(f"Wrote {count(batch.ids, 'point')} to {out}")
            return
    if as_json:
        for number, params in zip(batch.ids, batch.params, strict=True):
            typer.echo(json.dumps({"id": number, "params": params}))
        return
    from scalable_bo.storage.shown import short_value

    rows = [
        (str(number), *map(short_value, params.values()))
        for number, params in zip(batch.ids, batch.params, strict=True)
    ]
    print_table(f"{count(batch.ids, 'point')} to evaluate", ("id", *batch.params[0]), (), rows)


def tell(
    place: StudyPlace,
    results: Annotated[
        str, typer.Argument(help="Sheet, .csv or .xlsx, or JSON lines, - for standard input.")
    ] = "-",
    name: StudyName = None,
) -> None:
    """Tell values, by a sheet of `ask --out` or by JSON lines such as {"id": 3, "value": 1.5}.

    In a sheet an empty cell says nothing, and a text under `reason` that the evaluation failed.

    For several outcomes the value is an object, {"cost": 1.5, "gain": null}, where null marks an
    outcome that is not known yet; the point stays pending until all are. "error" in place of
    "value" reports a failed evaluation, and "noise" gives a known variance. Either all lines are
    told, or none.
    """
    with refusals():
        if Path(results).suffix.lower() in (".csv", ".xlsx"):
            with open_study(place, name) as study:
                before = _counts(study)
                study.tell(results)
                after = _counts(study)
            new = after["num_observations"] - before["num_observations"]
            lost = after["num_failed"] - before["num_failed"]
            rest = f"; {count(after['num_pending'], 'point')} pending in all"
            typer.echo(f"told {count(new, 'value')} and {count(lost, 'failure')}{rest}")
            return
        lines = list(read_results(results))
        ids, values, given = ([line[key] for line in lines] for key in ("id", "value", "noise"))
        reasons = {line["id"]: line["error"] for line in lines if line["error"] is not None}
        variances = [math.nan if n is None else n for n in given]
        noise = None if given == [None] * len(lines) else variances
        with open_study(place, name) as study:
            study.tell(ids, values, noise, reasons)
            failed = sum(reason is not None for reason in study.reasons(ids))
            partial = len({*ids} & {*study.pending.ids})
    rest = f"; {count(partial, 'point')} still pending" if partial else ""
    told = count(len(lines) - failed - partial, "value")
    typer.echo(f"told {told} and {count(failed, 'failure')}{rest}")


def read_results(source: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file, or of standard input, each with ``id``, ``value``, ``noise`` and
    ``error``.

    Raises:
        ValueError: for what is no such line.
    """
    from scalable_bo.evaluation.evaluator import MOST_BYTES

    if source != "-" and not Path(source).is_file():
        raise ValueError(
            f"`results` must be a file of JSON lines, or - for standard input, and {source} is not"
            " there."
        )
    with nullcontext(sys.stdin.buffer) if source == "-" else open(source, "rb") as lines:
        for number, content in enumerate(iter(lambda: lines.readline(MOST_BYTES + 1), b""), 1):
            if len(content) > MOST_BYTES:
                raise ValueError(f"Line {number} must have at most {MOST_BYTES} bytes.")
            if content.strip():
                yield _read_result(content, number)


def _read_result(content: bytes, number: int) -> dict[str, Any]:
    from scalable_bo.evaluation.external import read_answer_line

    try:
        line = read_answer_line(content)
    except ValueError as error:
        raise ValueError(f"Line {number} {error}.") from error
    if unknown := sorted(set(line) - {"id", "value", "error", "noise"}):
        raise ValueError(
            f"Line {number} must have `id`, `value` or `error`, and `noise`, got"
            f" `{unknown[0]:.80}`."
        )
    return {"noise": None} | line


def correct(
    place: StudyPlace,
    id: Annotated[int, typer.Argument(help="The point, by its id.")],
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="VALUE...",
            help="The right value, nan for a failure; of several outcomes NAME=VALUE for each.",
        ),
    ],
    noise: Annotated[
        float | None, typer.Option(help="Known variance, where all values have one.")
    ] = None,
    why: Annotated[str, typer.Option(help="Reason, kept with the former value.")] = "",
    name: StudyName = None,
) -> None:
    """Change the value of a point; the study keeps the former value, too."""
    with refusals(), open_study(place, name) as study:
        study.correct(id, _read_values(values, study.outcomes), noise, why)
        typer.echo(f"corrected {study.changes[-1]}")


def _read_values(texts: list[str], outcomes: Sequence[str]) -> Any:
    found = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        if bool(equals) != bool(outcomes) or (len(texts) > 1 and not outcomes):
            wanted = "NAME=VALUE of several outcomes" if outcomes else "one number"
            raise ValueError(f"`VALUE` must be {wanted}, got {' '.join(texts)!r:.80}.")
        try:
            found[name] = float(number)
        except ValueError:
            raise ValueError(f"`VALUE` must be a number, got {number!r:.80}.") from None
    return found if outcomes else found[""]


def status(place: StudyPlace, name: StudyName = None, as_json: AsJson = False) -> None:
    """Show the progress of a study, and its best observed point.

    If values are noisy, `run` and `report` may recommend another point, by the surrogate.
    """
    with refusals():
        from scalable_bo.storage.rows import first_five

        summary = _read_status(locate(place, name))
    if as_json:
        typer.echo(json.dumps(summary))
        return
    goal = summary["direction"] or ", ".join(f"{w} {n}" for n, w in summary["objectives"].items())
    typer.echo(f"{goal}, seed {summary['seed']}, {count(summary['num_asks'], 'ask')}")
    typer.echo(_describe_numbers(summary))
    if partial := summary["partial"]:
        texts = [f"{id} ({_describe_params(outcomes)})" for id, outcomes in partial.items()]
        typer.echo(f"pending with some of their outcomes: {first_five(texts)}")
    _echo_found(summary, "best observed")


def export(
    place: StudyPlace,
    out: Annotated[Path, typer.Argument(help="Table to write, .csv, .xlsx or .parquet.")],
    name: StudyName = None,
) -> None:
    """Write all rows of a study as a table.

    Its columns are parameters, value, noise, status, reason, ask, the times at which each point was
    asked for and told, the seconds that its evaluation took, and notes.

    In .csv and .xlsx files, a text that a spreadsheet would run as a formula begins with a ', which
    is removed if the file is added as data.
    """
    with refusals():
        from scalable_bo.report.snapshot import to_frame
        from scalable_bo.study.answers import read_snapshot

        write = _writer(out, (".csv", ".xlsx", ".parquet"))
        snapshot = read_snapshot(*locate(place, name))
        names = () if snapshot.goal is None else snapshot.goal.names
        frame = to_frame(snapshot.space, snapshot.rows, snapshot.goal)
        write(frame, snapshot.space, names)
    typer.echo(f"Wrote {count(len(frame), 'row')} to {out}")


def report(
    place: StudyPlace,
    name: StudyName = None,
    out: Annotated[
        Path | None, typer.Option(help="Page to write.  [default: report.html in the folder]")
    ] = None,
) -> None:
    """Write a report on a study, one HTML page."""
    with refusals():
        from scalable_bo.report.page import write_report
        from scalable_bo.study.answers import read_snapshot

        kept = locate(place, name)
        page = out or folder_of(kept, "Give `--out`.") / "report.html"
        snapshot = read_snapshot(*kept)
        with _writing(page):
            write_report(snapshot, page)
    typer.echo(f"Wrote {page}")


def check(file: ConfigFile, as_json: AsJson = False) -> None:
    """Check a study's configuration, data and objective, and predict what a run will take.

    If the file has no objective and no run, you ask for points yourself, and nothing is predicted.
    """
    with refusals():
        import torch

        from scalable_bo.cli.config import read_config
        from scalable_bo.evaluation.external import Command
        from scalable_bo.storage.storage import MemoryStorage, NoStudyError
        from scalable_bo.study.prediction import predict

        config = read_config(file)
        copied = MemoryStorage()
        with suppress(NoStudyError), closing(config.place.look()) as kept:
            copied.name, settings = kept.name, kept.load_settings()
            assert settings is not None  # a study is made with them
            copied.save_settings(settings)
        study = config.open_study(path=None, storage=copied, name=None)
        by_hand = config.run is None and config.objective is None
        if not by_hand:
            config.load_callbacks()
            objective = config.build_objective()
            if isinstance(objective, Command):
                objective.require_program()
        config.add_data(study)
        num_rows, num_asks = sum(_counts(study).values()), 0
        with suppress(NoStudyError):
            stored = _read_status(config.place)
            num_rows, num_asks = stored["num_rows"], stored["num_asks"]
        if by_hand:
            typer.echo(
                json.dumps({"rounds": 0, "num_rows": num_rows})
                if as_json
                else f"{count(num_rows, 'row')} now. Continue with: scalable-bo ask"
                f" {shlex.quote(str(file))}"
            )
            return
        section = config.require_run()
        rounds = max(0, section.rounds - num_asks)
        dtype = getattr(torch, config.study.dtype)
        found = predict(study.space, num_rows, rounds, section.batch, dtype, study.num_initial)
    if as_json:
        typer.echo(json.dumps({"rounds": rounds, **vars(found), "fits": found.fits}))
    else:
        typer.echo(
            f"{count(rounds, 'round')} to run, {count(num_rows, 'row')} now,"
            f" {found.num_rows} at the last ask\n"
            f"memory: {found.peak_bytes / 2**30:.1f} GiB of {found.free_bytes / 2**30:.1f} GiB that"
            " are free\n"
            f"time without the objective: about {found.seconds_asks:.0f} s,"
            f" {found.seconds_last_ask:.0f} s of it the last ask"
        )
    if not found.fits:
        stop("The run will not fit in memory. Use smaller batches, fewer rounds, or float32.", 1)


def repair(place: StudyPlace, name: StudyName = None) -> None:
    """Restore a damaged study from its database and backup, and say what is lost.

    The damaged files are kept beside the restored ones. A study without damage is left as it is.
    """
    with refusals():
        from scalable_bo.storage.restore import restore

        remedy = "Restore the database from its backup, by its own means."
        folder = folder_of(locate(place, name), remedy)
        lost = restore(folder)
    if lost is None:
        typer.echo(f"The study in {folder} is whole.")
        return
    for line in lost or ["nothing"]:
        typer.echo(f"Restored the study in {folder}; lost: {line}.")


COMMANDS = (run, ask, tell, correct, status, export, report, check, repair)


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Call what a file cannot be written a wrong argument."""
    try:
        yield
    except OSError as error:
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        raise ValueError(
            f"`out` must be a file that can be written, got {out} ({cause.strerror or cause})."
        ) from error


def _writer(out: Path, suffixes: Sequence[str]) -> Callable[..., None]:
    """Return what writes a table; what may be wrong with the file is said before."""
    from surrogates.atomic import replacing

    suffix = out.suffix.lower()
    if suffix not in suffixes:
        raise ValueError(f"`out` must end in {' or '.join(suffixes)}, got {out.name}.")
    for package in ("pandas", "pyarrow"):
        require(package, extra="tables", user="A table")
    from scalable_bo.storage.tables import write_table  # which needs them

    def write(frame: Any, *others: Any) -> None:
        with _writing(out), replacing(out) as temporary:
            write_table(frame, temporary, suffix, *others)

    with _writing(out), TemporaryFile(dir=out.parent):
        return write


@contextmanager
def refusals() -> Iterator[None]:
    """Turn errors into their message and an exit code: 2 for wrong input, 1 for a failing study."""
    try:
        yield
    except (TypeError, ValueError) as error:
        stop(str(error), 2, keep_lines=True)
    except (RuntimeError, OSError) as error:
        stop(str(error), 1, keep_lines=True)


def _read_status(place: Place) -> dict[str, Any]:
    from scalable_bo.storage.rounds import Result
    from scalable_bo.study.answers import read_snapshot

    snapshot = read_snapshot(*place)
    rows = snapshot.rows
    goal = snapshot.wanted
    direction = "maximize" if snapshot.maximize else "minimize"
    given = (snapshot.space, rows, snapshot.maximize, snapshot.goal)
    found = Result.of(*given) if rows.observed else None
    return {
        "direction": direction if goal.num_objectives == 1 else None,
        "objectives": goal.objectives,
        "seed": int(snapshot.settings["seed"]),
        "num_asks": len(snapshot.asks),
        "num_rows": len(rows),
        **rows.counts(),
        "partial": rows.partial(goal.names),
        "num_added": sum(source.num_rows for source in snapshot.sources),
    } | _found(found)


def _found(result: Result | None) -> dict[str, Any]:
    """Return the best point, the front or, if no point is feasible, the nearest."""
    found: dict[str, Any] = {"best_value": None, "best_params": None}
    if result is None:
        return found
    if result.best_params:
        return {name: getattr(result, name) for name in found}
    found["front"] = [vars(point) for point in result.front]
    if result.front:
        found |= {"hypervolume": result.hypervolume, "reference_point": result.reference_point}
    least = result.least_violating
    return found if least is None else found | {"least_violating": vars(least)}


def _echo_found(summary: dict[str, Any], best: str = "best") -> None:
    from scalable_bo.storage.shown import describe_excess

    if summary["best_value"] is not None:
        params = _describe_params(summary["best_params"])
        typer.echo(f"{best} {summary['best_value']:.6g} at {params}")
    if front := summary.get("front"):
        corner = _describe_params(summary["reference_point"])
        size = f"{count(front, 'point')} on the front"
        typer.echo(f"{size}, hypervolume {summary['hypervolume']:.6g} from {corner}")
    if least := summary.get("least_violating"):
        excess = describe_excess(least["excess"])
        params = _describe_params(least["params"])
        typer.echo(f"no point is feasible; the nearest {excess}, at {params}")


def _rounds_left(study: Study, section: RunSection) -> int:
    """Return how many rounds are left; asynchronous asks have no fixed size: their points count."""
    if not section.asynchronous:
        return max(0, section.rounds - study.num_asks)
    num_asked = study.num_evaluated + len(study.pending.ids)
    return max(0, math.ceil(section.rounds - num_asked / section.batch))


def _counts(study: Study) -> dict[str, Any]:
    return {
        "num_observations": study.num_observations,
        "num_failed": study.num_failed,
        "num_pending": len(study.pending.ids),
    }


def _describe_numbers(summary: dict[str, Any]) -> str:
    added = f", {summary['num_added']} of all rows added" if summary.get("num_added") else ""
    return (
        f"{count(summary['num_observations'], 'value')}, {summary['num_failed']} failed,"
        f" {summary['num_pending']} pending{added}"
    )


def _describe_params(params: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} = {value:.6g}" if isinstance(value, float) else f"{name} = {legible(value)}"
        for name, value in params.items()
    )


def locate(place: str, name: str | None) -> Place:
    """Return the place of a study, which may be given by its configuration."""
    from scalable_bo.storage.places import Place

    config = _configuration(place, name)
    return Place(place, name) if config is None else config.place


def folder_of(place: Place, remedy: str) -> Path:
    """Return the folder of a study, or raise ValueError with a remedy if it is in a database."""
    if place.is_database:
        raise ValueError(f"The study must be in a folder for this, got {place}. {remedy}")
    return Path(place.path)


def open_study(place: str, name: str | None) -> Study:
    """Open a study; by its configuration, with the data that are given there."""
    from scalable_bo.study.study import Study

    config = _configuration(place, name)
    if config is None:
        return Study.open(place, name=name)
    study = config.open_study()
    try:
        config.add_data(study)
    except BaseException:
        study.close()
        raise
    return study


def _configuration(place: str, name: str | None) -> Config | None:
    from scalable_bo.cli.config import read_config

    if Path(place).suffix.lower() != ".toml" or "://" in place:
        return None
    if name is not None:
        raise ValueError(f"`--name` must be given with the URL of a database, got {place}.")
    return read_config(Path(place))


def end_at_once(code: int, message: str = "") -> NoReturn:
    """End, without waiting for threads and processes that compute on; what was told is on disk."""
    import multiprocessing

    for child in multiprocessing.active_children():
        child.kill()
    with suppress(OSError):  # the terminal may be closed
        if message:
            typer.echo(message, err=True)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
