"""The rows of a study: what was asked or added, and what became of it.

Notation: N rows, n of them with a finite value; ``X (N, d)`` in the user's units.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, count
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalable_bo.evaluation.evaluator import NO_NUMBER, Evaluation, LateError, storable, to_float
from scalable_bo.space.quoting import quote
from scalable_bo.space.space import Space
from surrogates import checks


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What evaluations gave: a value of every outcome, a ``reason`` why they failed or, of several
    outcomes, values of some, NaN for those that are not known yet.

    Attributes:
        values: (n,) float64, NaN where the evaluation failed.
        noise: (n,) known variances, NaN where none is known.
        reasons: why an evaluation failed, by its position.
        further: (n, m - 1) of m outcomes, the values after the first.
        times: (n, 2) when they were told, in seconds since 1970, and the seconds that each
            evaluation took; NaN where unknown.
    """

    values: Tensor
    noise: Tensor
    reasons: dict[int, str] = field(default_factory=dict)
    further: Tensor = field(default_factory=partial(torch.empty, 0, 0, device="cpu"))
    times: Tensor = field(default_factory=partial(torch.empty, 0, 2, device="cpu"))

    def __post_init__(self) -> None:
        n = len(self.values)
        if not len(self.further):
            object.__setattr__(self, "further", self.values.new_empty(n, 0))
        if not len(self.times):
            object.__setattr__(self, "times", self.values.new_full((n, 2), math.nan))

    @cached_property
    def table(self) -> Tensor:
        """The values of all outcomes, (n, m)."""
        return torch.cat([self.values[:, None], self.further], dim=1)

    @cached_property
    def are_whole(self) -> Tensor:
        """Which evaluations, (n,), failed or gave a value of every outcome."""
        whole = self.table.isfinite().all(1)
        whole[list(self.reasons)] = True
        return whole

    @classmethod
    def of(
        cls, values: Any, noise: Any = None, argument: str = "values", ids: Sequence[int] = ()
    ) -> Outcomes:
        """Read values, and variances if they are known.

        Args:
            values: (n,) or (n, 1). What is NaN, infinite or no number has failed.
            noise: as many variances above 0, or one for all; ``None`` if unknown.
            argument: the name of ``values`` in errors.
            ids: of the points, in errors; those from 0 if there are none.
        Raises:
            TypeError: if ``values`` is no sequence, or ``noise`` not numbers.
            ValueError: for another shape, for a variance that is not above 0, and as
                ``Evaluation.of``.
        """
        numbers, reasons = _numbers(values, argument, ids)
        finite = numbers.isfinite()
        for position in (~finite).nonzero().flatten().tolist():
            reasons.setdefault(position, f"the value is {numbers[position].item()}")
        variances = torch.full_like(numbers, math.nan)
        if noise is not None:
            try:
                given = as_float64(noise)
            except NO_NUMBER as error:
                raise TypeError(f"`noise` must be numbers, got {quote(noise)}.") from error
            given = given[:, 0] if given.ndim == 2 and given.shape[1] == 1 else given
            if given.shape not in ((), numbers.shape):
                raise ValueError(
                    f"`noise` must be one number or have shape ({len(numbers)},), got"
                    f" {tuple(given.shape)}."
                )
            given = given.expand(len(numbers))
            if len(wrong := given[finite & ~((given > 0) & given.isfinite())]):
                raise ValueError(
                    f"`noise` must be variances above 0, got {wrong[0].item()}. Use a small one"
                    " such as 1e-6 for exact values."
                )
            variances = torch.where(finite, given, math.nan)
        return cls(torch.where(finite, numbers, math.nan), variances, reasons)

    @classmethod
    def several(
        cls, values: Any, noise: Any, names: Sequence[str], *, ids: Sequence[int] = ()
    ) -> Outcomes:
        """Read values of several outcomes by name: for each point a dict, or values in their order.
        Raise TypeError if they are no sequence, ValueError for known variances, and as
        ``Evaluation.of``.
        """
        if noise is not None:
            raise ValueError("`noise` must be None with several outcomes: it is inferred.")
        if hasattr(values, "columns"):  # a DataFrame
            values = values.to_dict("records")
        refusal = "`values` must be a sequence with a dict or a tuple for each point, got {}."
        found = [Evaluation.of(id, one, names) for id, one in _labelled(values, ids, refusal)]
        unknown = (math.nan,) * len(names)
        rows = [(one.value, *one.further, *unknown)[: len(names)] for one in found]
        numbers = torch.tensor(rows, dtype=torch.float64, device="cpu").reshape(-1, len(names))
        reasons = {k: one.failure for k, one in enumerate(found) if one.failure is not None}
        first = numbers[:, 0].contiguous()
        return cls(first, torch.full_like(first, math.nan), reasons, numbers[:, 1:])

    def explain(self, reasons: Mapping[int, str]) -> Outcomes:
        """Return the same with other reasons, by position; raise ValueError where none failed."""
        for position, reason in reasons.items():
            if position not in self.reasons:
                told = self.table[position]
                raise ValueError(
                    f"`reasons` must be of failures, got {quote(reason)} beside the value"
                    f" {told[told.isfinite()][0]:g}. Tell NaN."
                )
        texts = {position: storable(str(text)) for position, text in reasons.items()}
        return replace(self, reasons=self.reasons | texts)

    def told_at(self, time: float) -> Outcomes:
        """Return the same as told at a time, in seconds since 1970."""
        told = self.times.new_full((len(self.times), 1), time)
        return replace(self, times=torch.cat([told, self.times[:, 1:]], dim=1))

    def taking(self, seconds: Any) -> Outcomes:
        """Return the same with the seconds that each evaluation took, NaN where unknown; raise
        TypeError or ValueError if they are not as many numbers of at least 0.
        """
        try:
            took = as_float64(seconds)
        except NO_NUMBER as error:
            raise TypeError(f"`seconds` must be numbers, got {quote(seconds)}.") from error
        if took.shape != self.values.shape or (took < 0).any() or took.isinf().any():
            raise ValueError(
                f"`seconds` must be {len(self.values)} numbers of at least 0, one for each point,"
                f" got {quote(seconds)}. Give NaN where the time is unknown."
            )
        return replace(self, times=torch.stack([self.times[:, 0], took], dim=1))

    def select(self, positions: Sequence[int]) -> Outcomes:
        """Return the outcomes at ``positions``, in their order."""
        index = torch.tensor(positions, dtype=torch.long, device="cpu")
        reasons = {
            new: self.reasons[old] for new, old in enumerate(positions) if old in self.reasons
        }
        further, times = self.further[index], self.times[index]
        return Outcomes(self.values[index], self.noise[index], reasons, further, times)


class Rows:
    """All rows of a study, growing.

    Attributes:
        X: (N, d) float64; replaced, never written to, when rows are added.
        asks: (N,) the number of the ask, from 1; 0 for added data.
        values: (N,) NaN where failed or not told.
        noise: (N,) known variances, else NaN.
        further: (N, m - 1) of m outcomes, the values after the first; without columns before the
            first is told.
        times: (N, 3) when a row was asked for and when it was told, in seconds since 1970, and the
            seconds that its evaluation took; NaN where unknown.
        told: (N,) whether the row has failed or has a value of every outcome; else it is pending.
        observed: the rows with a value of every outcome, in the order told.
        next_told: more than the place of any row in the order told.
    """

    def __init__(self, dim: int) -> None:
        self.X = torch.empty(0, dim, dtype=torch.float64, device="cpu")
        self.asks = torch.empty(0, dtype=torch.long, device="cpu")
        self.values = torch.empty(0, dtype=torch.float64, device="cpu")
        self.noise = torch.empty(0, dtype=torch.float64, device="cpu")
        self.further = torch.empty(0, 0, dtype=torch.float64, device="cpu")
        self.times = torch.empty(0, 3, dtype=torch.float64, device="cpu")
        self.told = torch.empty(0, dtype=torch.bool, device="cpu")
        self.reasons: dict[int, str] = {}
        self.notes: dict[int, str] = {}
        self.observed: list[int] = []
        self.next_told = 0
        self._allowed = torch.empty(0, dtype=torch.bool, device="cpu")  # whether the first rows are

    def __len__(self) -> int:
        return len(self.X)

    def counts(self) -> dict[str, int]:
        """Return how many rows have a value, failed, and are pending."""
        return {
            "num_observations": len(self.observed),
            "num_failed": len(self.reasons),
            "num_pending": len(self) - self.num_told,
        }

    def status(self, rows: Sequence[int] | slice = slice(None)) -> np.ndarray:
        """Return whether rows (k,) are "observed", "failed" or "pending"."""
        told = np.where(self.values[rows].isfinite(), "observed", "failed")
        return np.where(self.told[rows], told, "pending")

    def outcomes(
        self, num_outcomes: int, rows: Sequence[int] | slice | Tensor = slice(None)
    ) -> Tensor:
        """Return the values of rows (k, m), NaN where failed or not told."""
        further = _widened(self.further[rows], num_outcomes - 1)
        return torch.cat([self.values[rows][:, None], further], dim=1)

    def allowed_outcomes(self, space: Space, num_outcomes: int) -> Tensor:
        """Return the values of rows (N, m), NaN also where a point breaks a constraint."""
        if len(new := self.X[len(self._allowed) :]):  # once a row, as functions take time
            self._allowed = torch.cat([self._allowed, space.feasible(new)])
        return self.outcomes(num_outcomes).masked_fill(~self._allowed[:, None], math.nan)

    @property
    def partly_told(self) -> Tensor:
        """The pending rows (k,) that have values of some outcomes, in ascending order."""
        further = self.further.isfinite().any(1)
        return (~self.told & (self.values.isfinite() | further)).nonzero().flatten()

    def partial(self, names: Sequence[str]) -> dict[int, dict[str, float]]:
        """Return what has been told of pending rows that have values of some outcomes, by name."""
        return {row: self.known_of(row, names) for row in self.partly_told.tolist()}

    def known_of(self, row: int, names: Sequence[str]) -> dict[str, float]:
        """Return the values of a row's outcomes that are known, by name."""
        values = self.outcomes(max(1, len(names)), slice(row, row + 1))[0].tolist()
        return {name: y for name, y in zip(names, values, strict=False) if not math.isnan(y)}

    @property
    def num_told(self) -> int:
        """The number of rows with a value or a failure."""
        return len(self.observed) + len(self.reasons)

    def knows_noise(self, besides: Collection[int] = ()) -> bool | None:
        """Return whether values, but for some rows, come with their variances; ``None`` without."""
        first = next((row for row in self.observed if row not in besides), None)
        return None if first is None else not math.isnan(self.noise[first].item())

    @torch.inference_mode(False)  # or rows could not be written to outside of it
    def append(self, X: Tensor, asks: int | Tensor, asked_at: float = math.nan) -> list[int]:
        """Add rows without a value, of one ask or each (n,) of its own; return their ids."""
        first = len(self)
        stop = first + len(X)
        unknown = dict.fromkeys(("values", "noise", "further", "times"), math.nan)
        for name, content in {"X": X, "asks": asks, "told": False, **unknown}.items():
            longer = _lengthened(getattr(self, name), stop)
            longer[first:] = content
            setattr(self, name, longer)
        self.times[first:, 0] = asked_at
        return list(range(first, stop))

    @torch.inference_mode(False)
    def record(self, ids: Sequence[int], outcomes: Outcomes) -> None:
        """Give rows their outcomes."""
        index = torch.tensor(ids, dtype=torch.long, device="cpu")
        self.values[index] = outcomes.values
        self.noise[index] = outcomes.noise
        width = max(outcomes.further.shape[1], self.further.shape[1])
        self.further = _widened(self.further, width)
        self.further[index] = _widened(outcomes.further, width)
        took = outcomes.times[:, 1]
        self.times[index, 1] = outcomes.times[:, 0]
        self.times[index, 2] = torch.where(took.isnan(), self.times[index, 2], took)
        whole = outcomes.are_whole
        self.told[index] = whole
        self.reasons |= {ids[position]: reason for position, reason in outcomes.reasons.items()}
        self.observed.extend(index[whole & outcomes.values.isfinite()].tolist())
        self.next_told += len(ids)

    def forget(self, ids: Sequence[int]) -> None:
        """Make rows that failed pending again."""
        index = torch.tensor(ids, dtype=torch.long, device="cpu")
        self.told[index] = False
        self.times[index, 1:] = math.nan
        for row in ids:
            del self.reasons[row]

    def replace(self, ids: Sequence[int], outcomes: Outcomes) -> None:
        """Give rows that were told other outcomes, as if they were told now."""
        changed = set(ids)
        self.observed = [row for row in self.observed if row not in changed]
        self.reasons = {row: why for row, why in self.reasons.items() if row not in changed}
        self.record(ids, outcomes)

    def require(self, ids: Sequence[int]) -> None:
        """Require that there are such rows; a ValueError names those that there are not."""
        if unknown := [number for number in ids if not 0 <= number < len(self)]:
            raise ValueError(f"`ids` must have been asked, got unknown {first_five(unknown)}.")

    def untold(
        self, ids: Sequence[int], outcomes: Outcomes, names: Sequence[str]
    ) -> tuple[list[int], Outcomes]:
        """Return what of these rows and their outcomes has not been told, completed by what has;
        raise LateError if an id was told another value, and ValueError if one is unknown or
        repeated, or as ``require_same_noise``.
        """
        self.require(ids)
        if repeated := sorted(number for number, count in Counter(ids).items() if count > 1):
            raise ValueError(f"`ids` must be distinct, got {first_five(repeated)} twice.")
        index = torch.tensor(ids, dtype=torch.long, device="cpu")
        told = self.told[index]
        given = outcomes.table
        known = self.outcomes(given.shape[1], index)
        is_known = known.isfinite()
        new = given.isfinite() & ~(is_known & (given == known))
        clash = new & is_known
        noises = self.noise[index].nan_to_num(math.inf), outcomes.noise.nan_to_num(math.inf)
        differs = (clash.any(1) | (told & (noises[0] != noises[1]))).tolist()
        if other := [
            number
            for position, (number, is_told) in enumerate(zip(ids, told.tolist(), strict=True))
            if differs[position]
            or (is_told and self.reasons.get(number) != outcomes.reasons.get(position))
        ]:
            numbers = "".join(
                f"; {names[column]} of {ids[row]} was {known[row, column].item()!r} and is"
                f" {given[row, column].item()!r} now"
                for row, column in clash.nonzero()[:1].tolist()
            )
            raise LateError(
                f"`ids` must not have been told before with another value, got {first_five(other)}"
                f"{numbers}. Give a point another value by `correct`."
            )
        adds = new.any(1)
        adds[list(outcomes.reasons)] = True
        positions = (adds & ~told).nonzero().flatten().tolist()
        outcomes = self.completed(ids, outcomes).select(positions)
        self.require_same_noise(outcomes)
        return [ids[position] for position in positions], outcomes

    def completed(self, ids: Sequence[int], outcomes: Outcomes) -> Outcomes:
        """Return outcomes of rows with what the rows have been told in place of what is unknown."""
        unknown = outcomes.table.isnan() & ~outcomes.are_whole[:, None]
        if not unknown.any():
            return outcomes
        known = self.outcomes(unknown.shape[1], torch.tensor(ids, dtype=torch.long, device="cpu"))
        table = torch.where(unknown, known, outcomes.table)
        return replace(outcomes, values=table[:, 0].contiguous(), further=table[:, 1:])

    def told_of(self, row: int) -> tuple[float | None, float | None, str | None]:
        """Return a row's value, its variance and why it failed, ``None`` for what there is not."""
        numbers = self.values[row].item(), self.noise[row].item()
        value, noise = (None if math.isnan(number) else number for number in numbers)
        return value, noise, self.reasons.get(row)

    def require_same_noise(self, outcomes: Outcomes, besides: Collection[int] = ()) -> None:
        """Require variances if those before, but for some rows, are known, else none."""
        known = ~outcomes.noise[outcomes.values.isfinite()].isnan()
        before = self.knows_noise(besides)
        if len(known) and before is not None and bool(known[0]) is not before:
            raise ValueError(
                "`noise` must be given for all values or for none; those told before came"
                f" {'with' if before else 'without'} it."
            )


def _lengthened(column: Tensor, stop: int) -> Tensor:
    """Return a column (n, ...) with room for rows up to ``stop``: that behind it or, where there is
    too little, in a copy of twice the length, so that n rows one by one take 2 n steps.
    """
    room = column._base
    if room is None or len(room) < stop or room.shape[1:] != column.shape[1:]:
        room = column.new_empty(max(2 * len(column), stop), *column.shape[1:])
        room[: len(column)] = column
    return room[:stop]


def _widened(values: Tensor, width: int) -> Tensor:
    """Return values (n, k) with columns of NaN up to ``width``."""
    if values.shape[1] == width:
        return values
    return torch.nn.functional.pad(values, (0, width - values.shape[1]), value=math.nan)


def read_told(
    ids: list[int],
    values: Any,
    noise: Any = None,
    reasons: Mapping[int, str] | None = None,
    names: Sequence[str] = (),
    seconds: Any = None,
) -> tuple[list[int], Outcomes]:
    """Read what ``Study.tell`` is given, ids and as many outcomes; raise what it does."""
    read = partial(Outcomes.several, names=names) if names else Outcomes.of
    outcomes = read(values, noise, ids=ids)
    if len(ids) != len(outcomes.values):
        raise ValueError(
            f"`values` must have one entry for each of the {len(ids)} `ids`, got"
            f" {len(outcomes.values)}."
        )
    if seconds is not None:
        outcomes = outcomes.taking(seconds)
    if reasons is None:
        return ids, outcomes
    if not isinstance(reasons, Mapping):
        raise TypeError(f"`reasons` must be a dict of texts by id, got {quote(reasons)}.")
    positions = {number: position for position, number in enumerate(ids)}
    if other := [number for number in reasons if number not in positions]:
        raise ValueError(f"`reasons` must be of `ids`, got {first_five(other)}.")
    by_position = {positions[number]: reason for number, reason in reasons.items()}
    return ids, outcomes.explain(by_position)


def as_float64(values: Any) -> Tensor:
    """Return numbers of any kind of array as a float64 tensor of this process's own: on whatever
    device, sparse, of half precision, a part of a graph, or a list of such numbers; raise one of
    ``NO_NUMBER`` if they are none.
    """
    if isinstance(values, Tensor):
        if values.is_complex():
            raise TypeError("complex numbers")
        dense = values.detach() if values.layout == torch.strided else values.detach().to_dense()
        return dense.to("cpu", torch.float64, copy=True)
    if isinstance(values, Sequence):
        if any(isinstance(value, str | bytes) for value in values):
            raise TypeError("text")  # of which NumPy would make an array as wide as the longest
        if not all(isinstance(value, Real) for value in values):
            return torch.stack([as_float64(value) for value in values])
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(np.float64), math.nan)
    array = np.asarray(values)
    if array.dtype == object:
        values = np.array([to_float(value) for value in array.flat]).reshape(array.shape)
    numbers = checks.of_array(values)
    if numbers.is_complex():
        raise TypeError("complex numbers")
    return numbers.double()


def first_five(numbers: Sequence[int | str]) -> str:
    """Return the first five numbers, or texts, as text."""
    shown = ", ".join(map(str, numbers[:5]))
    return f"{shown}, …" if len(numbers) > 5 else shown


def keys(X: Tensor) -> list[bytes]:
    """Return what to compare points (n, d) by, exactly."""
    points = np.ascontiguousarray(X.numpy())
    return [row.tobytes() for row in points]


def _labelled(values: Any, ids: Sequence[int], refusal: str) -> Iterator[tuple[int, Any]]:
    """Return values with the ids of their points, which go on from the last, or raise a refusal."""
    try:
        if isinstance(values, str | bytes | Mapping):
            raise TypeError("they are no values of points")
        return zip(chain(ids, count(len(ids))), list(values), strict=False)
    except Exception as error:  # also what their own code raises
        raise TypeError(refusal.format(quote(values))) from error


def _numbers(values: Any, argument: str, ids: Sequence[int]) -> tuple[Tensor, dict[int, str]]:
    """Return numbers (n,), NaN for what is none, and what that was by its position."""
    reasons: dict[int, str] = {}
    try:
        numbers = as_float64(values)
    except NO_NUMBER as error:
        refusal = f"`{argument}` must be numbers, got {{}}. Use NaN for a failed evaluation."
        if not (isinstance(values, Sequence) or hasattr(values, "__array__")):
            raise TypeError(refusal.format(quote(values))) from error
        found = [Evaluation.of(id, value) for id, value in _labelled(values, ids, refusal)]
        numbers = torch.tensor([one.value for one in found], dtype=torch.float64, device="cpu")
        reasons = {k: one.reason for k, one in enumerate(found) if one.reason is not None}
    if numbers.ndim == 2 and numbers.shape[1] == 1:
        numbers = numbers[:, 0]
    if numbers.ndim != 1:
        raise ValueError(
            f"`{argument}` must have shape (n,), got {tuple(numbers.shape)}. Give one number for"
            " each point; the `noise` beside it is for known variances."
        )
    return numbers, reasons
