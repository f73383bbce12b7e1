"""What the pictures of a study show, computed once for all that draw them: the report, the live
page and Plotly.

A picture has panels of two axes each, and marks on them; how many of the marks are drawn, and how,
is for those who draw. Notation: n values, d parameters.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import torch

from scalable_bo.report.snapshot import Snapshot
from scalable_bo.space.parameters import Parameter
from scalable_bo.space.quoting import ISOLATES
from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.shown import describe_params

LARGEST = sys.float_info.max / 1024  # beyond, the width of an axis could overflow
MAGNITUDES = 1e3  # positive values whose largest is so many times their smallest: a log axis
POINTS_OF_CURVE = 81
MOST_SLICES = 12
# The steps of an ask: fitting hyperparameters, drawing paths, maximising them
STEPS = (("fit", "green"), ("solve", "blue"), ("search", "orange"))


@dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes:
        high: its upper end, above ``low``.
        kind: "linear", "log" or "category", on which choices stand at 0, 1, …
        labels: of those positions.
    """

    title: str
    low: float
    high: float
    kind: str = "linear"
    labels: Sequence[str] = ()

    @classmethod
    def of(cls, name: str, param: Parameter) -> Axis:
        """Return the axis of a parameter."""
        if param.axis == "category":
            labels = param.labels(param.values().tolist())
            return cls(name, -0.5, param.high + 0.5, param.axis, labels)
        low, high = max(float(param.low), -LARGEST), min(float(param.high), LARGEST)
        return cls(name, low, high, param.axis)

    @classmethod
    def around(
        cls, title: str, values: np.ndarray, *, log: bool | None = None, margin: float = 0.05
    ) -> Axis:
        """Return an axis that holds all values, at least one, with some room; logarithmic, unless
        it is said, where all are positive and of many magnitudes.
        """
        if log is None:
            log = bool(values.min() > 0 and values.max() >= MAGNITUDES * values.min())
        limit = math.log10(LARGEST) if log else LARGEST
        numbers = np.clip(np.log10(values) if log else values, -limit, limit)
        low = float(numbers.min())
        high = float(numbers.max())
        alike = high - low <= 1e-9 * max(abs(low), abs(high))
        room = (0.3 if log else 0.1 * abs(low) or 0.1) if alike else margin * (high - low)
        low = max(low - room, -limit - 1)
        high = min(high + room, limit * 1.1 if not log else limit + 1)
        return cls(title, 10**low, 10**high, "log") if log else cls(title, low, high)

    def place(self, values: np.ndarray | Sequence[float] | float) -> np.ndarray:
        """Return where values lie, 0 at ``low`` and 1 at ``high``."""
        numbers = np.clip(np.asarray(values, dtype=np.float64), -LARGEST, LARGEST)
        low, high = self.low, self.high
        if self.kind == "log":
            numbers, low, high = np.log(numbers), math.log(low), math.log(high)
        return np.asarray((numbers - low) / (high - low))


@dataclass(frozen=True, eq=False)
class Marks:
    """Marks of one kind on a panel.

    Attributes:
        kind: "points"; a "line" through points or in "steps"; a "band" between ``low`` and
            ``high``; "bars" of height y on ``low``; "cells" of a grid with values ``z`` (y, x), NaN
            where there is none; or a "rule" at one x or at one y, the other empty.
        x: where they stand.
        y: likewise.
        name: in the key; empty for none.
        colour: by its name in the style sheet.
        texts: returns what is said of marks, by their positions.
    """

    kind: str
    x: np.ndarray
    y: np.ndarray
    name: str = ""
    colour: str = "blue"
    texts: Callable[[np.ndarray], list[str]] | None = None
    low: np.ndarray = field(default_factory=lambda: np.empty(0))
    high: np.ndarray = field(default_factory=lambda: np.empty(0))
    z: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))


@dataclass(frozen=True, eq=False)
class Panel:
    """Marks on two axes, the first below the others."""

    x: Axis
    y: Axis
    marks: Sequence[Marks]
    title: str = ""


@dataclass(frozen=True, eq=False)
class Picture:
    """Panels with, in words, what they show and what has been left out."""

    title: str
    panels: Sequence[Panel]
    note: str = ""


def observed(snapshot: Snapshot) -> np.ndarray:
    """Return the rows with a value; raise ValueError if there is none."""
    if not snapshot.rows.observed:
        raise ValueError("There is nothing to show yet: no finite value has been told.")
    return np.array(snapshot.rows.observed)


def history(snapshot: Snapshot, log: bool | None = None) -> Picture:
    """Return the values in the order told and the best so far, which keeps the limits; of several
    objectives the hypervolume so far.
    """
    rows = observed(snapshot)
    order = np.arange(1, len(rows) + 1)
    across = Axis("evaluations, in the order told", 0.5, len(rows) + 0.5)
    if snapshot.wanted.num_objectives > 1:
        counts, volumes = _hypervolumes(snapshot)
        up = Axis.around("hypervolume", volumes, log=False)
        steps = Marks("steps", counts, volumes, "hypervolume so far", "orange")
        return Picture("Hypervolume so far", [Panel(across, up, [steps])])
    values = snapshot.rows.values.numpy()[rows].clip(-LARGEST, LARGEST)
    kept = snapshot.feasible[rows]
    better = np.fmax if snapshot.maximize else np.fmin
    best = better.accumulate(np.where(kept, values, np.nan))
    known = np.isfinite(best)
    # A few values far from the best would flatten all others
    tail = 0.025 if len(values) > 40 else 0.0
    shown = np.quantile(values, [tail, 1.0] if snapshot.maximize else [0.0, 1.0 - tail])
    several = bool(shown[0] > 0 and shown[1] >= MAGNITUDES * shown[0])
    up = Axis.around("value", shown, log=(several and values.min() > 0) if log is None else log)
    hidden = int(((values < up.low) | (values > up.high)).sum())
    parts = [
        Marks("points", order[k], values[k], name, colour, _texts(snapshot, rows[k], values[k]))
        for name, colour, k in (("value", "blue", kept), ("breaks a limit", "faint", ~kept))
        if k.any()
    ]
    if kept.any():
        parts.append(Marks("steps", order[known], best[known], "best so far", "orange"))
    note = f"Values far from the best that are beyond the axis: {hidden}." if hidden else ""
    return Picture("Best so far", [Panel(across, up, parts)], note)


def front(snapshot: Snapshot) -> Picture:
    """Return every pair of the objectives of all points, those of the Pareto front last; raise
    ValueError unless there are several objectives, and a value.
    """
    goal = snapshot.wanted
    if goal.num_objectives < 2:
        raise ValueError("A Pareto front needs several objectives. Use `plot_history` for one.")
    rows = observed(snapshot)
    on_front = goal.front(snapshot.allowed).numpy()[rows]
    feasible = snapshot.feasible[rows]
    Y = snapshot.outcomes.numpy()[rows].clip(-LARGEST, LARGEST)
    kinds = (
        ("others", "faint", ~feasible),
        ("feasible", "blue", feasible & ~on_front),
        ("on the front", "orange", on_front),
    )
    axes = [
        Axis.around(f"{name}, {way}", Y[:, column], log=False)
        for column, (name, way) in enumerate(goal.objectives.items())
    ]
    along = np.flatnonzero(on_front)[Y[on_front, 0].argsort(kind="stable")]
    line = [Marks("line", Y[along, 0], Y[along, 1], colour="orange")]  # of two objectives alone

    def dots(a: int, b: int) -> list[Marks]:
        return [
            Marks("points", Y[k, a], Y[k, b], name, colour, _texts(snapshot, rows[k], Y[k, a]))
            for name, colour, k in kinds
            if k.any()
        ]

    panels = [
        Panel(axes[a], axes[b], [*(line if len(axes) == 2 else []), *dots(a, b)])
        for a, b in combinations(range(len(axes)), 2)
    ]
    return Picture("Pareto front", panels)


def slices(snapshot: Snapshot, outcome: int = 0, names: Sequence[str] | None = None) -> Picture:
    """Return the mean of an outcome with its band along parameters, of more than twelve those that
    matter most, all others as in ``snapshot.shown_row``, where those that are not active have no
    panel, and the observed values.
    """
    space = snapshot.space
    belief = snapshot.beliefs[outcome]
    row = np.array([snapshot.shown_row], dtype=np.int64)
    base = snapshot.rows.X[row[0]]
    chosen = list(space.names) if names is None else names
    if names is None and space.dim > MOST_SLICES:
        chosen = list(belief.importances)[:MOST_SLICES]
    active = [name for name in chosen if not base[space.names.index(name)].isnan()]
    if not active:
        raise ValueError(f"`params` must have one that is active in row {row[0]}, got {chosen}.")
    spreads = [space.params[name].spread(POINTS_OF_CURVE) for name in active]
    X = base.repeat(sum(map(len, spreads)), 1)
    starts = np.cumsum([0, *map(len, spreads)])
    for name, numbers, start in zip(active, spreads, starts, strict=False):
        X[start : start + len(numbers), space.names.index(name)] = numbers
    curves = [part.numpy() for part in belief.curve(space.completed(X))]
    rows = observed(snapshot)
    values = snapshot.outcomes.numpy()[:, outcome]
    limits = snapshot.wanted.limits(snapshot.wanted.names[outcome])
    title = outcome_name(snapshot, outcome)
    up = Axis.around(title, np.concatenate([*curves, limits]), log=False)
    panels = []
    for name, numbers, start in zip(active, spreads, starts, strict=False):
        mean, low, high = (part[start : start + len(numbers)] for part in curves)
        across = Axis.of(name, space.params[name])
        column = snapshot.rows.X[:, space.names.index(name)].numpy()
        there = rows[np.isfinite(column[rows])]
        x = numbers.numpy()
        marks = [
            Marks("band", x, mean, low=low, high=high),
            Marks("points", column[there], values[there], "observed", "faint"),
            Marks("points" if across.kind == "category" else "line", x, mean, "mean"),
            Marks("rule", column[row], np.empty(0), colour="orange"),
            *(Marks("rule", np.empty(0), np.array([limit]), "limit") for limit in limits),
        ]
        panels.append(Panel(across, up, marks, name))
    left_out = len(chosen) < space.dim and names is None
    note = f"The {len(chosen)} of {space.dim} parameters that matter most." if left_out else ""
    return Picture(title, panels, note)


def contour(
    snapshot: Snapshot, outcome: int = 0, names: Sequence[str] | None = None, *, side: int = 41
) -> Picture | None:
    """Return the mean of an outcome over two parameters, all others as in ``snapshot.shown_row``,
    NaN where one of them is not active, and the observed points; ``None`` where there are not two.

    Args:
        names: of both; ``None`` for the two that matter most of those that are active there.
        side: points of a parameter, at most.
    """
    space = snapshot.space
    row = np.array([snapshot.shown_row], dtype=np.int64)
    base = snapshot.rows.X[row[0]]
    if names is None:
        most = snapshot.beliefs[outcome].importances
        names = [name for name in most if not base[space.names.index(name)].isnan()][:2]
    if len(names) < 2:
        return None
    columns = [space.names.index(name) for name in names]
    x, y = (space.params[name].spread(side) for name in names)
    X = base.repeat(len(y) * len(x), 1)
    X[:, columns[0]] = x.repeat(len(y))
    X[:, columns[1]] = y.repeat_interleave(len(x))
    X = space.completed(X)
    blank = X[:, columns].isnan().any(1)
    mean = torch.where(blank, math.nan, snapshot.beliefs[outcome].mean(X))
    rows = observed(snapshot)
    at = snapshot.rows.X.numpy()[:, columns]
    rows = rows[np.isfinite(at[rows]).all(1)]
    values = snapshot.outcomes.numpy()[rows, outcome]
    texts = _texts(snapshot, rows, values)
    marks = [
        Marks("cells", x.numpy(), y.numpy(), "mean", z=mean.numpy().reshape(len(y), len(x))),
        Marks("points", at[rows, 0], at[rows, 1], "observed", "hollow", texts),
        Marks("points", at[row, 0], at[row, 1], "where others are as", "orange"),
    ]
    across, up = (Axis.of(name, space.params[name]) for name in names)
    note = ""
    if not blank.all():
        low, high = mean[~blank].aminmax()
        note = f"Darker blue is higher, from {low:.4g} to {high:.4g}."
    note += " It is blank where a parameter is not active." * bool(blank.any())
    return Picture(outcome_name(snapshot, outcome), [Panel(across, up, marks)], note)


def times(snapshot: Snapshot) -> Picture:
    """Return the seconds of each ask in its steps; raise ValueError if there is no ask yet."""
    if not snapshot.costs:
        raise ValueError("There is no ask yet whose time could be shown. Ask for points first.")
    asks, costs = _asks(snapshot)
    spent = np.array([seconds(cost) for cost in costs])

    def texts(step: int) -> Callable[[np.ndarray], list[str]]:
        name = STEPS[step][0]
        return lambda kept: [
            f"ask {asks[k]}: {name} {spent[k, step]:.3g} s" + f"; {costs[k].choice}".rstrip("; ")
            for k in kept
        ]

    ends = np.cumsum(spent, axis=1)
    below = np.column_stack([np.zeros(len(asks)), ends[:, :-1]])
    marks = [
        Marks("bars", asks, spent[:, step], name, colour, texts(step), low=below[:, step])
        for step, (name, colour) in enumerate(STEPS)
    ]
    up = Axis("seconds", 0.0, float(spent.sum(1).max()) * 1.06 or 1.0)
    return Picture("Time of each ask", [Panel(_across_asks(asks), up, marks)])


def errors(snapshot: Snapshot) -> Picture | None:
    """Return the worst error of each ask's solve, or its relative residual where no ask has errors;
    ``None`` where there was none.
    """
    asks, costs = _asks(snapshot)
    have_errors = any(cost.error is not None for cost in costs)
    values = np.array([c.error if have_errors else c.residual for c in costs], dtype=np.float64)
    solved = np.isfinite(values) & (values > 0)
    if not solved.any():
        return None
    asks, values = asks[solved], values[solved]
    what = "posterior standard deviations" if have_errors else "relative residual"

    def texts(kept: np.ndarray) -> list[str]:
        return [f"ask {asks[k]}: {values[k]:.1e}" for k in kept]

    marks = [Marks("line", asks, values), Marks("points", asks, values, texts=texts)]
    up = Axis.around(what, values, log=True, margin=0.15)
    return Picture("Error of each ask", [Panel(_across_asks(_asks(snapshot)[0]), up, marks)])


@dataclass(frozen=True, eq=False)
class Lines:
    """Rows as lines across axes, the best first.

    Attributes:
        axes: of parameters, and last of the objectives.
        rows: (k,) which they are.
        values: (k, axes) where each crosses them; NaN where a parameter is not active.
    """

    axes: Sequence[Axis]
    rows: np.ndarray
    values: np.ndarray
    colours: Sequence[str]
    note: str

    @property
    def places(self) -> np.ndarray:
        """Where each crosses the axes, (k, axes) in [0, 1], at the foot where it is not active."""
        places = [axis.place(column) for axis, column in zip(self.axes, self.values.T, strict=True)]
        return np.nan_to_num(np.column_stack(places))


def lines(
    snapshot: Snapshot,
    names: Sequence[str] | None = None,
    *,
    whole: bool = False,
    num_best: int = 50,
    num_others: int = 200,
    most_axes: int = 60,
) -> Lines:
    """Return the best rows, and some of the others, across the axes of some parameters.

    Args:
        names: ``None`` for all.
        whole: return all rows, on the axes of all parameters.
        num_others: of the other rows, evenly spread over their ranks.
    """
    rows = snapshot.ranked
    space = snapshot.space
    goal = snapshot.wanted
    rest = rows[num_best:]
    others = rest[thin(len(rest), len(rows) if whole else num_others)]
    drawn = np.concatenate([rows[:num_best], others])
    shown = list(space.names if names is None else names)[: None if whole else most_axes]
    outcomes = list(goal.objectives)
    Y = snapshot.outcomes.numpy()[drawn, : len(outcomes)]
    X = snapshot.rows.X.numpy()[drawn][:, [space.names.index(name) for name in shown]]
    axes = [Axis.of(name, space.params[name]) for name in shown]
    axes += [Axis.around(name, y, margin=0.0) for name, y in zip(outcomes, Y.T, strict=True)]
    count = len(drawn) - len(others)
    num_first = max(1, int(goal.front(snapshot.allowed[drawn]).sum()))
    first = ["orange"] * num_first + ["blue"] * (count - num_first)
    colours = [*first[:count], *["faint"] * len(others)]
    notes = []
    if names is None and len(shown) < space.dim:
        notes.append(f"{len(shown)} of {space.dim} parameters.")
    if np.isnan(X).any():
        notes.append("Lines follow the bottom edge where a parameter is not active.")
    if len(others) < len(rest):
        notes.append(f"{len(others)} of the other {len(rest)} rows are drawn.")
    return Lines(axes, drawn, np.column_stack([X, Y]), colours, " ".join(notes))


def seconds(cost: AskReport) -> tuple[float, float, float]:
    """Return the seconds of an ask's steps, in the order of ``STEPS``."""
    return cost.seconds_fit, cost.seconds_solve, cost.seconds_acquisition


def thin(count: int, limit: int) -> np.ndarray:
    """Return at most so many positions, evenly spread, the first and the last among them."""
    if count <= limit:
        return np.arange(count)
    return np.linspace(0, count - 1, limit).round().astype(int)


def _hypervolumes(snapshot: Snapshot) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of values, and the hypervolumes of the fronts among as many of the first."""
    goal = snapshot.wanted
    Y = snapshot.allowed[observed(snapshot)]
    corner = goal.reference_point(Y)
    stops = thin(len(Y), POINTS_OF_CURVE) + 1
    kept = Y[:0]
    volumes = []
    for start, stop in zip([0, *stops], stops, strict=False):
        kept = torch.cat([kept, Y[start:stop]])
        kept = kept[goal.front(kept)]
        volumes.append(goal.hypervolume(kept, corner) if len(kept) and corner is not None else 0.0)
    return stops, np.array(volumes)


def _texts(
    snapshot: Snapshot, rows: np.ndarray, values: np.ndarray
) -> Callable[[np.ndarray], list[str]]:
    """Return what says the row, the value and the parameters of marks."""

    def texts(kept: np.ndarray) -> list[str]:
        params = snapshot.space.to_dicts(snapshot.rows.X[rows[kept]])
        return [
            f"row {rows[k]}: {values[k]:.6g} at {describe_params(of, ISOLATES)}"
            for k, of in zip(kept, params, strict=True)
        ]

    return texts


def outcome_name(snapshot: Snapshot, outcome: int) -> str:
    """Return the name of an outcome with its direction, if it has one."""
    if snapshot.goal is None:
        return "value"
    name = snapshot.goal.names[outcome]
    way = snapshot.goal.objectives.get(name)
    return name if way is None else f"{name}, {way}"


def _asks(snapshot: Snapshot) -> tuple[np.ndarray, list[AskReport]]:
    return np.array(list(snapshot.costs)), list(snapshot.costs.values())


def _across_asks(asks: np.ndarray) -> Axis:
    return Axis("ask", asks.min() - 0.5, asks.max() + 0.5)
