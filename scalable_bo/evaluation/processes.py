"""What this process starts ends with it: however it ends, a guard kills what it has left.

The guard is a small process that runs this very file and outlives the one that started it by a
moment. It kills the processes that it was told of, with their descendants, and all that carry the
mark of its process in their environment: a mark is handed down to whatever is started, in any
session or process group. (The kernel's signal at the death of a parent is no help: it comes at the
end of a mere thread.)

Where there is no /proc nothing is guarded. The file needs the standard library alone.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

MARK = "SCALABLE_BO_MARK"  # in the environment; marks begin with that of the process above
IS_GUARDED = sys.platform == "linux"
SECONDS_BETWEEN_LOOKS = 0.2  # at what may have ended, or is to be interrupted
SECONDS_TO_END = 5.0  # for which killing is repeated: what is killed may just have started more


def own_mark() -> str:
    """Return the mark for what this process starts, which is guarded from now on."""
    return _own_guard().mark


def watch(pids: Iterable[int]) -> None:
    """Let processes be killed when this one has ended."""
    new = set(pids)
    if new:
        guard = _own_guard()
        with _lock:
            guard.watch(new)


@contextmanager
def adopting() -> Iterator[None]:
    """Let whatever this thread starts inside the context end with this process, even if that is
    killed before it can call :func:`watch`: a fork tells the guard of itself, and a program carries
    the mark in its environment. One thread at a time does so: a fork copies the pipes that another
    is starting with.
    """
    mark = own_mark()
    with _starting:
        before = os.environ.get(MARK)
        os.environ[MARK] = mark
        _thread.parent = os.getpid()
        try:
            yield
        finally:
            _thread.parent = None
            if before is None:
                del os.environ[MARK]
            else:
                os.environ[MARK] = before


def join(mark: str) -> None:
    """Let what this process starts be of the guard of another, whose mark is given."""
    global _guard
    if os.environ.get(MARK) != mark:
        os.environ[MARK] = mark
        with _lock:
            _guard = _Guard(mark, is_elsewhere=True)


def kill_all(pids: Iterable[int] = (), mark: str = "") -> None:
    """Kill processes with their descendants, and those whose marks begin with ``mark``; return when
    they are gone.
    """
    if IS_GUARDED:
        _kill({(pid, start) for pid in pids if (start := _stat(pid)[2])}, mark)
    else:
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def how_ended(code: int | None) -> str:
    """Return in words how a process ended, by its exit code or less the signal that ended it."""
    if code is None or code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):  # most real-time signals have no name
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


class _Guard:
    """The guard of this process, which kills what has its mark; or another process's, which
    ``is_elsewhere`` and needs to be told nothing.
    """

    def __init__(self, mark: str, *, is_elsewhere: bool = False) -> None:
        self.mark = mark
        self._input = -1
        self._watched: set[int] = set()
        self._is_elsewhere = is_elsewhere or not IS_GUARDED
        if not self._is_elsewhere:
            self._start()

    def watch(self, pids: set[int]) -> None:
        new = pids - self._watched
        self._watched |= new
        if new and not self._is_elsewhere:
            try:
                self._tell(new)
            except BrokenPipeError:  # somebody has killed the guard
                os.close(self._input)
                self._start()
                self._tell(self._watched)

    def _tell(self, pids: Iterable[int]) -> None:
        os.write(self._input, "".join(f"{pid}\n" for pid in pids).encode())

    def _start(self) -> None:
        reader, self._input = os.pipe()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            arguments = [sys.executable, "-I", "-S", __file__, str(os.getpid()), self.mark]
            os.posix_spawn(
                sys.executable,
                arguments,
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, reader, 0),
                    (os.POSIX_SPAWN_DUP2, nowhere, 1),
                    (os.POSIX_SPAWN_DUP2, nowhere, 2),
                ],
                setsid=True,  # Ctrl-C and a closed terminal do not reach it
            )
        finally:
            os.close(reader)
            os.close(nowhere)


_guard: _Guard | None = None
_lock = threading.Lock()
_starting = threading.Lock()
_thread = threading.local()  # `parent`: the process that adopts what the thread starts


def _own_guard() -> _Guard:
    global _guard
    with _lock:
        if _guard is None:
            _guard = _Guard(f"{os.environ.get(MARK, '')}{os.urandom(8).hex()}.")
        return _guard


def _forget() -> None:
    """Leave the guard to the parent, as a child that was forked starts one of its own. A child that
    is adopted tells the parent's guard of itself first.
    """
    global _guard, _lock, _starting
    guard = _guard
    _guard = None
    _lock, _starting = threading.Lock(), threading.Lock()
    parent = getattr(_thread, "parent", None)
    if guard is None or parent is None:
        return
    _thread.parent = None
    if not guard._is_elsewhere:
        with suppress(OSError):  # somebody has killed the guard; the parent starts another
            guard._tell([os.getpid()])
    if os.getppid() != parent:  # whose guard may have gone before it heard
        os.kill(os.getpid(), signal.SIGKILL)


os.register_at_fork(after_in_child=_forget)


def _run_guard(parent: int, mark: str) -> None:
    """Wait until the parent has ended, and kill what it has left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.closerange(3, 256)  # what else was inherited is the parent's
    watched: set[tuple[int, str]] = set()
    told = b""
    is_over = False
    while True:
        # A child of the parent may hold the other end: that nobody does says less than `getppid`.
        # What the parent said before its end is heard first, whenever this process came to listen.
        is_over = is_over or os.getppid() != parent
        if not select.select([0], [], [], 0 if is_over else SECONDS_BETWEEN_LOOKS)[0]:
            if is_over:
                break
            continue
        if not (content := os.read(0, 2**16)):
            break
        *lines, told = (told + content).split(b"\n")
        watched |= {(int(pid), start) for pid in lines if (start := _stat(int(pid))[2])}
    _kill(watched, mark)


def _kill(processes: set[tuple[int, str]], mark: str) -> None:
    """Kill processes, told apart by their start from later ones with the same numbers."""
    end = time.monotonic() + SECONDS_TO_END
    while (found := _find(processes, mark)) and time.monotonic() < end:
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _find(processes: set[tuple[int, str]], mark: str) -> set[int]:
    """Return those of the processes that live, their descendants, and those that carry a mark."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        pid = int(name)
        state, parent, start = _stat(pid)
        if state in ("", "Z", "X"):
            continue
        parents[pid] = parent
        if (pid, start) in processes or (mark and _carries(pid, mark)):
            found.add(pid)
    size = 0
    while len(found) > size:
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found - {os.getpid()}


def _stat(pid: int) -> tuple[str, int, str]:
    """Return the state, the parent and the start of a process; nothing of one that is not there."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return "", 0, ""
    return fields[0], int(fields[1]), fields[19]


def _carries(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"\0{MARK}={mark}".encode() in b"\0" + file.read()
    except OSError:  # it is gone, or another user's
        return False


if __name__ == "__main__":
    _run_guard(int(sys.argv[1]), sys.argv[2])
