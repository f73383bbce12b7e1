"""Interactive pictures of a study, as Plotly figures.

Each function takes a :class:`Study` and returns a ``plotly.graph_objects.Figure``: ``show()`` opens
it, a notebook shows it, ``write_html`` and ``write_image`` keep it. They need Plotly, ``pip install
'scalable-bo[plot]'``. Predictions are the surrogate's, given all values so far; bands are two
standard deviations, without the noise.

Notation: n values, d parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from scalable_bo._packages import require
from scalable_bo.report.snapshot import Snapshot
from scalable_bo.space.parameters import Parameter
from scalable_bo.study.study import Study

require("plotly", extra="plot", user="`scalable_bo.visualization`")

import plotly.graph_objects as go
from plotly.subplots import make_subplots

POINTS_OF_SLICE = 81
SIDE_OF_CONTOUR = 41
MOST_SLICES = 12
COLUMNS = 3
HEIGHT_OF_SLICE = 240
# Positive values whose largest is so many times their smallest are drawn on a logarithmic axis
MAGNITUDES = 1e3

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
    """Return the values in the order told, and the best so far.

    Args:
        log: draw values on a logarithmic axis; ``None`` where all are positive and span more than
            three orders of magnitude.

    Raises:
        ValueError: if there is no value yet, or ``log`` and one is not positive.
    """
    snapshot = study.snapshot()
    ids, _, values = _observed(snapshot)
    if log and values.min() <= 0:
        raise ValueError(
            f"`log` needs positive values, got {values.min():.6g}. Leave `log` out, or tell values"
            " above 0."
        )
    best = np.maximum.accumulate(values) if snapshot.maximize else np.minimum.accumulate(values)
    order = np.arange(1, len(values) + 1)
    figure = go.Figure(
        [
            go.Scatter(
                x=order,
                y=values,
                mode="markers",
                name="value",
                text=_texts(snapshot, ids),
                hovertemplate="%{text}<br>value %{y}<extra></extra>",
            ),
            go.Scatter(x=order, y=best, mode="lines", name="best so far", line_shape="hv"),
        ]
    )
    figure.update_layout(
        title="Best so far", xaxis_title="evaluations with a value", yaxis_title="value"
    )
    figure.update_yaxes(type="log" if _is_log(values, log) else "linear")
    return figure


def plot_slice(study: Study, params: Sequence[str] | None = None) -> go.Figure:
    """Return the prediction with its band along each parameter, all others as in
    ``study.best_params``, and the observed values.

    Args:
        params: names; ``None`` for all, of more than twelve those that matter most.

    Raises:
        ValueError: for names that the study does not have, or fewer than two values.
    """
    names = _names(study, params, MOST_SLICES)
    _, X, values = _observed(study.snapshot())
    columns = min(COLUMNS, len(names))
    figure = make_subplots(
        rows=math.ceil(len(names) / columns),
        cols=columns,
        subplot_titles=names,
        shared_yaxes=True,
    )
    for number, name in enumerate(names):
        param = study.space.params[name]
        place: dict[str, Any] = {"row": number // columns + 1, "col": number % columns + 1}
        axis = param.spread(POINTS_OF_SLICE).numpy()
        mean, std = _predict_at(study, {name: axis})
        labels = param.labels(axis)
        column = X[:, study.space.names.index(name)]
        first = number == 0
        dots = go.Scatter(
            x=param.labels(column),
            y=values,
            mode="markers",
            name="observed",
            marker={"size": 5, "opacity": 0.5, "color": "#888888"},
            showlegend=first,
        )
        for trace in (*_band(labels, mean, std, param.axis == "category", first), dots):
            figure.add_trace(trace, **place)
        figure.update_xaxes(type=param.axis, **place)
    figure.update_layout(
        title="Prediction through the recommended point",
        height=120 + HEIGHT_OF_SLICE * math.ceil(len(names) / columns),
    )
    return figure


def plot_contour(study: Study, params: Sequence[str] | None = None) -> go.Figure:
    """Return the predicted mean over two parameters, all others as in ``study.best_params``, and
    the observed points.

    Args:
        params: two names; ``None`` for the two that matter most.

    Raises:
        ValueError: unless they are two names that the study has, and there are at least two values.
    """
    if len(study.space.names) < 2:
        raise ValueError("A contour needs at least two parameters, and the study has one.")
    names = _names(study, params, 2)
    if len(names) != 2 or names[0] == names[1]:
        raise ValueError(f"`params` must be two different names, got {names}.")
    _, X, values = _observed(study.snapshot())
    across, up = (study.space.params[name] for name in names)
    x = across.spread(SIDE_OF_CONTOUR).numpy()
    y = up.spread(SIDE_OF_CONTOUR).numpy()
    grid_y, grid_x = np.meshgrid(y, x, indexing="ij")
    mean, _ = _predict_at(study, {names[0]: grid_x.ravel(), names[1]: grid_y.ravel()})
    columns = [X[:, study.space.names.index(name)] for name in names]
    figure = go.Figure(
        [
            go.Contour(
                x=across.labels(x),
                y=up.labels(y),
                z=mean.reshape(len(y), len(x)),
                colorscale="Viridis",
                colorbar={"title": "mean"},
            ),
            go.Scatter(
                x=across.labels(columns[0]),
                y=up.labels(columns[1]),
                mode="markers",
                name="observed",
                text=[f"{value:.6g}" for value in values],
                marker={"color": "white", "size": 6, "line": {"color": "black", "width": 1}},
            ),
        ]
    )
    figure.update_layout(
        title="Predicted mean through the recommended point",
        xaxis_title=names[0],
        yaxis_title=names[1],
    )
    figure.update_xaxes(type=across.axis)
    figure.update_yaxes(type=up.axis)
    return figure


def plot_parallel_coordinates(study: Study, params: Sequence[str] | None = None) -> go.Figure:
    """Return each observed point as a line across the axes of the parameters and the value, the
    better ones lighter; an axis can be brushed.

    Args:
        params: names; ``None`` for all.

    Raises:
        ValueError: for names that the study does not have, or if there is no value yet.
    """
    names = list(study.space.names) if params is None else _names(study, params, len(params))
    snapshot = study.snapshot()
    _, X, values = _observed(snapshot)
    dimensions = [
        _dimension(name, study.space.params[name], X[:, study.space.names.index(name)])
        for name in names
    ]
    figure = go.Figure(
        go.Parcoords(
            dimensions=[*dimensions, {"label": "value", "values": values}],
            line={
                "color": values if snapshot.maximize else -values,
                "colorscale": "Viridis",
                "showscale": False,
            },
        )
    )
    figure.update_layout(title="Parameters and values")
    return figure


def plot_pareto_front(study: Study) -> go.Figure:
    """Return the outcomes that are optimised, of all points: those on the Pareto front, the other
    feasible ones, and those that break a limit. Of three objectives or more, the first three.

    Raises:
        ValueError: unless the study has several objectives, and a value.
    """
    snapshot = study.snapshot()
    goal = snapshot.goal
    if goal is None or goal.num_objectives < 2:
        raise ValueError("A Pareto front needs several objectives. Use `plot_history` for one.")
    ids, _, _ = _observed(snapshot)
    Y = snapshot.rows.outcomes(len(goal.names))
    on_front = goal.front(Y).numpy()[ids]
    feasible = goal.feasible(Y).numpy()[ids]
    names = list(goal.objectives)[:3]
    axes = [f"{name}, {goal.objectives[name]}" for name in names]
    columns = [Y[ids, goal.names.index(name)].numpy() for name in names]
    texts = np.array(_texts(snapshot, ids), dtype=object)
    parts = {
        "others": (~feasible & ~on_front, "#bbbbbb"),
        "feasible": (feasible & ~on_front, "#1f77b4"),
        "on the front": (on_front, "#ff7f0e"),
    }
    kind = go.Scatter if len(names) == 2 else go.Scatter3d
    figure = go.Figure(
        [
            kind(
                **{axis: column[kept] for axis, column in zip("xyz", columns, strict=False)},
                mode="markers",
                name=name,
                text=texts[kept],
                marker={"color": colour, "size": 7 if len(names) == 2 else 4},
            )
            for name, (kept, colour) in parts.items()
            if kept.any()
        ]
    )
    title = "Pareto front"
    if len(names) == 2:
        figure.update_layout(title=title, xaxis_title=axes[0], yaxis_title=axes[1])
    else:
        scene = {f"{axis}axis_title": label for axis, label in zip("xyz", axes, strict=True)}
        figure.update_layout(title=title, scene=scene)
    return figure


def plot_importances(study: Study) -> go.Figure:
    """Return the share of each parameter in what the predicted mean varies by, see
    ``Study.importances``.

    Raises:
        ValueError: if there are fewer than two values.
    """
    found = study.importances()
    names = list(found)[::-1]
    shares = [found[name] for name in names]
    figure = go.Figure(
        go.Bar(
            x=shares, y=names, orientation="h", text=[f"{share:.2f}" for share in shares]
        )
    )  # fmt: skip
    figure.update_layout(
        title="Importances", xaxis_title="share of the total Sobol' indices", yaxis_type="category"
    )
    return figure


def plot_timeline(study: Study) -> go.Figure:
    """Return the seconds of each ask: fitting hyperparameters, solving for the paths, searching
    their maxima.

    Raises:
        ValueError: if there is no ask yet.
    """
    costs = study.snapshot().costs
    if not costs:
        raise ValueError("There is no ask yet whose time could be shown. Ask for points first.")
    steps = {"fit": "seconds_fit", "solve": "seconds_solve", "search": "seconds_acquisition"}
    figure = go.Figure(
        [
            go.Bar(
                x=list(costs),
                y=[getattr(cost, field) for cost in costs.values()],
                name=name,
                text=[cost.choice for cost in costs.values()],
                textposition="none",
                hovertemplate="%{y:.3g} s<br>%{text}",
            )
            for name, field in steps.items()
        ]
    )
    figure.update_layout(
        title="Time of each ask", barmode="stack", xaxis_title="ask", yaxis_title="seconds"
    )
    return figure


def _observed(snapshot: Snapshot) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Return the numbers, points (n, d) and values (n,) of the rows with a value."""
    rows = snapshot.rows
    ids = list(rows.observed)
    if not ids:
        raise ValueError("There is nothing to show yet: no finite value has been told.")
    return ids, rows.X[ids].numpy(), rows.values[ids].numpy()


def _texts(snapshot: Snapshot, ids: Sequence[int]) -> list[str]:
    params = snapshot.space.to_dicts(snapshot.rows.X[ids])
    return [
        f"row {number}<br>" + "<br>".join(f"{name} {_short(value)}" for name, value in of.items())
        for number, of in zip(ids, params, strict=True)
    ]


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _is_log(values: np.ndarray, log: bool | None) -> bool:
    if log is not None:
        return log
    return bool(values.min() > 0 and values.max() > MAGNITUDES * values.min())


def _names(study: Study, params: Sequence[str] | None, most: int) -> list[str]:
    """Return the names that were given or, if ``None``, so many of those that matter most."""
    known = study.space.names
    if params is None:
        return list(known) if len(known) <= most != 2 else list(study.importances())[:most]
    if isinstance(params, str):
        params = [params]
    for name in params:
        if name not in known:
            raise ValueError(f"`params` must be among {', '.join(known)}, got {name!r}.")
    return list(params)


def _predict_at(study: Study, numbers: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation at the recommended point with some parameters changed, in
    the numbers that stand for them.
    """
    count = len(next(iter(numbers.values())))
    X = study.space.from_dicts([study.best_params], observed=True).repeat(count, 1)
    for name, column in numbers.items():
        X[:, study.space.names.index(name)] = torch.from_numpy(column)
    mean, std = study.predict(study.space.completed(X))
    return mean.numpy(), std.numpy()


def _band(
    x: list[Any], mean: np.ndarray, std: np.ndarray, is_choice: bool, in_legend: bool
) -> list[go.Scatter]:
    """Return the traces of a mean and two standard deviations about it."""
    if is_choice:
        bars = {"type": "data", "array": 2.0 * std}
        return [
            go.Scatter(
                x=x, y=mean, error_y=bars, mode="markers", name="mean", showlegend=in_legend,
                marker={"color": "#1f77b4", "size": 9},
            )
        ]  # fmt: skip
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    return [
        go.Scatter(x=x, y=mean + 2.0 * std, **edge),
        go.Scatter(
            x=x, y=mean - 2.0 * std, fill="tonexty", fillcolor="rgba(31, 119, 180, 0.2)", **edge
        ),
        go.Scatter(
            x=x, y=mean, mode="lines", name="mean", line_color="#1f77b4", showlegend=in_legend
        ),
    ]


def _dimension(name: str, param: Parameter, column: np.ndarray) -> dict[str, Any]:
    """Return one axis of parallel coordinates."""
    if param.axis == "category":
        positions = param.values().numpy()
        ticks = param.labels(positions)
        return {"label": name, "values": column, "tickvals": positions, "ticktext": ticks}
    if param.axis == "linear":
        return {"label": name, "values": column, "range": [param.low, param.high]}
    powers = np.linspace(math.log10(param.low), math.log10(param.high), 5)
    return {
        "label": name,
        "values": np.log10(column),
        "range": [powers[0], powers[-1]],
        "tickvals": powers,
        "ticktext": [f"{10**power:.3g}" for power in powers],
    }
