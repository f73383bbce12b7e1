"""Changes of points of which others may have changed some meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def apply_together(
    change: Callable[[list[Any]], object], parts: Sequence[Sequence[Any]]
) -> list[Exception | None]:
    """Change what is in all parts in one call or, where that is refused by a TypeError or a
    ValueError, part by part; return why each part was refused, ``None`` where it was not.
    """
    try:
        change([item for part in parts for item in part])
    except (TypeError, ValueError) as error:
        if len(parts) == 1:
            return [error]
        half = len(parts) // 2
        return apply_together(change, parts[:half]) + apply_together(change, parts[half:])
    return [None] * len(parts)
