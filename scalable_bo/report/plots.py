"""The charts of a report.

However many rows and asks there are, a chart draws a bounded number of marks. Notation: n values, d
parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from scalable_bo.report.charts import LARGEST, WIDTH, Panel, Scale, escape, figure, shorten, text
from scalable_bo.report.snapshot import Snapshot
from scalable_bo.space.goal import Goal
from scalable_bo.space.parameters import Parameter
from scalable_bo.storage.rounds import AskReport

MAX_DOTS = 1500
MAGNITUDES = 100.0  # between values above 0, from which on their axis is logarithmic
MAX_ASKS = 120  # bars; of more asks, those beside each other are taken together
MAX_PARAMETERS = 60
MAX_BARS = 12  # of parameters that matter
LEAST_GAP = 62.0  # between the axes of parallel coordinates
LONGEST_NAME = 40  # characters of a name over an axis
SLANT = 30  # degrees, of names that are wider than the gap
NUM_BEST_LINES = 50
NUM_OTHER_LINES = 200
POINTS_OF_SLICE = 81
FOOT = 0.0  # where a line crosses the axis of a parameter that is not active
# Of an ask: hyperparameters, paths, their maximisers
STEPS = (("fit", "green"), ("solve", "blue"), ("search", "orange"))


@dataclass(frozen=True)
class Chart:
    """A drawing and, in words, what has been left out of it."""

    svg: str
    note: str = ""


def best_so_far(snapshot: Snapshot) -> Chart:
    """Draw all values in the order told, thinned, and the best so far."""
    ids = np.array(snapshot.rows.observed)
    values = snapshot.rows.values.numpy()[ids].clip(-LARGEST, LARGEST)
    good = values
    if snapshot.goal is not None:  # what breaks a limit is never the best
        Y = snapshot.rows.outcomes(len(snapshot.goal.names))
        worst = values.min() if snapshot.maximize else values.max()
        good = np.where(snapshot.goal.feasible(Y).numpy()[ids], values, worst)
    best = np.maximum.accumulate(good) if snapshot.maximize else np.minimum.accumulate(good)
    kept = thin(len(values), MAX_DOTS)
    # A few wild values would flatten all others.
    tail = 0.025 if len(values) > 40 else 0.0
    shown = np.quantile(values, [tail, 1.0] if snapshot.maximize else [0.0, 1.0 - tail])
    # On a linear axis, what is gained after the first magnitudes looks like nothing.
    y = Scale.around(shown, log=bool(values.min() > 0) and _spans_magnitudes(shown))
    hidden = int(((values < y.low) | (values > y.high)).sum())
    panel = Panel(Scale(0.5, len(values) + 0.5), y, 70, 28, WIDTH - 80, 250)
    panel.axes("evaluations with a value, in the order told", "value")
    panel.dots(
        kept + 1,
        values[kept],
        "value",
        [f"row {ids[k]}: {values[k]:.6g}" for k in kept],
        radius=2.5,
    )
    steps = np.append(0, np.flatnonzero(best[1:] != best[:-1]) + 1)
    steps = steps[thin(len(steps), MAX_DOTS)]
    corners = np.append(np.repeat(steps, 2)[1:], len(values) - 1) + 1
    panel.line(corners, np.repeat(best[steps], 2), "best")
    notes = [f"{len(kept)} of {len(values)} values are drawn."] if len(kept) < len(values) else []
    notes += [f"{hidden} far from the best stand at the edge."] if hidden else []
    return Chart(
        figure(panel.parts, WIDTH, 326, f"best of {len(values)} values: {best[-1]:.6g}"),
        " ".join(notes),
    )


def front_of(snapshot: Snapshot, goal: Goal) -> Chart:
    """Draw the first two objectives of all points, those of the Pareto front last."""
    Y = snapshot.rows.outcomes(len(goal.names))
    ids = np.array(snapshot.rows.observed)
    kept = ids[thin(len(ids), MAX_DOTS)]
    front = goal.front(Y).nonzero().flatten().numpy()
    feasible = goal.feasible(Y).numpy()
    values = Y.numpy().clip(-LARGEST, LARGEST)
    first, second = goal.names[:2]
    drawn = values[np.union1d(kept, front)]
    panel = Panel(Scale.around(drawn[:, 0]), Scale.around(drawn[:, 1]), 70, 28, WIDTH - 80, 300)
    panel.axes(f"{first}, {goal.objectives[first]}", f"{second}, {goal.objectives[second]}")
    parts = ((kept[~feasible[kept]], "other"), (kept[feasible[kept]], "value"), (front, "best"))
    for rows, style in parts:
        titles = [f"row {row}: {values[row, 0]:.6g}, {values[row, 1]:.6g}" for row in rows]
        panel.dots(values[rows, 0], values[rows, 1], style, titles)
    notes = [f"The first two of {goal.num_objectives} objectives."] * (goal.num_objectives > 2)
    notes += [f"{len(kept)} of {len(ids)} points are drawn."] * (len(kept) < len(ids))
    return Chart(
        figure(panel.parts, WIDTH, 376, f"{len(front)} points of a front"), " ".join(notes)
    )


def times(snapshot: Snapshot) -> Chart:
    """Draw the seconds of each ask as bars, in its steps."""
    groups = _groups(snapshot)
    spent = np.array(
        [
            [np.mean([seconds(cost)[step] for _, cost in group]) for step in range(3)]
            for group in groups
        ]
    )
    panel = _over_asks(groups, Scale(0.0, float(spent.sum(1).max()) * 1.06 or 1.0), "seconds")
    for group, parts in zip(groups, spent, strict=True):
        left = _edges(group)
        right = _edges(group, right=True)
        below = 0.0
        for (name, style), part in zip(STEPS, parts, strict=True):
            if part > 0:
                panel.bar(
                    (left, right),
                    (below, below + part),
                    style,
                    f"{_name(group)}: {name} {part:.3g} s",
                )
                below += part
    note = (
        f"Each bar is the mean of up to {max(map(len, groups))} asks."
        if len(groups) < len(snapshot.costs)
        else ""
    )
    return Chart(figure(panel.parts, WIDTH, 270, "seconds of each ask"), note)


def errors(snapshot: Snapshot) -> Chart | None:
    """Draw the worst error of each ask's solve, or its relative residual where no ask has errors;
    ``None`` where there was none.
    """
    groups = _groups(snapshot)
    have_errors = any(cost.error is not None for cost in snapshot.costs.values())
    what = "posterior standard deviations" if have_errors else "relative residual"

    def number(cost: AskReport) -> float | None:
        return cost.error if have_errors else cost.residual

    worst = [
        (group, max((value for _, cost in group if (value := number(cost)) is not None), default=0))
        for group in groups
    ]
    found = [(group, value) for group, value in worst if value > 0 and math.isfinite(value)]
    if not found:
        return None
    values = np.array([value for _, value in found])
    panel = _over_asks(groups, Scale.around(values, log=True, margin=0.15), what)
    middles = [(_edges(group) + _edges(group, right=True)) / 2 for group, _ in found]
    panel.line(middles, values, "mean")
    panel.dots(middles, values, "mean", [f"{_name(group)}: {value:.1e}" for group, value in found])
    return Chart(figure(panel.parts, WIDTH, 270, "error of each ask's solve"))


@dataclass(frozen=True)
class Slice:
    """The posterior mean along one parameter, all others as in the best point: ``mean`` at
    ``numbers`` of the parameter ``name``; ``low`` and ``high`` two standard deviations from it, and
    the mean itself where they are not known.
    """

    name: str
    numbers: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def find_slices(snapshot: Snapshot, best: int) -> list[Slice]:
    """Return the slices through row ``best``, the one along which the mean changes most first;
    none without a surrogate.
    """
    if snapshot.mean is None:
        return []
    slices = []
    for column, (name, param) in enumerate(snapshot.space.params.items()):
        numbers = param.spread(POINTS_OF_SLICE).numpy()
        X = snapshot.rows.X[best].repeat(len(numbers), 1)
        X[:, column] = torch.from_numpy(numbers)
        if not snapshot.rows.X[best, column].isnan():  # it is active there
            X = snapshot.space.completed(X)
            mean = snapshot.mean(X).numpy()
            low, high = (mean, mean)
            if snapshot.band is not None:
                low, high = (edge.numpy() for edge in snapshot.band(X))
            slices.append(Slice(name, numbers, mean, low, high))
    return sorted(slices, key=lambda found: -float(np.ptp(found.mean)))


def slices_of_mean(snapshot: Snapshot, slices: Sequence[Slice], best: int) -> Chart:
    """Draw slices through row ``best`` in panels of one height scale."""
    shown = slices[:MAX_PARAMETERS]
    columns = min(3, len(shown))
    width = WIDTH / columns
    height = 215.0
    y = Scale.around(np.concatenate([edge for found in shown for edge in (found.low, found.high)]))
    parts: list[str] = []
    for number, found in enumerate(shown):
        param = snapshot.space.params[found.name]
        left = width * (number % columns) + 62
        top = height * (number // columns) + 30
        panel = Panel(scale_of(param), y, left, top, width - 78, height - 68)
        panel.axes()
        panel.upright(snapshot.rows.X[best, snapshot.space.names.index(found.name)].item(), "mark")
        if param.axis != "category":
            around = np.append(found.low, found.high[::-1])
            panel.line(np.append(found.numbers, found.numbers[::-1]), around, "band")
            panel.line(found.numbers, found.mean, "mean")
        else:
            for number, low, high in zip(found.numbers, found.low, found.high, strict=True):
                panel.line([number, number], [low, high], "whisker")
            choices = param.labels(found.numbers)
            titles = [
                f"{choice}: {mean:.6g}" for choice, mean in zip(choices, found.mean, strict=True)
            ]
            panel.dots(found.numbers, found.mean, "mean", titles, radius=4)
        name = shorten(found.name, int((width - 78) / 7.5))
        parts += [*panel.parts, text(name, left, top - 12, "name", found.name)]
    note = (
        f"The {len(shown)} parameters of {len(slices)} along which the mean changes most."
        if len(shown) < len(slices)
        else ""
    )
    return Chart(
        figure(
            parts,
            WIDTH,
            height * math.ceil(len(shown) / columns),
            "posterior mean around the best point",
        ),
        note,
    )


def importances(shares: Mapping[str, float]) -> Chart:
    """Draw how much parameters matter, those that do most, as bars."""
    shown = list(shares.items())[:MAX_BARS]
    height = 26.0
    left = 190.0
    longest = max(share for _, share in shown) or 1.0
    parts = []
    for number, (name, share) in enumerate(shown):
        top = 8 + height * number
        width = (WIDTH - left - 70) * share / longest
        parts.append(text(shorten(name, 24), left - 10, top + 14, "end", name))
        parts.append(
            f'<rect class="blue" x="{left:g}" y="{top:.1f}" width="{width:.1f}" height="18"/>'
        )
        parts.append(text(f"{share:.2f}", left + width + 8, top + 14, "tick"))
    left_out = len(shares) - len(shown)
    return Chart(
        figure(parts, WIDTH, 16 + height * len(shown), "how much each parameter matters"),
        f"{len(shown)} of {len(shares)} parameters." if left_out else "",
    )


@dataclass(frozen=True)
class Lines:
    """Rows as lines across axes, the best first.

    Attributes:
        names: of the axes: parameters, and last the value or the first of several outcomes.
        scales: of the axes.
        ids: (k,) the rows.
        values: (k,) their values.
        places: (k, axes) where each crosses them, in [0, 1].
        styles: of the lines.
        notes: what has been left out.
    """

    names: Sequence[str]
    scales: Sequence[Scale]
    ids: np.ndarray
    values: np.ndarray
    places: np.ndarray
    styles: Sequence[str]
    notes: Sequence[str]


def find_lines(snapshot: Snapshot, names: Sequence[str]) -> Lines:
    """Return the best rows, and some of the others, across the axes of some parameters."""
    rows = snapshot.rows
    space = snapshot.space
    ids = np.array(rows.observed)
    values = rows.values.numpy()[ids]
    order = np.argsort(-values if snapshot.maximize else values, kind="stable")
    top = order[:NUM_BEST_LINES]
    rest = order[NUM_BEST_LINES:]
    others = rest[thin(len(rest), NUM_OTHER_LINES)]
    drawn = np.concatenate([top, others])
    shown = names[:MAX_PARAMETERS]
    scales = [
        *(scale_of(space.params[name]) for name in shown),
        Scale.around(values[drawn], log=_spans_magnitudes(values[drawn]), margin=0.0),
    ]
    X = rows.X.numpy()[ids[drawn]][:, [space.names.index(name) for name in shown]]
    places = np.column_stack(
        [
            scale.place(column)
            for scale, column in zip(scales, np.column_stack([X, values[drawn]]).T, strict=True)
        ]
    )
    inactive = np.isnan(places)
    places = np.where(inactive, FOOT, places)
    styles = ["best"] + ["good"] * (len(top) - 1) + ["other"] * len(others)
    left_out = len(rest) - len(others)
    notes = [f"{len(shown)} of {len(names)} parameters."] if len(shown) < len(names) else []
    notes += ["Lines run along the foot where a parameter is not active."] * bool(inactive.any())
    notes += [f"{len(others)} of the other {len(rest)} rows are drawn."] if left_out else []
    value = "value" if snapshot.goal is None else snapshot.goal.names[0]
    return Lines([*shown, value], scales, ids[drawn], values[drawn], places, styles, notes)


def parallel_coordinates(snapshot: Snapshot, names: Sequence[str]) -> Chart:
    """Draw the best rows, and some of the others, as lines across the axes of some parameters,
    the value last.
    """
    lines = find_lines(snapshot, names)
    count = len(lines.names) - 1
    left = 70.0
    height = 250.0
    gap = max(LEAST_GAP, (WIDTH - 2 * left) / count)
    titles = [shorten(name, LONGEST_NAME) for name in lines.names]
    longest = 8 * max(map(len, titles))
    slant = SLANT if longest > gap else 0
    top_edge = 40.0 + longest * math.sin(math.radians(slant))
    frame = Panel(Scale(0, count), Scale(0, 1), left, top_edge, gap * count, height)
    across = np.arange(count + 1)
    for line, style in reversed(list(zip(lines.places, lines.styles, strict=True))):
        frame.line(across, line, style)
    _draw_axes(frame, lines.names, titles, lines.scales, slant)
    return Chart(
        figure(
            frame.parts,
            2 * left + gap * count + (longest if slant else 0),
            top_edge + height + 22,
            "the best rows across all parameters",
        ),
        " ".join(lines.notes),
    )


def _draw_axes(
    frame: Panel,
    names: Sequence[str],
    titles: Sequence[str],
    scales: Sequence[Scale],
    slant: float,
) -> None:
    """Draw an upright axis for each name, spread over the frame."""
    gap = frame.width / (len(names) - 1)
    for position, (name, title, scale) in enumerate(zip(names, titles, scales, strict=True)):
        x = frame.left + gap * position
        axis = Panel(Scale(0, 1), scale, x, frame.top, 0, frame.height)
        axis.upright(0, "axis")
        frame.parts += axis.parts
        style = "name" if slant else "name middle"
        frame.parts.append(text(title, x, frame.top - 20, style, name, slant))
        for value, label in scale.ticks():
            height = frame.top + frame.height * (1 - float(scale.place(value)))
            room = gap - 8 if position < len(names) - 1 else frame.left - 8
            frame.parts.append(scale.tick(label, room, x + 5, height + 4, "tick halo"))


def scale_of(param: Parameter) -> Scale:
    """Return the axis of a parameter."""
    if param.axis == "category":
        return Scale(-0.4, param.high + 0.4, labels=param.labels(param.values().tolist()))
    return Scale(
        max(float(param.low), -LARGEST), min(float(param.high), LARGEST), param.axis == "log"
    )


def seconds(cost: AskReport) -> tuple[float, float, float]:
    """Return the seconds of an ask's steps, in the order of ``STEPS``."""
    return cost.seconds_fit, cost.seconds_solve, cost.seconds_acquisition


def keys(names: Sequence[tuple[str, str]]) -> str:
    """Return the key of a chart's colours."""
    return (
        '<ul class="keys">'
        + "".join(f'<li><i class="{style}"></i>{escape(name)}</li>' for name, style in names)
        + "</ul>"
    )


def _spans_magnitudes(values: np.ndarray) -> bool:
    """Return whether values are above 0, and the largest so much larger than the smallest that an
    axis is logarithmic.
    """
    return bool(values.min() > 0 and MAGNITUDES * values.min() <= values.max())


def thin(count: int, limit: int) -> np.ndarray:
    """Return at most so many positions, evenly spread, the first and the last among them."""
    return (
        np.arange(count) if count <= limit else np.linspace(0, count - 1, limit).round().astype(int)
    )


_Group = Sequence[tuple[int, AskReport]]


def _groups(snapshot: Snapshot) -> list[_Group]:
    """Return the asks whose cost is known, as many beside each other in a group as the chart
    needs.
    """
    costs = list(snapshot.costs.items())
    size = math.ceil(len(costs) / MAX_ASKS)
    return [costs[start : start + size] for start in range(0, len(costs), size)]


def _over_asks(groups: Sequence[_Group], y: Scale, label: str) -> Panel:
    """Return a panel with axes, asks across."""
    first = groups[0][0][0]
    last = groups[-1][-1][0]
    panel = Panel(Scale(first - 0.5, last + 0.5), y, 70, 28, WIDTH - 80, 194)
    panel.axes("ask", label)
    return panel


def _edges(group: _Group, *, right: bool = False) -> float:
    first = group[0][0] - 0.5
    last = group[-1][0] + 0.5
    margin = 0.12 * (last - first)
    return last - margin if right else first + margin


def _name(group: _Group) -> str:
    first = group[0][0]
    last = group[-1][0]
    return f"ask {first}" if first == last else f"asks {first} to {last}"
