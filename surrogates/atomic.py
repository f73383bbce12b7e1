"""Files that are replaced as a whole: after a crash at any moment there is the former file or the
new one, never a part.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``; see :func:`replacing`.

    Raises:
        OSError: if it cannot be written; the former file stays.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give the name of a temporary file beside ``path``; what is written there is synced to disk
    and takes its place.

    Every writer has a name of its own, ``path`` with an ending ``.tmp``. The file is removed on any
    exception; only a process that is killed leaves it.

    Raises:
        OSError: if it cannot be written; the former file stays.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    try:
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
            remedy = "Move the folder of that name away"
        raise OSError(
            f"{path} could not be written: {error}. {remedy}, and repeat the call."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
