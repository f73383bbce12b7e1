"""Files that are replaced as a whole: after a crash at any moment there is the former file or the
new one, never a part. Files of a folder that may come from somebody else: a link, a second name or
a pipe in the place of one is refused before what it leads to is read or written.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace ``path`` by ``content``; see :func:`replacing`.

    Raises:
        OSError: if it cannot be written; the former file stays.
    """
    with replacing(path, mode) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Give the name of a temporary file beside ``path``, made with the permissions ``mode``; what
    is written there is synced to disk and takes its place.

    Every writer has a name of its own, ``path`` with an ending ``.tmp``. The file is removed on any
    exception; only a process that is killed leaves it.

    Raises:
        OSError: if it cannot be written; the former file stays.
    """
    temporary = path.parent / f"{path.name}.{secrets.token_hex(8)}.tmp"
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        if mode == 0o660:
            os.fchmod(descriptor, mode)
        os.close(descriptor)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        remedy = "Free space or repair the disk"
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            remedy = "Make its folder"
        elif isinstance(error, IsADirectoryError):
            remedy = "Move the folder of that name away, or name a file"
        raise OSError(
            f"{path} could not be written: {error}. {remedy}, and repeat the call."
        ) from error
    finally:
        with suppress(OSError):  # of a name that cannot be, or on a disk that is not there any more
            temporary.unlink()


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_own(path: Path, flags: int) -> int:
    """Open a file of a study by the flags of ``os.open``, and return its descriptor; one that is
    made has the permissions of :func:`mode_in`.

    Raises:
        RuntimeError: if it is not a regular file, or has another name.
        OSError: if it cannot be opened.
    """
    require_own(path)
    # A link or a pipe may have taken its place since
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    mode = mode_in(path.parent)
    descriptor = os.open(path, flags, mode)
    try:
        if mode == 0o660 and flags & os.O_CREAT:
            with suppress(PermissionError):  # it was made by another of the group
                os.fchmod(descriptor, mode)
        _check(path, os.fstat(descriptor), folder=False)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def mode_in(folder: Path) -> int:
    """Return the permissions of files that are made in a study's folder: for their owner alone or,
    where the group may write in it and the setgid bit says that what is made there is the group's,
    for the group, whatever the umask.
    """
    shared = stat.S_ISGID | stat.S_IWGRP
    return 0o660 if folder.stat().st_mode & shared == shared else 0o600


def make_folder(path: Path) -> None:
    """Make a folder in a study's, if it is not there, for those for whom files there are."""
    if not path.exists():
        path.mkdir(mode=0o700)
        if mode_in(path.parent) == 0o660:
            path.chmod(0o2770)


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
