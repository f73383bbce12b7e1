"""Who holds a study: the lock of its folder, one of the operating system's on a file, which ends
with the process that holds it, however that ends; and how a process is told from all others.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import weakref
from contextlib import suppress
from pathlib import Path

from surrogates.atomic import open_own

_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


class WriterLock:
    """Hold ``path`` for this process until ``release``; the file says by whom.

    A process that died, even by SIGKILL, holds nothing. Children by ``fork`` do not inherit it.

    Raises:
        RuntimeError: if another writer holds it, naming its process and host where they are known;
            if it is a link.
    """

    def __init__(self, path: Path) -> None:
        descriptor = open_own(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._file = os.fdopen(descriptor, "r+", encoding="utf-8", errors="replace")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.seek(0)
            holder = _read_holder(self._file.read(1000))
            self._file.close()
            remedy = "Wait for it to end, or use another `path`."
            if holder == _describe(os.getpid(), socket.gethostname()):
                holder += ", this one"
                remedy = (
                    "Call `close()` of the study that was opened first, or go on with that one."
                )
            raise RuntimeError(
                f"The study in {path.parent} is in use by {holder}. {remedy}"
            ) from error
        self._file.truncate(0)
        note = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
        with suppress(OSError):  # a full disk: the lock holds without the note
            os.write(self._file.fileno(), note.encode())
        _held.add(self)

    def release(self) -> None:
        """Let others write; a second call does nothing."""
        if not self._file.closed:
            self._file.truncate(0)
            # A child that was just forked may still have the file open
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()


def process_mark(pid: int) -> str:
    """Return 24 hexadecimal digits that no other process has, the first 8 those of this machine as
    long as it runs, then 6 of the ``pid``; nothing of a process that has ended or is hidden.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        here = [boot, os.readlink("/proc/self/ns/pid"), socket.gethostname()]
        state, *numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    machine = hashlib.sha256(json.dumps(here).encode()).hexdigest()[:8]
    return "" if state in "ZX" else f"{machine}{pid:06x}{int(numbers[18]):010x}"


def has_ended(mark: str) -> bool:
    """Return whether the process with a mark has ended; ``False`` of one on another machine, and
    of one that this process may not see.
    """
    if mark[:8] != process_mark(os.getpid())[:8]:
        return False
    pid = int(mark[8:14], 16)
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return process_mark(pid) != mark


def _describe(pid: int, host: str) -> str:
    return f"process {pid} on host {host:.100}"


def _read_holder(text: str) -> str:
    """Return who holds a lock by the note in its file, which only a study's writer writes."""
    unknown = "an unknown process: `fuser lock` in that folder finds it"
    try:
        note = json.loads(text)
        pid, host = int(note["pid"]), str(note["host"])
        if host == socket.gethostname():
            os.kill(pid, 0)
    except PermissionError:  # it runs, as another user
        pass
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError, ProcessLookupError):
        return unknown
    return _describe(pid, host)


def _close_in_child() -> None:
    for lock in list(_held):
        lock._file.close()  # without unlocking: the lock is the parent's


os.register_at_fork(after_in_child=_close_in_child)
