"""Optimise a black box: ask for points, tell their values, or let ``optimize`` do both.

Notation: N rows asked or added so far, n of them with a finite value; ``U (N, e)`` on the unit
cube, ``X (N, d)`` in the user's units.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from copy import deepcopy
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pandas as pd
import torch
from gpytorch.kernels import Kernel

from acquisition import Strategy
from acquisition.strategies import make_strategy
from acquisition.strategy import Sampler
from scalable_bo.evaluation.external import Command
from scalable_bo.space.constraints import CallableConstraint
from scalable_bo.space.space import Space
from scalable_bo.storage.history import read_history
from scalable_bo.storage.record import Record, make_settings, read_space
from scalable_bo.storage.rounds import AskReport, Batch, Result, Round
from scalable_bo.storage.rows import read_told, whole_numbers
from scalable_bo.storage.snapshot import Snapshot, take_snapshot, to_frame
from scalable_bo.storage.sqlite import SQLiteStorage
from scalable_bo.storage.storage import MemoryStorage, Storage
from scalable_bo.storage.surrogate import SurrogateFactory, TrainingData
from scalable_bo.study.asking import Known, Proposer
from scalable_bo.study.design import default_num_initial
from scalable_bo.study.optimize import run_rounds
from surrogates import PathwiseGP, Solver, checks


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
        seed: of everything random here; the same seed, data and calls give the same points.
        path: the folder to keep the study in, created if it is not there; ``None`` for a study in
            memory.
        storage: what keeps the study, in place of a folder.
        num_initial: values that the initial design is to give; ``None`` for 2 (d + 1), at most 20.
            A batch holds what is left of it and, once half of its values are there, points of the
            surrogate beside them.
        solver: of the surrogate's linear systems; ``None`` for the model's default.
        kernel: on the unit cube, its hyperparameters fitted; ``None`` for BoTorch's default, RBF
            with dimension-scaled priors.
        strategy: how points are chosen after the initial ones: ``"thompson"``, a maximiser of each
            of q functions in the whole space; ``"turbo"``, in a trust region around the best point,
            for many parameters; ``"log-ei"``, expected improvement point by point; ``"auto"``, by
            that up to 8 points among up to 300 values, for which the surrogate is fitted at every
            ask, too, and to their logarithms where these are likelier, and by ``"thompson"``
            beyond; or an ``acquisition.Strategy`` of your own.
        sampler: of a strategy given by name: makes the acquisition of a model, bounds, ``seed`` and
            what the space needs (``rounding``, constraints), such as
            ``partial(ParallelThompsonSampling, num_candidates=50_000)``; ``None`` for 30 000
            candidates and 120 starts a path, or fewer, down to 10, with many paths and rows.
        dtype: of the surrogate.
        device: of the surrogate.
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

    def __init__(
        self,
        space: Space | Any,
        *,
        maximize: bool,
        seed: int = 0,
        path: str | os.PathLike[str] | None = None,
        storage: Storage | None = None,
        num_initial: int | None = None,
        solver: Solver | None = None,
        kernel: Kernel | None = None,
        strategy: str | Strategy = "thompson",
        sampler: Sampler | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        if not isinstance(maximize, bool):
            raise TypeError(f"`maximize` must be True or False, got {maximize!r}.")
        checks.integer("seed", seed, 0)
        if path is not None and not isinstance(path, str | os.PathLike):
            raise TypeError(f"`path` must be a folder or None, got {path!r}.")
        if path is not None and storage is not None:
            raise ValueError(f"`path` or `storage` must be given, not both, got {path!r}.")
        if storage is not None and not isinstance(storage, Storage):
            raise TypeError(f"`storage` must have the methods of `Storage`, got {storage!r:.80}.")
        if solver is not None and not isinstance(solver, Solver):
            raise TypeError(f"`solver` must be a Solver, got {solver!r}. Try `CG()`.")
        if dtype not in (torch.float32, torch.float64):
            raise TypeError(f"`dtype` must be torch.float32 or torch.float64, got {dtype}.")
        chosen = make_strategy(strategy, sampler)
        self.space = space if isinstance(space, Space) else Space.from_bounds(space)
        self.maximize = maximize
        self.seed = seed
        self.num_initial = checks.positive_int(
            "num_initial",
            default_num_initial(self.space.dim) if num_initial is None else num_initial,
        )
        device = checks.device("device", device)
        self._factory = (
            SurrogateFactory.default(self.space.encoded_dim, dtype, device, solver)
            if kernel is None
            else SurrogateFactory(deepcopy(kernel), solver, dtype, device)
        )
        self._last_ask = AskReport()
        self._asking = threading.Lock()  # one ask at a time
        if storage is None:
            storage = MemoryStorage() if path is None else SQLiteStorage(Path(path))
        settings = make_settings(self.space.to_dict(), maximize, seed)
        self._record = Record(storage, settings, self.space.names)
        self._proposer = Proposer(
            self.space, seed, self.num_initial, self._factory, chosen, storage.checkpoints
        )

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        functions: Sequence[CallableConstraint] = (),
        **options: Any,
    ) -> Self:
        """Open a study with the space, direction and seed that it was made with.

        Args:
            path: the folder that it is kept in.
            functions: those among the constraints of its space, found by their names: a folder
                holds no code.
            **options: the other arguments of ``Study``.
        Raises:
            ValueError: if there is no study, or the space needs a function that was not given.
            RuntimeError: if another process uses ``path``, or what it holds is damaged.
        """
        storage = SQLiteStorage(Path(path), must_exist=True)
        try:
            settings = storage.load_settings()
            assert settings is not None  # a database is made with them
            space = read_space(storage.name, settings["space"], functions)
            maximize = settings["direction"] == "maximize"
            return cls(space, maximize=maximize, seed=settings["seed"], storage=storage, **options)
        except BaseException:
            storage.close()
            raise

    @property
    def num_observations(self) -> int:
        """The number of finite values told or added, n."""
        return len(self._record.rows.observed)

    @property
    def num_failed(self) -> int:
        """The number of points told or added as failed."""
        return len(self._record.rows.reasons)

    @property
    def num_asks(self) -> int:
        """How often points have been asked for."""
        return len(self._record.asks)

    @property
    def best_value(self) -> float:
        """The best observed value so far; NaN if there is none."""
        with self._record.lock:
            values = self._record.rows.values[self._record.rows.observed]
        if not len(values):
            return math.nan
        return float(values.max() if self.maximize else values.min())

    @property
    def model(self) -> PathwiseGP | None:
        """The surrogate behind the last batch: unit-cube inputs,
        standardised outputs to be maximised; ``None`` before.
        """
        return self._proposer.model

    @property
    def last_ask(self) -> AskReport:
        """What the last ``ask`` cost."""
        return self._last_ask

    @property
    def result(self) -> Result:
        """The best observed value so far, and all data.

        Raises:
            ValueError: if no finite value has been told.
        """
        with self._record.lock:
            return Result.of(self.space, self._record.rows, self.maximize)

    @property
    def pending(self) -> Batch:
        """The points that were asked and not told, to be evaluated again after a crash."""
        with self._record.lock:
            ids = (~self._record.rows.told).nonzero().flatten().tolist()
            X = self._record.rows.X[ids]
        return Batch(ids, self.space.to_dicts(X), X)

    def reasons(self, ids: Sequence[int]) -> list[str | None]:
        """Return why each of these points failed; ``None`` for those that did not."""
        with self._record.lock:
            return [self._record.rows.reasons.get(number) for number in ids]

    def to_dataframe(self) -> pd.DataFrame:
        """Return all rows by id: the parameters, ``value``, ``noise``, ``status``, ``reason`` and
        ``ask``.

        ``status`` is "observed", "failed" for a ``reason``, or "pending"; ``ask`` is the number of
        the ask, 0 for added data. A column that is named like a parameter gets an underscore.
        """
        with self._record.lock:
            return to_frame(self.space, self._record.rows)

    def ask(self, q: int, *, callback: Callable[[str], None] | None = None) -> Batch:
        """Return ``q`` points to evaluate next.

        Args:
            q: how many.
            callback: receives a line of text whenever the solve or the search has got on: with 100
                000 rows an ask takes minutes.
        Raises:
            TypeError, ValueError: if ``q`` is not an int of at least 1, or exceeds the points that
                are left.
            MemoryError: if the solve for ``q`` paths cannot fit in free memory.
        """
        checks.positive_int("q", q)
        with self._asking:
            self._record.storage.require_writable()
            X, ask, report = self._proposer.propose(q, self._known(), callback)
            ids = self._record.add_ask(X, ask, report)
            self._last_ask = report
        return Batch(ids, self.space.to_dicts(X), X)

    def tell(
        self,
        ids: Sequence[int],
        values: Any,
        noise: Any = None,
        reasons: Mapping[int, str] | None = None,
    ) -> None:
        """Record the values of asked points. What is NaN, infinite or no number means that the
        evaluation failed.

        Failed points are kept with the reason, never given to the surrogate and not asked again.
        Telling the same again does nothing. Nothing is recorded on an error.

        Args:
            ids: from ``Batch.ids``, any subset in any order.
            values: one for each id.
            noise: known variances of the values, one for each id or one for all; ``None`` if they
                are to be inferred.
            reasons: why evaluations failed, by id, in place of what their values say, which is NaN.
        Raises:
            TypeError: if ``values`` is no sequence.
            ValueError: if the lengths differ, an id is unknown, repeated or was told another value,
                a reason is given beside a finite value, or the variances of some values are known
                and those of others are not.
        """
        self._record.tell(*read_told(ids, values, noise, reasons))

    def retry(self, ids: Sequence[int] | None = None) -> Batch:
        """Make points that failed pending again, such as after mending the objective;
        ``optimize`` evaluates them first.

        Args:
            ids: of points that failed; ``None`` for all of them.
        Returns:
            All points that are pending then.
        Raises:
            ValueError: if a point did not fail.
        """
        self._record.retry(None if ids is None else whole_numbers(ids))
        return self.pending

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
        number is added as failed.

        All are added or, on an error, none. The same data again are not added twice, so a program
        may add its data whenever it starts.

        Args:
            X: (n, d) in the user's units, columns in the order of ``space.names``; or a list of
                dicts; or a table with a column for each parameter, a DataFrame or the path of a CSV
                or Parquet file.
            y: (n,) or (n, 1) values.
            noise: their known variances, (n,) or one for all, or the name of a table's column;
                ``None`` if they are to be inferred.
            target: the name of the table's column with the values, in place of ``y``.
            name: of these data; ``None`` for the name of the file.
        Raises:
            TypeError: if these are not numbers.
            ValueError: if the shapes do not fit, a point lies outside the space, or other data were
                added under the same name.
            MemoryError: if a file is too large.
        """
        history = read_history(self.space, X, y, target=target, noise=noise, name=name)
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
        vectorized: bool = False,
        callbacks: Sequence[Callable[[Study, Round], None]] = (),
        progress: bool = True,
    ) -> Result:
        """Ask, evaluate and tell for a number of rounds.

        Points that are pending are evaluated first. Values are told as they arrive. An evaluation
        fails, with the reason, by an exception, a value that is NaN, infinite or no number, a
        timeout, or the end of its process. Ctrl-C once (with an ``executor``): nothing more is
        begun, and what is running is awaited and told; twice, or without an executor: at once. Call
        ``optimize`` again to go on.

        Args:
            objective: maps a dict of parameters to a number; called point by point. Or a
                ``Command``.
            rounds: how many rounds, beyond those that there were before; 0 to evaluate what is
                pending alone. There are fewer if the points of a finite space run out.
            batch: points a round.
            executor: where points are evaluated: a ``concurrent.futures.Executor`` of threads,
                processes, Dask and so on, or a function that makes one, such as
                ``lambda: ProcessPoolExecutor(8)``, which is called again when a pool is lost
                because a process died; ``None`` for this thread, one after the other.
            timeout: seconds for one evaluation; ``None`` for no limit. A function that takes longer
                is left to itself in a thread of its own, a ``Command`` is killed.
            max_failures: failed evaluations in this call, beyond which it stops; ``None`` to stop
                when a whole batch, and at least 10, fail in a row, or the first three raise the
                same.
            vectorized: call ``objective(X)`` with all points of a round, (q, d) in the user's
                units, for (q,) values; its exceptions are raised, and the points stay pending.
            callbacks: each called with the study and the ``Round`` at the end of a round.
            progress: show a bar on a terminal, one plain line a round elsewhere, on stderr.
        Returns:
            ``result``.
        Raises:
            TypeError, ValueError: if an argument is out of range, or what the objective returns is
                no sequence of the right length.
            RuntimeError: if too many evaluations fail, from what the objective raised; or if the
                executor is lost and there is no way to make another.
        """
        run_rounds(
            self,
            objective,
            rounds,
            batch,
            executor=executor,
            timeout=timeout,
            max_failures=max_failures,
            vectorized=vectorized,
            callbacks=callbacks,
            progress=progress,
        )
        return self.result

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write one HTML page that shows the study as it stands; it needs no network and runs no
        script.

        Args:
            path: of the page, whose folder is there; a page that is there is replaced.
        Raises:
            OSError: if it cannot be written.
        """
        from scalable_bo.report.page import write_report  # which draws

        write_report(self._snapshot(), Path(path))

    def close(self) -> None:
        """Let other processes open ``path``; a study in memory stays as it is."""
        self._record.storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _snapshot(self) -> Snapshot:
        """Return the study as it stands after the ask that runs, if one does."""
        with self._asking:
            return take_snapshot(
                self.space,
                self.maximize,
                self.num_initial,
                self._record,
                self._factory,
                self._proposer.checkpoint,
            )

    def _known(self) -> Known:
        with self._record.lock:
            return Known.of(
                self.space, self._record.rows, self._record.asks, self.maximize, self._training_data
            )

    def _training_data(self, num_observed: int) -> TrainingData:
        """Return the first values told."""
        with self._record.lock:
            return TrainingData.first(num_observed, self._record.rows, self.space, self.maximize)
