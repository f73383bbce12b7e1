"""The files of a study's folder, which may come from somebody else: a link, a second name or a pipe
in the place of one is refused before what it leads to is read or written.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def open_own(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open a file of a study by the flags of ``os.open``, and return its descriptor.

    Raises:
        RuntimeError: if it is not a regular file, or has another name.
        OSError: if it cannot be opened.
    """
    require_own(path)
    # A link or a pipe may have taken its place since
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode)
    try:
        _check(path, os.fstat(descriptor), folder=False)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def require_own(path: Path, *, folder: bool = False) -> None:
    """Require that a path is free, or a regular file without another name, or a ``folder``.

    For what opens a file by its path.

    Raises:
        RuntimeError: if it is anything else.
    """
    if os.path.lexists(path):
        _check(path, path.lstat(), folder=folder)


def _check(path: Path, status: os.stat_result, *, folder: bool) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR if folder else kind == stat.S_IFREG and status.st_nlink <= 1:
        return
    found = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFREG: f"a file with {status.st_nlink} names",
        stat.S_IFDIR: "a folder",
    }.get(kind, "a pipe, socket or device")
    raise RuntimeError(
        f"{path} must be {'a folder' if folder else 'a regular file without another name'}, got"
        f" {found}: what lies elsewhere is neither read nor written. Remove it, or put a copy of"
        " what was meant in its place."
    )
