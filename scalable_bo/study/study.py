"""Optimise a black box: ask for points, tell their values, or let ``optimize`` do both.

Notation: N rows asked or added so far, n of them with a finite value; ``U (N, e)`` on the unit
cube, ``X (N, d)`` in the user's units.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from gpytorch.kernels import Kernel

from acquisition import Strategy
from acquisition.constraints import NoFeasiblePoint
from acquisition.strategies import make_strategy
from acquisition.strategy import Sampler
from scalable_bo.evaluation.evaluator import storable, whole_numbers
from scalable_bo.evaluation.executors import by_threads
from scalable_bo.evaluation.external import Command
from scalable_bo.modelling.factory import SurrogateFactory
from scalable_bo.report.snapshot import Snapshot, take_snapshot, to_frame
from scalable_bo.space.cell_texts import distinct
from scalable_bo.space.constraints import CallableConstraint
from scalable_bo.space.goal import ONLY, Goal
from scalable_bo.space.plain_values import flag
from scalable_bo.space.quoting import count, quote
from scalable_bo.space.space import Space
from scalable_bo.storage import shown
from scalable_bo.storage.past_evaluations import read_history
from scalable_bo.storage.places import Place
from scalable_bo.storage.points import EachPoint, Point, read_points
from scalable_bo.storage.pools import Pool
from scalable_bo.storage.record import StudyRecord, make_settings, read_space
from scalable_bo.storage.rounds import AskReport, Batch, Result, Round
from scalable_bo.storage.rows import Outcomes, read_told
from scalable_bo.storage.sqlite import SQLiteStorage
from scalable_bo.storage.storage import Change, MemoryStorage, Storage
from scalable_bo.study.answers import Answers, Predicted
from scalable_bo.study.ask_inputs import AskInputs
from scalable_bo.study.asking import Proposer
from scalable_bo.study.design import NotEnoughLeftError, default_num_initial
from scalable_bo.study.goals import goal_strategy
from scalable_bo.study.optimize import Run
from scalable_bo.study.team import Team
from surrogates import PathwiseGP, Solver, checks

if TYPE_CHECKING:
    import pandas as pd


class Study:
    """Maximise or minimise a black box by parallel Thompson sampling on a Gaussian process.

    The first points are a scrambled Sobol design. Then each ``ask(q)`` draws q functions from the
    posterior given all values told so far and returns a maximiser of each, where it can be run:
    integers are integers while the functions are maximised. Points that are asked and not told need
    no special treatment: each batch is its own set of functions; the same point is not asked twice
    while its value is out or if it failed, and in a finite space not at all.

    With a ``path``, every change is on disk when the call that made it returns, and ``Study(...)``
    with the same arguments goes on from there as if it had never stopped, however the process
    ended. The randomness of the k-th ``ask`` depends on the seed and k alone. Methods may be called
    from several threads.

    Args:
        space: a ``Space``, or BoTorch's bounds (2, d), which name the parameters ``x0, x1, …``.
        maximize: whether larger values are better; ``False`` to minimise.
        objectives: of several, in place of ``maximize``: "minimize" or "maximize" by name, such as
            ``{"cost": "minimize", "accuracy": "maximize"}``. Values are told as dicts, or as tuples
            in the order of ``outcomes``; ``result`` has their Pareto front.
        outcome_constraints: the lowest and the highest value of outcomes, objectives or others, by
            name, such as ``{"weight": (None, 10.0)}``. Each has a surrogate of its own; a point
            that breaks one is never best. Beside ``maximize``, the objective is called ``value``.
        seed: of everything random here; the same seed, data and calls give the same points.
        path: the folder to keep the study in, created if missing; ``None`` for a study in memory.
        storage: what keeps the study, in place of a folder: the URL of a database, such as
            ``postgresql+psycopg://user@host/database`` or ``sqlite:///file.db``, for any number of
            processes that ask, tell and optimise at once; or a ``Storage`` of your own.
        name: of the study in the database.
        num_initial: values that the initial design is to give; ``None`` for 2 (d + 1), at most 20.
            A batch holds what is left of it and, once half of its values are there, points of the
            surrogate beside them.
        solver: of the surrogate's linear systems; ``None`` for the model's default.
        kernel: on the unit cube, its hyperparameters fitted; ``None`` for BoTorch's default, RBF
            with dimension-scaled priors.
        strategy: how points are chosen after the initial ones: ``"thompson"``, a maximiser of each
            of q functions in the whole space; ``"turbo"``, in a trust region around the best point,
            for many parameters; ``"regions"``, in the whole space and in regions of three sizes
            around that point at once, both of one objective; ``"log-ei"``, expected improvement
            point by point;
            ``"auto"``, by that for up to 8 points among up to 1000 values, for the first 4 of up to
            50 points, and by ``"thompson"`` for the others. All but ``"thompson"`` fit the
            surrogate of up to 1000 values again when they have grown by a tenth, and to their
            logarithms where these are likelier. Or an ``acquisition.Strategy`` of your own.
            ``None`` for that of the study that ``path`` holds, in one of before there was a choice
            ``"thompson"``; for a new study ``"auto"`` or, with a ``sampler``, ``"thompson"``.
        sampler: of a strategy given by name: makes the acquisition of a model, bounds, ``seed`` and
            what the space needs (``rounding``, constraints), such as
            ``partial(ParallelThompsonSampling, num_candidates=50_000)``; ``None`` for 30 000
            candidates and 120 starts a path, or fewer, down to 10, with many paths and rows.
        ask_seconds: that an ask is to take, within a factor of two on a machine as busy as at its
            beginning, with one objective, an infinite space and no pool: by all values where a
            solve and a search are predicted to take no longer, by the rates measured then;
            otherwise by models of the values around the best points, as large as the time allows,
            which search there. The same ask may then be another on another machine, and ``result``
            recommends the best observed point if no ask was by all values.
            ``study.last_ask.choice`` says which it was, and why. ``None`` for as long as all values
            take.
        threads: that an ask computes by; ``None`` for those of PyTorch and, in an asynchronous run
            with a pool of threads or processes, those that its workers leave.
        dtype: of the surrogate.
        device: of the surrogate.
        shared: let all processes that ``torchrun`` started make the batches of one objective
            together. Each makes the study with the same arguments; the first has it, reads and
            writes what is stored, and is asked and told; the others :meth:`assist`.
    Raises:
        TypeError: if an argument has the wrong kind.
        ValueError: if an argument is out of range, or ``path`` holds a study of another space,
            direction or seed.
        RuntimeError: if another process uses ``path``, or what it holds is damaged.

    ```python
    study = Study(Space(x=Float(-5, 10), y=Float(0, 15)), maximize=False, seed=0)
    result = study.optimize(lambda params: cost(params["x"], params["y"]), rounds=10, batch=20)
    ```
    """

    _num_replaced = 0  # of outcomes, when the surrogate was last as they are
    _kept_answers: Answers | None = None

    def __init__(
        self,
        space: Space | Any,
        *,
        maximize: bool | None = None,
        objectives: Mapping[str, str] | None = None,
        outcome_constraints: Mapping[str, Any] | None = None,
        seed: int = 0,
        path: str | os.PathLike[str] | None = None,
        storage: Storage | str | None = None,
        name: str | None = None,
        num_initial: int | None = None,
        solver: Solver | None = None,
        kernel: Kernel | None = None,
        strategy: str | Strategy | None = None,
        sampler: Sampler | None = None,
        ask_seconds: float | None = None,
        threads: int | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
        shared: bool = False,
    ) -> None:
        goal = Goal.of(maximize, objectives, outcome_constraints)
        _check(seed, path, storage, name, solver, dtype, ask_seconds, goal)
        self._threads = checks.optional(checks.positive_int, "threads", threads)
        make = make_strategy if goal is None else partial(goal_strategy, goal)
        make("auto" if strategy is None else strategy, sampler)  # checked before a folder is made
        self.space = space if isinstance(space, Space) else Space.from_bounds(space)
        self.maximize = bool(maximize) if goal is None else goal.signs[0] > 0
        self.seed = seed = int(seed)
        num_initial = default_num_initial(self.space.dim) if num_initial is None else num_initial
        self.num_initial = checks.positive_int("num_initial", num_initial)
        device = checks.device("device", device)
        factory = SurrogateFactory.default(self.space.encoded_dim, dtype, device, solver, kernel)
        self._factory = replace(factory, encoding=self.space.encoding)
        self._last_ask = AskReport()
        self._asking = threading.Lock()  # one ask at a time
        self._stop = threading.Event()
        self._team = Team() if shared else None
        storage = _storage(path, storage, name, self._team)
        if strategy is None:
            strategy = _usual_strategy(storage, sampler)
            strategy = strategy if self._team is None else self._team.of_first(strategy)
        chosen = strategy if isinstance(strategy, str) else None
        settings = make_settings(self.space.to_dict(), self.maximize, seed, chosen, goal)
        self._record = StudyRecord(storage, settings, self.space)
        self._proposer = Proposer(
            self.space,
            seed,
            self.num_initial,
            self._factory,
            make(strategy, sampler),
            storage.checkpoints,
            self._team,
            ask_seconds,
        )

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        functions: Sequence[CallableConstraint] = (),
        **options: Any,
    ) -> Self:
        """Open a study with the space, direction and seed that it was made with.

        Args:
            path: the folder that it is kept in, or the URL of a database.
            name: of the study in a database.
            functions: those among the constraints of its space, found by their names: a folder
                holds no code.
            **options: the other arguments of ``Study``.
        Raises:
            ValueError: if there is no study, or the space needs a function that was not given.
            RuntimeError: if another process uses ``path``, or what it holds is damaged.
        """
        storage = Place(path, name).open(must_exist=True)
        try:
            settings = storage.load_settings()
            assert settings is not None  # a study is made with them
            space = read_space(storage.name, settings["space"], functions)
            wanted = settings.get("goal", {"maximize": settings["direction"] == "maximize"})
            return cls(space, **wanted, seed=settings["seed"], storage=storage, **options)
        except BaseException:
            storage.close()
            raise

    @property
    def num_observations(self) -> int:
        """The number of finite values told or added, n."""
        return len(self._now.rows.observed)

    @property
    def num_failed(self) -> int:
        """The number of points told or added as failed."""
        return len(self._now.rows.reasons)

    @property
    def num_evaluated(self) -> int:
        """The number of points that were asked for and told, those that failed among them."""
        with self._now.lock:
            rows = self._record.rows
            return int((rows.told & (rows.asks > 0)).sum())

    @property
    def num_asks(self) -> int:
        """How often points have been asked for."""
        return len(self._now.asks)

    @property
    def best_value(self) -> float:
        """The best observed feasible value so far; NaN if there is none, or several objectives."""
        return self._now.best_value()

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The names of several outcomes, in the order in which they are told; none of one."""
        goal = self._record.goal
        return () if goal is None else goal.names

    @property
    def model(self) -> PathwiseGP | None:
        """The surrogate behind the last batch: unit-cube inputs,
        standardised outputs to be maximised; ``None`` before.
        """
        return self._proposer.surrogate.model

    @property
    def last_ask(self) -> AskReport:
        """What the last ``ask`` cost."""
        return self._last_ask

    @property
    def result(self) -> Result:
        """The recommended point, the best observed one, and all data.

        Raises:
            ValueError: if no finite value has been told.
        """
        return self._answers.result

    @property
    def best_params(self) -> dict[str, Any]:
        """``result.best_params``, the recommended point.

        Raises:
            ValueError: if there is no value yet, no point keeps all constraints and limits, or
                there are several objectives, whose best points are ``result.front``.
        """
        result = self.result
        if result.front:
            raise ValueError(
                "A study must have one objective for `best_params`, got"
                f" {', '.join(result.reference_point)}. Take `result.front`, whose"
                f" {len(result.front)} points are best in some way each."
            )
        if result.least_violating is not None:
            nearest = shown.describe_excess(result.least_violating.excess)
            raise ValueError(
                "A point must keep all constraints and limits for `best_params`, and none does: the"
                f" nearest {nearest}. See `result.least_violating`."
            )
        return result.best_params

    @property
    def pending(self) -> Batch:
        """The points that were asked and not told, to be evaluated again after a crash, and those
        of which some outcomes have been told, in ``Batch.outcomes``, which wait for the others.
        """
        with self._now.lock:
            rows = self._record.rows
            ids = (~rows.told).nonzero().flatten().tolist()
            X = rows.X[ids]
            partial = rows.partial(self._record.wanted.names)
        outcomes = [partial.get(id, {}) for id in ids] if self.outcomes else None
        return Batch(ids, self.space.to_dicts(X), X, outcomes=outcomes)

    def unfinished(self, ids: Collection[int] | None = None) -> Batch:
        """Return the pending points, or those among some ``ids``, that are to be evaluated once
        more, as after a crash: none of their outcomes has been told and, of a study in a database,
        no other process is at them. It is this process that is at them then.
        """
        pending = self.pending
        if not pending.ids:
            return pending
        told = pending.outcomes or [{}] * len(pending.ids)
        waiting = [id for id, outcomes in zip(pending.ids, told, strict=True) if not outcomes]
        wanted = waiting if ids is None else [id for id in waiting if id in ids]
        return pending.part(set(self._record.claim(wanted)))

    def points(self, ids: Sequence[int] | None = None) -> tuple[Point, ...]:
        """Return all points by id, or those of some ``ids``, each with what became of it so far.

        ```python
        for point in study.points():
            print(point.id, point.params, point.status, point.outcomes, point.told, point.note)
        ```

        Raises:
            ValueError: if there is no such point.
        """
        with self._now.lock:
            rows = self._record.rows
            wanted = list(range(len(rows))) if ids is None else whole_numbers(ids)
            rows.require(wanted)
            return read_points(self.space, rows, self._record.wanted.names, wanted)

    def reasons(self, ids: Sequence[int]) -> list[str | None]:
        """Return why each of these points failed; ``None`` for those that did not."""
        with self._now.lock:
            return [self._record.rows.reasons.get(number) for number in whole_numbers(ids)]

    def to_dataframe(self) -> pd.DataFrame:
        """Return all rows by id: the parameters, ``value``, ``noise``, ``status``, ``reason``,
        ``ask``, ``asked``, ``told``, ``seconds`` and ``note``.

        ``status`` is "observed", "failed" for a ``reason``, or "pending", also beside the values of
        some of several outcomes; ``ask`` is the number of the ask, 0 for added data. ``asked`` and
        ``told`` are when the point was handed out and when what became of it was told last, in UTC;
        ``seconds`` is how long its evaluation took. They are empty where unknown. A column that is
        named like a parameter gets an underscore.

        Raises:
            ImportError: if pandas is not installed; the extra ``tables`` brings it.
        """
        with self._now.lock:
            return to_frame(self.space, self._record.rows, self._record.goal)

    def ask(
        self, q: int, *, pool: Any = None, callback: Callable[[str], None] | None = None
    ) -> Batch:
        """Return ``q`` points to evaluate next, those that were enqueued first.

        Args:
            q: how many, enqueued ones counted in.
            pool: the only candidates, of which any number is read part by part: the path of a
                Parquet or CSV file or a DataFrame with a column for each parameter, points (c, d)
                in the user's units, dicts, or an iterable of such parts, which is read once. What
                is in memory is checked whole before anything else is done. The points are chosen by
                Thompson sampling, whatever the ``strategy``, and at random while there are too few
                values for a surrogate; ``Batch.rows`` says which they are.
            callback: receives a line of text whenever the fit, the solve or the search has got on:
                with 100 000 rows an ask takes minutes.
        Raises:
            TypeError, ValueError: if ``q`` is not an int of at least 1, or exceeds the points that
                are left, the constraints of the space leave none, or the pool holds what is no
                point of it.
            MemoryError: if the solve for ``q`` paths cannot fit in free memory.
        """
        q = checks.positive_int("q", q)
        candidates = None if pool is None else Pool(self.space, pool)
        limit = nullcontext() if self._threads is None else by_threads(self._threads)
        with self._asking, self._record.asking(), limit:
            self._record.storage.require_writable()
            left = self._record.num_left()
            if left is not None and q > left:
                raise NotEnoughLeftError(
                    f"`q` must be at most {left}, what is left of the points that the processes"
                    f" which optimise this study ask for, got {q}. Ask when `optimize` has ended.",
                    left,
                    "the processes that optimise this study have asked for all of their points",
                )
            self._forget_what_was_replaced()
            known = AskInputs(self.space, self._record, q)
            num_queued = len(known.queued)
            if candidates is not None:
                candidates.require(q - num_queued)
            try:
                X, ask, report = self._proposer.propose(q - num_queued, known, callback, candidates)
            except NoFeasiblePoint:
                raise self.space.without_a_point() from None
            X = torch.cat([known.queued, X])
            try:
                ids = self._record.add_ask(X, ask, report, num_queued, known.seen)
            except BaseException:
                self._proposer.surrogate.let_go()  # that of an ask which is not stored
                raise
            self._forget_what_was_replaced()  # while the points were chosen
            self._last_ask = self._record.contents.costs[ask.number]
        rows = None if candidates is None else [None] * num_queued + candidates.rows
        return Batch(ids, self.space.to_dicts(X), X, rows)

    def assist(self) -> bool:
        """Help the first process to make its batches, until it closes its study; return whether
        this process is another one. In the first there is nothing to be done.

        ```python
        with sbo.processes() as device, sbo.Study(space, maximize=True, shared=True) as study:
            if not study.assist():
                study.optimize(objective, rounds=10, batch=1000)
        ```

        Raises:
            ConnectionError: if another process ended; start all again, and a study with a ``path``
                goes on.
        """
        if self._team is None or self._team.is_first:
            return False
        while (job := self._team.next_job()) is not None:
            self._proposer.assist(job)
        return True

    def enqueue(self, params: Any, *, once: bool = False) -> None:
        """Have points evaluated next: the next asks give them out first, in this order.

        Args:
            params: a dict of parameters, a list of k dicts, or points (k, d) in the order of
                ``space.names``.
            once: do nothing if there has been an ask, or points are in the queue, so that programs
                may enqueue what each begins with, also several processes at the same time.
        Raises:
            ValueError: if a point lies outside the space or breaks a constraint.
        """
        X = self.space.read_feasible(params, "params")
        self._record.enqueue(X, flag("once", once))

    @property
    def num_queued(self) -> int:
        """The number of points that were enqueued and not asked for."""
        return len(self._now.contents.queue)

    def tell(
        self,
        ids: Batch | Sequence[int] | Any,
        values: Any = None,
        noise: Any = None,
        reasons: Mapping[int, str] | None = None,
        seconds: Any = None,
    ) -> None:
        """Record the values of asked points. What is NaN, infinite or no number means that the
        evaluation failed; of several outcomes, if that holds for all of them. Values of some are
        kept, and the point stays pending until the others are told, alone or with those again.

        Failed points are kept with the reason, never given to the surrogate and not asked again.
        Telling the same again does nothing. Nothing is recorded on an error.

        Args:
            ids: a ``Batch``, for all of its points, or any of its ``ids`` in any order. Or a
                :meth:`sheet` that has been filled in, alone: a DataFrame, or the path of a CSV or
                Excel file, in which an empty cell says nothing, ``reason`` that an evaluation
                failed, and ``note``, if there is such a column, what :meth:`note` takes.
            values: one for each id, whatever holds a number; of several outcomes, a dict or a tuple
                for each, or a table with a column for each outcome.
            noise: known variances of the values, one for each id or one for all; ``None`` if they
                are to be inferred.
            reasons: why evaluations failed, by id, in place of what their values say, which is NaN.
            seconds: that each evaluation took, NaN where unknown; ``None`` if all are.
        Raises:
            TypeError: if ``ids`` are no whole numbers, or ``values`` is no sequence.
            ValueError: if the lengths differ, an id is unknown, repeated or was told another value,
                an outcome is unknown or has not one number, a number is too large, a reason is
                given beside a finite value, or the variances of some values are known and those of
                others are not.
        """
        ids = ids.ids if isinstance(ids, Batch) else ids
        notes: dict[int, str] = {}
        if values is None and (isinstance(ids, str | os.PathLike) or hasattr(ids, "columns")):
            ids, values, noise, reasons, notes = self._read_filled(ids)
        ids = whole_numbers(ids)
        self._record.tell(*read_told(ids, values, noise, reasons, self.outcomes, seconds))
        for id, text in notes.items():
            self._record.note(id, text)

    def note(self, id: int, text: str) -> None:
        """Note something of a point, whatever has become of it, in place of what was noted before.
        Notes stand in tables and reports, and change no ask.

        Raises:
            TypeError: if ``text`` is no text.
            ValueError: if there is no such point.
        """
        (id,) = whole_numbers([id])
        self._record.note(id, storable(text))

    def sheet(self, batch: Batch) -> pd.DataFrame:
        """Return points as a table for people: by ``id`` the parameters, an empty column for each
        outcome, and ``reason``; filled in, ``tell`` takes it.

        Raises:
            ImportError: if pandas is not installed; the extra ``tables`` brings it.
        """
        from scalable_bo.storage.sheets import make_sheet  # which needs an extra

        if not isinstance(batch, Batch):
            raise TypeError(f"`batch` must be a `Batch`, as of `ask`, got {quote(batch)}.")
        return make_sheet(self.space, batch.ids, batch.X, self._outcome_columns)

    @property
    def _outcome_columns(self) -> list[str]:
        parameters = [*self.space.names, *self.space.fixed]
        return distinct(self._record.wanted.names, parameters)

    def _read_filled(self, sheet: Any) -> tuple[Any, ...]:
        """Return what ``tell`` is given by a sheet, and its notes by id."""
        from scalable_bo.storage.sheets import Filled, read_sheet  # which needs an extra

        frame = read_sheet(Path(sheet)) if isinstance(sheet, str | os.PathLike) else sheet
        columns = self._outcome_columns
        found = Filled(frame, self.space, self._now.rows.X, columns)
        noise = None if all(map(math.isnan, found.noise)) else found.noise
        names = dict(zip(columns, self._record.wanted.names, strict=True))
        values: list[Any] = [
            {names[column]: value for column, value in told.items()} or math.nan
            for told in found.values
        ]
        if not self.outcomes:
            values = [math.nan if told is math.nan else told[ONLY] for told in values]
        return found.ids, values, noise, found.reasons, found.notes

    def retry(self, ids: Sequence[int] | None = None) -> Batch:
        """Make points that failed pending again, such as after mending the objective;
        ``optimize`` evaluates them first, of a shared study that of any process.

        Args:
            ids: of points that failed; ``None`` for all of them.
        Returns:
            All points that are pending then.
        Raises:
            ValueError: if a point did not fail.
        """
        self._record.retry(None if ids is None else whole_numbers(ids))
        return self.pending

    def withdraw(self, ids: Sequence[int], why: str = "") -> None:
        """Take back the values of points, also of those that have only some, which are failures
        then; ``changes`` keeps what they were.

        Raises:
            ValueError: if a point was not told.
        """
        ids = whole_numbers(ids)
        why = storable(why, "why")
        text = f"withdrawn: {why}" if why else "withdrawn"
        withdrawn = Outcomes.of([math.nan] * len(ids)).explain(dict.fromkeys(range(len(ids)), text))
        self._change(ids, withdrawn, "withdrawn", why)

    def correct(self, id: int, value: Any, noise: float | None = None, why: str = "") -> None:
        """Give a point that was told another value, as if told now; ``changes`` keeps what it was.

        Args:
            id: of the point.
            value: the right one; NaN if the evaluation has failed. Of several outcomes a dict or
                a tuple, whose unknown outcomes stay as they were.
            noise: its known variance, where the others come with theirs.
            why: what ``changes`` says of it.
        Raises:
            TypeError, ValueError: as ``tell``, and if the point was not told.
        """
        told = read_told(whole_numbers([id]), [value], noise, names=self.outcomes)
        self._change(*told, "corrected", why)

    @property
    def changes(self) -> list[Change]:
        """What points had been told before they were withdrawn or corrected, in order."""
        with self._now.lock:
            return list(self._record.contents.changes)

    def add_data(
        self,
        X: Any,
        y: Any = None,
        *,
        noise: Any = None,
        target: str | None = None,
        name: str | None = None,
    ) -> None:
        """Add points that were evaluated elsewhere; what has a value that is NaN, infinite or no
        number is added as failed. A row of a table whose outcomes are empty says nothing and is
        left out, unless its ``status`` is "failed" or it has a ``reason``.

        All are added or, on an error, none. The same data again are not added twice, and of a file
        that has grown or been filled in what is new alone, so a program may add it at each start.

        Args:
            X: (n, d) in the user's units, columns in the order of ``space.names``; or a list of
                dicts; or a table with a column for each parameter, a DataFrame or the path of a CSV
                or Parquet file.
            y: (n,) or (n, 1) values; of several outcomes, n dicts, or (n, m). A table may have
                columns with their names in place of ``y``.
            noise: their known variances, (n,) or one for all, or the name of a table's column;
                ``None`` if they are to be inferred.
            target: the name of the table's column with the values, in place of ``y``.
            name: of these data; ``None`` for the name of the file.
        Raises:
            TypeError: if these are not numbers.
            ValueError: if the shapes do not fit, a point lies outside the space, or other data were
                added under the same name.
            MemoryError: if a file is too large.
            ImportError: if a table is given and pandas, or for Parquet pyarrow, is not installed;
                the extra ``tables`` brings both.
        """
        history = read_history(
            self.space, X, y, target=target, noise=noise, name=name, names=self.outcomes
        )
        self._record.add_history(history)

    def optimize(
        self,
        objective: Callable[..., Any] | Command,
        rounds: int,
        batch: int,
        *,
        executor: Executor | Callable[[], Executor] | None = None,
        timeout: float | None = None,
        max_failures: int | None = None,
        retry: str | None = None,
        vectorized: bool = False,
        callbacks: Sequence[Callable[[Study, Round], None] | EachPoint] = (),
        progress: bool = True,
        asynchronous: bool | int = False,
        seconds: float | None = None,
    ) -> Result:
        """Ask, evaluate and tell for a number of rounds.

        Points that are pending are evaluated first, but for those of which some outcomes have been
        told: they wait for ``tell``. Values are told as they arrive. An evaluation fails, with the
        reason, by an exception, a value that is NaN, infinite or no number, a timeout, or the end
        of its process. Ctrl-C once (with an ``executor``): nothing more is
        begun, and what is running is awaited and told; twice, or without an executor: at once. Call
        ``optimize`` again to go on.

        Args:
            objective: maps a dict of parameters to a number; called point by point. Or a
                ``Command``.
            rounds: how many rounds, beyond those that there were before; 0 to evaluate what is
                pending alone. There are fewer if the points of a finite space run out. Processes
                that optimise a study in a database at the same time make so many in all, as many
                points as the first of them has been told.
            batch: points a round.
            executor: where points are evaluated: a ``concurrent.futures.Executor`` of threads,
                processes, Dask and so on, or a function that makes one, such as
                ``lambda: ProcessPoolExecutor(8)``, which is called for each process of a pool, so
                that one that dies fails its own point; ``None`` for this thread, one after the
                other.
            timeout: seconds for one evaluation; ``None`` for no limit. A function that takes longer
                is left to itself in a thread of its own, a ``Command`` is killed.
            max_failures: failed evaluations in this call, beyond which it stops; ``None`` to stop
                when a whole batch, and at least 10, fail or lack outcomes in a row, or the first
                three raise the same.
            retry: ``"once"`` to evaluate the points of a round that failed once more at its end,
                of an asynchronous run at the end of all; both failures count. ``None`` to leave
                them to ``retry``.
            vectorized: call ``objective(X)`` with all points of a round, (q, d) in the user's
                units, for (q,) values; its exceptions are raised, and the points stay pending.
            callbacks: each called with the study and the ``Round`` at the end of a round or, made
                by ``EachPoint(callback)``, with the study and each ``Point`` as soon as it is told.
            progress: show a bar on a terminal, and elsewhere one plain line a round, on stderr, and
                further lines on what a round is doing that takes over 5 s.
            asynchronous: give each worker of the ``executor`` that comes free a point at once, in
                place of waiting for the last of a round: ``True``, or the number of workers of an
                executor that does not tell it. Points are asked for ahead, at least ``batch`` at a
                time, while others are evaluated, so that each is chosen by all values but the
                latest; ``batch`` values are a round.
            seconds: after which nothing more is begun; what runs is awaited and told.
        Returns:
            ``result``.
        Raises:
            TypeError, ValueError: if an argument is out of range, or what the objective returns is
                refused by ``tell``, such as an unknown outcome; the point stays pending.
            RuntimeError: if too many evaluations fail, from what the objective raised; or if the
                executor is lost and there is no way to make another.
        """
        self._stop.clear()
        run = Run(
            self,
            objective,
            rounds,
            batch,
            executor=executor,
            timeout=timeout,
            max_failures=max_failures,
            retry=retry,
            vectorized=vectorized,
            callbacks=callbacks,
            progress=flag("progress", progress),
            asynchronous=asynchronous,
            seconds=seconds,
        )
        run()
        return self.result

    def optimizing(self, budget: int) -> AbstractContextManager[None]:
        """Optimise in the block, by asks for so many points, one budget for all processes that
        optimise a study in a database at the same time.
        """
        return self._record.optimizing(budget)

    def stop(self) -> None:
        """Let ``optimize`` end, from a callback, the objective or another thread: nothing more is
        begun, what runs is awaited and told, and ``optimize`` returns.
        """
        self._stop.set()

    @property
    def stop_requested(self) -> bool:
        """Whether ``stop`` has been called since ``optimize`` began."""
        return self._stop.is_set()

    def recommend(self) -> dict[str, Any]:
        """Return the parameters that the surrogate holds for the best of the whole space, evaluated
        or not: where values are noisy the point that is best even two posterior standard deviations
        to the worse side of its mean, by a search, if it is as likely to succeed as evaluated ones
        are on average. Otherwise it is ``result.best_params``, the best evaluated one.

        Raises:
            ValueError: if there are fewer than two values, or several outcomes.
        """
        return self._answers.recommend()

    def predict(self, params: Any) -> Predicted:
        """Return the surrogate's posterior of the objective, given all values so far: the mean and
        the standard deviation without the noise, in the user's units.

        Args:
            params: a dict of parameters, a list of k dicts, or points (k, d) in the order of
                ``space.names``.
        Returns:
            Two tensors (k,); of one dict, two of shape (). Of m outcomes, with m in the end. The
            pair has an attribute ``success``: the probability that an evaluation there succeeds,
            once two or more have failed and it is learned where; ``None`` before.
        Raises:
            ValueError: if a point lies outside the space, or there are fewer than two values.
        """
        return self._answers.predict(params)

    def importances(self, outcome: str | None = None) -> dict[str, float]:
        """Return how much each parameter matters, the largest first: its total Sobol' index in the
        surrogate's posterior mean over the whole space, constraints aside, divided by their sum.

        Args:
            outcome: which of several; the first if ``None``.
        Raises:
            ValueError: if there are fewer than two values.
        """
        return self._answers.importances(outcome)

    def snapshot(self, *, wait: bool = True) -> Snapshot:
        """Return a copy of all rows, asks and costs, for those who look at the study.

        Args:
            wait: for the ask that runs, if one does; ``False`` for the study as it stands now.
        """
        factory = self._factory
        solver = factory.solver
        machinery = {
            "initial values": str(self.num_initial),
            "solver": "chosen by the number of points" if solver is None else repr(solver),
            "kernel": " ".join(str(factory.kernel).split()),
            "computed in": f"{factory.dtype} on {factory.device}",
        }
        storage = self._record.storage
        name = storage.folder.name if isinstance(storage, SQLiteStorage) else ""
        answers = self._answers
        with nullcontext() if wait is False else self._asking:
            return take_snapshot(
                self.space,
                self._record,
                answers.beliefs,
                answers.success,
                name,
                machinery,
            )

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write one HTML page that shows the study as it stands, without network or scripts.

        Args:
            path: of the page, whose folder is there; a page that is there is replaced.
        Raises:
            OSError: if it cannot be written.
        """
        from scalable_bo.report.page import write_report  # which draws

        write_report(self.snapshot(), checks.path("path", path, "the path of a page"))

    def copy_to(self, path: str | os.PathLike[str], *, name: str | None = None) -> None:
        """Copy the study to another place, whole: its next ask is the same there.

        Args:
            path: a folder without a study, or the URL of a database.
            name: of the copy in a database, where no study has it yet.
        Raises:
            ValueError: if there is a study.
            OSError: if the copy cannot be written.
        """
        with self._asking, closing(Place(path, name).open()) as storage:
            self._record.copy_to(storage)

    def close(self) -> None:
        """Let other processes open ``path``, and those that assist go on with their programs; a
        study in memory stays as it is.
        """
        self._record.close()
        if self._team is not None:
            self._team.dismiss()

    def __repr__(self) -> str:
        about = self._shown()
        goal = f"{about['goal']} over {about['parameters']}"
        best = f", best {about['best value']:.6g}" if "best value" in about else ""
        return (
            f"<{self._record.storage.name}: {goal}; {count(about['values'], 'value')},"
            f" {about['failed']} failed, {about['pending']} pending{best}>"
        )

    def _repr_html_(self) -> str:
        return shown.html_table(self._record.storage.name, self._shown())

    def _shown(self) -> dict[str, Any]:
        with self._record.lock:
            rows = self._record.rows
            best = self._record.best_value()
            about = {
                "goal": self._record.wanted.directions,
                "parameters": shown.describe_names(self.space.names),
                "values": len(rows.observed),
                "failed": len(rows.reasons),
                "pending": len(rows) - rows.num_told,
                "asks": len(self._record.asks),
            }
            return about if math.isnan(best) else about | {"best value": best}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "A Study can be neither copied nor pickled: it holds its storage. Open it again by its"
            " `path`, or make another and add `study.to_dataframe()` to it by `add_data`."
        )

    def _change(self, ids: Sequence[int], outcomes: Outcomes, kind: str, why: str) -> None:
        with self._asking:
            self._record.replace(ids, outcomes, kind, why)
            self._forget_what_was_replaced()

    @property
    def _now(self) -> StudyRecord:
        """The record, with what others have written; what they have replaced is forgotten; during
        an ask, when it ends.
        """
        self._record.refresh()
        if self._num_replaced != self._record.num_replaced and self._asking.acquire(blocking=False):
            try:  # whoever replaced it has removed the checkpoints of before
                self._forget_what_was_replaced(self._proposer.surrogate.let_go)
            finally:
                self._asking.release()
        return self._record

    def _forget_what_was_replaced(self, leave: Callable[[], None] | None = None) -> None:
        if self._num_replaced != (number := self._record.num_replaced):
            (leave or self._proposer.surrogate.forget)()
            self._kept_answers = None
            self._num_replaced = number

    @property
    def _answers(self) -> Answers:
        record = self._now
        answers = self._kept_answers
        if answers is None:
            surrogate, models = self._proposer.surrogate, self._proposer.new_outcome_models()
            answers = Answers(self.space, record, surrogate, models, self._asking)
            self._kept_answers = answers
        return answers


def _storage(
    path: str | os.PathLike[str] | None,
    given: Storage | str | None,
    name: str | None,
    team: Team | None,
) -> Storage:
    """Return what keeps the study; nothing does in the processes that assist."""
    if team is not None and not team.is_first:
        return MemoryStorage()
    if isinstance(given, str):
        return Place(given, name).open()
    if given is not None:
        return given
    return MemoryStorage() if path is None else SQLiteStorage(Path(path))


def _usual_strategy(storage: Storage, sampler: Sampler | None) -> str:
    try:
        stored = storage.load_settings()
    except BaseException:
        storage.close()
        raise
    if stored is not None:
        return str(stored.get("strategy", "thompson"))
    return "auto" if sampler is None else "thompson"


def _check(
    seed: Any,
    path: Any,
    storage: Any,
    name: Any,
    solver: Any,
    dtype: Any,
    ask_seconds: Any,
    goal: Goal | None,
) -> None:
    checks.integer("seed", seed, 0)
    checks.optional(checks.path, "path", path, "a folder or None")
    if path is not None and "://" in os.fspath(path):  # which may have a password
        raise ValueError(
            "`path` must be a folder, got the URL of a database. Give `storage=url, name='tuning'`."
        )
    if path is not None and storage is not None:
        raise ValueError(f"`path` or `storage` must be given, not both, got {quote(path)}.")
    if storage is not None and not isinstance(storage, Storage | str):
        raise TypeError(
            "`storage` must be the URL of a database, or have the methods of `Storage`, got"
            f" {quote(storage)}."
        )
    if isinstance(storage, str) != (name is not None):
        raise ValueError(
            f"`name` must be given with the URL of a database, and only then, got {quote(name)}."
            " Name the study there: `storage=url, name='tuning'`."
        )
    if solver is not None and not isinstance(solver, Solver):
        raise TypeError(f"`solver` must be a Solver, got {quote(solver)}. Try `CG()`.")
    if dtype is not torch.float32 and dtype is not torch.float64:
        raise TypeError(f"`dtype` must be torch.float32 or torch.float64, got {quote(dtype)}.")
    checks.optional(checks.positive_float, "ask_seconds", ask_seconds)
    if ask_seconds is not None and goal is not None:
        raise ValueError(
            f"`ask_seconds` must be None with several outcomes, got {ask_seconds}. Leave it out,"
            " and ask for fewer points at a time."
        )
