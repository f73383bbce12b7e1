"""What the live page is given: charts, workers, and rows, a page at a time."""

import json
import re
import time
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

pytest.importorskip("fastapi")

from scalable_bo.serving import live
from scalable_bo.serving.client import RemoteStudy
from scalable_bo.serving.leased_study import LeasedStudy
from scalable_bo.serving.live import LiveView
from scalable_bo.serving.server import Server
from scalable_bo.space.quoting import ISOLATES
from scalable_bo.space.space import Categorical, Float, Int, Space
from scalable_bo.storage.shown import describe_params
from scalable_bo.study.study import Study
from tests import problems
from tests.quick import QUICK
from tests.scalable_bo.serving.requests import send

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>'\"&"
SPACE = Space(x=Float(0.0, 1.0), n=Int(1, 9), kind=Categorical(["a", HOSTILE]))


def value(params: dict[str, Any]) -> float:
    return (params["kind"] == "a") - (params["x"] - 0.3) ** 2 - (params["n"] - 4) ** 2 / 50


def filled(**options: Any) -> Study:
    """Return a study with values, a failure, and a surrogate."""
    settings: dict[str, Any] = {"maximize": True, "seed": 0, "num_initial": 4, "sampler": QUICK}
    study = Study(SPACE, **settings | options)
    batch = study.ask(8)
    study.tell(batch.ids, list(map(value, batch.params)))
    batch = study.ask(4)
    values = list(map(value, batch.params))
    study.tell(batch.ids, [float("nan"), *values[1:]], reasons={batch.ids[0]: HOSTILE})
    return study


@pytest.fixture(scope="module")
def leased() -> Iterator[LeasedStudy]:
    leased = LeasedStudy(filled(), batch=1, evaluations=13)
    end = time.monotonic() + 300.0
    while not leased.ask(1, "worker").points:
        assert time.monotonic() < end
        time.sleep(0.01)
    yield leased
    leased.close()


@pytest.fixture(scope="module")
def view(leased: LeasedStudy) -> LiveView:
    return LiveView(leased)


def test_the_best_value_and_its_parameters_are_of_one_row_under_noise() -> None:
    study = Study(Space(x=Float(-2.0, 2.0)), maximize=False, sampler=QUICK)
    X = torch.linspace(-2.0, 2.0, 60, dtype=torch.float64)[:, None]
    study.add_data(X, (X[:, 0] - 0.5).square() + problems.normal(60, seed=3))
    study.ask(1)
    result = study.result
    assert result.best_value != study.best_value
    leased = LeasedStudy(study, evaluations=1)
    shown = LiveView(leased).live()
    leased.close()
    assert shown["found"] == {"best value": f"{result.best_value:.6g}"}
    assert (shown["best"], shown["best_params"]) == (
        result.best_value,
        describe_params(result.best_params, ISOLATES),
    )


def test_the_numbers_and_the_workers_are_there(view: LiveView, leased: LeasedStudy) -> None:
    shown = view.live()
    assert (shown["num_observations"], shown["num_failed"], shown["num_asks"]) == (11, 1, 3)
    assert (shown["num_leased"], shown["num_workers"]) == (1, 1)
    assert shown["best"] == leased.study.best_value
    assert shown["found"] == {"best value": f"{leased.study.best_value:.6g}"}
    ((count, first, reason),) = shown["failures"]
    assert (count, first, reason) == (1, 8, HOSTILE)
    (worker,) = shown["workers"]
    assert worker["worker"] == "worker" and worker["id"] == 12
    assert 0 < worker["left"] <= 60 and "\u2068n\u2069 = " in worker["params"]


def test_charts_escape_every_text_of_the_study(view: LiveView) -> None:
    model = view.model()
    shown = view.live()
    charts = [shown["history"], shown["timeline"]]
    charts += [model[kind] for kind in ("slices", "contour", "importances")]
    for chart in charts:
        ElementTree.fromstring(f"<div>{chart}</div>")
        tags = set(re.findall(r"</?(\w+)", chart))
        table = {"table", "thead", "tbody", "tr", "th", "td"}
        html = {"div", "figure", "figcaption", "ul", "ol", "li", "i", "p"} | table
        assert tags <= html | {"svg", "line", "text", "title", "polyline", "circle", "rect"}
        assert HOSTILE not in chart
    assert 'class="band"' in model["slices"]


def test_the_lines_are_data_between_0_and_1(view: LiveView, leased: LeasedStudy) -> None:
    lines = view.live()["lines"]
    assert [axis["name"] for axis in lines["axes"]] == ["x", "n", "kind", "value"]
    assert len(lines["lines"]) == 11
    best = lines["lines"][0]
    assert (best["is"], best["value"]) == ("orange", leased.study.best_value)
    assert all(0.0 <= place <= 1.0 for line in lines["lines"] for place in line["places"])
    json.dumps(lines, allow_nan=False)


def test_several_objectives_have_a_front_and_limits_are_kept() -> None:
    study = Study(
        Space(x=Float(0, 1), y=Float(0, 1)),
        objectives={"cost": "minimize", "gain": "maximize"},
        num_initial=100,
    )
    batch = study.ask(6)
    study.tell(batch.ids, [{"cost": p["x"], "gain": p["x"] * p["y"]} for p in batch.params])
    leased = LeasedStudy(study)
    view = LiveView(leased)
    shown = view.live()
    assert "hypervolume so far" in shown["history"] and "on the front" in shown["front"]
    result = study.result
    assert shown["found"] == {
        "on the front": str(len(result.front)),
        "hypervolume": f"{result.hypervolume:.4g}",
    }
    assert shown["best"] is None and "minimize cost, maximize gain" in shown["goal"]
    assert {"cost", "gain", "front"} <= set(view.rows("", "", False, 0, 10)["columns"])
    assert "importances" in view.model()
    leased.close()


def test_a_study_without_values_shows_that(view: LiveView) -> None:
    leased = LeasedStudy(Study(SPACE, maximize=True, num_initial=100))
    view = LiveView(leased)
    assert "history" not in view.live() and view.live()["best"] is None
    assert "no surrogate" in view.model()["note"]
    leased.close()


SEARCHES: list[tuple[str, Any]] = [
    ("", lambda frame: frame.index >= 0),
    ("value<0.5", lambda frame: frame["value"] < 0.5),
    ("value>=0.5 n<=4", lambda frame: (frame["value"] >= 0.5) & (frame["n"] <= 4)),
    ("status=failed", lambda frame: frame["status"] == "failed"),
    ("status=FAILED", lambda frame: frame["status"] == "failed"),
    ("owned", lambda frame: frame["reason"].str.contains("owned") | (frame["kind"] != "a")),
    ("kind=a pend", lambda frame: (frame["kind"] == "a") & (frame["status"] == "pending")),
    ("7", lambda frame: frame.index == 7),
    ("id>9", lambda frame: frame.index > 9),
    ("asked>2020", lambda frame: frame["asked"].notna()),
    ("asked<2020", lambda frame: frame.index < 0),
    ("told>=2020-01-01", lambda frame: frame["told"].notna()),
    ("nothing-of-the-kind", lambda frame: frame.index < 0),
    ("(*[", lambda frame: frame.index < 0),
]


@pytest.mark.parametrize(("search", "holds"), SEARCHES)
def test_a_search_finds_the_rows_of_which_it_holds(
    view: LiveView, leased: LeasedStudy, search: str, holds: Any
) -> None:
    frame = leased.study.to_dataframe()
    found = view.rows(search, "", False, 0, 100)
    assert [row[0] for row in found["rows"]] == list(frame.index[holds(frame)])
    assert (found["num_found"], found["num_rows"]) == (len(found["rows"]), 13)


def test_a_parameter_may_be_called_id() -> None:
    study = Study(Space(id=Float(0.0, 1.0)), maximize=True)
    study.add_data([[0.5], [0.25]], [1.0, 2.0])
    leased = LeasedStudy(study)
    view = LiveView(leased)
    found = view.rows("id<0.3", "id", False, 0, 5)
    leased.close()
    assert found["columns"][:2] == ["id_", "id"]
    assert [row[:2] for row in found["rows"]] == [[1, 0.25]]


def test_rows_come_a_page_at_a_time_in_any_order(view: LiveView, leased: LeasedStudy) -> None:
    frame = leased.study.to_dataframe()
    for sort in ("value", "n", "kind", "status", "id"):
        for down in (False, True):
            pages = [view.rows("", sort, down, k, 5)["rows"] for k in (0, 5, 10)]
            ids = [row[0] for page in pages for row in page]
            assert sorted(ids) == list(frame.index)
    ids = [row[0] for row in view.rows("", "value", True, 0, 13)["rows"]]
    assert frame["value"][ids[:11]].is_monotonic_decreasing
    assert frame["value"][ids[11:]].isna().all()
    assert view.rows("", "value", True, 100, 5)["rows"] == []


@pytest.mark.parametrize(
    ("search", "sort"), [("value<many", ""), ("kind<3", ""), ("", "no such column")]
)
def test_what_cannot_be_compared_or_sorted_is_said(view: LiveView, search: str, sort: str) -> None:
    with pytest.raises(ValueError, match=r"number|texts|column"):
        view.rows(search, sort, False, 0, 5)


def test_a_hundred_thousand_rows_have_bounded_charts_and_pages() -> None:
    num_rows = 100_000
    study = Study(Space(x=Float(0, 1), y=Float(0, 1)), maximize=True, num_initial=10**6)
    X = problems.uniform(num_rows, 2)
    study.add_data(X, X.sum(1))
    leased = LeasedStudy(study)
    view = LiveView(leased)
    assert len(json.dumps(view.live())) < 2**20
    found = view.rows("value>1.5 x<0.9", "value", True, 50, 25)
    assert len(found["rows"]) == 25
    assert found["num_found"] == int(((X.sum(1) > 1.5) & (X[:, 0] < 0.9)).sum())
    leased.close()


def test_what_takes_long_is_kept_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    computed = []

    def compute() -> int:
        nonlocal now
        now += 1.0
        computed.append(now)
        return len(computed)

    monkeypatch.setattr(live.time, "monotonic", lambda: now)
    cached = live._Cached(compute)
    assert cached.get() == 1
    now += 9.0
    assert cached.get() == 1
    now += 2.0
    assert cached.get() == 2


def test_a_snapshot_need_not_wait_for_an_ask() -> None:
    study = filled()
    with study._asking:  # as long as an ask runs
        assert len(study.snapshot(wait=False).rows) == 12


def test_the_page_and_its_parts_are_served_and_nothing_else() -> None:
    with Server(filled()) as server:
        kinds = {}
        for path in ("/", "/page.js", "/page.css", "/style.css", "/live", "/model", "/rows"):
            status, content, headers = send(server.url, path, token=server.token)
            assert status == 200 and content
            kinds[path] = headers["content-type"]
            assert not re.search(rb"https?://(?!www\.w3\.org/2000/svg)", content)
        assert kinds["/"] == "text/html; charset=utf-8"
        assert kinds["/page.js"].startswith("text/javascript")
        for path in ("/rows?limit=0", "/rows?limit=1001", "/rows?offset=-1", "/rows?down=perhaps"):
            assert send(server.url, path, token=server.token)[0] == 422
        status, content, _ = send(server.url, "/rows?sort=%3Cb%3E", token=server.token)
        assert status == 409 and "no column" in json.loads(content)["detail"]
        with RemoteStudy(server.url, token=server.token) as remote:
            assert remote.best()["observed_value"] == server.leased.study.best_value
