"""Where a study is kept: in a folder, or under a name in a database."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scalable_bo.storage.sqlite import SQLiteStorage
from surrogates.callers import quote

if TYPE_CHECKING:
    from scalable_bo.storage.shared import SQLStorage


class Place(NamedTuple):
    """The place of a study.

    Attributes:
        path: a folder, or the URL of a database.
        name: of the study in the database; ``None`` in a folder.
    """

    path: str | os.PathLike[str]
    name: str | None = None

    @property
    def is_database(self) -> bool:
        """Whether the study is in a database."""
        return self.name is not None or "://" in str(self.path)

    def __str__(self) -> str:
        """Return the place in words, without what may be a password."""
        return f"{self.name!r} in a database" if self.is_database else str(self.path)

    def open(self, must_exist: bool = False) -> SQLiteStorage | SQLStorage:
        """Return what keeps the study; raise NoStudyError if there must be one, and is none."""
        path: Any = self.path
        if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
            raise TypeError(
                f"`path` must be a folder, or the URL of a database, got {quote(path)}."
            )
        if self.is_database:
            from scalable_bo.storage.shared import SQLStorage  # which needs an extra

            return SQLStorage(str(path), self.name, must_exist=must_exist)
        return SQLiteStorage(Path(path), must_exist)

    def look(self) -> SQLiteStorage | SQLStorage:
        """Return what there is now, which others may go on writing, or raise NoStudyError."""
        if self.is_database:
            return self.open(must_exist=True)
        return SQLiteStorage.copy_of(Path(self.path))
