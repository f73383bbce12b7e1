"""An objective that is a program of its own: a JSON line in for each point, a JSON line out.

    in    {"id": 7, "params": {"x": 0.5, "kind": "a"}}
    out   {"id": 7, "value": 1.25}      or {"id": 7, "error": "did not converge"}

A program may answer one line and end, or go on reading; then the next points are given to it, too.
Its input stays open: it must read a line, as reading to the end of the input would wait for ever.
It is watched as a process, whoever else holds its output open, and leaves none behind.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import termios
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from scalable_bo.evaluation import processes
from scalable_bo.evaluation.evaluator import MAX_REASON, MOST_BYTES, AnswerError, Evaluation
from scalable_bo.space.quoting import shorten

MAX_COMPLAINT = 4 * MAX_REASON  # bytes of stderr, of which a character has four at most


class Command:
    """Evaluates points by a program, one process for each thread that calls.

    What is no answer to the point (no JSON object, another id, a line above 1 MiB, none in time,
    the end of the program) fails the point, and the process is killed with those it started. The
    next point gets a new one, and so does a point that an ended process has not read. As the input
    stays open, a program must read a line of it, such as by ``sys.stdin.readline()``, and not all.

    Args:
        command: the program and its arguments; a string is split as by a shell, which is not run.
        folder: where it runs; ``None`` for the current one at the start of each process.
    Raises:
        TypeError, ValueError: if ``command`` is no list of strings, or empty.

    ```python
    study.optimize(Command("./simulate --quick"), rounds=10, batch=50,
    executor=ThreadPoolExecutor(8), timeout=600.0) ```
    """

    def __init__(
        self, command: str | Sequence[str], *, folder: str | os.PathLike[str] | None = None
    ) -> None:
        parts = shlex.split(command) if isinstance(command, str) else command
        if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
            raise TypeError(f"`command` must be a string or a list of strings, got {command!r}.")
        if not parts or not parts[0]:
            raise ValueError(f"`command` must name a program, got {command!r}.")
        self.command = tuple(parts)
        self.folder = None if folder is None else Path(folder).absolute()
        self._idle: SimpleQueue[_Process] = SimpleQueue()
        self._running: set[_Process] = set()
        self._num_stops = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Command, folder=self.folder), (self.command,)

    def require_program(self) -> None:
        """Require that the program is there and may be run; it is not run.

        Raises:
            ValueError: naming the program.
        """
        program = self.command[0]
        folder = self.folder or Path()
        # As when it is started: what has a slash is relative to the folder it runs in.
        if shutil.which(folder / program if os.sep in program else program) is None:
            raise ValueError(
                f"`command` must name a program that can be run, got {program!r}. Make it"
                " executable, or correct its path."
            )

    def evaluate(
        self,
        timeout: float | None,
        id: int,
        params: dict[str, Any],
        *,
        outcomes: Sequence[str] = (),
    ) -> Evaluation:
        """Give a point to the program, and wait ``timeout`` seconds for the answer, whose value is
        of several ``outcomes`` if they have names.
        """
        line = json.dumps({"id": id, "params": params})
        num_stops = self._num_stops
        start = time.monotonic()
        idle = self._take_idle()
        while True:
            try:
                process = idle or _Process.start(self.command, self.folder)
            except OSError as error:
                reason = f"{self.command[0]} could not be started: {error.strerror}"
                return Evaluation.failed(id, reason, error)
            self._running.add(process)
            usable = False
            try:
                if self._num_stops > num_stops:
                    raise _NoAnswerError("the program was stopped")
                evaluation = _read_answer(id, outcomes, process.ask(line, timeout, start))
                usable = not process.output  # it has said no more than it was asked for
                return evaluation
            except _NoAnswerError as error:
                # One that answers once may end only now, and has answered the point before
                answers_once = idle and isinstance(error, _UnreadError)
                if not answers_once or self._num_stops > num_stops:
                    return _failed(id, process, error)
                idle = None
            finally:
                self._running.discard(process)
                if usable:
                    self._idle.put(process)
                else:
                    process.end()

    def close(self) -> None:
        """Kill what runs; close the input of idle processes, and kill those that do not end."""
        self.stop()
        idle = list(iter(self._take_idle, None))
        for process in idle:
            with suppress(OSError):  # it may end by itself
                assert process.popen.stdin
                process.popen.stdin.close()
        end = time.monotonic() + processes.SECONDS_TO_END
        for process in idle:
            process.wait(end - time.monotonic())
            process.end()

    def stop(self) -> None:
        """Kill what runs: its points fail."""
        self._num_stops += 1
        for process in list(self._running):
            process.kill()

    def _take_idle(self) -> _Process | None:
        with suppress(Empty):
            while True:
                process = self._idle.get_nowait()
                if not process.has_ended():
                    return process
                process.end()
        return None


class _NoAnswerError(Exception):
    """What a program did in place of an answer."""


class _UnreadError(_NoAnswerError):
    """It ended before it had read the point."""


@dataclass(eq=False)
class _Process:
    """A running program: its mark, what it has written and nobody has read, the end of its stderr.

    It is waited for once it has been killed and no earlier: until then its number, and that of its
    group, are its own.
    """

    popen: subprocess.Popen[bytes]
    mark: str
    output: bytearray = field(default_factory=bytearray)
    complaints: bytearray = field(default_factory=bytearray)

    @classmethod
    def start(cls, command: Sequence[str], folder: Path | None) -> _Process:
        pipe = subprocess.PIPE
        mark = f"{processes.own_mark()}{os.getpid()}-{next(_numbers)}."
        # In a session of its own: Ctrl-C does not reach it, and all it starts can be killed at once
        popen = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=folder,
            env={**os.environ, processes.MARK: mark},
            start_new_session=True,
        )
        assert popen.stdin and popen.stdout and popen.stderr
        for stream in (popen.stdin, popen.stdout, popen.stderr):
            os.set_blocking(stream.fileno(), False)
        return cls(popen, mark)

    def has_ended(self) -> bool:
        return self._end_status() is not None

    def wait(self, seconds: float) -> None:
        """Wait until it has ended, at most so long."""
        end = time.monotonic() + seconds
        pause = 1e-3
        while not self.has_ended() and time.monotonic() < end:
            time.sleep(pause)
            pause = min(2 * pause, processes.SECONDS_BETWEEN_LOOKS)

    def ask(self, line: str, timeout: float | None, start: float) -> bytes:
        """Send a line and return the next one, or the beginning of one with which the output ends;
        the ``timeout`` counts from ``start``.
        """
        popen = self.popen
        end = math.inf if timeout is None else start + timeout
        assert popen.stdin and popen.stdout and popen.stderr
        unsent = memoryview(line.encode() + b"\n")
        with selectors.DefaultSelector() as selector:
            selector.register(popen.stdout, selectors.EVENT_READ)
            selector.register(popen.stderr, selectors.EVENT_READ)
            selector.register(popen.stdin, selectors.EVENT_WRITE)
            while b"\n" not in self.output:
                left = end - time.monotonic()
                if left <= 0:
                    raise _NoAnswerError(f"TimeoutError: no answer within {timeout:g} s")
                # Asked before its output is read: what it wrote before it ended is there by then.
                has_ended = self.has_ended()
                num_read = len(self.output)
                wait = 0 if has_ended else min(left, processes.SECONDS_BETWEEN_LOOKS)
                for key, _ in selector.select(wait):
                    if key.fileobj is popen.stdin:
                        # A pipe is broken if it reads no more; whether it answers, stdout says
                        with suppress(BrokenPipeError):
                            unsent = unsent[os.write(key.fd, unsent) :]
                            if unsent:
                                continue
                        selector.unregister(popen.stdin)
                    elif not self._receive(key.fd, is_answer=key.fileobj is popen.stdout):
                        selector.unregister(key.fileobj)
                        has_ended |= key.fileobj is popen.stdout
                if has_ended and len(self.output) == num_read:
                    self._receive(popen.stderr.fileno(), is_answer=False)
                    if self.output:  # which stays, so that nothing more is asked of the program
                        return bytes(self.output)
                    why = f"the program ended without an answer, {self._end_state()}"
                    raise (_UnreadError if unsent or self._has_unread() else _NoAnswerError)(why)
                if len(self.output) > MOST_BYTES:
                    raise _NoAnswerError(f"the answer is longer than {MOST_BYTES} bytes")
        answer, _, rest = self.output.partition(b"\n")
        self.output = rest
        return bytes(answer)

    def kill(self) -> None:
        """Kill it, if it has not ended, with all that it started; from any thread."""
        if self.popen.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, signal.SIGKILL)
        processes.kill_all(mark=self.mark)

    def end(self) -> None:
        """Kill it, wait for it, and close its streams."""
        self.kill()
        with suppress(OSError), self.popen:
            pass

    def _has_unread(self) -> bool:
        """Return whether the pipe to it holds what it has not read."""
        assert self.popen.stdin
        return any(fcntl.ioctl(self.popen.stdin.fileno(), termios.FIONREAD, bytes(4)))

    def _receive(self, descriptor: int, *, is_answer: bool) -> bool:
        """Read what is there; return whether more may come."""
        try:
            content = os.read(descriptor, 2**16)
        except BlockingIOError:
            return True
        if is_answer:
            self.output += content
        else:
            self.complaints = (self.complaints + content)[-MAX_COMPLAINT:]
        return bool(content)

    def _end_status(self) -> int | None:
        """Return the exit code, or less the signal that ended it; ``None`` while it runs."""
        if self.popen.returncode is not None or not hasattr(os, "waitid"):
            return self.popen.poll()
        try:
            found = os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # somebody else has waited for it
            return self.popen.poll()
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def _end_state(self) -> str:
        self.wait(processes.SECONDS_TO_END)
        code = self._end_status()
        return "its output closed" if code is None else processes.how_ended(code)


_numbers = count()  # of the programs of this process


def _failed(id: int, process: _Process, error: _NoAnswerError) -> Evaluation:
    lines = process.complaints.decode(errors="replace").split("\n")
    complaint = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return Evaluation.failed(id, f"{error}{f'; stderr: {complaint}' if complaint else ''}")


def _read_answer(id: int, outcomes: Sequence[str], line: bytes) -> Evaluation:
    try:
        answer = read_answer_line(line)
    except ValueError as error:
        raise _NoAnswerError(f"the answer {error}") from error
    if answer["id"] != id:
        raise _NoAnswerError(f"the answer must be to the point {id}, got `id` {answer['id']!r:.80}")
    if answer["error"] is not None:
        return Evaluation.failed(id, answer["error"])
    try:
        return Evaluation.of(id, answer["value"], outcomes)
    except AnswerError:
        raise
    except ValueError as error:
        raise _NoAnswerError(str(error)) from error


def read_answer_line(line: bytes) -> dict[str, Any]:
    """Return the object of a line that answers to a point. Its ``value`` has numbers in place of
    the texts of numbers, and is NaN beside an ``error``, a text; that is ``None`` beside a value.

    Raises:
        ValueError: with what the line must be.
    """
    received = f"got {line[:80]!r}"
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"must be JSON, {received}") from error
    id = answer.get("id") if isinstance(answer, dict) else None
    if isinstance(id, bool) or not isinstance(id, int | float) or id % 1:
        raise ValueError(f"must be an object with an `id`, a whole number, {received}")
    value, reason = answer.get("value"), answer.get("error")
    if ("value" not in answer) if reason is None else (value is not None):
        raise ValueError(f"must have either `value` or `error`, {received}")
    with suppress(RecursionError):
        value = math.nan if reason is not None else _with_numbers(value)
    reason = None if reason is None else shorten(reason, MAX_REASON)
    return answer | {"id": int(id), "value": value, "error": reason}


def _with_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_with_numbers(one) for one in value]
    with suppress(ValueError):
        return float(value) if isinstance(value, str) else value
    return value
