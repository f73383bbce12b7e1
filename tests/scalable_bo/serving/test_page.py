"""The live page in headless Chromium, light and dark, on a desk and on a phone."""

import math
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

pytest.importorskip("fastapi")

from scalable_bo.serving.client import RemoteStudy
from scalable_bo.serving.server import Server
from scalable_bo.space.space import Categorical, Float, Space
from scalable_bo.study.study import Study
from tests.scalable_bo.serving.browser import Browser, missing
from tests.scalable_bo.serving.test_live import HOSTILE, filled

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}")]
TAB = "\ue004"
ENTER = "\ue007"
ARROW_RIGHT = "\ue014"
LOADED = "document.querySelector('#rows tbody tr') && !document.querySelector('#slices').hidden"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(filled(), batch=1) as server:
        with RemoteStudy(server.url, token=server.token, worker="worker-1") as remote:
            remote.ask()
        yield server


def address(server: Server) -> str:
    return server.url.replace("http://", f"http://anyone:{server.token}@")


@pytest.fixture(scope="module")
def page(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser"), 1150, 1000) as browser:
        browser.open(address(server))
        browser.wait_for(LOADED)
        yield browser


def texts(page: Browser, selector: str) -> Any:
    script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
    return page.run(script, selector)


def test_it_shows_what_there_is_without_a_complaint(page: Browser, server: Server) -> None:
    page.wait_for("document.querySelector('#state').textContent === 'Live'")
    assert texts(page, "#values, #failed, #workers") == ["11", "1", "1"]
    assert texts(page, "#running tbody .worker") == ["worker-1"]
    hidden = page.run("return [...document.querySelectorAll('section[hidden]')].map((e) => e.id)")
    assert hidden == ["front"]
    assert texts(page, ".finding dt") == ["best value"]
    assert texts(page, ".finding dd") == [f"{server.leased.study.best_value:.6g}"]
    assert page.console() == []


def test_texts_of_the_study_are_texts(page: Browser) -> None:
    assert texts(page, "#failures tbody td:last-child") == [HOSTILE]
    assert HOSTILE in texts(page, "#rows tbody td")
    assert page.run("return document.title") != "owned"
    assert page.run("return document.querySelectorAll('main script, main img').length") == 0


def test_a_word_of_a_row_stays_in_a_line_beside_long_texts(page: Browser) -> None:
    script = (
        "const cells = [...document.querySelectorAll('#rows tbody td')];"
        " return cells.filter((cell) => cell.textContent.match(arguments[0])).map((cell) => {"
        " const range = document.createRange(); range.selectNodeContents(cell);"
        " return range.getClientRects().length; })"
    )
    assert page.run(script, "^observed$") == [1] * 11
    assert set(page.run(script, r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$")) == {1}  # when it was told


def test_a_script_in_the_page_would_not_run(page: Browser) -> None:
    page.run(
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
        " document.body.append(s)"
    )
    assert page.run("return window.ran") is None
    assert any("Content Security Policy" in line for line in page.console())


def test_rows_are_searched_sorted_and_paged_by_keyboard(page: Browser) -> None:
    (all_rows,) = texts(page, "#found")
    page.type("#search", "value>0.1 status=observed")
    page.wait_for(f"document.querySelector('#found').textContent !== '{all_rows}'")
    page.press(TAB)  # to the table, which scrolls
    page.press(TAB)  # to the first heading
    assert page.run("return document.activeElement.textContent") == "id"
    for _ in range(4):
        page.press(TAB)
    assert page.run("return document.activeElement.textContent") == "value"
    page.press(ENTER)
    page.wait_for("document.querySelector('th[aria-sort=ascending]')?.textContent === 'value'")
    values = [float(text) for text in texts(page, "#rows tbody td:nth-child(5)")]
    assert values == sorted(values) and min(values) > 0.1
    page.run("document.querySelector('#search').value = ''")
    page.type("#search", ENTER)
    page.wait_for(f"document.querySelector('#found').textContent === '{all_rows}'")


def drag_on_the_first_axis(page: Browser) -> None:
    """Narrow the lines to a range from low on an axis to its middle."""
    for _ in range(20):  # what is above may still grow, so that the pointer misses the axis
        x, y, width, height = page.run(
            "const place = {behavior: 'instant', block: 'center'};"
            " document.querySelector('#parallel').scrollIntoView(place);"
            " const hits = document.querySelectorAll('#parallel .hit');"
            " const b = hits[0].getBoundingClientRect(); return [b.x, b.y, b.width, b.height]"
        )
        page.drag((x + width / 2, y + height * 0.9), (x + width / 2, y + height * 0.5))
        if texts(page, "#kept") != ["11 lines"]:
            break
    assert " of 11 lines" in texts(page, "#kept")[0]


def test_lines_are_narrowed_by_dragging_and_by_sliders(page: Browser) -> None:
    drag_on_the_first_axis(page)
    assert page.run("return document.querySelectorAll('#parallel polyline.out').length") > 0
    page.run("document.querySelector('#clear').click()")
    assert texts(page, "#kept") == ["11 lines"]
    page.run("document.querySelector('details').open = true")
    page.run("document.querySelector('#sliders input').focus()")
    for _ in range(90):
        page.press(ARROW_RIGHT)
    assert " of 11 lines" in texts(page, "#kept")[0]
    page.run("document.querySelector('#clear').click()")


def test_a_drag_goes_on_while_values_arrive(page: Browser) -> None:
    show_fewer = "const fewer = structuredClone(lines); fewer.lines.pop(); showLines(fewer);"
    page.run(
        f"window.arrive = () => {{ {show_fewer} }};"
        " document.addEventListener('gotpointercapture', arrive)"
    )
    drag_on_the_first_axis(page)
    low, high = page.run("return ranges.get(lines.axes[0].name)")
    assert 0.05 < low < 0.15 and 0.45 < high < 0.55
    page.run("document.removeEventListener('gotpointercapture', arrive)")
    shown = page.run(f"{show_fewer} return document.querySelector('#kept').textContent")
    assert " of 10 lines" in shown
    page.run("document.querySelector('#clear').click()")


def test_every_control_has_a_name_and_headings_are_in_order(page: Browser) -> None:
    unnamed = page.run(
        "return [...document.querySelectorAll('button, input, [role=region], [role=img]')].filter("
        "(e) => !(e.textContent.trim() || e.ariaLabel || e.labels?.length)).map((e) => e.outerHTML)"
    )
    assert unnamed == []
    levels = page.run("return [...document.querySelectorAll('h1, h2, h3')].map((e) => e.tagName)")
    assert levels[0] == "H1" and set(levels[1:]) == {"H2"}


@pytest.mark.parametrize(
    ("width", "dark", "background"), [(1150, False, "#f6f7f9"), (500, True, "#12151a")]
)
def test_it_fits_a_desk_and_a_phone_light_and_dark(
    server: Server, tmp_path: Path, width: int, dark: bool, background: str
) -> None:
    with Browser(tmp_path, width, 900, dark=dark) as browser:
        browser.open(address(server))
        browser.wait_for(LOADED)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        browser.picture(tmp_path / "page.png")
    rgb = np.array([int(background[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    picture = imread(tmp_path / "page.png")[..., :3]
    assert (np.abs(picture - rgb).max(-1) < 0.01).mean() > 0.1


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_axe_finds_nothing_serious_in_the_page_and_the_report(
    server: Server, tmp_path: Path, width: int, dark: bool
) -> None:
    pytest.importorskip("axe_core_python", reason="needs axe-core-python, of the extra `test`")
    axe = files("axe_core_python").joinpath("axe.min.js").read_text()
    several = Study(
        Space(x=Float(0, 1), m=Float(0, 1), kind=Categorical(["a", "b"])),
        objectives={"cost": "minimize", "gain": "maximize"},
        outcome_constraints={"weight": (None, 1.5)},
        num_initial=100,
    )
    batch = several.ask(9)
    values = [{"cost": p["x"], "gain": p["m"], "weight": p["x"] + p["m"]} for p in batch.params]
    several.tell(batch.ids[:6], values[:5] + [math.nan])
    server.leased.study.report(tmp_path / "one.html")
    several.report(tmp_path / "several.html")
    with Browser(tmp_path, width, 900, dark=dark) as browser:
        browser.open(address(server))
        browser.wait_for(LOADED)
        found = [serious(browser, axe)]
        for name in ("one", "several"):
            browser.open((tmp_path / f"{name}.html").as_uri())
            browser.run("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
            found.append(serious(browser, axe))
    assert found == [[], [], []]


def serious(browser: Browser, axe: str) -> Any:
    browser.run(axe)
    return browser.run_async(
        "const done = arguments[0]; axe.run().then((found) => done(found.violations"
        ".filter((one) => ['serious', 'critical'].includes(one.impact))"
        ".flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.html}`))),"
        " (error) => done(String(error)))"
    )


def test_without_the_password_nothing_is_shown(server: Server, tmp_path: Path) -> None:
    with Browser(tmp_path, 800, 600) as browser:
        browser.open(server.url.replace("http://", "http://anyone:wrong@"))
        assert browser.run("return document.querySelector('h1')") is None
