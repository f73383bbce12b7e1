"""The report of a study: what it shows is true, and nothing that came from outside is more than
text in it.
"""

import base64
import hashlib
import html
import math
import re
import shutil
import subprocess
import sys
from contextlib import closing
from functools import partial
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

from acquisition import ParallelThompsonSampling
from scalable_bo.cli import main as cli
from scalable_bo.report import page, plots
from scalable_bo.report.charts import LARGEST, Panel, Scale, escape
from scalable_bo.report.contours import contour_of_mean
from scalable_bo.report.snapshot import Snapshot, read_snapshot
from scalable_bo.space.space import Categorical, Float, Int, LinearConstraint, Space
from scalable_bo.storage import database
from scalable_bo.storage.record import describe_settings, make_settings
from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.rows import Outcomes, Rows
from scalable_bo.storage.storage import Ask, Source
from scalable_bo.study.study import Study
from surrogates import CG

QUICK = partial(
    ParallelThompsonSampling, num_candidates=100, num_rounds=2, num_starts=2, num_steps=5
)
SPACE = Space(
    x=Float(-2.0, 2.0), n=Int(1, 1000, log=True), kind=Categorical(["a", "b"]), fixed="yes"
)
HOSTILE = (
    "<script>document.title='owned'</script><img src=x"
    " onerror=\"document.title='owned'\">'\"&amp;\x00\u202e$\\frac{"
)
VOID = {"meta"}
KNOWN = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "main",
    "h1",
    "h2",
    "p",
    "dl",
    "dt",
    "dd",
    "div",
    "section",
    "ul",
    "li",
    "i",
}
KNOWN |= {
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "footer",
    "svg",
    "g",
    "line",
    "polyline",
    "circle",
    "rect",
    "text",
}


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


def snapshot_of(
    values: Any,
    *,
    space: Space = SPACE,
    maximize: bool = True,
    costs: dict[int, AskReport] | None = None,
    **more: Any,
) -> Snapshot:
    """Return a snapshot of values at random points, with a posterior mean of its own."""
    outcomes = Outcomes.of(values)
    rows = Rows(space.dim)
    U = torch.rand(
        len(outcomes.values),
        space.encoded_dim,
        generator=torch.Generator().manual_seed(0),
        dtype=torch.float64,
    )
    rows.record(rows.append(space.unnormalize(U), 0), outcomes)
    costs = costs or {}
    given: dict[str, Any] = {
        "settings": describe_settings(make_settings(space.to_dict(), maximize, 0)),
        "asks": [Ask(number, 1, 1, 1, True) for number in costs],
        "sources": [],
        "mean": lambda X: space.normalize(X).sum(1),
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


def score(params: dict[str, Any]) -> float:
    return (params["kind"] == "b") - (params["x"] - 1) ** 2 - math.log10(params["n"] / 10) ** 2


def run(path: Path | None = None, **options: Any) -> Study:
    """Return a study with failures, a pending point,
    and a value that its surrogate has not seen.
    """
    study = Study(
        SPACE,
        **(
            {"maximize": True, "seed": 1, "path": path, "num_initial": 8, "sampler": QUICK}
            | options
        ),
    )
    study.optimize(
        lambda params: score(params) if abs(params["x"]) < 1.5 else math.nan,
        rounds=4,
        batch=5,
        progress=False,
    )
    study.tell(study.ask(2).ids[:1], [100.0])
    return study


def section(content: str, heading: str) -> str:
    found: str = content.split(f"<h2>{heading}</h2>")[1].split("</section>")[0]
    return found


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
        "Best rows",
        "Failures by reason",
        "Configuration",
        "Posterior mean around the best row",
    ):
        assert shown[:20] in Page(f"<section>{section(content, where)}</section>").text
    assert f"not a number: str {HOSTILE!r:.60}" in parsed.text
    content.encode("ascii", errors="xmlcharrefreplace").decode()
    for drawing in re.findall("<svg.*?</svg>", content, re.DOTALL):
        ElementTree.fromstring(drawing)


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


@pytest.mark.parametrize("maximize", [True, False])
def test_the_best_rows_are_those_of_the_data(tmp_path: Path, maximize: bool) -> None:
    study = run(maximize=maximize)
    study.report(tmp_path / "page.html")
    content = (tmp_path / "page.html").read_text()
    frame = study.to_dataframe()
    best = frame[frame["status"] == "observed"].sort_values(
        "value", ascending=not maximize, kind="stable"
    )[: page.NUM_BEST_ROWS]
    found = cells(section(content, "Best rows"))
    assert found[0] == ["", "row", "ask", "value", "x", "n", "kind", "fixed"]
    assert [row[1:] for row in found[1:]] == [
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


@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize("kept", [True, False])
def test_the_mean_is_the_exact_posterior_mean_of_the_last_ask(
    tmp_path: Path, kept: bool, maximize: bool
) -> None:
    study = run(tmp_path / "study" if kept else None, maximize=maximize)
    values = study.result.values[:-1]
    X = SPACE.unnormalize(
        torch.rand(
            30, SPACE.encoded_dim, generator=torch.Generator().manual_seed(2), dtype=torch.float64
        )
    )
    assert study.model is not None
    with torch.no_grad():
        standardised = study.model.posterior(SPACE.normalize(X)).mean[:, 0]
    exact = values.mean() + values.std() * standardised * (1 if maximize else -1)
    snapshots = [study.snapshot()]
    if kept:
        snapshots.append(read_snapshot(tmp_path / "study"))  # while the study is open
        study.close()
        snapshots.append(
            Study(
                SPACE, maximize=maximize, seed=1, path=tmp_path / "study", sampler=QUICK
            ).snapshot()
        )
    for snapshot in snapshots:
        assert snapshot.mean is not None
        torch.testing.assert_close(snapshot.mean(X), exact, rtol=1e-6, atol=1e-6)
    assert len(snapshots) == (3 if kept else 1)


@pytest.mark.parametrize("maximize", [True, False])
def test_the_band_is_two_exact_standard_deviations_around_the_mean(maximize: bool) -> None:
    study = run(maximize=maximize)
    values = study.result.values[:-1]
    X = SPACE.unnormalize(
        torch.rand(
            30, SPACE.encoded_dim, generator=torch.Generator().manual_seed(2), dtype=torch.float64
        )
    )
    snapshot = study.snapshot()
    assert study.model is not None
    assert snapshot.mean is not None
    assert snapshot.band is not None
    low, high = snapshot.band(X)
    with torch.no_grad():
        width = 2 * values.std() * study.model.posterior(SPACE.normalize(X)).variance[:, 0].sqrt()
    torch.testing.assert_close(0.5 * (high - low), width, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(0.5 * (high + low), snapshot.mean(X), rtol=1e-5, atol=1e-6)
    drawn = section(page.render(snapshot), "Posterior mean around the best row")
    assert 'class="band"' in drawn
    assert 'class="whisker"' in drawn


def test_all_parameters_have_an_axis_with_their_name_however_many_or_long() -> None:
    names = [f"the coefficient of term {number}" for number in range(20)]
    space = Space(**{name: Float(0, 1) for name in names})
    drawn = section(page.render(snapshot_of([1.0, 2.0], space=space)), "Parallel coordinates")
    assert set(names) <= {html.unescape(name) for name in re.findall(r">([^<>]+)<title>", drawn)}
    assert 'class="wide"' in drawn


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
    study.optimize(lambda p: p["x"] + p["n, m"], rounds=2, batch=4, progress=False)
    live = page.render(study.snapshot())
    read = page.render(read_snapshot(tmp_path / "s"))
    assert live.split("<h2>Configuration</h2>")[0] == read.split("<h2>Configuration</h2>")[0]
    configuration = dict(cells(section(read, "Configuration")))
    assert (
        configuration.items()
        >= {
            "direction": "minimize",
            "seed": "0",
            "solvers used": "Cholesky() (1 of 2 asks)",
        }.items()
    )
    assert configuration["constraint 1"] == str(constraint)
    assert configuration["added data 'past'"] == "1 rows"
    assert "torch 2" in configuration["versions"]
    assert "1 · x" in configuration["constraint 1"]
    assert "Constraints are left aside." in read


def test_a_folder_does_not_tell_the_mean_of_a_kernel_of_its_own_but_the_study_does(
    tmp_path: Path,
) -> None:
    study = run(
        tmp_path / "study",
        kernel=MaternKernel(ard_num_dims=SPACE.encoded_dim),
        solver=CG(tolerance=1e-6),
    )
    assert study.snapshot().mean is not None
    snapshot = read_snapshot(tmp_path / "study")
    assert snapshot.mean is None
    assert "has a kernel of its own" in page.render(snapshot)
    assert "CG(tolerance=1e-06" in page.render(snapshot)


def test_residuals_and_seconds_are_those_of_the_asks(tmp_path: Path) -> None:
    costs = {
        1: AskReport(),
        2: AskReport(4.0, 2.0, 1.0, 1e-2, "CG()"),
        3: AskReport(0.0, 8.0, 1.0, 3e-5, "CG()"),
    }
    content = page.render(snapshot_of([1.0, 2.0], costs=costs))
    bars = re.findall(
        r'<rect class="\w+".*?y="([\d.]+)".*?height="([\d.]+)"><title>(.*?)</title>',
        section(content, "Time of each ask"),
    )
    assert [title for _, _, title in bars] == [
        "ask 2: fit 4 s",
        "ask 2: solve 2 s",
        "ask 2: search 1 s",
        "ask 3: solve 8 s",
        "ask 3: search 1 s",
    ]
    heights = [float(height) for _, height, _ in bars]
    assert heights == pytest.approx([heights[2] * seconds for seconds in (4, 2, 1, 8, 1)], rel=2e-3)
    tops = [float(top) for top, _, _ in bars]
    # One on another
    assert [tops[0], tops[1], tops[3]] == pytest.approx(
        [tops[k + 1] + heights[k + 1] for k in (0, 1, 3)], abs=0.02
    )
    assert re.findall("<title>(.*?)</title>", section(content, "Error of each ask")) == [
        "ask 2: 1.0e-02",
        "ask 3: 3.0e-05",
    ]
    study = run(tmp_path)
    before = study.snapshot().costs
    assert list(before) == [1, 2, 3, 4, 5]
    assert before[5] == study.last_ask
    assert read_snapshot(tmp_path).costs == before
    assert "relative residual" in section(content, "Error of each ask")
    told = costs | {4: AskReport(0.0, 8.0, 1.0, 2e-3, "CG()", True, "", 0.08)}
    content = page.render(snapshot_of([1.0, 2.0], costs=told))
    assert re.findall("<title>(.*?)</title>", section(content, "Error of each ask")) == [
        "ask 4: 8.0e-02"
    ]
    assert "posterior standard deviations" in section(content, "Error of each ask")


def test_the_latest_asks_say_how_points_were_chosen() -> None:
    heading = "How points were chosen"
    few = {1: AskReport(), 2: AskReport(choice="log-ei: 1 among 1"), 3: AskReport(choice="turbo")}
    content = section(page.render(snapshot_of([1.0, 2.0], costs=few)), heading)
    assert cells(content) == [
        ["ask", "points", "values", "choice"],
        ["3", "1", "1", "turbo"],
        ["2", "1", "1", "log-ei: 1 among 1"],
    ]
    many = {number: AskReport(choice=f"way {number}") for number in range(1, 19)}
    content = section(page.render(snapshot_of([1.0, 2.0], costs=many)), heading)
    assert [row[0] for row in cells(content)[1:]] == [str(number) for number in range(18, 3, -1)]
    assert "The latest 15; there are 3 before." in content
    assert heading not in page.render(snapshot_of([1.0, 2.0], costs={1: AskReport()}))


@pytest.mark.parametrize("maximize", [True, False])
def test_the_line_of_the_best_goes_through_the_best_so_far(maximize: bool) -> None:
    values = [3.0, 4.0, 2.0, 2.5, 5.0, 1.0]
    content = section(page.render(snapshot_of(values, maximize=maximize)), "Best so far")
    (line,) = re.findall('<polyline class="best" points="(.*?)"', content)
    dots = [(float(x), float(y)) for x, y in re.findall('cx="(.*?)" cy="(.*?)"', content)]
    corners = [tuple(map(float, pair.split(","))) for pair in line.split()]
    better = min if not maximize else max
    for number, (x, _) in enumerate(dots):
        height = dots[values.index(better(values[: number + 1]))][1]
        assert min(abs(corner[1] - height) for corner in corners if corner[0] <= x) == 0
        assert [corner[1] for corner in corners if corner[0] <= x][-1] == height
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
    assert "Lines run along the foot where a parameter is not active." in content
    table = cells(section(content, "Best rows"))
    for row in table[1:]:
        named = dict(zip(table[0], row, strict=True))
        assert (named["depth"] == "–") is (named["kind"] != "tree")
        assert (named["rate"] == "–") is (named["kind"] == "tree")
    slices = section(content, "Posterior mean around the best row")
    active = "depth" if table[1][4] == "tree" else "rate"
    assert {"kind", "size", active} == set(re.findall(r'class="name"[^>]*>(\w+)<', slices))


def test_a_page_stays_small_however_much_there_is() -> None:
    generator = np.random.default_rng(0)
    params: dict[str, Any] = {
        f"parameter number {i}": Categorical(["a", "b"]) if i % 2 else Float(0, 1)
        for i in range(80)
    }
    values: list[Any] = [
        *generator.normal(size=100_000).tolist(),
        *(f"reason {number} " + "x" * 3000 for number in range(200)),
    ]
    costs = {number: AskReport(1.0, 1.0, 1.0, 1e-3, "CG()") for number in range(1, 5001)}
    content = page.render(snapshot_of(values, space=Space(**params), costs=costs))
    assert len(content.encode()) < 750_000
    Page(content)
    assert "1500 of 100000 values are drawn." in content
    assert "The 60 parameters of 80 along which the mean changes most." in content
    assert "200 of the other 99950 rows are drawn." in content
    assert "180 more reasons are in" in content
    assert "Each bar is the mean of up to 42 asks." in content


@given(st.floats(-LARGEST, LARGEST), st.floats(-LARGEST, LARGEST), st.booleans())
def test_ticks_lie_on_the_axis_and_have_labels_of_their_own(a: float, b: float, log: bool) -> None:
    values = np.array([abs(a) + 1e-300, abs(b) + 1e-300]) if log else np.array([a, b])
    scale = Scale.around(values, log=log)
    assert ((scale.place(values) >= 0) & (scale.place(values) <= 1)).all()
    ticks = scale.ticks()
    assert len(ticks) <= 12
    places = scale.place(np.array([value for value, _ in ticks]))
    assert ((places >= 0) & (places <= 1)).all()
    labels = [label for _, label in ticks]
    assert len(set(labels)) == len(labels)
    assert scale.place([float(label) for label in labels]) == pytest.approx(places, abs=0.02)


@given(st.text())
def test_escaped_text_reads_as_what_it_was(text: str) -> None:
    escaped = escape(text)
    assert not set(escaped) & set("<>\"'\n\x00")
    visible = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    assert html.unescape(escaped) == visible
    escaped.encode()


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
    with closing(database.connect(tmp_path / "study.sqlite")) as connection:
        connection.executescript(database.FIRST_SCHEMA)
        database._migrate(connection, 1, tmp_path)  # version 2 keeps settings as texts
        connection.executemany(
            "INSERT INTO settings (name, value) VALUES (?, ?)",
            [("columns", "x"), ("parameter `x`", description), ("direction", "maximize")],
        )
        connection.execute(f"PRAGMA application_id = {database.APPLICATION_ID}")
    with pytest.raises(
        ValueError,
        match=(
            "The study's parameter `x` cannot be read: .*Use the study in the program and the"
            " scalable_bo that made it"
        ),
    ):
        read_snapshot(tmp_path)


def test_the_command_writes_the_page_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["scalable-bo", "report", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0)

    study = run(tmp_path / "study")
    assert call(str(tmp_path / "study")) == 0
    assert (tmp_path / "study" / "report.html").read_text() == page.render(
        read_snapshot(tmp_path / "study")
    )
    assert call(str(tmp_path / "study"), "--out", str(tmp_path / "page.html")) == 0
    assert (tmp_path / "page.html").exists()
    assert capsys.readouterr().out.splitlines()[-1] == f"Wrote {tmp_path / 'page.html'}"
    study.close()
    assert call(str(tmp_path / "elsewhere")) == 2
    assert "`folder` must hold a study" in capsys.readouterr().err
    assert call(str(tmp_path / "study"), "--out", str(tmp_path / "none" / "page.html")) == 2
    assert "`out` must be a file that can be written" in capsys.readouterr().err
    (tmp_path / "study" / "study.sqlite").write_bytes(b"no database")
    assert call(str(tmp_path / "study")) == 1
    assert "is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "has_log"),
    [
        ([2e4, 3e3, 50.0, 2.0, 0.5], True),
        ([2e4, 3e3, 50.0, -2.0, 0.5], False),
        ([5.0, 3.0, 2.0, 1.0, 0.5], False),
        ([0.0, 3e3, 50.0, 2.0, 0.5], False),
    ],
)
def test_values_of_many_magnitudes_have_a_logarithmic_axis(
    values: list[float], has_log: bool
) -> None:
    svg = plots.best_so_far(snapshot_of(values, maximize=False)).svg
    assert (">10</text>" in svg) is has_log


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


def test_importances_are_bars_as_long_as_shares_and_the_first_twelve() -> None:
    chart = plots.importances({f"<{number}>": 1.0 / (1 + number) for number in range(20)})
    bars = [
        float(part.get("width", "nan")) for part in ElementTree.fromstring(chart.svg).iter("rect")
    ]
    assert len(bars) == plots.MAX_BARS
    np.testing.assert_allclose(bars, bars[0] / np.arange(1, 13), atol=0.1)
    assert chart.note == "12 of 20 parameters."
    assert plots.importances({"x": 0.0}).note == ""


def contour(snapshot: Snapshot, best: int = 0) -> ElementTree.Element | None:
    chart = contour_of_mean(snapshot, plots.find_slices(snapshot, best), best)
    return None if chart is None else ElementTree.fromstring(chart.svg)


def test_a_contour_is_of_the_mean_over_the_two_parameters_that_change_it_most() -> None:
    def mean(X: torch.Tensor) -> torch.Tensor:
        return 9.0 * X[:, 2] + X[:, 0]

    space = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0), z=Float(0.0, 1.0))
    picture = contour(snapshot_of([1.0, 2.0], space=space, mean=mean))
    assert picture is not None
    texts = [part.text for part in picture.iter("text")]
    assert "z" in texts and "x" in texts and "y" not in texts
    areas: dict[float, list[tuple[float, float, float]]] = {}
    for part in picture.iter("rect"):
        place = float(part.get("x", "")), float(part.get("width", ""))
        areas.setdefault(float(part.get("y", "")), []).append(
            (*place, float(part.get("fill-opacity", "")))
        )
    assert len(areas) == 41
    for row in areas.values():  # z is across: each row goes up from left to right, without gaps
        left, width, opacity = map(np.array, zip(*row, strict=True))
        np.testing.assert_allclose(left[1:], (left + width)[:-1], atol=0.11)
        assert (np.diff(opacity) > 0).all()
        assert (left[0], (left + width)[-1]) == pytest.approx((70.0, 890.0), abs=0.11)
    below, above = areas[max(areas)], areas[min(areas)]
    assert (below[0][2], above[-1][2]) == (0.05, 1.0)  # x is up
    dots = [part.get("class") for part in picture.iter("circle")]
    assert dots == ["point", "point", "best"]


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
    few = Panel(Scale(-0.4, 1.4, labels=long), Scale(0, 1), 60, 20, 600, 100)
    few.axes()
    assert all(f">{label}</text>" in "".join(few.parts) for label in long)
    many = Panel(Scale(-0.4, 1.4, labels=long), Scale(0, 1), 60, 20, 140, 100)
    many.axes()
    drawn = "".join(many.parts)
    assert f">palladium…<title>{long[0]}</title></text>" in drawn
    assert ">nickel</text>" in drawn


@pytest.mark.browser
class TestInABrowser:
    """What Chromium makes of a page; skipped where there is none."""

    @pytest.fixture
    def chromium(self) -> str:
        found = (
            shutil.which("chromium")
            or shutil.which("chromium-browser")
            or shutil.which("google-chrome")
        )
        if found is None:
            pytest.skip("there is no Chromium")
        return found

    def show(
        self, chromium: str, content: str, folder: Path, *options: str
    ) -> tuple[str, str, np.ndarray]:
        """Return the document after loading, the console's lines and the picture."""
        (folder / "page.html").write_text(content)
        command = [
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            f"--user-data-dir={folder / 'profile'}",
        ]
        command += [
            *options,
            "--window-size=1100,3600",
            "--dump-dom",
            f"--screenshot={folder / 'page.png'}",
            (folder / "page.html").as_uri(),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        console = "\n".join(line for line in ended.stderr.splitlines() if "CONSOLE" in line)
        return ended.stdout, console, imread(folder / "page.png")[..., :3]

    def test_it_loads_without_errors_shows_the_plots_and_runs_no_markup(
        self, chromium: str, tmp_path: Path
    ) -> None:
        for options, background, blue in (
            ((), "#f6f7f9", "#0072b2"),
            (("--blink-settings=preferredColorScheme=0",), "#12151a", "#56b4e9"),  # dark
        ):
            document, console, picture = self.show(
                chromium, page.render(hostile()), tmp_path, *options
            )
            assert console == ""
            assert "Report of a study</title>" in document
            assert not re.search("<(script|img)", document)
            for colour, least in ((background, 100_000), (blue, 500)):
                rgb = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
                assert (np.abs(picture - rgb).max(-1) < 0.01).sum() > least

    def test_a_script_would_be_blocked_and_seen(self, chromium: str, tmp_path: Path) -> None:
        content = page.render(hostile()).replace(
            "<h1>", "<script>document.title='owned'</script><h1>"
        )
        document, console, _ = self.show(chromium, content, tmp_path)
        assert "Content Security Policy" in console
        assert "Report of a study</title>" in document
