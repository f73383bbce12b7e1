"""The configuration of a study: a TOML file, checked strictly, and the space, objective and
executor that it describes. ``docs/how-to/toml.md`` has a whole file; the tables of the space are
those of ``Space.to_dict``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from scalable_bo.evaluation.evaluator import MOST_BYTES
from scalable_bo.evaluation.executors import executor_maker
from scalable_bo.evaluation.external import Command
from scalable_bo.evaluation.functions import REFERENCE, load_function, require_reference
from scalable_bo.space.plain_values import nearest, read_plain
from scalable_bo.space.space import VERSION, Space
from scalable_bo.storage.places import Place
from scalable_bo.study.study import Study

Number = int | float


class _Table(BaseModel):
    """A table of the file: kinds are not converted, and other keys are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class StudySection(_Table):
    """Arguments of ``Study``; ``path`` is relative to the file."""

    path: str | None = Field(None, min_length=1)
    storage: str | None = None
    name: str | None = None
    maximize: bool | None = None
    seed: int = Field(0, ge=0)
    num_initial: int | None = Field(None, ge=1)
    strategy: Literal["auto", "thompson", "turbo", "regions", "log-ei"] | None = None
    ask_seconds: Number | None = Field(None, gt=0)
    threads: int | None = Field(None, ge=1)
    dtype: Literal["float32", "float64"] = "float64"
    device: str | None = None
    objectives: dict[str, Literal["minimize", "maximize"]] | None = None
    outcome_constraints: dict[str, dict[Literal["at_least", "at_most"], Number]] = {}


class ObjectiveSection(_Table):
    """What is optimised: ``function``, "module:function", or ``command``, an external program."""

    function: str | None = Field(None, pattern=REFERENCE)
    command: str | list[str] | None = None


class RunSection(_Table):
    """Arguments of ``optimize``; ``rounds`` are those of the whole study, ``callbacks`` functions,
    "module:function", of the study and of the report of each round: ``study.stop()`` ends the run.
    """

    rounds: int = Field(ge=1)
    batch: int = Field(ge=1)
    executor: Literal["threads", "processes", "dask", "none"] = "threads"
    workers: int = Field(1, ge=1)
    scheduler: str | None = None
    timeout: Number | None = Field(None, gt=0)
    max_failures: int | None = Field(None, ge=0)
    retry: Literal["once"] | None = None
    asynchronous: bool = False
    seconds: Number | None = Field(None, gt=0)
    callbacks: list[Annotated[str, Field(pattern=REFERENCE)]] = []


class DataSection(_Table):
    """Arguments of ``add_data``; ``file`` is relative to the configuration."""

    file: str = Field(min_length=1)
    target: str | None = None
    noise: str | Number | None = None


class Config(_Table):
    """A whole file."""

    study: StudySection
    space: dict[str, Any]
    constraints: list[dict[str, Any]] = []
    objective: ObjectiveSection | None = None
    run: RunSection | None = None
    data: list[DataSection] = []
    enqueue: list[dict[str, Any]] = []
    _folder: Path = PrivateAttr(Path())  # paths in the file are relative to it

    @property
    def place(self) -> Place:
        """Where the study is."""
        if self.study.storage is not None:
            return Place(self.study.storage, self.study.name)
        assert self.study.path is not None  # `read_config` requires one of them
        return Place(self._folder / self.study.path)

    def build_space(self, *, imports: bool = True) -> Space:
        """Return the search space; without ``imports``, its functions are callable stand-ins."""
        tables = {"version": VERSION, "parameters": self.space, "constraints": self.constraints}
        load = self._load_function if imports else _stand_in
        return Space.from_dict(tables, load, "space")

    def open_study(self, **options: Any) -> Study:
        """Create the study or open it again, with ``options`` in place of what is configured."""
        import torch

        section = self.study
        settings = section.model_dump() | {
            "outcome_constraints": section.outcome_constraints or None,
            "path": None if section.path is None else self.place.path,
            "dtype": getattr(torch, section.dtype),
        }
        return Study(self.build_space(), **(settings | options))

    def add_data(self, study: Study) -> None:
        """Add the configured data, those that have not been added, and enqueue the configured
        points of a study that has asked for none.
        """
        if self.enqueue:
            try:
                X = study.space.read_feasible(read_plain(self.enqueue), "enqueue")
            except ValueError as error:
                raise ValueError(f"[[enqueue]]: {error}") from error
            study.enqueue(X, once=True)
        for number, data in enumerate(self.data):
            file = self._folder / data.file
            if not file.is_file():
                raise ValueError(
                    f"`data.{number}.file` must be the path of a file, got {data.file!r}, and there"
                    f" is no file {file.absolute()}. Correct it."
                )
            study.add_data(file, target=data.target, noise=data.noise)

    def build_objective(self) -> Callable[[dict[str, Any]], Any] | Command:
        """Return the objective; raise ValueError if there is none, or it cannot be imported."""
        section = self.objective
        if section is None or (section.function is None) == (section.command is None):
            raise ValueError(
                '`objective` must have either `function`, such as "module:function", or `command`,'
                " to run."
            )
        if section.command is not None:
            return Command(section.command, folder=self._folder)
        assert section.function is not None
        return self._load_function("objective.function", section.function)

    def _load_function(self, key: str, reference: str) -> Callable[..., Any]:
        return load_function(key, reference, self._folder)

    def load_callbacks(self) -> list[Callable[..., None]]:
        """Return what is called after each round; raise ValueError if it cannot be imported."""
        return [
            self._load_function(f"run.callbacks.{place}", reference)
            for place, reference in enumerate(self.require_run().callbacks)
        ]

    def make_executor(self) -> Callable[[], Executor] | None:
        """Return a function that makes the configured executor; ``None`` for no executor."""
        run = self.require_run()
        if run.executor == "none":
            return None
        return executor_maker(run.executor, run.workers, run.scheduler)

    def require_run(self) -> RunSection:
        """Return the table ``run``; raise ValueError if there is none."""
        if self.run is None:
            raise ValueError(
                "The configuration must have the table [run] with `rounds` and `batch`."
            )
        return self.run


def read_config(file: Path) -> Config:
    """Read a configuration; nothing is imported. If it cannot be read, a ValueError says each
    problem and, for unknown keys, the nearest known one.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}.") from error
    if len(content) > MOST_BYTES:
        raise ValueError(
            f"{file} must have at most {MOST_BYTES} bytes. Put data into a table, and name it under"
            " [[data]]."
        )
    try:
        tables = tomllib.loads(content.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{file} is no TOML: {error}.") from error
    try:
        config = Config.model_validate(tables)
    except ValidationError as error:
        problems = (_describe(dict(problem)) for problem in error.errors(include_url=False))
        raise ValueError("\n".join(problems)) from None
    config._folder = file.parent.absolute()
    if "://" in (config.study.path or ""):  # which may have a password
        raise ValueError(
            "`study.path` must be a folder, got the URL of a database. Give the URL as"
            " `study.storage`, and `study.name`."
        )
    given = [key for key in ("path", "storage", "name") if getattr(config.study, key) is not None]
    if given not in (["path"], ["storage", "name"]):
        raise ValueError("Either `study.path` must be given, or `study.storage` and `study.name`.")
    if config.study.maximize is None and config.study.objectives is None:
        raise ValueError("`study.maximize` must be given, or `study.objectives`.")
    run = config.run
    if run and run.executor == "none" and (run.asynchronous or run.workers > 1):
        raise ValueError(
            f"`run.{'asynchronous' if run.asynchronous else 'workers'}` needs an executor, got"
            ' `executor` = "none". Leave `executor` out, for threads, or use processes or dask.'
        )
    if run and run.scheduler is not None and run.executor != "dask":
        raise ValueError(
            '`run.scheduler` needs `executor` = "dask", of whose cluster it is the address, got'
            f" {run.executor!r}. Leave `scheduler` out, or use dask."
        )
    config.build_space(imports=False)
    return config


def _stand_in(key: str, reference: str) -> Callable[..., Any]:
    """Return something callable for a function that is not imported, if its name could be one."""
    require_reference(key, reference)
    return bool


def _describe(problem: dict[str, Any]) -> str:
    place = [str(part) for part in problem["loc"]]
    name = ".".join(place)
    if problem["type"] == "extra_forbidden":
        known = _keys_at(problem["loc"][:-1])
        return f"`{name}` is not known.{nearest(place[-1], known)} Known are {', '.join(known)}."
    if problem["type"] == "missing":
        return f"`{name}` must be given."
    given = problem["input"]
    close = ""
    if problem["type"] == "literal_error":
        close = nearest(given, re.findall("'([^']*)'", problem["ctx"]["expected"]))
    return f"`{name}`: {problem['msg']}, got {given!r:.80}.{close}"


def _keys_at(place: tuple[Any, ...]) -> list[str]:
    kind: Any = Config
    for part in place:
        if isinstance(part, str):
            annotation = kind.model_fields[part].annotation
            tables = [annotation, *getattr(annotation, "__args__", ())]
            kind = next(
                table for table in tables if isinstance(table, type) and issubclass(table, _Table)
            )
    return list(kind.model_fields)
