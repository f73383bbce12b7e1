"""Evaluate points on an executor, where whatever goes wrong is the failure of a point: exceptions,
time, workers that die.

Nothing here needs torch, so that the processes of an executor start quickly.
"""

from __future__ import annotations

import math
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass, field
from itertools import islice
from numbers import Real
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self

SECONDS_BETWEEN_LOOKS = 0.2  # at interruptions and at evaluations that do not end
# Beyond two timeouts: a process pool calls a point running while it still waits for its worker
SECONDS_OF_GRACE = 10.0
# After a pool broke: so many of the oldest points are evaluated one by one, to find the one that
# breaks it
MAX_SUSPECTS = 64
MAX_REASON = 500
# So many evaluations that raise the same, before any that does not, end a run
FAILURES_ALIKE = 3


class ErrorElsewhere(Exception):
    """What an objective raised in another process, with its traceback as text."""


@dataclass(frozen=True)
class Evaluation:
    """What became of a point.

    Attributes:
        id: of the point.
        value: finite, or NaN where the evaluation failed.
        reason: why it failed, else ``None``.
        error: what the objective raised; from another process, its traceback as text.
    """

    id: int
    value: float
    reason: str | None = None
    error: BaseException | None = field(default=None, compare=False, repr=False)

    @classmethod
    def failed(cls, id: int, reason: str, error: BaseException | None = None) -> Evaluation:
        """Return a failure, its reason on one line of bounded length."""
        line = " ".join(storable(reason).split())
        line = line if len(line) <= MAX_REASON else line[: MAX_REASON - 1] + "…"
        return cls(id, math.nan, line, error)

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception need not survive the way between processes; its text does.
        error = self.error
        if error is not None and not isinstance(error, ErrorElsewhere):
            error = ErrorElsewhere("".join(traceback.format_exception(error)))
        return Evaluation, (self.id, self.value, self.reason, error)

    @classmethod
    def of(cls, id: int, value: Any) -> Evaluation:
        """Read what an objective returned; what is NaN, infinite or no number has failed."""
        try:
            number = value if isinstance(value, Real) else _item(value)
            number = float(number) if isinstance(number, Real) else None
        except (AttributeError, TypeError, ValueError, RuntimeError, OverflowError):
            number = None
        if number is None:
            return cls.failed(id, f"not a number: {type(value).__name__} {value!r:.80}")
        return (
            cls(id, number) if math.isfinite(number) else cls.failed(id, f"the value is {number}")
        )


def call(
    objective: Callable[[dict[str, Any]], Any],
    timeout: float | None,
    id: int,
    params: dict[str, Any],
) -> Evaluation:
    """Evaluate ``objective(params)``; after ``timeout`` seconds the point has failed,
    and the call goes on in a thread of its own.
    """
    try:
        return Evaluation.of(
            id, objective(params) if timeout is None else _within(timeout, objective, params)
        )
    except _TooLateError as error:
        return Evaluation.failed(id, f"TimeoutError: {error}")
    except (Exception, SystemExit) as error:
        return Evaluation.failed(id, f"{type(error).__name__}: {error}", error)


def storable(text: str) -> str:
    """Return a text that every file can hold: lone surrogates as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


class Evaluator:
    """Evaluates points on an executor, as a context manager that shuts down the executors it made.

    A point whose evaluation ends its process breaks a whole pool of processes. With a function that
    makes a new pool, the points that were out are evaluated one by one until the one that breaks
    the pool is found; it has failed, the others go on.

    Args:
        evaluate: from an id and a dict of parameters to an ``Evaluation``, in whatever thread or
            process.
        executor: where; a function that makes an executor; or ``None`` for the calling thread.
        timeout: seconds after which ``evaluate`` ends by itself. What has not answered long after
            is given up, with its executor.
        stopped: asked now and then: whether to evaluate nothing more.
    """

    def __init__(
        self,
        evaluate: Callable[[int, dict[str, Any]], Evaluation],
        executor: Executor | Callable[[], Executor] | None,
        timeout: float | None,
        stopped: Callable[[], bool],
    ) -> None:
        self._evaluate = evaluate
        self._stopped = stopped
        self._patience = math.inf if timeout is None else 2 * timeout + SECONDS_OF_GRACE
        self._make = None if executor is None or isinstance(executor, Executor) else executor
        self._executor = executor if isinstance(executor, Executor) else None

    def __enter__(self) -> Self:
        if self._make is not None:
            self._executor = self._make()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._make is not None and self._executor is not None:
            self._executor.shutdown(wait=kind is None)

    def run(self, points: Mapping[int, dict[str, Any]]) -> Generator[list[Evaluation], None, None]:
        """Yield evaluations as they finish, some at a time. Stopped, it yields an empty list and
        then what is still running.

        Raises:
            RuntimeError: if the executor broke, or hangs, and there is no way to make another.
            TypeError: if a point or the objective cannot be sent to the executor's processes.
        """
        if self._executor is None:
            for id, params in points.items():
                if self._stopped():
                    return
                yield [self._evaluate(id, params)]
            return
        left = dict(points)
        suspects = 0
        while left and not self._stopped():
            chosen = dict(islice(left.items(), 1 if suspects else None))
            loss = yield from self._follow(chosen, left)
            suspects = max(suspects - 1, 0)
            if loss is None or self._stopped():
                continue
            if self._make is None:
                raise RuntimeError(
                    f"The executor is lost: {loss.reason}. {len(left)} points stay pending. Give"
                    " `executor` as a function that makes one, such as `lambda:"
                    " ProcessPoolExecutor(4)`: then the points that were out are tried again in a"
                    " new one."
                )
            if not loss.culprit_is_known:
                if len(chosen) == 1:
                    (culprit,) = chosen
                    del left[culprit]
                    yield [Evaluation.failed(culprit, loss.reason)]
                suspects = 0 if len(chosen) == 1 else MAX_SUSPECTS
            self._replace_executor()

    def _follow(
        self, points: Mapping[int, dict[str, Any]], left: dict[int, dict[str, Any]]
    ) -> Generator[list[Evaluation], None, _Loss | None]:
        """Evaluate ``points``, removing what has finished from ``left``;
        return how the executor was lost, if it was.
        """
        assert self._executor is not None
        done: SimpleQueue[Future[Evaluation]] = SimpleQueue()
        futures: dict[Future[Evaluation], int] = {}
        begun: dict[Future[Evaluation], float] = {}
        loss = None
        announced = False
        try:
            try:
                for id, params in points.items():
                    future = self._executor.submit(self._evaluate, id, params)
                    futures[future] = id
                    future.add_done_callback(done.put)
            except BrokenExecutor as error:
                loss = _Loss(f"{type(error).__name__}: {error}", False)
            while futures:
                if self._stopped() and not announced:
                    announced = True
                    futures = {future: id for future, id in futures.items() if not future.cancel()}
                    yield []
                    continue
                evaluations: list[Evaluation] = []
                for future in _drain(done):
                    if future not in futures:
                        continue
                    id = futures.pop(future)
                    trouble = None if future.cancelled() else future.exception()
                    if isinstance(trouble, BrokenExecutor):
                        loss = _Loss(f"its process ended: {trouble}", False)
                        continue
                    del left[id]
                    evaluations.append(_evaluation_of(future, id, trouble))
                if not evaluations and (late := _late(futures, begun, self._patience)):
                    reason = f"no answer within {self._patience:g} s"
                    for id in late:
                        del left[id]
                    yield [Evaluation.failed(id, reason) for id in late]
                    return _Loss(f"{len(late)} evaluations gave {reason}", True)
                if evaluations:
                    yield evaluations
            return loss
        finally:
            for future in futures:
                future.cancel()

    def _replace_executor(self) -> None:
        assert self._executor is not None and self._make is not None
        # Processes that hang would keep this one from ending. Python 3.14 has `kill_workers` for
        # it.
        processes = list((getattr(self._executor, "_processes", None) or {}).values())
        self._executor.shutdown(wait=False)
        for process in processes:
            process.kill()
        self._executor = self._make()


class Interruption:
    """While entered, the first Ctrl-C sets ``requested``, the second raises ``KeyboardInterrupt``.

    It may be entered again. In other threads than the main one, and beside a handler of the
    program's own, it changes nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._installed = False

    def __enter__(self) -> Self:
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._installed = False

    def __call__(self) -> bool:
        """Return whether an interruption was requested."""
        return self.requested

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


class FailureLimit:
    """Counts failures.

    Without a maximum, a number of failures in a row is too many, and so are three evaluations that
    raise the same before any gave a value: the objective does not work at all.

    Args:
        maximum: of failures, over all evaluations; ``None`` for the rules above.
        in_a_row: that number.
    """

    def __init__(self, maximum: int | None, in_a_row: int) -> None:
        self._maximum = maximum
        self._in_a_row = in_a_row
        self._total = 0
        self._row = 0
        self._alike: str | None = None  # what all so far have raised
        self._num_checked = 0
        self._last: Evaluation | None = None

    def check(self, evaluations: Sequence[Evaluation]) -> None:
        """Count evaluations.

        Raises:
            RuntimeError: beyond the limit, from what the objective raised last.
        """
        for one in evaluations:
            failed = one.reason is not None
            raised = one.reason if one.error is not None else None
            self._alike = raised if raised == self._alike or not self._num_checked else None
            self._num_checked += 1
            self._row = self._row + 1 if failed else 0
            self._total += failed
            if failed:
                self._last = one
            if self._maximum is None and self._alike and self._row == FAILURES_ALIKE:
                break
        if self._maximum is not None and self._total > self._maximum:
            what = f"{self._total} evaluations failed, more than `max_failures` = {self._maximum}"
        elif self._maximum is None and self._alike and self._row >= FAILURES_ALIKE:
            what = f"The first {self._row} evaluations all raised the same"
        elif self._maximum is None and self._row >= self._in_a_row:
            what = f"The last {self._row} evaluations failed, and `max_failures` is not set"
        else:
            return
        assert self._last is not None
        raise RuntimeError(
            f"{what}; the last reason: {self._last.reason}. Mend the objective, or set"
            " `max_failures` to go on; all values are kept, and `retry` has what failed evaluated"
            " again."
        ) from self._last.error


class _Loss(NamedTuple):
    """How an executor was lost, and whether the points that did it have been found."""

    reason: str
    culprit_is_known: bool


class _TooLateError(Exception):
    """There was no value in time."""


def _item(value: Any) -> Any:
    """Return the one number of an array; a sparse tensor has none before it is dense."""
    return value.to_dense().item() if getattr(value, "is_sparse", False) else value.item()


def _within(
    seconds: float, objective: Callable[[dict[str, Any]], Any], params: dict[str, Any]
) -> Any:
    answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def work() -> None:
        try:
            answers.put((objective(params), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        value, error = answers.get(timeout=min(seconds, threading.TIMEOUT_MAX))
    except Empty:
        raise _TooLateError(f"no value within {seconds:g} s") from None
    if error is not None:
        raise error
    return value


def _drain(done: SimpleQueue[Future[Evaluation]]) -> list[Future[Evaluation]]:
    """Wait a moment for something, and return all there is."""
    futures = []
    try:
        futures.append(done.get(timeout=SECONDS_BETWEEN_LOOKS))
        while True:
            futures.append(done.get_nowait())
    except Empty:
        return futures


def _evaluation_of(future: Future[Evaluation], id: int, error: BaseException | None) -> Evaluation:
    if future.cancelled():
        return Evaluation.failed(id, "cancelled by the executor")
    if isinstance(error, KeyboardInterrupt):
        raise error
    # `evaluate` keeps the objective's errors to itself: these are of the way there and back.
    if isinstance(error, AttributeError | TypeError) or "Pickl" in type(error).__name__:
        raise TypeError(
            "The objective, its parameters or its answer could not be sent between processes:"
            f" {error}. Define the objective at the top of a module, or use threads."
        ) from error
    return (
        future.result()
        if error is None
        else Evaluation.failed(id, f"{type(error).__name__}: {error}")
    )


def _late(
    futures: dict[Future[Evaluation], int], begun: dict[Future[Evaluation], float], patience: float
) -> list[int]:
    """Return the points that have run longer than ``patience``;
    ``begun`` keeps when each was first seen running.
    """
    if math.isinf(patience):
        return []
    now = time.monotonic()
    running = [future for future in futures if future.running()]
    return [futures[future] for future in running if now - begun.setdefault(future, now) > patience]
