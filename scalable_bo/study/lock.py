"""One writer at a time: a lock of the operating system on a file,
which ends with the process that holds it, however that ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import weakref
from contextlib import suppress
from pathlib import Path

_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


class WriterLock:
    """Hold ``path`` for this process until ``release``; the file says by whom.

    A process that died, even by SIGKILL, holds nothing. Children made by ``fork`` do not inherit
    the lock.

    Raises:
        RuntimeError: if another writer holds it, naming its process and host.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.seek(0)
            holder = _read_holder(self._file.read(1000))
            self._file.close()
            raise RuntimeError(
                f"The study in {path.parent} is in use by {holder}. Wait for it to end, or use"
                " another `path`."
            ) from error
        self._file.truncate(0)
        with suppress(OSError):  # a full disk: the lock holds without the note
            os.write(
                self._file.fileno(),
                json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(),
            )
        _held.add(self)

    def release(self) -> None:
        """Let others write; a second call does nothing."""
        if not self._file.closed:
            # A child that was just forked may still have the file open
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()


def _read_holder(text: str) -> str:
    try:
        holder = json.loads(text)
        return f"process {int(holder['pid'])} on host {str(holder['host']):.100}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return "another process"


def _close_in_child() -> None:
    for lock in list(_held):
        lock._file.close()  # without unlocking: the lock is the parent's


os.register_at_fork(after_in_child=_close_in_child)
