"""Interactive pictures of a study, as Plotly figures.

Each function takes a :class:`Study` and returns a ``plotly.graph_objects.Figure``: ``show()`` opens
it, a notebook shows it, ``write_html`` and ``write_image`` keep it. They need Plotly, which the
extra ``plot`` brings. Predictions are the surrogate's, given all values so far; bands are two
standard deviations, without the noise. The report draws the same.
"""

from __future__ import annotations

import html
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from scalable_bo._packages import require
from scalable_bo.report import views
from scalable_bo.report.snapshot import Snapshot
from scalable_bo.report.svg import LONGEST_TICK, escape, ticks
from scalable_bo.report.views import Axis, Marks, Panel, Picture
from scalable_bo.space.quoting import shorten
from scalable_bo.study.study import Study
from surrogates import checks

require("plotly", extra="plot", user="`scalable_bo.visualization`")

import plotly.graph_objects as go
from plotly.subplots import make_subplots

COLOURS = {
    "blue": "#1f77b4",
    "orange": "#ff7f0e",
    "green": "#2ca02c",
    "faint": "#888888",
    "hollow": "#ffffff",
}
FAINT_BLUE = "rgba(31, 119, 180, 0.2)"

__all__ = [
    "plot_contour",
    "plot_history",
    "plot_importances",
    "plot_parallel_coordinates",
    "plot_pareto_front",
    "plot_slice",
    "plot_timeline",
]


def plot_history(study: Study, *, log: bool | None = None) -> go.Figure:
    """Return the values in the order told, and the best so far; of several objectives the
    hypervolume so far.

    Args:
        log: draw values on a logarithmic axis; ``None`` where all are positive and span more than
            three orders of magnitude.

    Raises:
        ValueError: if there is no value yet, or ``log`` and one is not positive.
    """
    snapshot = study.snapshot()
    lowest = snapshot.rows.values[views.observed(snapshot)].min().item()
    if log and lowest <= 0:
        raise ValueError(
            f"`log` needs positive values, got {lowest:.6g}. Leave `log` out, or tell values"
            " above 0."
        )
    return _figure(views.history(snapshot, log))


def plot_slice(
    study: Study, params: Sequence[str] | None = None, *, outcome: str | None = None
) -> go.Figure:
    """Return the prediction with its band along each parameter, all others as at the recommended
    point, and the observed values; of several objectives as at the point of the front whose worst
    objective is best.

    Args:
        params: names; ``None`` for all, of more than twelve those that matter most.
        outcome: which of several; the first if ``None``.

    Raises:
        ValueError: for names that the study does not have, or none of which is active there, or
            fewer than two values.
    """
    snapshot, number = _with_surrogate(study, outcome)
    names = _checked(snapshot, params)
    picture = views.slices(snapshot, number, names)
    return _figure(picture, "Prediction through the recommended point")


def plot_contour(
    study: Study, params: Sequence[str] | None = None, *, outcome: str | None = None
) -> go.Figure:
    """Return the predicted mean over two parameters, all others as in :func:`plot_slice`, and the
    observed points; choices have cells of their own, and it is blank where a parameter is not
    active.

    Args:
        params: two names; ``None`` for the two that matter most.
        outcome: which of several; the first if ``None``.

    Raises:
        ValueError: unless they are two names that the study has, and there are at least two values.
    """
    if len(study.space.names) < 2:
        raise ValueError("A contour needs at least two parameters, and the study has one.")
    snapshot, number = _with_surrogate(study, outcome)
    names = _checked(snapshot, params)
    if names is not None and (len(names) != 2 or names[0] == names[1]):
        raise ValueError(f"`params` must be two different names, got {names}.")
    picture = views.contour(snapshot, number, names)
    if picture is None:
        raise ValueError("A contour needs two parameters that are active at the recommended point.")
    figure = _figure(picture, "Predicted mean through the recommended point")
    figure.update_traces(showlegend=False, selector=0)  # its colour bar has its name, and its place
    above = {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 1, "xanchor": "right"}
    return figure.update_layout(legend=above)


def plot_parallel_coordinates(study: Study, params: Sequence[str] | None = None) -> go.Figure:
    """Return each observed point as a line across the axes of the parameters and of the objectives,
    the better ones lighter, along the bottom edge where a parameter is not active; an axis can be
    brushed.

    Args:
        params: names; ``None`` for all.

    Raises:
        ValueError: for names that the study does not have, or if there is no value yet.
    """
    snapshot = study.snapshot()
    views.observed(snapshot)
    lines = views.lines(snapshot, _checked(snapshot, params), whole=True)
    dimensions = list(map(_dimension, lines.axes, lines.values.T))
    line = {"color": -np.arange(len(lines.rows)), "colorscale": "Viridis", "showscale": False}
    figure = go.Figure(go.Parcoords(dimensions=dimensions, line=line))
    if lines.note:
        below = {"x": 0, "xref": "paper", "y": 0, "yref": "paper", "yanchor": "top", "yshift": -20}
        figure.add_annotation(text=lines.note, showarrow=False, **below)
    return figure.update_layout(title="Parameters and values")


def plot_pareto_front(study: Study) -> go.Figure:
    """Return every pair of the objectives, of all points: those on the Pareto front, the other
    feasible ones, and those that break a limit.

    Raises:
        ValueError: unless the study has several objectives, and a value.
    """
    return _figure(views.front(study.snapshot()))


def plot_importances(study: Study, *, outcome: str | None = None) -> go.Figure:
    """Return the share of each parameter in what the predicted mean varies by, see
    ``Study.importances``.

    Args:
        outcome: which of several; the first if ``None``.

    Raises:
        ValueError: if there are fewer than two values.
    """
    found = study.importances(outcome)
    names = list(found)[::-1]
    shares = [found[name] for name in names]
    y = list(map(_text, names))
    texts = [f"{share:.2f}" for share in shares]
    figure = go.Figure(go.Bar(x=shares, y=y, text=texts, hovertext=y, orientation="h"))
    figure.update_layout(title="Importances", xaxis_title="share of the total Sobol' indices")
    return figure.update_yaxes(**_kind(Axis("", 0.0, 1.0, "category", names), 40))


def plot_timeline(study: Study) -> go.Figure:
    """Return the seconds of each ask: fitting hyperparameters, solving for the paths, searching
    their maxima.

    Raises:
        ValueError: if there is no ask yet.
    """
    return _figure(views.times(study.snapshot()))


def _with_surrogate(study: Study, outcome: str | None) -> tuple[Snapshot, int]:
    names = study.outcomes or ("value",)
    number = 0 if outcome is None else names.index(checks.one_of("outcome", outcome, names))
    snapshot = study.snapshot()
    if not snapshot.beliefs:
        study.importances()  # which says what is missing
    return snapshot, number


def _checked(snapshot: Snapshot, params: Sequence[str] | None) -> list[str] | None:
    if params is None:
        return None
    known = snapshot.space.names
    for name in (names := [params] if isinstance(params, str) else list(params)):
        if name not in known:
            raise ValueError(f"`params` must be among {', '.join(known)}, got {name!r}.")
    return names


def _figure(
    picture: Picture, title: str = "", most_columns: int = 3, row_height: int = 240, most: int = 40
) -> go.Figure:
    panels = picture.panels
    columns = min(most_columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    titles = [_text(panel.title, most) for panel in panels] if panels[0].title else None
    shared = all(panel.y is panels[0].y for panel in panels)
    figure = make_subplots(rows=rows, cols=columns, subplot_titles=titles, shared_yaxes=shared)
    for note, panel in zip(figure.layout.annotations, panels, strict=False):
        note.update(font_size=12, hovertext=_text(panel.title))
    shown: set[str] = set()
    for number, panel in enumerate(panels):
        place: dict[str, Any] = {"row": number // columns + 1, "col": number % columns + 1}
        for marks in panel.marks:
            for trace in _traces(panel, marks):
                trace.showlegend = bool(trace.name) and trace.name not in shown
                shown.add(trace.name or "")
                figure.add_trace(trace, **place)
        along = None if titles else _text(panel.x.title, most)
        figure.update_xaxes(title=along, **_kind(panel.x), **place)
        figure.update_yaxes(**_kind(panel.y), **place)
        if number % columns == 0 or not shared:
            figure.update_yaxes(title=_text(panel.y.title, most), **place)
    height = 120 + row_height * rows if rows > 1 else None
    return figure.update_layout(title=title or picture.title, barmode="stack", height=height)


def _traces(panel: Panel, marks: Marks) -> list[Any]:
    x, y = _along(panel.x, marks.x), _along(panel.y, marks.y)
    colour = COLOURS[marks.colour]
    texts = x if panel.x.kind == "category" else None
    if marks.texts is not None:
        texts = [_text(text) for text in marks.texts(np.arange(len(marks.x)))]
    match marks.kind:
        case "points":
            edge = {"color": "black", "width": int(marks.colour == "hollow")}
            marker = {"color": colour, "size": 6, "line": edge}
            trace = go.Scatter(x=x, y=y, mode="markers", text=texts, marker=marker)
        case "line" | "steps":
            line = {"color": colour, "shape": "hv" if marks.kind == "steps" else "linear"}
            trace = go.Scatter(x=x, y=y, mode="lines", line=line)
        case "band" if panel.x.kind == "category":
            bars = {"array": marks.high - y, "arrayminus": y - marks.low, "symmetric": False}
            trace = go.Scatter(x=x, y=y, error_y=bars, mode="markers", marker_color=FAINT_BLUE)
        case "band":
            edges = {"x": x, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
            low = go.Scatter(y=marks.low, fill="tonexty", fillcolor=FAINT_BLUE, **edges)
            return [go.Scatter(y=marks.high, **edges), low]
        case "rule":
            ends = _along(panel.x, range(len(panel.x.labels))) or [panel.x.low, panel.x.high]
            line = {"color": colour, "dash": "dash"}
            along = {"x": [*x, *x], "y": [panel.y.low, panel.y.high]}
            if not len(marks.x):
                along = {"x": [ends[0], ends[-1]], "y": [*y, *y]}
            trace = go.Scatter(**along, mode="lines", line=line)
        case "bars":
            hover = {"textposition": "none", "hovertemplate": "%{text}<extra></extra>"}
            trace = go.Bar(x=x, y=y, text=texts, marker_color=colour, **hover)
        case _:
            kind = go.Heatmap if "category" in (panel.x.kind, panel.y.kind) else go.Contour
            bar = {"title": marks.name}
            trace = kind(x=x, y=y, z=marks.z, colorscale="Viridis", colorbar=bar)
    trace.name = marks.name
    return [trace]


def _along(axis: Axis, numbers: np.ndarray | range) -> Any:
    """Return what stands at places of an axis."""
    return [_text(axis.labels[int(k)]) for k in numbers] if axis.kind == "category" else numbers


def _text(text: str, length: int = sys.maxsize) -> str:
    """Return a text, cut to a length, that is shown as it is where Plotly expects markup."""
    return escape(shorten(text, length)).replace("&quot;", '"')


def _kind(axis: Axis, most: int = LONGEST_TICK) -> dict[str, Any]:
    """Return the kind of an axis and the ticks of its choices, which are whole under a pointer."""
    shown = {_text(label): _text(label, most) for label in axis.labels}
    return {"type": axis.kind, "labelalias": shown}


def _dimension(axis: Axis, column: np.ndarray) -> dict[str, Any]:
    scale = np.log10 if axis.kind == "log" else np.asarray
    found = ticks(axis, upright=True)
    return {
        "label": _text(axis.title, 2 * LONGEST_TICK),  # a tick stands on one side alone
        "values": scale(np.where(np.isnan(column), axis.low, column)),  # a NaN would hide the line
        "range": scale([axis.low, axis.high]),
        "tickvals": scale([value for value, _ in found]),
        "ticktext": [html.unescape(_text(label, LONGEST_TICK)) for _, label in found],  # no markup
    }
