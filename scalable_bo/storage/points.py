"""Points of a study one by one, each with what became of it. Nothing here needs torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from scalable_bo.space.space import Space
    from scalable_bo.storage.rows import Rows


@dataclass(frozen=True)
class Point:
    """A point of a study, and what became of it so far.

    Attributes:
        id: what it is told by.
        params: its parameters.
        status: "observed", "failed", or "pending", also beside the values of some outcomes.
        outcomes: its known values by name, of one objective by ``"value"``.
        noise: the known variance of its value; ``None`` where it is inferred.
        reason: why its evaluation failed; ``None`` where it did not.
        ask: the number of the ask, 0 for added data.
        asked: when it was handed out, in UTC; ``None`` for added data and where unknown.
        told: when what became of it was told last, in UTC; ``None`` if it was not, or unknown.
        seconds: that its evaluation took; ``None`` where unknown.
        note: of the user, by ``Study.note``.
    """

    id: int
    params: dict[str, Any]
    status: str
    outcomes: dict[str, float]
    noise: float | None
    reason: str | None
    ask: int
    asked: datetime | None
    told: datetime | None
    seconds: float | None
    note: str

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """Return the point that ``to_dict`` has made this of."""
        times = {name: found[name] and datetime.fromisoformat(found[name]) for name in _TIMES}
        return cls(**{**found, **times})

    def to_dict(self) -> dict[str, Any]:
        """Return the point as JSON can hold it."""
        times = {name: getattr(self, name) for name in _TIMES}
        return vars(self) | {name: time and time.isoformat() for name, time in times.items()}


@dataclass(frozen=True)
class EachPoint:
    """A callback of ``Study.optimize`` that is called for each point that is told, rather than at
    the end of each round.

    ```python
    @sbo.EachPoint
    def show(study, point):
        print(point.id, point.status, point.outcomes, point.seconds)
    ```
    """

    callback: Callable[[Any, Point], object]

    def __call__(self, study: Any, point: Point) -> None:
        """Call it."""
        self.callback(study, point)


def read_points(
    space: Space, rows: Rows, names: Sequence[str], ids: Sequence[int]
) -> tuple[Point, ...]:
    """Return the points of some rows, whose outcomes have these names."""
    index = list(ids)
    return tuple(
        Point(
            id=id,
            params=params,
            status=status,
            outcomes={n: y for n, y in zip(names, values, strict=True) if not math.isnan(y)},
            noise=_known(noise),
            reason=rows.reasons.get(id),
            ask=ask,
            asked=_as_datetime(asked),
            told=_as_datetime(told),
            seconds=_known(seconds),
            note=rows.notes.get(id, ""),
        )
        for id, params, status, values, noise, ask, (asked, told, seconds) in zip(
            index,
            space.to_dicts(rows.X[index]),
            rows.status(index).tolist(),
            rows.outcomes(len(names), index).tolist(),
            rows.noise[index].tolist(),
            rows.asks[index].tolist(),
            rows.times[index].tolist(),
            strict=True,
        )
    )


_TIMES = ("asked", "told")


def _known(number: float) -> float | None:
    return None if math.isnan(number) else number


def _as_datetime(seconds: float) -> datetime | None:
    return None if math.isnan(seconds) else datetime.fromtimestamp(seconds, UTC)
