"""What a study knows, in its storage and in memory, and the settings that it was made with."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from torch import Tensor

from scalable_bo.evaluation.evaluator import storable
from scalable_bo.space.constraints import CallableConstraint, LinearConstraint, function_name
from scalable_bo.space.goal import Goal
from scalable_bo.space.parameters import read_parameter
from scalable_bo.space.space import Space
from scalable_bo.storage.past_evaluations import History
from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.rows import Outcomes, Rows, first_five
from scalable_bo.storage.storage import Ask, Change, CopyingStorage, SharedStorage, Source, Storage


class StudyRecord:
    """The contents of a storage, for any thread; every change is stored when its method returns.

    Args:
        storage: new, or of a study with the same settings; closed if it is of another.
    Attributes:
        goal: what is wanted of several outcomes; ``None`` for one objective alone.
        maximize: whether larger values are better, of the first of several objectives.
        wanted: the goal, also of one objective alone.
        lock: to hold while more than one thing is read.
        num_replaced: how often outcomes have been replaced, here or by others.
    Raises:
        ValueError: if the storage is of a study with other settings.
    """

    def __init__(self, storage: Storage, settings: Mapping[str, Any], space: Space) -> None:
        self.storage = storage
        self._shared = storage if isinstance(storage, SharedStorage) else None
        self.settings = settings
        self.lock = threading.RLock()
        self.num_replaced = 0
        self._num_optimizing = 0
        self._process = os.getpid()
        self._is_closed = False
        self._is_torn = False  # whether a write has begun that has not been stored
        self._space = space
        self.goal = read_goal(settings)
        self.maximize = settings["direction"] == "maximize"
        self.wanted = self.goal or Goal.of_one(self.maximize)
        try:
            with nullcontext() if self._shared is None else self._shared.writing():
                stored = storage.load_settings()
                if stored is not None:
                    require_same_settings(storage.name, stored, settings)
                if stored != settings:  # new, or of an older version that kept less
                    storage.save_settings(settings)
            self.contents = storage.load(space.dim)
        except BaseException:
            storage.close()
            raise

    @property
    def rows(self) -> Rows:
        return self.contents.rows

    @property
    def asks(self) -> list[Ask]:
        return self.contents.asks

    def best_value(self) -> float:
        """Return the best feasible value; NaN if there is none, or of several objectives."""
        with self.lock:
            rows = self.rows
            Y = rows.allowed_outcomes(self._space, len(self.wanted.names))
            best = self.wanted.best(Y[rows.observed])
            return math.nan if best is None else float(rows.values[rows.observed[best]])

    def refresh(self) -> None:
        """Take over what others have written, as long as the storage is open, in no fork."""
        if not self._is_closed and (self._shared is None or self._process == os.getpid()):
            with self._changing():
                pass

    def copy_to(self, storage: CopyingStorage) -> None:
        """Copy all that is known, and checkpoints, to a storage; raise ValueError if it is used."""
        self.refresh()
        with self.lock:
            if storage.load_settings() is not None:
                raise ValueError(
                    f"`path` must be a place without a study. {storage.name} is there: name another"
                    " place."
                )
            storage.adopt(self.settings, self.contents)
            kept, copies = self.storage.checkpoints, storage.checkpoints
            if kept is not None and copies is not None:
                for number in kept.numbers():
                    copies.write(number, kept.read(number))

    def close(self) -> None:
        """Close the storage; what is known can still be read."""
        self._is_closed = True
        self.storage.close()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Make an ask in the block, up to date when it begins; others wait with theirs."""
        with nullcontext() if self._shared is None else self._shared.asking():
            self.refresh()
            yield

    @contextmanager
    def optimizing(self, budget: int) -> Iterator[None]:
        """Optimise in the block, by asks for so many points; of a shared study, for so many with
        those of all other processes that optimise at the same time. What was not told in the end is
        left to others.
        """
        if self._shared is None:
            yield
            return
        self._num_optimizing += 1
        try:
            with self._shared.optimizing(budget) if budget else nullcontext():
                yield
        finally:
            self._num_optimizing -= 1
            with self.lock:
                self._shared.release()

    def num_left(self) -> int | None:
        """Return how many points may be asked for; ``None`` for any number."""
        with self.lock:
            return None if self._shared is None else self._shared.num_left()

    def claim(self, ids: Sequence[int]) -> list[int]:
        """Return those of pending rows that nobody evaluates, which are this process's then."""
        with self.lock:
            if self._shared is None:
                return list(ids)
            return self._shared.claim(ids, self._num_optimizing > 0)

    def enqueue(self, X: Tensor, once: bool) -> None:
        """Add points (k, d) to the queue; ``once``: only to a study without asks and a queue."""
        with self._changing():
            if not (once and (self.asks or len(self.contents.queue))):
                self._write("add_queued", X)

    def add_ask(
        self, X: Tensor, ask: Ask, cost: AskReport, num_queued: int, seen: tuple[list[int], int]
    ) -> list[int]:
        """Add an ask, its points (q, d), the first of which leave the queue, and what it cost;
        return their ids. Of the observed rows that it has ``seen``, those changed after the changes
        that it has do not count. Raise OSError if another process has asked meanwhile, since the
        database lost the lock.
        """
        with self._changing():
            if ask.number <= len(self.asks):
                raise OSError(
                    f"{self.storage.name} lost the lock of this ask, and another process has asked"
                    " meanwhile. Nothing was stored. Ask again."
                )
            if replaced := {change.id for change in self.contents.changes[seen[1] :]}:
                lost = len(replaced.intersection(seen[0][: ask.num_observed]))
                ask = replace(ask, num_observed=ask.num_observed - lost)
            first = len(self.rows)
            cost = replace(cost, time=time.time())
            self._write("add_ask", ask, cost, first, X, num_queued)
        return list(range(first, first + len(X)))

    def tell(self, ids: Sequence[int], outcomes: Outcomes) -> None:
        """Give pending rows their outcomes, but for what was told before. Rows stay pending until
        all of their outcomes are known. Raise ValueError as ``Rows.untold``.
        """
        with self._changing():
            self._tell(ids, outcomes.told_at(time.time()))

    def _tell(self, ids: Sequence[int], outcomes: Outcomes) -> None:
        new, outcomes = self.rows.untold(ids, outcomes, self.wanted.names)
        if new:
            self._write("add_outcomes", new, outcomes, self.rows.next_told)

    def add_history(self, history: History) -> None:
        """Add data, but for those added before; raise ValueError if other data have their name."""
        with self._changing():
            names = [*self._space.names, *self.wanted.names]
            new, completed = history.added_since(self.contents, names)
            told = history.outcomes.told_at(time.time())
            outcomes = told.select(new)
            self.rows.require_same_noise(outcomes)
            self._tell(list(completed), told.select(list(completed.values())))
            if len(new) or completed:
                digest = history.digest(history.kept)
                source = Source(history.name, digest, len(self.rows), len(new))
                X = history.X[list(new)]
                self._write("add_source", source, X, outcomes, self.rows.next_told)

    def note(self, id: int, text: str) -> None:
        """Note a text of a row, in place of the one before; raise ValueError if there is no row."""
        with self._changing():
            self.rows.require([id])
            if self.rows.notes.get(id, "") != text:
                self._write("set_note", id, text)

    def retry(self, ids: Sequence[int] | None) -> None:
        """Make rows that failed pending again, or all; raise ValueError if one did not fail."""
        with self._changing():
            failed = self.rows.reasons
            chosen = sorted(failed) if ids is None else list(dict.fromkeys(ids))
            if other := [number for number in chosen if number not in failed]:
                raise ValueError(f"`ids` must be of points that failed, got {first_five(other)}.")
            if chosen:
                self._write("remove_outcomes", chosen)

    def replace(self, ids: Sequence[int], outcomes: Outcomes, kind: str, why: str) -> None:
        """Give rows that were told other outcomes, as if they were told now, and note what they had
        been told; outcomes that are unknown now stay as they were. Asks count only what is still
        in the order told.

        Raises:
            ValueError: if a row is repeated or was not told, or only some variances are known.
        """
        with self._changing():
            rows = self.rows
            partial = rows.partial(self.wanted.names)
            told = {id for id in ids if id in partial or (0 <= id < len(rows) and rows.told[id])}
            if len(told) < len(ids):
                other = [id for id in ids if id not in told] or list(ids)
                raise ValueError(
                    f"`ids` must be distinct and of points that were told, got {first_five(other)}."
                )
            outcomes = rows.completed(ids, outcomes)
            rows.require_same_noise(outcomes, told)
            now = time.time()
            when = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
            names = () if self.goal is None else self.goal.names
            why = storable(why, "why")
            changes = [
                Change(when, kind, id, *rows.told_of(id), why, rows.known_of(id, names))
                for id in ids
            ]
            left = np.cumsum([0, *(row not in told for row in rows.observed)])
            asks = [replace(ask, num_observed=int(left[ask.num_observed])) for ask in self.asks]
            outcomes = outcomes.told_at(now)
            self._write("replace_outcomes", ids, outcomes, rows.next_told, asks, changes)
            self.num_replaced += 1

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the record, which is up to date, and keep other writers out. Where a write fails or
        is interrupted, what has been stored is read again.
        """
        with self.lock:
            self._mend()
            try:
                with nullcontext([]) if self._shared is None else self._shared.writing() as writes:
                    self._is_torn = bool(writes)
                    for write in writes:
                        write.apply(self.contents)
                        self.num_replaced += write.name in ("adopt", "replace_outcomes")
                    writes.clear()
                    self._is_torn = False
                    yield
                self._is_torn = False
            except BaseException:
                self._mend()
                raise

    def _mend(self) -> None:
        """Read again what has been stored, where a write may not have been."""
        if self._is_torn:
            self.contents = self.storage.load(self._space.dim)
            self.num_replaced += 1  # perhaps
            self._is_torn = False

    def _write(self, name: str, *arguments: Any) -> None:
        self.storage.require_writable()
        self._is_torn = True
        for target in (self.storage, self.contents):
            getattr(target, name)(*arguments)


def make_settings(
    space: Mapping[str, Any],
    maximize: bool,
    seed: int,
    strategy: str | None = None,
    goal: Goal | None = None,
) -> dict[str, Any]:
    """Return what a study is made with, as JSON can hold it; of these, another ``strategy`` may be
    given later, and has no name where it is an object.
    """
    direction = "maximize" if maximize else "minimize"
    settings = {"space": dict(space), "direction": direction, "seed": seed}
    given = {"strategy": strategy, "goal": None if goal is None else goal.to_dict()}
    return settings | {name: value for name, value in given.items() if value is not None}


def read_goal(settings: Mapping[str, Any]) -> Goal | None:
    """Return the goal among the settings of a study, if it has one."""
    return Goal.from_dict(settings["goal"]) if "goal" in settings else None


def describe_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return what a study was made with, part by part, as text for people."""
    space = settings["space"]
    params = {
        name: read_parameter(value, f"parameters.{name}")
        for name, value in space["parameters"].items()
    }
    varying = [name for name, value in space["parameters"].items() if isinstance(value, Mapping)]
    parts = {"columns": ", ".join(varying)}
    parts |= {f"parameter `{name}`": repr(params[name]) for name in varying}
    parts |= {f"fixed `{n}`": repr(value) for n, value in params.items() if n not in varying}
    parts |= {
        f"constraint {number}": _describe_constraint(table)
        for number, table in enumerate(space["constraints"], 1)
    }
    goal = read_goal(settings)
    wanted = {"direction": settings["direction"]} if goal is None else goal.describe()
    return parts | wanted | {"seed": str(settings["seed"])}


def require_same_settings(name: str, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Require that a study is opened with what it was made with; or say what differs."""
    before = describe_settings(stored)
    now = describe_settings(given)
    both = zip(stored["space"]["constraints"], given["space"]["constraints"], strict=False)
    for number, (one, other) in enumerate(both, 1):  # whose texts are rounded to six digits
        if "coefficients" in one and "coefficients" in other and one != other:
            before[f"constraint {number}"] = json.dumps(one)
            now[f"constraint {number}"] = json.dumps(other)
    different = [part for part in {**before, **now} if before.get(part) != now.get(part)]
    if different:
        lines = [
            f"  {part}: stored {before.get(part, 'nothing')}, given {now.get(part, 'nothing')}\n"
            for part in different
        ]
        raise ValueError(
            f"{name} was made with other settings:\n{''.join(lines)}Use what is stored, or another"
            " `path` for a new study."
        )


def read_space(
    name: str, tables: Mapping[str, Any], functions: Sequence[CallableConstraint]
) -> Space:
    """Return the space of a stored study, whose constraints have their functions by name, those of
    one name in their order; raise ValueError if a function is missing, or an older version kept a
    constraint as text alone.
    """
    by_name: dict[str, list[CallableConstraint]] = {}
    for function in functions:
        by_name.setdefault(function_name(function), []).append(function)

    def find(place: str, reference: str) -> CallableConstraint:
        wanted = reference.rpartition(":")[2]
        if wanted not in by_name:
            raise ValueError(
                f"{name} has the function {reference!r} among its constraints, and a record holds"
                f" no code. Give `functions=[{wanted}]`."
            )
        found = by_name[wanted]
        return found.pop(0) if len(found) > 1 else found[0]

    texts = [table["description"] for table in tables["constraints"] if "description" in table]
    if texts:
        raise ValueError(
            f"{name} was made by an older scalable_bo, which kept the constraint {texts[0]!r} as"
            " text alone. Open it once by `Study(space, ...)` with its `path`; from then on its"
            " space is kept whole."
        )
    return Space.from_dict(tables, find)


def _describe_constraint(table: Mapping[str, Any]) -> str:
    """Return a constraint as text; a function is known by its name, wherever it is defined."""
    if "description" in table:  # all that older versions have kept
        return str(table["description"])
    if "function" in table:
        return f"function {table['function'].rpartition(':')[2]}"
    return str(LinearConstraint.from_dict(table))
