"""The report of a study: what it shows is true, and nothing that came from outside is more than
text in it.
"""

import base64
import hashlib
import html
import math
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import MaternKernel
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from scalable_bo.report import page, svg, views
from scalable_bo.report.snapshot import Snapshot
from scalable_bo.report.svg import draw, escape, ticks
from scalable_bo.report.views import LARGEST, Axis
from scalable_bo.space.quoting import ISOLATES
from scalable_bo.space.space import Categorical, Float, Int, LinearConstraint, Space
from scalable_bo.storage.record import describe_settings, make_settings
from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.rows import Outcomes, Rows
from scalable_bo.storage.shown import describe_params
from scalable_bo.storage.storage import Ask, Source
from scalable_bo.study.answers import read_snapshot
from scalable_bo.study.study import Study
from surrogates import CG
from tests import problems
from tests.command_lines import CommandLine
from tests.quick import QUICK
from tests.scalable_bo.serving.browser import Browser, missing
from tests.waiting import eventually

SPACE = Space(
    x=Float(-2.0, 2.0), n=Int(1, 1000, log=True), kind=Categorical(["a", "b"]), fixed="yes"
)
HOSTILE = (
    "<script>document.title='owned'</script><img src=x"
    " onerror=\"document.title='owned'\">'\"&amp;\x00\u202e$\\frac{"
)
VOID = {"meta"}
ELEMENTS = """
html head meta title style body main h1 h2 h3 p dl dt dd div section ul ol li i figure figcaption
details summary table thead tbody tr th td footer svg g line polyline circle rect text
"""
KNOWN = set(ELEMENTS.split())


class Page(HTMLParser):
    """Reads a page strictly: every element is closed in its turn."""

    def __init__(self, content: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(content)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += f"{data}\n"


@dataclass
class Believed:
    """Believes in a mean, with a band of one on either side of it."""

    space: Space
    mean: Callable[[torch.Tensor], torch.Tensor]

    def curve(self, X: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean = self.mean(X)
        return mean, mean - 1.0, mean + 1.0

    def recommend(self, X: torch.Tensor, values: torch.Tensor) -> int:
        return int(values.argmax())

    @property
    def importances(self) -> dict[str, float]:
        X = self.space.unnormalize(torch.rand(50, self.space.encoded_dim).double())
        means = {}
        for column, name in enumerate(self.space.names):
            changed = X[:1].repeat(50, 1)
            changed[:, column] = X[:, column]
            means[name] = float(self.mean(self.space.completed(changed)).std())
        return dict(sorted(means.items(), key=lambda item: -item[1]))


def snapshot_of(
    values: Any,
    *,
    space: Space = SPACE,
    maximize: bool = True,
    costs: dict[int, AskReport] | None = None,
    mean: Any = "of the unit cube",
    **more: Any,
) -> Snapshot:
    """Return a snapshot of values at random points, with a posterior of its own."""
    outcomes = Outcomes.of(values)
    rows = Rows(space.dim)
    U = problems.uniform(len(outcomes.values), space.encoded_dim)
    rows.record(rows.append(space.unnormalize(U), 0), outcomes)
    costs = costs or {}
    if mean == "of the unit cube":
        mean = lambda X: space.normalize(X).sum(1)  # noqa: E731
    given: dict[str, Any] = {
        "settings": describe_settings(make_settings(space.to_dict(), maximize, 0)),
        "asks": [Ask(number, 1, 1, 1, True) for number in costs],
        "sources": [],
        "find_beliefs": lambda: [] if mean is None else [Believed(space, mean)],
        "find_success": lambda: None,
    }
    return Snapshot(space=space, maximize=maximize, rows=rows, costs=costs, **(given | more))


def hostile() -> Snapshot:
    """Return a snapshot in which whatever has a name or a text is hostile."""
    params: dict[str, Any] = {
        HOSTILE: Float(0.0, 1.0),
        "kind": Categorical([HOSTILE, "b"]),
        f"fixed {HOSTILE}": HOSTILE,
    }
    space = Space(LinearConstraint({HOSTILE: 1.0}, at_most=1.0), **params)
    costs = {1: AskReport(1.0, 2.0, 3.0, 1e-3, HOSTILE, choice=HOSTILE)}
    return snapshot_of(
        [1.0, HOSTILE, 3.0, HOSTILE * 2],
        space=space,
        costs=costs,
        sources=[Source(HOSTILE, "abc", 0, 4)],
    )


def test_a_table_that_scrolls_is_named_and_no_landmark() -> None:
    page_of_all = page.render(hostile())
    scrolling = re.findall(r'<div class="scroll"[^>]*>', page_of_all)
    assert scrolling
    for opening in scrolling:  # or a reader would hear of so many regions of one name
        assert re.search('tabindex="0" role="group" aria-label="[A-Z][a-z ]+"', opening)


def score(params: dict[str, Any]) -> float:
    return (params["kind"] == "b") - (params["x"] - 1) ** 2 - math.log10(params["n"] / 10) ** 2


def run(path: Path | None = None, **options: Any) -> Study:
    """Return a study with failures, a pending point,
    and a value that its surrogate has not seen.
    """
    study = Study(
        SPACE,
        **{"maximize": True, "seed": 1, "path": path, "num_initial": 8, "sampler": QUICK} | options,
    )
    study.optimize(
        lambda params: score(params) if abs(params["x"]) < 1.5 else math.nan, rounds=4, batch=5
    )
    study.tell(study.ask(2).ids[:1], [100.0])
    return study


@pytest.fixture(scope="module", params=[True, False], ids=["maximize", "minimize"])
def study(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Study]:
    """A study as :func:`run` leaves it, which no test changes."""
    with run(tmp_path_factory.mktemp("run") / "study", maximize=request.param) as study:
        yield study


@pytest.fixture
def copied(study: Study, tmp_path: Path) -> Path:
    """The folder of a copy of the study."""
    study.copy_to(tmp_path / "study")
    return tmp_path / "study"


maximized = pytest.mark.parametrize("study", [True], indirect=True)


def section(content: str, heading: str) -> str:
    found: str = content.split(f"<h2>{heading}</h2>")[1].split("</section>")[0]
    return found


def part(content: str, heading: str) -> str:
    found: str = content.split(f"<h3>{heading}</h3>")[1].split("<h3>")[0]
    return found.split("<tbody><tr><th")[0]


def cells(table: str) -> list[list[str]]:
    rows = [
        re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in re.findall("<tr>(.*?)</tr>", table)
    ]
    return [[html.unescape(cell) for cell in row] for row in rows]


def test_what_comes_from_outside_ends_up_as_text() -> None:
    content = page.render(hostile())
    parsed = Page(content)
    assert {tag for tag, _ in parsed.elements} <= KNOWN
    assert not [
        name
        for _, attributes in parsed.elements
        for name in attributes
        if name.startswith("on") or name in ("href", "src", "style")
    ]
    shown = html.unescape(escape(HOSTILE))
    assert shown == HOSTILE.replace("\x00", r"\x00").replace("\u202e", r"\u202e")
    for where in (
        "Best point",
        "Failures by reason",
        "Settings",
        "Prediction",
        "Importances",
        "Parallel coordinates",
    ):
        assert shown[:20] in Page(f"<section>{section(content, where)}</section>").text
    assert f"not a number: str {HOSTILE!r:.60}" in parsed.text
    content.encode("ascii", errors="xmlcharrefreplace").decode()
    for drawing in re.findall("<section>.*?</section>", content, re.DOTALL):
        ElementTree.fromstring(drawing)


def test_a_name_that_is_read_from_right_to_left_does_not_turn_the_sign_of_its_value() -> None:
    name = "درجة\u202e"
    study = Study(Space(**{name: Float(-1.0, 1.0)}), maximize=True)
    study.add_data([[-1.0]], [2.0])
    isolated = "\u2068درجة\\u202e\u2069 = \u2068-1\u2069"
    content = page.render(study.snapshot())
    assert f"2 at {isolated}." in section(content, "Best point")
    assert f"2 at {isolated}" in section(content, "Best so far")
    assert f"{name} = -1" in repr(study.result) and "\u2068" not in repr(study.result)


def test_the_page_loads_nothing_and_forbids_scripts() -> None:
    content = page.render(hostile())
    policy = next(
        attributes["content"]
        for _, attributes in Page(content).elements
        if "http-equiv" in attributes
    )
    (style,) = re.findall("<style>(.*?)</style>", content, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert (
        policy
        == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert not re.search(r"url\(|@import|https?:|<link|<script", content)


def test_the_best_rows_are_those_of_the_data(tmp_path: Path, study: Study) -> None:
    study.report(tmp_path / "page.html")
    content = (tmp_path / "page.html").read_text()
    frame = study.to_dataframe()
    best = frame[frame["status"] == "observed"].sort_values(
        "value", ascending=not study.maximize, kind="stable"
    )[: page.NUM_ROWS]
    found = cells(section(content, "Best point"))
    assert found[0] == ["row", "ask", "value", "x", "n", "kind", "fixed"]
    assert found[1:] == [
        [str(row), str(ask), f"{value:.6g}", f"{x:.6g}", str(n), kind, "yes"]
        for row, ask, value, x, n, kind in zip(
            best.index, best["ask"], best["value"], best["x"], best["n"], best["kind"], strict=True
        )
    ]
    tiles = dict(
        zip(
            re.findall("<dt>(.*?)</dt>", content),
            re.findall("<dd>(.*?)</dd>", content),
            strict=True,
        )
    )
    failed = int((frame["status"] == "failed").sum())
    assert tiles == {
        "best value": f"{study.result.best_value:.6g}",
        "values": str(21 - failed),
        "failed": str(failed),
        "pending": "1",
        "asks": "5",
    }
    assert failed
    assert cells(section(content, "Failures by reason"))[1][::2] == [
        str(failed),
        "the value is nan",
    ]


def test_the_curves_are_the_study_s_predictions_also_from_its_folder(
    study: Study, copied: Path
) -> None:
    X = SPACE.unnormalize(problems.uniform(30, SPACE.encoded_dim, seed=2))
    mean, std = study.predict(X)  # given the last value, too, which no ask knew
    snapshots = [study.snapshot(), read_snapshot(copied)]
    with Study.open(copied, sampler=QUICK) as again:
        snapshots += [again.snapshot(), read_snapshot(copied)]  # also while the study is open
    for snapshot in snapshots:
        middle, low, high = snapshot.beliefs[0].curve(X)
        torch.testing.assert_close(middle, mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(high - low, 4 * std, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(0.5 * (high + low), mean, rtol=1e-5, atol=1e-6)
    drawn = section(page.render(snapshots[0]), "Prediction")
    assert 'class="band"' in drawn
    assert 'class="whisker"' in drawn


def test_all_parameters_have_an_axis_with_their_name_however_many_or_long() -> None:
    names = [f"the coefficient of term {number}" for number in range(20)]
    space = Space(**{name: Float(0, 1) for name in names})
    drawn = section(page.render(snapshot_of([1.0, 2.0], space=space)), "Parallel coordinates")
    assert set(names) <= {html.unescape(name) for name in re.findall(r">([^<>]+)<title>", drawn)}
    assert f'<svg width="{66 * 21 + 150}"' in drawn  # beyond which it scrolls


def test_a_report_from_the_folder_shows_what_that_of_the_study_shows(tmp_path: Path) -> None:
    constraint = LinearConstraint({"x": 1.0}, at_most=2.0)
    params: dict[str, Any] = {
        "x": Float(np.float64(-2.0), 2.0),
        "n, m": Int(1, 9),
        "k": Categorical(["a'b", 'c"d', "`"]),
        "flag": True,
    }
    study = Study(
        Space(constraint, lambda p: p["n, m"] < 9, **params),
        maximize=False,
        path=tmp_path / "s",
        num_initial=4,
        sampler=QUICK,
    )
    study.add_data(
        pd.DataFrame({"x": [0.0], "n, m": [3], "k": ["`"], "y": [2.0]}), target="y", name="past"
    )
    study.optimize(lambda p: p["x"] + p["n, m"], rounds=2, batch=4)
    live = page.render(study.snapshot())
    read = page.render(read_snapshot(tmp_path / "s"))
    assert live.split("<h2>Settings</h2>")[0] == read.split("<h2>Settings</h2>")[0]
    settings = dict(cells(section(read, "Settings")))
    assert settings == {
        "x": "-2 to 2",
        "n, m": "1 to 9 in whole numbers",
        "k": "one of a'b, c\"d, `",
        "flag": "True, fixed",
        "constraint 1": str(constraint),
        "constraint 2": "function <lambda>",
        "direction": "minimize",
        "seed": "0",
        "added data 'past'": "1 rows",
    }
    diagnostics = dict(row for row in cells(read.split("<details>")[1]) if len(row) == 2)
    assert diagnostics["solvers used"] == "Cholesky() (1 of 2 asks)"
    assert "torch 2" in diagnostics["versions"]
    assert "Constraints are not shown." in read


def test_a_folder_does_not_tell_the_mean_of_a_kernel_of_its_own_but_the_study_does(
    tmp_path: Path,
) -> None:
    study = run(
        tmp_path / "study",
        kernel=MaternKernel(ard_num_dims=SPACE.encoded_dim),
        solver=CG(tolerance=1e-6),
    )
    assert study.snapshot().beliefs
    snapshot = read_snapshot(tmp_path / "study")
    assert not snapshot.beliefs
    assert "the kernel is your own" in page.render(snapshot)
    assert "CG(tolerance=1e-06" in page.render(snapshot)


@maximized
def test_residuals_and_seconds_are_those_of_the_asks(study: Study, copied: Path) -> None:
    costs = {
        1: AskReport(),
        2: AskReport(4.0, 2.0, 1.0, 1e-2, "CG()"),
        3: AskReport(0.0, 8.0, 1.0, 3e-5, "CG()"),
    }
    content = page.render(snapshot_of([1.0, 2.0], costs=costs))
    bars = re.findall(
        r'<rect class="\w+".*?y="([\d.]+)%".*?height="([\d.]+)%"><title>(.*?)</title>',
        part(content, "Time of each ask"),
    )
    assert sorted(title for _, _, title in bars) == [
        "ask 2: fit 4 s",
        "ask 2: search 1 s",
        "ask 2: solve 2 s",
        "ask 3: search 1 s",
        "ask 3: solve 8 s",
    ]
    seconds = [float(title.split()[-2]) for _, _, title in bars]
    heights = [float(height) for _, height, _ in bars]
    assert heights == pytest.approx([min(heights) * of for of in seconds], abs=0.05)
    for ask, order in ((2, ("fit", "solve", "search")), (3, ("solve", "search"))):
        found = {title.split()[2]: float(y) for y, _, title in bars if f"ask {ask}:" in title}
        below = 100.0
        for step in order:  # one on another
            (height,) = (
                float(high) for _, high, title in bars if title.startswith(f"ask {ask}: {step}")
            )
            assert found[step] + height == pytest.approx(below, abs=0.02)
            below = found[step]
    assert re.findall("<title>(.*?)</title>", part(content, "Error of each ask")) == [
        "ask 2: 1.0e-02",
        "ask 3: 3.0e-05",
    ]
    before = study.snapshot().costs
    assert list(before) == [1, 2, 3, 4, 5]
    assert before[5] == study.last_ask
    assert read_snapshot(copied).costs == before
    assert "relative residual" in part(content, "Error of each ask")
    told = costs | {4: AskReport(0.0, 8.0, 1.0, 2e-3, "CG()", True, "", 0.08)}
    content = page.render(snapshot_of([1.0, 2.0], costs=told))
    assert re.findall("<title>(.*?)</title>", part(content, "Error of each ask")) == [
        "ask 4: 8.0e-02"
    ]
    assert "posterior standard deviations" in part(content, "Error of each ask")


def test_the_latest_asks_say_how_points_were_chosen() -> None:
    heading = "How points were chosen"
    few = {1: AskReport(), 2: AskReport(choice="log-ei: 1 among 1"), 3: AskReport(choice="turbo")}
    content = part(page.render(snapshot_of([1.0, 2.0], costs=few)), heading)
    assert cells(content) == [
        ["ask", "points", "values", "choice"],
        ["3", "1", "1", "turbo"],
        ["2", "1", "1", "log-ei: 1 among 1"],
    ]
    many = {number: AskReport(choice=f"way {number}") for number in range(1, 19)}
    content = part(page.render(snapshot_of([1.0, 2.0], costs=many)), heading)
    assert [row[0] for row in cells(content)[1:]] == [str(number) for number in range(18, 3, -1)]
    assert "The latest 15; there are 3 before." in content
    assert heading not in page.render(snapshot_of([1.0, 2.0], costs={1: AskReport()}))


@pytest.mark.parametrize("maximize", [True, False])
def test_the_line_of_the_best_goes_through_the_best_so_far(maximize: bool) -> None:
    values = [3.0, 4.0, 2.0, 2.5, 5.0, 1.0]
    content = section(page.render(snapshot_of(values, maximize=maximize)), "Best so far")
    (line,) = re.findall('<polyline class="orange" points="(.*?)"', content)
    found = re.findall('cx="(.*?)%" cy="(.*?)%"', content)
    dots = [(10 * float(x), 10 * float(y)) for x, y in found]
    corners = [tuple(map(float, pair.split(","))) for pair in line.split()]
    better = min if not maximize else max
    for number, (x, _) in enumerate(dots):
        height = dots[values.index(better(values[: number + 1]))][1]
        last = [corner[1] for corner in corners if corner[0] <= x + 0.1][-1]
        assert last == pytest.approx(height, abs=0.11)
    # By steps
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in zip(corners, corners[1:], strict=False))


@pytest.mark.parametrize(
    "values",
    [
        [],
        [math.nan],
        [1.0],
        [7.0] * 50,
        [0.0] * 3,
        [1e308, -1e308, 0.0] * 20,
        [5e-324, 0.0],
        [1.0, 1.0 + 2**-52],
    ],
)
@pytest.mark.parametrize("mean", [None, lambda X: X[:, 0]])
def test_a_report_can_be_written_at_any_stage(values: list[float], mean: Any) -> None:
    for costs in (
        {},
        {1: AskReport()},
        {1: AskReport(0.0, 0.0, 0.0, 0.0, "CG()")},
        {3: AskReport(1.0, 0.0, 1e-9, 1e-300, "CG()")},
    ):
        content = page.render(snapshot_of(values, costs=costs, mean=mean))
        Page(content)
        assert not re.search(r'"(nan|inf)|,nan|nan,|\binf\b', content)
    assert ("No finite value has been told yet." in content) == (not np.isfinite(values).any())


def test_the_key_shows_a_limit_as_it_is_drawn() -> None:
    limits = {"value": (None, 0.8)}
    study = Study(Space(x=Float(0, 1)), maximize=True, outcome_constraints=limits)
    study.add_data([[0.1], [0.5], [0.9]], [0.1, 0.5, 0.9])
    content = draw(views.slices(study.snapshot()))
    assert (
        '<i class="rule"></i>limit</li>' in content and '<i class="blue"></i>mean</li>' in content
    )
    style = Path(page.__file__).with_name("style.css").read_text(encoding="utf-8")
    for selector in (r"\.keys i\.rule", r"svg \.mark\.blue"):  # both in the colour of the text
        assert re.search(selector + r" \{[^}]*var\(--ink\)", style)


def test_a_page_shows_parameters_that_are_not_always_active() -> None:
    space = Space(
        kind=Categorical(["tree", "net", None]),
        depth=Int(2, 10, step=4, active_if={"kind": "tree"}),
        rate=Float(0.1, 0.5, step=0.1, active_if={"kind": ["net", None]}),
        size=Categorical(["s", "m"], ordered=True),
    )
    content = page.render(snapshot_of(list(range(40)), space=space))
    Page(content)
    assert "nan" not in content
    assert "Lines follow the bottom edge where a parameter is not active." in content
    table = cells(section(content, "Best point"))
    for row in table[1:]:
        named = dict(zip(table[0], row, strict=True))
        assert (named["depth"] == "–") is (named["kind"] != "tree")
        assert (named["rate"] == "–") is (named["kind"] == "tree")
    slices = section(content, "Prediction")
    active = "depth" if table[1][3] == "tree" else "rate"
    assert {"kind", "size", active} == set(re.findall(r"<figcaption>(\w+)<", slices))
    words = dict(cells(section(content, "Settings")))
    assert words["depth"] == "2 to 10 in whole numbers in steps of 4, where kind is tree"
    assert words["rate"] == "0.1 to 0.5 in steps of 0.1, where kind is net or None"
    assert words["size"] == "one of s, m, in this order"


def test_parameters_may_have_the_names_of_the_page_s_own_columns_and_settings() -> None:
    names = ["row", "ask", "value", "note", "seed", "direction"]
    space = Space(**{name: Float(k, k + 1.0) for k, name in enumerate(names)})
    snapshot = snapshot_of([1.0, 2.0], space=space)
    snapshot.rows.notes[1] = "the best"
    content = page.render(snapshot)
    heads, *rows = cells(section(content, "Best point"))
    assert heads == ["row_", "ask_", "value_", *names, "note_"]
    assert rows[0][:3] + rows[0][-1:] == ["1", "added", "2", "the best"]
    values = [f"{value:.6g}" for value in snapshot.rows.X[1].tolist()]
    assert rows[0][3:-1] == values
    settings = [name for name, *_ in cells(section(content, "Settings"))]
    assert settings[: len(names)] == names
    assert {"seed", "direction"} <= set(settings[len(names) :])


def test_a_page_stays_small_however_much_there_is() -> None:
    generator = np.random.default_rng(0)
    params: dict[str, Any] = {
        f"parameter number {i}": Categorical(["a", "b"]) if i % 2 else Float(0, 1)
        for i in range(80)
    }
    values: list[Any] = [
        *generator.normal(size=20_000).tolist(),
        *(f"reason {number} " + "x" * 3000 for number in range(200)),
    ]
    costs = {number: AskReport(1.0, 1.0, 1.0, 1e-3, "CG()") for number in range(1, 5001)}
    content = page.render(snapshot_of(values, space=Space(**params), costs=costs))
    assert len(content.encode()) < 750_000
    Page(content)
    assert "800 of 20000 marks are drawn." in content
    assert "The 12 of 80 parameters that matter most." in content
    assert "60 of 80 parameters. 200 of the other 19950 rows are drawn." in content
    assert "185 more reasons are in" in content
    assert "120 of 5000 marks are drawn." in content


@given(st.floats(-LARGEST, LARGEST), st.floats(-LARGEST, LARGEST), st.booleans())
def test_ticks_lie_on_the_axis_and_have_labels_of_their_own(a: float, b: float, log: bool) -> None:
    values = np.array([abs(a) + 1e-300, abs(b) + 1e-300]) if log else np.array([a, b])
    axis = Axis.around("", values, log=log)
    assert ((axis.place(values) >= 0) & (axis.place(values) <= 1)).all()
    for room, upright in ((240.0, False), (190.0, True)):
        found = ticks(axis, upright=upright)
        assert len(found) <= 12
        places = axis.place(np.array([value for value, _ in found]))
        assert ((places >= 0) & (places <= 1)).all()
        labels = [label for _, label in found]
        assert len(set(labels)) == len(labels)
        assert axis.place([float(label) for label in labels]) == pytest.approx(places, abs=0.02)
        ends = [(room * place, 7.0 * len(label) / 2) for place, (_, label) in
                zip(places, found, strict=True)]  # fmt: skip
        if not upright:  # no label reaches into the next
            assert all(a + b < c - d for (a, b), (c, d) in zip(ends, ends[1:], strict=False))


TEXTS = st.text() | st.text(f"a <\n\u202e{ISOLATES}")


@given(TEXTS)
def test_escaped_text_reads_as_what_it_was(text: str) -> None:
    escaped = escape(text)
    assert not set(escaped) & set("<>\"'\n\x00")
    shown = html.unescape(escaped)
    opened, closed = ISOLATES
    assert re.sub(f"{opened}([^{ISOLATES}]*){closed}", r"\1", shown).isprintable()
    for mark in ISOLATES:
        shown = shown.replace(mark, ascii(mark)[1:-1])
    assert shown == "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )
    escaped.encode()


@given(TEXTS, TEXTS)
def test_no_name_or_choice_closes_the_isolate_around_it(name: str, choice: str) -> None:
    shown = html.unescape(escape(describe_params({name: choice}, ISOLATES)))
    assert [c for c in shown if not c.isprintable()] == [*ISOLATES, *ISOLATES]
    opened, closed = ISOLATES
    assert shown[0] == opened and f"{closed} = {opened}" in shown and shown[-1] == closed


@pytest.mark.parametrize(
    "description",
    [
        "__import__('os').system('true')",
        "Float(low=__import__('os'))",
        "Path(low=1)",
        "Float(low=1, high=",
        "Float(high=1)",
        "(" * 5000,
        "x.y(1, 2)",
    ],
)
def test_a_folder_that_describes_something_else_is_refused(
    tmp_path: Path, description: str
) -> None:
    stored = Path(__file__).parent / "storage" / "stored" / "box"
    shutil.copy(stored / "study.sqlite", tmp_path)  # of version 2, which kept settings as texts
    with sqlite3.connect(tmp_path / "study.sqlite") as connection:
        connection.execute("DELETE FROM settings")
        connection.executemany(
            "INSERT INTO settings (name, value) VALUES (?, ?)",
            [("columns", "x"), ("parameter `x`", description), ("direction", "maximize")],
        )
    connection.close()
    with pytest.raises(
        ValueError,
        match=(
            "The study's parameter `x` cannot be read: .*Use the study in the program and the"
            " scalable_bo that made it"
        ),
    ):
        read_snapshot(tmp_path)


@maximized
def test_the_command_writes_the_page_of_a_folder(
    cli: CommandLine, tmp_path: Path, copied: Path
) -> None:
    cli("report", copied)
    assert (copied / "report.html").read_text() == page.render(read_snapshot(copied))
    out = tmp_path / "page.html"
    assert cli("report", copied, "--out", out).out == f"Wrote {out}\n"
    assert out.exists()
    refused = cli("report", tmp_path / "elsewhere", code=2)
    assert "`folder` must hold a study" in refused.err
    for folder in (tmp_path, ".", "/"):
        refused = cli("report", copied, "--out", folder, code=2)
        said = f"`out` must be a file that can be written, got {folder} (Is a directory)"
        assert said in refused.err
    refused = cli("report", copied, "--out", tmp_path / "none" / "page.html", code=2)
    assert "`out` must be a file that can be written" in refused.err
    (copied / "study.sqlite").write_bytes(b"no database")
    assert "is damaged" in cli("report", copied, code=1).err


def test_the_page_bears_the_name_of_the_study(tmp_path: Path) -> None:
    name = "a <b>long</b> name " + "x" * 80
    with Study(
        Space(x=Float(0, 1)), maximize=False, path=tmp_path / name.replace("/", "")
    ) as study:
        study.tell(study.ask(1).ids, [1.0])
        ours = page.render(study.snapshot())
    theirs = page.render(read_snapshot(tmp_path / name.replace("/", "")))
    for document in (ours, theirs):
        assert "<h1>a &lt;b&gt;long&lt;b&gt; name xxx" in document
        assert "…, minimised</h1>" in document
        assert "<title>a &lt;b&gt;long&lt;b&gt; name xxx" in document
    assert "<h1>A study, maximised</h1>" in page.render(snapshot_of([1.0]))


def test_importances_are_bars_as_long_as_shares_of_all_outcomes() -> None:
    shares = {f"<{number}>": 1.0 / (1 + number) for number in range(20)}
    drawn = svg.draw_shares({"cost": shares, "<gain>": dict.fromkeys(shares, 0.5)})
    bars = [float(width) for width in re.findall(r'<rect class="blue" width="(.*?)%"', drawn)]
    np.testing.assert_allclose(bars[::2], 100.0 / np.arange(1, 13), atol=0.01)
    assert bars[1::2] == [50.0] * 12
    assert [row[0] for row in cells(drawn)[1:3]] == ["<0>", "<1>"]
    assert "The 12 of 20 parameters that matter most." in drawn


def contour(snapshot: Snapshot) -> ElementTree.Element | None:
    picture = views.contour(snapshot)
    return None if picture is None else ElementTree.fromstring(f"<div>{draw(picture)}</div>")


def test_a_contour_is_of_the_mean_over_the_two_parameters_that_change_it_most() -> None:
    def mean(X: torch.Tensor) -> torch.Tensor:
        return 9.0 * X[:, 2] + X[:, 0]

    space = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0), z=Float(0.0, 1.0))
    picture = contour(snapshot_of([1.0, 2.0], space=space, mean=mean))
    texts = [part.text for part in picture.iter("text")]
    assert "z" in texts and "x" in texts and "y" not in texts
    areas: dict[float, list[tuple[float, float, float]]] = {}
    for area in picture.iter("rect"):
        left, width, y = (float(area.get(key, "")[:-1]) for key in ("x", "width", "y"))
        areas.setdefault(y, []).append((left, width, float(area.get("fill-opacity", ""))))
    assert len(areas) == 41
    for row in areas.values():  # z is across: each row goes up from left to right, without gaps
        lefts, widths, opacity = map(np.array, zip(*row, strict=True))
        np.testing.assert_allclose(lefts[1:], (lefts + widths)[:-1], atol=0.021)
        assert (np.diff(opacity) > 0).all()
        assert (lefts[0], (lefts + widths)[-1]) == pytest.approx((0.0, 100.0), abs=0.021)
    below, above = areas[max(areas)], areas[min(areas)]
    assert (below[0][2], above[-1][2]) == (0.05, 0.95)  # x is up
    assert [dot.get("class") for dot in picture.iter("circle")] == ["hollow", "hollow", "orange"]


def test_a_parameter_that_is_not_active_does_not_act_in_a_contour() -> None:
    space = Space(
        kind=Categorical(["tree", "net"]), rate=Float(0.0, 1.0, active_if={"kind": "net"})
    )
    snapshot = snapshot_of([1.0, 2.0, 3.0], space=space, mean=lambda X: X.nan_to_num(9.0).sum(1))
    picture = views.contour(snapshot, names=["kind", "rate"])
    assert picture is not None and "It is blank where" in picture.note
    (panel,) = picture.panels
    cells_of = panel.marks[0]
    assert cells_of.z.shape == (41, 2)
    assert np.isnan(cells_of.z[:, 0]).all() and np.isfinite(cells_of.z[:, 1]).all()
    assert (panel.x.kind, list(panel.x.labels)) == ("category", ["tree", "net"])
    areas = re.findall(r'<rect class="level" x="(.*?)%"[^>]* width="(.*?)%"', draw(picture))
    assert set(areas) == {("50.00", "50.00")}


@pytest.mark.parametrize(
    "params",
    [
        {"x": Float(0.0, 1.0)},
        {"x": Categorical(["a", HOSTILE]), "y": Int(1, 2)},
        {"x": Float(0.0, 1.0), HOSTILE: Float(1e-9, 1e9, log=True)},
    ],
)
def test_a_contour_is_drawn_of_any_two_parameters(params: dict[str, Any]) -> None:
    space = Space(**params)
    picture = contour(snapshot_of([1.0, 2.0], space=space))
    assert (picture is None) == (len(params) < 2)
    flat = contour(snapshot_of([1.0], space=space, mean=lambda X: torch.zeros(len(X))))
    assert (flat is None) == (len(params) < 2)


def test_choices_have_the_room_there_is_and_are_whole_under_a_pointer() -> None:
    long = ["palladium on carbon, five per cent", "nickel"]
    space = Space(metal=Categorical(long), x=Float(0, 1))
    drawn = draw(views.slices(snapshot_of([1.0, 2.0], space=space)))
    assert all(f'<li title="{label}">{label}</li>' in drawn for label in long)
    up = views.contour(snapshot_of([1.0, 2.0], space=space), names=["x", "metal"])
    assert up is not None
    assert f">palladiu\u2026<title>{long[0]}</title>" in draw(up)
    assert ">nickel</text>" in draw(up)


@maximized
def test_the_page_says_what_to_do_next_and_leads_with_it(study: Study, copied: Path) -> None:
    content = page.render(study.snapshot())
    headings = re.findall("<h2>(.*?)</h2>", content)
    assert headings[:2] == ["What to evaluate next", "Best point"]
    assert headings[-1] == "Settings" and content.index("<details>") > content.index("Settings")
    table = cells(section(content, "What to evaluate next"))
    (id,) = study.pending.ids
    mean, std = study.predict(study.pending.params[0])
    assert table[1][:2] == [str(id), "5"]
    low, high = (float(mean + side * std) for side in (-2, 2))
    shown = dict(zip(table[0], table[1], strict=True))["value, predicted"]
    assert shown == f"{float(mean):.4g} ({low:.4g} to {high:.4g})"
    with Study.open(copied, sampler=QUICK) as again:
        again.tell([id], [1.0])
        assert "No point is pending." in page.render(again.snapshot())


def test_where_failures_are_learned_the_chance_of_success_stands_beside_predictions(
    tmp_path: Path,
) -> None:
    space = Space(x=Float(-2.0, 2.0))
    with Study(space, maximize=True, sampler=QUICK, path=tmp_path / "study") as study:
        X = torch.linspace(-2.0, 2.0, 21, dtype=torch.float64)[:, None]
        values = torch.where(X[:, 0] > 0.9, math.nan, X[:, 0])
        study.add_data(X[:15], values[:15])
        assert study.predict({"x": 0.0}).success is None
        study.enqueue([{"x": -1.5}, {"x": 1.5}])
        study.ask(2)
        assert "chance of success" not in page.render(study.snapshot())
        study.add_data(X[15:], values[15:])
        mean, std = found = study.predict(X)
        assert mean.shape == std.shape == (21,) and found.success is not None
        assert ((found.success > 0.5) == values.isfinite()).all()
        assert ((found.success >= 0.0) & (found.success <= 1.0)).all()
        one = study.predict({"x": 1.5}).success
        assert one is not None and one.shape == ()
        content = page.render(study.snapshot())
        table = cells(section(content, "What to evaluate next"))
        assert table[0][-1] == "chance of success"
        assert [float(row[-1]) > 0.5 for row in table[1:]] == [True, False]
        stored = page.render(read_snapshot(tmp_path / "study"))
    heading = "What to evaluate next"
    assert section(stored, heading) == section(content, heading)


def test_the_best_point_of_the_page_is_that_of_the_result_under_noise_too() -> None:
    space = Space(x=Float(-2.0, 2.0))
    study = Study(space, maximize=False, sampler=QUICK)
    X = torch.linspace(-2.0, 2.0, 60, dtype=torch.float64)[:, None]
    noise = problems.normal(60, seed=3)
    study.add_data(X, (X[:, 0] - 0.5).square() + noise)
    study.ask(1)
    result = study.result
    assert result.best_value != result.best_observed_value
    content = page.render(study.snapshot())
    assert f"<dt>best value</dt><dd>{result.best_value:.6g}</dd>" in content
    assert "Values are noisy: at the worse end of its band this row is the best." in content
    row = study.snapshot().shown_row
    assert result.best_params == space.to_dicts(X[[row]])[0]


@pytest.mark.browser
@pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}")
@pytest.mark.parametrize(
    ("dark", "background", "blue"), [(False, "#f6f7f9", "#0072b2"), (True, "#12151a", "#56b4e9")]
)
def test_a_browser_shows_the_plots_without_a_complaint_and_runs_no_markup(
    tmp_path: Path, dark: bool, background: str, blue: str
) -> None:
    file = tmp_path / "page.html"
    content = page.render(hostile())
    file.write_text(content)
    with Browser(tmp_path, 1100, 3600, dark=dark) as browser:
        browser.open(file.as_uri())
        assert browser.console() == []
        assert browser.run("return document.title").endswith("Report of a study")
        assert browser.run("return document.querySelectorAll('script, img').length") == 0
        browser.picture(tmp_path / "page.png")
        file.write_text(content.replace("<h1>", "<script>document.title='owned'</script><h1>"))
        browser.open(file.as_uri())
        eventually(lambda: any("Content Security Policy" in line for line in browser.console()))
        assert browser.run("return document.title").endswith("Report of a study")
    picture = imread(tmp_path / "page.png")[..., :3]
    for colour, least in ((background, 100_000), (blue, 500)):
        rgb = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
        assert (np.abs(picture - rgb).max(-1) < 0.01).sum() > least
