"""The interactive pictures of a study show its rows and its surrogate's predictions."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from scalable_bo import Categorical, Float, Int, Space, Study
from scalable_bo import visualization as vis
from tests.quick import QUICK

SPACE = Space(
    rate=Float(1e-4, 1.0, log=True), layers=Int(1, 6), kind=Categorical(["plain", "<b>bold"])
)


def objective(params: Any) -> float:
    gap = math.log10(params["rate"]) + 2.0
    return gap**2 + 0.1 * params["layers"] + (params["kind"] != "plain")


@pytest.fixture(scope="module")
def study() -> Iterator[Study]:
    with Study(SPACE, maximize=False, seed=0, sampler=QUICK, num_initial=8) as study:
        study.optimize(objective, rounds=2, batch=8, progress=False)
        yield study


def named(figure: Any, name: str) -> Any:
    return next(trace for trace in figure.data if trace.name == name)


def test_the_history_holds_all_values_and_the_best_so_far(study: Study) -> None:
    figure = vis.plot_history(study)
    values = study.result.values.numpy()
    np.testing.assert_array_equal(named(figure, "value").y, values)
    np.testing.assert_array_equal(named(figure, "best so far").y, np.minimum.accumulate(values))
    assert "layers" in named(figure, "value").text[0]


def test_there_is_no_best_value_before_the_first_that_keeps_the_limits() -> None:
    limits = {"value": (None, 2.0)}
    with Study(Space(x=Float(0.0, 1.0)), maximize=False, outcome_constraints=limits) as study:
        study.tell(study.ask(4), [[5.0], [2.0], [4.0], [1.0]])
        best = named(vis.plot_history(study), "best so far")
    assert [*zip(best.x, best.y, strict=True)] == [(2, 2.0), (3, 2.0), (4, 1.0)]


@pytest.mark.parametrize(
    ("values", "has_log"),
    [
        ([2e4, 3e3, 50.0, 2.0, 0.5], True),
        ([2e4, 3e3, 50.0, -2.0, 0.5], False),
        ([5.0, 3.0, 2.0, 1.0, 0.5], False),
        ([0.0, 3e3, 50.0, 2.0, 0.5], False),
    ],
)
def test_values_of_many_magnitudes_get_a_logarithmic_axis(
    values: list[float], has_log: bool
) -> None:
    with Study(Space(x=Float(0.0, 1.0)), maximize=False, seed=0) as study:
        study.add_data([[number / 10] for number in range(5)], values)
        axis = vis.plot_history(study).layout.yaxis
        assert axis.type == ("log" if has_log else "linear")
        assert vis.plot_history(study, log=False).layout.yaxis.type == "linear"
        if min(values) < 0.0:
            with pytest.raises(ValueError, match=r"`log` needs positive values, got -2"):
                vis.plot_history(study, log=True)


def test_slices_show_the_prediction_and_its_band(study: Study) -> None:
    figure = vis.plot_slice(study, ["rate"])
    mean = named(figure, "mean")
    best = study.best_params
    points = [{**best, "rate": rate} for rate in mean.x]
    expected, std = study.predict(points)
    np.testing.assert_allclose(mean.y, expected, rtol=1e-10)
    upper, lower = figure.data[0].y, figure.data[1].y
    np.testing.assert_allclose(upper - lower, 4.0 * std.numpy(), rtol=1e-8)
    assert figure.layout.xaxis.type == "log"


def test_slices_are_of_all_parameters_with_choices_by_name(study: Study) -> None:
    figure = vis.plot_slice(study)
    assert [title.text for title in figure.layout.annotations] == list(SPACE.names)
    assert figure.layout.xaxis3.type == "category"
    choices = {x for trace in figure.data if trace.xaxis == "x3" for x in trace.x}
    assert choices == {"plain", "&lt;b&gt;bold"}


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        for part in value:
            yield from texts_in(part)
    if isinstance(value, str):
        yield value


def test_a_name_or_a_choice_is_text_as_it_is_however_long_and_its_ticks_are_short() -> None:
    name, choice = "<b>&amp;\u202e" + 120 * "n", "<i>&lt;\u202e" + 200 * "c"
    space = Space(**{name: Categorical([choice, "b"]), "x": Float(0.0, 1.0)})
    goals = {f"{name}1": "minimize", f"{name}2": "minimize"}
    with Study(space, objectives=goals, strategy="thompson") as study:
        points = [{name: choice, "x": 0.1}, {name: "b", "x": 0.4}, {name: choice, "x": 0.9}]
        study.add_data(points, [(1.0, 2.0), (2.0, 1.0), (3.0, 3.0)])
        whole, cut = (f"&lt;i&gt;&amp;lt;\\u202e{200 * 'c'}", "&lt;i&gt;&amp;lt;\\u202e…")
        slices, surface = vis.plot_slice(study), vis.plot_contour(study)
        lines, bars = vis.plot_parallel_coordinates(study), vis.plot_importances(study)
        for figure in (slices, surface, lines, bars, vis.plot_pareto_front(study)):
            allowed = [*texts_in(lines.data[0].dimensions[0].ticktext), "%{text}<extra></extra>"]
            content = figure.layout.to_plotly_json()
            del content["template"]
            texts = list(texts_in([content, *(trace.to_plotly_json() for trace in figure.data)]))
            assert not [text for text in texts if "<" in text and text not in allowed]
            assert not [text for text in texts if "\u202e" in text]
        assert slices.layout.xaxis.labelalias == {whole: cut, "b": "b"}
        assert whole in named(slices, "observed").text  # under a pointer
        (title, *_) = slices.layout.annotations
        assert len(title.text) < 60 < len(title.hovertext)
        assert len(slices.layout.yaxis.title.text) < 60
        assert lines.data[0].dimensions[0].ticktext == ("<i>&lt;\\u202e…", "b")


def test_a_contour_holds_the_predicted_mean(study: Study) -> None:
    figure = vis.plot_contour(study, ["rate", "layers"])
    surface = figure.data[0]
    best = study.best_params
    expected, _ = study.predict({**best, "rate": surface.x[3], "layers": int(surface.y[2])})
    assert surface.z[2][3] == pytest.approx(float(expected), rel=1e-9)
    assert len(figure.data[1].x) == study.num_observations
    by_default = vis.plot_contour(study)
    most = list(study.importances())[:2]
    assert [by_default.layout.xaxis.title.text, by_default.layout.yaxis.title.text] == most


def test_parallel_coordinates_have_an_axis_for_each_parameter_and_the_value(study: Study) -> None:
    axes = vis.plot_parallel_coordinates(study).data[0].dimensions
    assert [axis.label for axis in axes] == [*SPACE.names, "value"]
    assert axes[0].range == pytest.approx((-4.0, 0.0))
    assert list(axes[2].ticktext) == ["plain", "<b>bold"]


def test_parallel_coordinates_draw_points_with_inactive_parameters_at_the_bottom_edge() -> None:
    space = Space(
        kind=Categorical(["x", "y"]),
        m=Float(1e-3, 1.0, log=True, active_if={"kind": "x"}),
        c=Categorical(["a", "b"], active_if={"kind": "x"}),
    )
    with Study(space, maximize=True) as study:
        points = [{"kind": "x", "m": 0.1, "c": "a"}, {"kind": "y"}]
        study.add_data(points, [1.0, 2.0])
        figure = vis.plot_parallel_coordinates(study)
        m, c = (list(axis["values"]) for axis in figure.data[0].dimensions[1:3])
        assert (m, c) == (pytest.approx([-3.0, -1.0]), [-0.5, 0.0])  # Plotly draws no line with NaN
        note = "Lines follow the bottom edge where a parameter is not active."
        assert [one.text for one in figure.layout.annotations] == [note]


def test_the_legend_of_a_contour_is_beside_its_colour_bar(study: Study) -> None:
    figure = vis.plot_contour(study)
    surface, *others = figure.data
    assert (surface.colorbar.title.text, surface.showlegend) == ("mean", False)
    assert all(trace.showlegend for trace in others)
    assert figure.layout.legend.orientation == "h"  # above the panel; the bar is on its right


def several(names: str) -> Study:
    study = Study(
        Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0)),
        objectives=dict.fromkeys(names, "minimize"),
        outcome_constraints={"limited": (None, 0.5)},
        strategy="thompson",
    )
    study.add_data(
        [[0.1, 0.9], [0.9, 0.1], [0.9, 0.9], [0.05, 0.05]],
        [(0.1, 0.9, 0.5, 0.0), (0.9, 0.1, 0.5, 0.0), (0.9, 0.9, 0.9, 0.0), (0.0, 0.0, 0.0, 1.0)]
        if len(names) == 3
        else [(0.1, 0.9, 0.0), (0.9, 0.1, 0.0), (0.9, 0.9, 0.0), (0.0, 0.0, 1.0)],
    )
    return study


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_the_front_is_set_apart_from_points_that_are_worse_or_break_a_limit(names: str) -> None:
    with several(names) as study:
        figure = vis.plot_pareto_front(study)
        front = named(figure, "on the front")
        assert sorted(zip(front.x, front.y, strict=True)) == [(0.1, 0.9), (0.9, 0.1)]
        assert sorted(front.x) == sorted(point.outcomes["a"] for point in study.result.front)
        assert (list(named(figure, "feasible").x), list(named(figure, "others").y)) == (
            [0.9],
            [0.0],
        )
        assert figure.layout.yaxis.title.text == "b, minimize"
        fronts = [trace for trace in figure.data if trace.name == "on the front"]
        assert len(fronts) == {"ab": 1, "abc": 3}[names]  # every pair of objectives


def test_a_front_needs_several_objectives(study: Study) -> None:
    with pytest.raises(ValueError, match="needs several objectives"):
        vis.plot_pareto_front(study)


def test_importances_are_the_study_s(study: Study) -> None:
    bar = vis.plot_importances(study).data[0]
    assert dict(zip(bar.y, bar.x, strict=True)) == pytest.approx(study.importances())


def test_the_timeline_has_the_seconds_of_each_ask(study: Study) -> None:
    figure = vis.plot_timeline(study)
    assert list(named(figure, "search").x) == [1, 2]
    assert named(figure, "search").y[-1] == study.last_ask.seconds_acquisition


@pytest.mark.parametrize(
    ("plot", "message"),
    [
        (vis.plot_history, "no finite value"),
        (vis.plot_parallel_coordinates, "no finite value"),
        (vis.plot_importances, "at least 2 values"),
        (vis.plot_timeline, "no ask yet"),
    ],
)
def test_an_empty_study_says_what_is_missing(plot: Any, message: str) -> None:
    with Study(SPACE, maximize=True, seed=0) as study, pytest.raises(ValueError, match=message):
        plot(study)


def test_unknown_parameters_are_named(study: Study) -> None:
    with pytest.raises(ValueError, match=r"`params` must be among rate, layers, kind, got 'depth'"):
        vis.plot_slice(study, ["depth"])
    with pytest.raises(ValueError, match="two different names"):
        vis.plot_contour(study, ["rate", "rate"])


def test_parameters_with_steps_and_conditions_are_shown() -> None:
    space = Space(
        a=Float(0.0, 1.0, step=0.1),
        k=Int(1, 1000, log=True),
        kind=Categorical(["x", "y"]),
        m=Float(1e-3, 1.0, log=True, active_if={"kind": "x"}),
    )
    study = Study(space, maximize=True, seed=0, sampler=QUICK)
    study.optimize(lambda p: p["a"] + p.get("m", 0.0), rounds=2, batch=12, progress=False)
    study.add_data([{"a": 0.987, "k": 5, "kind": "y"}], [9.0])  # the best, between steps
    assert study.best_params["a"] == 0.987
    figure = vis.plot_slice(study, ["a", "kind"])
    means = [trace for trace in figure.data if trace.name == "mean"]
    assert list(means[0].x) == pytest.approx([step / 10 for step in range(11)])
    assert list(means[1].x) == ["x", "y"]
    surface = vis.plot_contour(study, ["a", "k"]).data[0]
    assert surface.type == "contour" and np.isfinite(np.asarray(surface.z)).all()
    surface = vis.plot_contour(study, ["kind", "m"]).data[0]
    assert (surface.type, list(surface.x)) == ("heatmap", ["x", "y"])  # not smooth between choices
    active = np.isfinite(np.asarray(surface.z, dtype=float))
    assert active[:, 0].all() and not active[:, 1].any()
    assert "m" not in [title.text for title in vis.plot_slice(study).layout.annotations]
    with pytest.raises(ValueError, match="must have one that is active in row 24"):
        vis.plot_slice(study, ["m"])
    assert len(vis.plot_parallel_coordinates(study).data[0].dimensions) == 5


def test_every_outcome_has_slices_and_a_contour_and_a_limit_is_a_line() -> None:
    with several("ab") as study:
        assert named(vis.plot_history(study), "hypervolume so far").y[-1] > 0
        figure = vis.plot_slice(study, outcome="limited")
        assert set(named(figure, "limit").y) == {0.5}
        means = [named(vis.plot_slice(study, ["x"], outcome=of), "mean").y for of in "ab"]
        point = vis.plot_slice(study, ["x"]).data[-1].x[0]
        x = named(vis.plot_slice(study, ["x"]), "mean").x
        y = study.snapshot().rows.X[study.snapshot().shown_row][1].item()
        expected, _ = study.predict([{"x": of, "y": y} for of in x])
        np.testing.assert_allclose(np.transpose(means), expected[:, :2], rtol=1e-6)
        assert point in (0.1, 0.9)
        with pytest.raises(ValueError, match="`outcome` must be"):
            vis.plot_contour(study, outcome="c")
