"""Batches from what can be listed: each function takes its best of the candidates that no earlier
one has taken, in one pass over a pool of any size.

The functions choose in turn, so that a candidate that has come in the first c rows and that no
function takes of these will not be taken of more: only the q that are taken are kept. A better one
goes to the first function that prefers it, whose own goes on to those after it.

Notation: q functions, c candidates of a part of the pool, d inputs.
"""

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acquisition.constraints import FeasibleSet
from acquisition.multistart import Preferences
from acquisition.selection import DUPLICATE_DISTANCE, KnownPoints, TooFewCandidates
from surrogates import checks, memory
from surrogates.operators.tiles import spans

_PLAIN = ({bool}, {int}, {float}, {str})  # an array keeps labels that are all of one of these


@dataclass(frozen=True, eq=False)
class Chosen:
    """Candidates of a pool, in the order of the functions that chose them.

    Attributes:
        points: (q, d).
        rows: (q,) their positions in the pool, from 0.
        labels: what the pool's parts said of them, q of them; ``None`` if they said nothing.
    """

    points: Tensor
    rows: Tensor
    labels: Any = None

    def at(self, index: slice | Tensor) -> "Chosen":
        """Return the points at some indices, with their rows and labels."""
        labels = self.labels
        if labels is not None:
            labels = labels[index if isinstance(index, slice) else index.cpu()]
        return Chosen(self.points[index], self.rows[index], labels)

    def beside(self, other: "Chosen") -> "Chosen":
        """Return these and, after them, others."""
        labels = None
        if self.labels is not None and other.labels is not None:
            labels = _joined(self.labels, other.labels)
        return Chosen(
            torch.cat([self.points, other.points]), torch.cat([self.rows, other.rows]), labels
        )


def _joined(first: Any, second: Any) -> Any:
    """Return labels one after the other, as objects if one array would change them."""
    if isinstance(first, Tensor) and isinstance(second, Tensor) and first.dtype == second.dtype:
        return torch.cat([first, second])
    arrays = [np.asarray(labels) for labels in (first, second)]
    if arrays[0].dtype.kind != arrays[1].dtype.kind:
        arrays = [labels.astype(object) for labels in arrays]
    return np.concatenate(arrays)


def choose(
    functions: Preferences,
    parts: Iterable[tuple[Tensor, Any]],
    feasible: FeasibleSet,
    known: KnownPoints | None = None,
    *,
    sign: float = 1.0,
    repeats: bool = False,
    after_part: Callable[[int], None] | None = None,
) -> Chosen:
    """Return each function's best of the pool's feasible candidates that are not known and that no
    earlier one has taken.

    Args:
        parts: of the pool, as :func:`read_parts` returns them.
        known: what is not to be chosen, unless there are repeats.
        sign: 1 to maximise, −1 to minimise.
        repeats: let functions take the same candidate, and known ones.
        after_part: called with the number of rows that are done.

    Raises:
        ValueError: if a candidate is not finite.
        TooFewCandidates: if some functions found nothing.
    """
    sides = torch.where(feasible.scale > 0, feasible.scale, 1.0)
    choosing = Choosing(functions, sides, known, sign=sign, repeats=repeats)
    rows_at_once = memory.part_size(feasible.bounds.shape[1], feasible.bounds.dtype)
    first = 0
    num_infeasible = 0
    for points, labels in parts:
        for rows in spans(len(points), rows_at_once):
            X = points[rows].to(feasible.bounds)
            if not bool(torch.stack(X.aminmax()).isfinite().all()):
                row = first + rows.start + int((~X.isfinite().all(1)).nonzero()[0])
                raise ValueError(
                    f"The pool must hold finite numbers, got others in row {row}. Leave it out."
                )
            allowed = feasible.contains(X).nonzero().squeeze(1)
            num_infeasible += len(X) - len(allowed)
            part = None if labels is None else labels[rows]
            positions = torch.arange(first + rows.start, first + rows.stop, device=X.device)
            candidates = Chosen(X, positions, part)
            choosing.add(candidates if len(allowed) == len(X) else candidates.at(allowed))
        first += len(points)
        if after_part is not None:
            after_part(first)
    return choosing.chosen(first, num_infeasible)


@dataclass(eq=False)
class Choosing:
    """What functions have chosen so far."""

    functions: Preferences  # of which some choose
    # (d,) of the box; points within ``DUPLICATE_DISTANCE`` of them are one. ``None`` if all
    # candidates count as different
    sides: Tensor | None = None
    known: KnownPoints | None = None  # points that are not to be chosen
    _: KW_ONLY
    rows: Tensor | None = None  # the functions that choose, in order; all if ``None``
    sign: float = 1.0  # 1 to maximise, −1 to minimise
    repeats: bool = False  # let them take the same candidate, and known ones
    kept: Chosen | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        everything = torch.arange(self.functions.num_samples, device="cpu")
        self.which = everything if self.rows is None else self.rows

    def add(self, candidates: Chosen) -> None:
        """Let the functions choose among their own and further candidates."""
        at_once = memory.part_size(self.functions.num_samples, torch.float32)
        for part in spans(len(candidates.rows), at_once):
            new = candidates.at(part)
            values = self.sign * self.functions(new.points)[self.which.to(new.rows.device)]
            if self.kept is None:
                self.kept = new.at(slice(0))
                self.values = values[:, :0]  # (q, k), of all functions at what was taken
            num_taken = len(self.kept.rows)
            if num_taken == len(values):
                columns = (values > self.values.diagonal().unsqueeze(1)).any(0).nonzero().squeeze(1)
                new = new.at(columns)
                values = values[:, columns]
            values = torch.cat([self.values, values], dim=1)
            together = self.kept.beside(new)
            columns = (
                values.argmax(1) if self.repeats else self._distinct(together, values, num_taken)
            )
            self.kept = together.at(columns)
            self.values = values[:, columns]

    def chosen(self, num_rows: int, num_infeasible: int = 0) -> Chosen:
        """Return what was chosen of so many rows, beside which others were infeasible.

        Raises:
            TooFewCandidates: if some functions found nothing.
        """
        q = len(self.which)
        found = 0 if self.kept is None else len(self.kept.rows)
        if self.kept is None or found < q:
            raise TooFewCandidates(q, found, num_rows, num_infeasible)
        return self.kept

    def _distinct(self, candidates: Chosen, values: Tensor, num_taken: int) -> Tensor:
        """Return the candidates that the functions take in turn, without known or equal ones; the
        first ``num_taken`` are neither.
        """
        usable = torch.ones(values.shape[1], dtype=torch.bool, device=values.device)
        is_new = torch.arange(len(usable), device=values.device) >= num_taken
        while True:
            columns = _in_turn(values, usable)
            new = is_new[columns]
            refused = self._refused(candidates.points[columns], new)
            if not refused.any():
                return columns
            # However often they come, all that are like these go at once
            usable &= ~self._like(candidates.points, columns[~refused])
            usable[columns[refused]] = False
            is_new[columns[~refused]] = False

    def _like(self, X: Tensor, taken: Tensor) -> Tensor:
        """Return which of the points X (c, d), but for those taken, are known or equal to these."""
        like = torch.zeros(len(X), dtype=torch.bool, device=X.device)
        if self.known is not None:
            like |= self.known.near(X)
        if self.sides is not None:
            box = torch.stack([torch.zeros_like(self.sides), self.sides])
            like |= KnownPoints(X[taken], box).near(X)
        like[taken] = False
        return like

    def _refused(self, X: Tensor, is_new: Tensor) -> Tensor:
        """Return which of the new points among X (k, d) are known, or equal to another of X."""
        refused = torch.zeros_like(is_new)
        new = is_new.nonzero().squeeze(1)
        if not len(new):
            return refused
        if self.sides is not None:
            scaled = X / self.sides
            distances = torch.cdist(
                scaled[new], scaled, compute_mode="donot_use_mm_for_euclid_dist"
            )
            # The first of two new ones stays
            before = torch.arange(len(X), device=X.device) < new.unsqueeze(1)
            refused[new] = ((distances <= DUPLICATE_DISTANCE) & (before | ~is_new)).any(1)
        if self.known is not None:
            refused[new] |= self.known.near(X[new])
        return refused


@dataclass(frozen=True, eq=False)
class RandomValues:
    """Functions without a preference: each takes a candidate at random."""

    num_samples: int  # functions
    generator: torch.Generator  # of the CPU

    def __call__(self, X: Tensor) -> Tensor:
        """Return values (s, c) for X (c, d)."""
        lots = torch.rand(
            self.num_samples, len(X), generator=self.generator, dtype=torch.float64, device="cpu"
        )
        return lots.to(X.device)


def _in_turn(values: Tensor, usable: Tensor) -> Tensor:
    """Return for one function after the other, by the values (q, c), its best of the usable
    candidates (c,) that is left, until none is.
    """
    left = torch.where(usable, values.clamp_min(torch.finfo(values.dtype).min), -torch.inf)
    columns = []
    for i in range(min(len(values), int(usable.sum()))):
        columns.append(left[i].argmax())
        left[:, columns[-1]] = -torch.inf
    return torch.stack(columns) if columns else usable.nonzero().squeeze(1)


def best_choices(
    functions: Preferences,
    choices: Tensor,
    *,
    rows: Tensor | None = None,
    sign: float = 1.0,
    repeats: bool = False,
) -> Tensor:
    """Return, one function after the other, its best of the choices (c, d), all of them different,
    that no earlier one has taken: (number of rows, d).

    Args:
        rows: the functions that choose, in order; all s if ``None``. At most c, unless they may
            take the same.
        sign: 1 to maximise, −1 to minimise.
        repeats: let functions take the same choice.
    """
    choosing = Choosing(functions, rows=rows, sign=sign, repeats=repeats)
    choosing.add(Chosen(choices, torch.arange(len(choices), device=choices.device)))
    return choosing.chosen(len(choices)).points


def read_parts(pool: Iterable[Any], like: Tensor) -> Iterator[tuple[Tensor, Any]]:
    """Return the points (c, d) of a pool's parts, and their labels, ``None`` for none. The first
    part has been read.

    Args:
        pool: parts: points (c, d), a tensor or an array of any kind of numbers, or a pair of them
            and c labels. Points in one tensor or array are one part.
        like: (..., d).

    Raises:
        TypeError, ValueError: if the pool or its first part is none; of a later part when it comes.
    """
    if isinstance(pool, str | bytes) or not isinstance(pool, Iterable):
        raise TypeError(
            f"The pool must be an iterable of parts, points (c, {like.shape[1]}), got"
            f" {type(pool).__name__}. Yield them, or give a list of them."
        )
    if isinstance(pool, Tensor | np.ndarray) and pool.ndim < 3:
        pool = [pool]
    parts = _checked(pool, like)
    return chain(list(islice(parts, 1)), parts)


def _checked(pool: Iterable[Any], like: Tensor) -> Iterator[tuple[Tensor, Any]]:
    labelled = False
    for number, part in enumerate(pool):
        if isinstance(part, tuple) and len(part) != 2:
            raise ValueError(
                "The pool's parts must be points, or pairs of points and labels, got a tuple of"
                f" {len(part)} in part {number}. Put the labels together in one array."
            )
        points, labels = part if isinstance(part, tuple) else (part, None)
        points = _part_points(points, like.shape[1], number)
        if labels is not None and not isinstance(labels, Sized):
            raise TypeError(
                f"The labels must be an array or a list, got {type(labels).__name__} in part"
                f" {number}. Make a list of them."
            )
        if labels is not None and len(labels) != len(points):
            raise ValueError(
                f"The labels must be one for each of {len(points)} points, got {len(labels)} in"
                f" part {number}."
            )
        if number and labelled != (labels is not None):
            raise ValueError(
                f"The labels must be given with every part of the pool or none, got part {number}"
                f" {'without' if labelled else 'with'} them."
            )
        labelled = labels is not None
        if labels is not None and not isinstance(labels, Tensor):
            if isinstance(labels, list | tuple) and {*map(type, labels)} not in _PLAIN:
                labels = np.fromiter(labels, dtype=object, count=len(labels))
            labels = np.asarray(labels)
        yield points, labels


def _part_points(points: Any, dim: int, number: int) -> Tensor:
    if not isinstance(points, Tensor | np.ndarray):
        raise TypeError(
            "The pool's parts must be tensors or arrays of points, or pairs of these and"
            f" labels, got {type(points).__name__} in part {number}. Take `numpy.asarray` of lists"
            " and tables; pairs stand in a list of their own."
        )
    if isinstance(points, Tensor) and points.layout != torch.strided:
        raise TypeError(
            f"The pool's parts must be dense, got a tensor of {points.layout} in part {number}."
            " Yield parts of some thousand rows, each `.to_dense()`."
        )
    try:
        if isinstance(points, np.ndarray):
            in_place = points.dtype.isnative and min(points.strides, default=0) >= 0
            points = torch.from_numpy(points) if in_place else checks.of_array(points)
    except (TypeError, ValueError) as error:  # such as objects
        reason, *_ = str(error).split(". ")
        raise TypeError(
            "The pool's parts must be arrays of numbers that torch can share, got dtype"
            f" {points.dtype} in part {number}: {reason}. Convert it with `.astype(float)`."
        ) from error
    if points.ndim != 2 or points.shape[1] != dim or points.is_complex():
        remedy = f"Give a row to each point, with {dim} numbers."
        if points.dtype == torch.uint8:
            remedy += (
                f" Packed bits are rows after `numpy.unpackbits(..., axis=1, count={dim})`, those"
                f" of a file by `FingerprintFile(..., num_bits={dim})`."
            )
        raise ValueError(
            f"The pool's parts must have shape (c, {dim}), got {tuple(points.shape)} of"
            f" {points.dtype} in part {number}. {remedy}"
        )
    return points
