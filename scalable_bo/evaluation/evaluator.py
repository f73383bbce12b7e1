"""Evaluate points on an executor, where whatever goes wrong is the failure of a point: exceptions,
time, workers that die.

Nothing here needs torch, so that the processes of an executor start quickly.
"""

from __future__ import annotations

import math
import operator
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Self, cast

from scalable_bo.evaluation import processes
from scalable_bo.evaluation.separate_processes import ProcessLostError, SeparateProcesses
from scalable_bo.space.quoting import quote, shorten

MAX_REASON = 500  # characters of a text that comes from outside
MOST_BYTES = 2**20  # of what others send at once: a line, a request, a configuration
# What an object raises that has no number
NO_NUMBER = (AttributeError, TypeError, ValueError, RuntimeError, OverflowError)
# From the number of evaluations that are out to the points to evaluate next, by id: none if there
# are none as yet, `None` if there will be no more
Source = Callable[[int], Mapping[int, dict[str, Any]] | None]
_LOADED_BY = os.getpid()


class ErrorElsewhere(Exception):
    """What an objective raised in another process, with its traceback as text."""


def text_of(error: BaseException) -> str:
    """Return the name of an error and its text, which is made by the error's own code."""
    try:
        text = str(error)
    except Exception:
        text = "its text cannot be read"
    return f"{type(error).__name__}: {text}"


class AnswerError(ValueError):
    """A value holds numbers, and not one for each of the study's outcomes."""


class LateError(ValueError):
    """A point has been told another value before."""


@dataclass(frozen=True)
class Evaluation:
    """What became of a point.

    Attributes:
        value: finite, or NaN where the evaluation gave none.
        reason: why there is no value or, of several outcomes, not one of each; else ``None``.
        error: what the objective raised; from another process, its traceback as text.
        further: of several outcomes, the values after the first.
        seconds: that it took; NaN where nobody measured them.
    """

    id: int
    value: float
    reason: str | None = None
    error: BaseException | None = field(default=None, compare=False, repr=False)
    further: tuple[float, ...] = ()
    seconds: float = field(default=math.nan, compare=False)

    @property
    def failure(self) -> str | None:
        """Why the evaluation failed; ``None`` if it gave the value of any outcome."""
        return None if any(map(math.isfinite, (self.value, *self.further))) else self.reason

    @classmethod
    def failed(cls, id: int, reason: str, error: BaseException | None = None) -> Evaluation:
        """Return a failure, its reason on one line of bounded length."""
        line = " ".join(storable(reason).split())
        return cls(id, math.nan, shorten(line, MAX_REASON), error)

    @classmethod
    def raised(cls, id: int, error: BaseException) -> Evaluation:
        """Return the failure of what raised: the error and its places in the user's code."""
        places = " → ".join(_places(error))
        room = MAX_REASON - len(places) - len(" (in )")
        line = " ".join(text_of(error).split())
        if not places or room < len(type(error).__name__):
            return cls.failed(id, line, error)
        return cls.failed(id, f"{shorten(line, room)} (in {places})", error)

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception need not survive the way between processes; its text does.
        error = self.error
        if error is not None and not isinstance(error, ErrorElsewhere):
            error = ErrorElsewhere("".join(traceback.format_exception(error)))
        return Evaluation, (self.id, self.value, self.reason, error, self.further, self.seconds)

    @property
    def told(self) -> float | tuple[float, ...]:
        """What a study is told: the value, or all of several outcomes."""
        return (self.value, *self.further) if self.further else self.value

    @classmethod
    def of(cls, id: int, value: Any, outcomes: Sequence[str] = ()) -> Evaluation:
        """Read what an objective returned: a number or, with the names of several ``outcomes``, a
        number of each, by name or in their order. An outcome whose number is NaN or infinite, or
        that has none, is unknown; the evaluation has failed if all are.

        Raises:
            AnswerError: if there are more or fewer numbers than outcomes, or a name is not known.
            ValueError: if a number is too large.
        """
        if outcomes:
            return cls._of_several(id, value, outcomes)
        number, reason = _read_number(value, f"The value of point {id}")
        return cls(id, number) if reason is None else cls.failed(id, reason)

    @classmethod
    def _of_several(cls, id: int, value: Any, outcomes: Sequence[str]) -> Evaluation:
        what = f"The value of point {id}"
        wanted = ", ".join(outcomes)
        given = value.to_dict() if hasattr(value, "to_dict") else value  # a row of a table
        if not isinstance(given, Mapping):
            try:
                values = [value] if isinstance(value, str | bytes) else list(value)
            except NO_NUMBER:
                values = [value]
            if len(values) != len(outcomes) or isinstance(value, str):
                if len(values) < 2 and math.isnan(_read_number(values, what)[0]):
                    reason = f"there must be values of {wanted}, got {quote(value)}"
                    return cls.failed(id, reason)
                raise AnswerError(
                    f"{what} must be one number for each of {wanted}, got {quote(value)}. Give NaN"
                    " where an outcome was not measured."
                )
            given = dict(zip(outcomes, values, strict=True))
        if unknown := [one for one in given if not isinstance(one, str) or one not in outcomes]:
            (nearest,) = get_close_matches(quote(unknown[0]), outcomes, 1, cutoff=0.0)
            raise AnswerError(
                f"{what} must be of the outcomes {wanted}, got {quote(unknown[0])}; the nearest is"
                f" {nearest!r}. Correct the name, or leave it out."
            )
        missing = [name for name in outcomes if name not in given]
        reasons = [f"there is no value of {', '.join(missing)}"] if missing else []
        numbers = dict.fromkeys(outcomes, math.nan)
        for name in (name for name in outcomes if name in given):
            numbers[name], why = _read_number(given[name], f"{what} for {name!r}")
            reasons += [] if why is None else [f"{name}: {why}"]
        first, *further = numbers.values()
        if not any(map(math.isfinite, numbers.values())):
            return cls.failed(id, reasons[0])
        found = cls.failed(id, reasons[0]) if reasons else cls(id, first)
        return replace(found, value=first, further=tuple(further))


def call(
    objective: Callable[[dict[str, Any]], Any],
    timeout: float | None,
    id: int,
    params: dict[str, Any],
    *,
    outcomes: Sequence[str] = (),
) -> Evaluation:
    """Evaluate ``objective(params)``, of several ``outcomes`` if they have names; after ``timeout``
    seconds the point has failed, and the call goes on in a thread of its own.
    """
    try:
        with _ending_forks():
            value = objective(params) if timeout is None else _within(timeout, objective, params)
        return Evaluation.of(id, value, outcomes)
    except AnswerError:
        raise
    except _TooLateError as error:
        return Evaluation.failed(id, f"TimeoutError: {error}")
    except (Exception, SystemExit) as error:
        return Evaluation.raised(id, error)


def timed(evaluate: Callable[..., Evaluation], *arguments: Any, **options: Any) -> Evaluation:
    """Return an evaluation with the seconds that it took."""
    start = time.perf_counter()
    evaluation = evaluate(*arguments, **options)
    return replace(evaluation, seconds=time.perf_counter() - start)


def whole_numbers(ids: Any) -> list[int]:
    """Return ids as a list of ints."""
    try:
        return [operator.index(number) for number in ids]
    except NO_NUMBER as error:
        raise TypeError(
            f"`ids` must be whole numbers, such as `batch.ids`, got {quote(ids)}."
        ) from error


def storable(text: str, name: str = "text") -> str:
    """Return a text as every file can hold it, lone surrogates as escapes."""
    if not isinstance(text, str):
        raise TypeError(f"`{name}` must be a text, got {quote(text)}.")
    return text.encode("utf-8", "backslashreplace").decode()


class Evaluator:
    """Evaluates points on an executor, as a context manager that shuts down the executors it made.

    A function that makes a pool of processes is called for each, so that a point that ends its
    process fails alone. Where it makes others and one breaks, it is called again, and the points
    that were out are evaluated one by one until the one that breaks it is found.

    Args:
        evaluate: from an id and a dict of parameters to an ``Evaluation``, in whatever thread or
            process.
        executor: where; a function that makes an executor; or ``None`` for the calling thread.
        timeout: seconds after which ``evaluate`` ends by itself. What has not answered long after
            is given up, with its process or executor.
        stopped: asked now and then: whether to evaluate nothing more.
        abandon: ends what still runs in threads, where an exception ends the evaluations.
        grace: seconds beyond twice the timeout, after which what gives no answer is lost: executors
            may call a point running while it still waits for its worker.

    Attributes:
        executor: where, now; ``None`` for the calling thread, and before the one is made.
    """

    def __init__(
        self,
        evaluate: Callable[[int, dict[str, Any]], Evaluation],
        executor: Executor | Callable[[], Executor] | None,
        timeout: float | None,
        stopped: Callable[[], bool],
        abandon: Callable[[], None] | None = None,
        grace: float = 10.0,
    ) -> None:
        self._evaluate = evaluate
        self._stopped = stopped
        self._abandon = abandon
        self._futures: dict[Future[Evaluation], int] = {}  # those that are out
        self._source: Source | None = None
        self._patience = math.inf if timeout is None else 2 * timeout + grace
        self._make = None if executor is None or isinstance(executor, Executor) else executor
        self.executor = executor if isinstance(executor, Executor) else None

    def __enter__(self) -> Self:
        if self._make is not None:
            self.executor = self._made(self._make)
        return self

    def _made(self, make: Callable[[], Executor]) -> Executor:
        made = make()
        if not isinstance(made, ProcessPoolExecutor):
            return made
        patience = None if self._patience > threading.TIMEOUT_MAX else self._patience
        return SeparateProcesses(made, cast("Any", make), patience)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._cancel()
        if kind is not None and self._abandon is not None:
            self._abandon()
        if self._make is not None and self.executor is not None:
            if kind is None:
                self.executor.shutdown()
            else:
                self._end_executor()

    def run(
        self, points: Mapping[int, dict[str, Any]], source: Source | None = None
    ) -> Generator[list[Evaluation], None, None]:
        """Yield evaluations as they finish, some at a time. Stopped, it yields an empty list and
        then what is still running.

        Args:
            source: of further points, asked again and again; it needs an executor.

        Raises:
            RuntimeError: if the executor broke, or hangs, and there is no way to make another.
            TypeError: if a point or the objective cannot be sent to the executor's processes.
            AnswerError, KeyboardInterrupt: of an evaluation, after what has finished.
        """
        if self.executor is None:
            for id, params in points.items():
                if self._stopped():
                    return
                yield [self._evaluate(id, params)]
            return
        left = dict(points)
        suspects: set[int] = set()  # that were out when an executor broke
        self._source = source
        while (left or self._source) and not self._stopped():
            suspects &= left.keys()
            chosen = {id: left[id] for id in [*suspects][:1] or left}
            loss = yield from self._follow(chosen, left, alone=bool(suspects))
            if loss is None or self._stopped():
                continue
            if self._make is None:
                raise RuntimeError(
                    f"The executor is lost: {loss.reason.rstrip('.')}. Its points stay pending."
                    " Give `executor` as a function that makes one, such as `lambda:"
                    " ProcessPoolExecutor(4)`: then the points that were out are tried again in a"
                    " new one."
                )
            if not loss.culprit_is_known:
                suspects = set(chosen) if len(chosen) > 1 else set()
                if not suspects:
                    (culprit,) = chosen
                    del left[culprit]
                    yield [Evaluation.failed(culprit, loss.reason)]
            self._end_executor()
            self.executor = self._made(self._make)

    def _follow(
        self, points: dict[int, dict[str, Any]], left: dict[int, dict[str, Any]], *, alone: bool
    ) -> Generator[list[Evaluation], None, _Loss | None]:
        """Evaluate ``points`` and, unless they are to be ``alone``, those of the source, removing
        what has finished from ``left``; return how the executor was lost, if it was.
        """
        done: SimpleQueue[Future[Evaluation]] = SimpleQueue()
        futures = self._futures = {}
        begun: dict[Future[Evaluation], float] = {}
        loss = None
        refused = None
        announced = False
        try:
            loss = self._submit(points, done)
            while futures or (self._source and not (alone or announced) and loss is None):
                if self._stopped() and not announced:
                    announced = True
                    self._cancel()
                    yield []
                    continue
                if self._source and not (alone or announced) and loss is None:
                    loss = self._submit(self._further(len(futures), points, left), done)
                evaluations: list[Evaluation] = []
                for future in _drain(done):
                    if future not in futures:
                        continue
                    id = futures.pop(future)
                    if announced and future.cancelled():
                        continue
                    trouble = None if future.cancelled() else future.exception()
                    if isinstance(trouble, BrokenExecutor):
                        loss = _Loss(f"its process ended: {trouble}", False)
                        continue
                    try:
                        evaluations.append(_evaluation_of(future, id, trouble))
                        del left[id]
                    except (AnswerError, TypeError, KeyboardInterrupt) as error:
                        refused = error
                if evaluations:
                    yield evaluations
                if refused is not None:
                    raise refused
                if not evaluations and (late := self._late(begun)):
                    reason = f"no answer within {self._patience:g} s"
                    for id in late:
                        del left[id]
                    yield [Evaluation.failed(id, reason) for id in late]
                    return _Loss(reason, True)
            return loss
        except TypeError:
            # A point cannot be sent. Further ones fail alike before they are cancelled: a pool that
            # is cancelled or killed meanwhile ends its thread in an error
            wait(futures, processes.SECONDS_TO_END)
            raise
        finally:
            self._cancel()

    def _cancel(self) -> None:
        """Cancel what is out and has not begun."""
        for future in self._futures:
            future.cancel()

    def _submit(
        self, points: Mapping[int, dict[str, Any]], done: SimpleQueue[Future[Evaluation]]
    ) -> _Loss | None:
        """Send points to the executor, whose futures go to ``done``; return how it was lost."""
        assert self.executor is not None
        evaluate: Callable[[int, dict[str, Any]], Evaluation] = self._evaluate
        is_pool = isinstance(self.executor, ProcessPoolExecutor)
        is_ours = isinstance(self.executor, SeparateProcesses)
        if is_pool or is_ours:
            evaluate = partial(_evaluate_in_worker, processes.own_mark(), is_ours, evaluate)
        try:
            for id, params in points.items():
                # A pool may start a process
                with processes.adopting() if is_pool else nullcontext():
                    future = self.executor.submit(evaluate, id, params)
                if is_pool:
                    processes.watch(getattr(self.executor, "_processes", None) or ())
                self._futures[future] = id
                future.add_done_callback(done.put)
        except BrokenExecutor as error:
            return _Loss(text_of(error), False)
        return None

    def _late(self, begun: dict[Future[Evaluation], float]) -> list[int]:
        """Return the points that have run for too long; ``begun`` notes since when."""
        if math.isinf(self._patience) or isinstance(self.executor, SeparateProcesses):
            return []
        now = time.monotonic()
        running = [future for future in self._futures if future.running()]
        late = [one for one in running if now - begun.setdefault(one, now) > self._patience]
        return [self._futures[future] for future in late]

    def _further(
        self, num_out: int, points: dict[int, dict[str, Any]], left: dict[int, dict[str, Any]]
    ) -> Mapping[int, dict[str, Any]]:
        """Return what the source has, to become part of the ``points`` and of what is ``left``."""
        assert self._source is not None
        further = self._source(num_out)
        if further is None:
            self._source = None
            return {}
        points.update(further)
        left.update(further)
        return further

    def _end_executor(self) -> None:
        """End an executor at once: processes that hang would keep this one from ending."""
        assert self.executor is not None
        if isinstance(self.executor, SeparateProcesses):
            self.executor.kill()
            return
        workers = list(getattr(self.executor, "_processes", None) or ())  # before it forgets them
        self.executor.shutdown(wait=False)
        processes.kill_all(workers)


def _evaluate_in_worker(
    mark: str,
    is_ours: bool,
    evaluate: Callable[[int, dict[str, Any]], Evaluation],
    id: int,
    params: dict[str, Any],
) -> Evaluation:
    """Evaluate a point in a process of a pool; if that is ours, the main one handles Ctrl-C."""
    processes.join(mark)
    _leave_threads_of_parent(os.getpid())
    if is_ours and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return evaluate(id, params)


@cache
def _leave_threads_of_parent(pid: int) -> None:
    """Let PyTorch use one thread, once, after a fork: it would wait for those of its parent."""
    if pid != _LOADED_BY and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


class _Loss(NamedTuple):
    """How an executor was lost, and whether the points that did it have been found."""

    reason: str
    culprit_is_known: bool


class _TooLateError(Exception):
    """There was no value in time."""


def _read_number(value: Any, what: str) -> tuple[float, str | None]:
    """Return the finite number of a value, or NaN and why there is none; errors name ``what``."""
    outer: set[int] = set()  # the lists around it, one of which may be in it
    try:
        while isinstance(value, list | tuple) and len(value) == 1 and id(value) not in outer:
            outer.add(id(value))
            (value,) = value
        if isinstance(shape := getattr(value, "shape", None), tuple):
            several = math.prod(shape) > 1
        else:
            is_text = isinstance(value, str | bytes | bytearray)
            several = isinstance(value, Collection) and not is_text and len(value) > 0
        if several:
            raise TypeError
        number = to_float(value)
    except OverflowError:
        raise ValueError(
            f"{what} must be at most {sys.float_info.max:.1e} in size, got a larger"
            f" {type(value).__name__}. Scale it, or give its logarithm."
        ) from None
    except TypeError as error:  # by what holds more than a number, such as its deviation or unit
        raise AnswerError(
            f"{what} must be one number, got {quote(value)}{f': {error}' if error.args else ''}."
            " Give the number alone; the `noise` of `tell` is for a known variance, of one outcome."
        ) from None
    except NO_NUMBER:
        return math.nan, f"not a number: {type(value).__name__} {quote(value)}"
    return (number, None) if math.isfinite(number) else (math.nan, f"the value is {number}")


def to_float(value: Any) -> float:
    """Return the number of an array of one, or of whatever else has one; no text has. Raise
    OverflowError if it is finite, and no float is as large, and one of ``NO_NUMBER`` if there is
    none.
    """
    if hasattr(value, "filled") and value.mask:  # a masked array
        return math.nan
    value = value.to_dense() if getattr(value, "is_sparse", False) else value
    value = value.item() if hasattr(value, "item") else value
    number = float(value.__float__())
    if math.isinf(number) and value != number:
        raise OverflowError
    return number


def _places(error: BaseException, most: int = 4) -> list[str]:
    """Return an error's places beside this file, the innermost last: the first and last of many."""
    places = [
        f"{frame.name}, {Path(frame.filename).name}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__
    ]
    return places if len(places) <= most else [places[0], "…", *places[1 - most :]]


@contextmanager
def _ending_forks() -> Iterator[None]:
    """End a process that is forked inside as Python would: it is to evaluate no further points."""
    process, end = os.getpid(), None
    try:
        yield
    except BaseException as error:
        if os.getpid() == process:
            raise
        end = error.code if isinstance(error, SystemExit) else traceback.format_exc()
    if os.getpid() != process:
        with suppress(Exception):  # the terminal may be closed
            sys.stderr.write("" if isinstance(end, int | None) else f"{end}\n")
            sys.stdout.flush()
        os._exit(end & 0xFF if isinstance(end, int) else int(end is not None))


def _within(
    seconds: float, objective: Callable[[dict[str, Any]], Any], params: dict[str, Any]
) -> Any:
    answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def work() -> None:
        try:
            with _ending_forks():
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
        futures.append(done.get(timeout=processes.SECONDS_BETWEEN_LOOKS))
        while True:
            futures.append(done.get_nowait())
    except Empty:
        return futures


def _evaluation_of(future: Future[Evaluation], id: int, error: BaseException | None) -> Evaluation:
    if future.cancelled():
        return Evaluation.failed(id, "cancelled by the executor")
    if isinstance(error, AnswerError | KeyboardInterrupt):
        raise error
    if isinstance(error, ProcessLostError):
        return Evaluation.failed(id, str(error))
    # `evaluate` keeps the objective's errors to itself: these are of the way there and back.
    if isinstance(error, AttributeError | TypeError) or "Pickl" in type(error).__name__:
        raise TypeError(
            "The objective, its parameters or its answer could not be sent between processes:"
            f" {error}. Define the objective at the top of a module, or use threads."
        ) from error
    return future.result() if error is None else Evaluation.failed(id, text_of(error))
