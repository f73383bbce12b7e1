"""Where a study is kept: in a folder, or under a name in a database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scalable_bo.storage.sqlite import SQLiteStorage
from surrogates import checks

if TYPE_CHECKING:
    from scalable_bo.storage.shared import SQLStorage


class Place(NamedTuple):
    """The place of a study: a folder, or the URL of a database and the study's ``name`` there."""

    path: Any
    name: str | None = None

    @property
    def is_database(self) -> bool:
        """Whether the study is in a database."""
        return self.name is not None or (isinstance(self.path, str) and "://" in self.path)

    def __str__(self) -> str:
        """Return the place in words, without what may be a password."""
        return f"{self.name!r} in a database" if self.is_database else str(self.path)

    def open(self, must_exist: bool = False) -> SQLiteStorage | SQLStorage:
        """Return what keeps the study; raise NoStudyError if there must be one, and is none."""
        if self.is_database:
            from scalable_bo.storage.shared import SQLStorage  # which needs an extra

            return SQLStorage(self.path, self.name, must_exist=must_exist)
        folder = checks.path("path", self.path, "a folder, or the URL of a database")
        return SQLiteStorage(folder, must_exist)

    def look(self) -> SQLiteStorage | SQLStorage:
        """Return what there is now, which others may go on writing, or raise NoStudyError."""
        if self.is_database:
            return self.open(must_exist=True)
        return SQLiteStorage.copy_of(Path(self.path))
