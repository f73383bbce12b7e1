"""What the README and the pages show runs as it is pasted, and the reference has every name."""

import ast
import codeop
import importlib
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from unittest.mock import patch

import pytest
from typer.main import get_command

from scalable_bo.cli.config import read_config
from scalable_bo.cli.main import app
from surrogates.operators.forms import FORMS
from tests.scalable_bo.serving.browser import Browser, missing

ROOT = Path(__file__).parents[1]
OURS = ("scalable_bo", "surrogates", "acquisition")
README = ROOT / "README.md"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = sorted((ROOT / "docs").rglob("*.md"))
# What a page would load or fetch from elsewhere. Mermaid's drawings would bring a script.
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|link|object|embed|video|audio|track|form|input|use|image)\b"""
    r"""[^>]*?\b(?:src|srcset|href|data|poster|action)=["']?(?:https?:)?//"""
    r"""|url\(["']?(?:https?:)?//|@import ["'](?:https?:)?//|class=["']?mermaid"""
)


def snippets(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks = load("hooks")


def run(page: Path, codes: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    names = {"__name__": "example"}
    # A kernel that a page registers is not for other tests
    with patch.dict(FORMS), warnings.catch_warnings():
        # What a user sees; other packages' warnings are not the example's
        warnings.simplefilter("default")
        for code in codes:
            exec(compile(code, str(page), "exec"), names)
    assert not list(folder.iterdir()), "an example leaves files behind"


def test_the_readme_is_short_and_has_an_example_for_each_use() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120
    assert len(snippets(README)) == 3


@pytest.mark.parametrize("number", range(3))
def test_an_example_runs(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(README, [snippets(README)[number]], tmp_path, monkeypatch)


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.stem)
def test_code_without_classes_can_be_pasted_into_python_s_own_prompt(page: Path) -> None:
    for code in snippets(page):
        lines: list[str] = []
        for line in [*code.splitlines(), ""] if "class " not in code else ():
            lines.append(line)  # a block ends with an empty line there, and with nothing else
            if codeop.compile_command("\n".join(lines)) is not None:
                lines = []


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if snippets(page)],
    ids=lambda page: str(page.relative_to(ROOT / "docs")),
)
def test_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = snippets(page)
    for word, extra in (("import optuna", "optuna"), ("visualization", "plotly")):
        if any(word in code for code in codes):
            pytest.importorskip(extra)
    run(page, codes, tmp_path, monkeypatch)


def test_links_between_files_lead_somewhere() -> None:
    made = {*hooks.reference(), *hooks.gallery(), *hooks.copies()}
    broken = []
    for page in [*ROOT.glob("*.md"), *PAGES]:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)#\s]+)", text):
            if "://" in link:
                continue
            target = (page.parent / link).resolve()
            inside = target.is_relative_to(ROOT / "docs")
            if not target.exists() and not (
                inside and str(target.relative_to(ROOT / "docs")) in made
            ):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert not broken


def test_every_public_name_is_in_the_reference() -> None:
    text = "\n".join(hooks.reference().values())
    shown = set(re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE))
    objects = hooks.public_objects()
    for face in hooks.FACES:
        assert {
            name.rpartition(".")[2] for name in objects if name.rpartition(".")[0] == face
        } == set(importlib.import_module(face).__all__)
    assert {home for home in objects.values() if home.split(".")[0] in hooks.PACKAGES} == shown - {
        *hooks.BESIDE
    }


def test_the_page_of_papers_names_the_lines_of_equations_and_files_that_exist() -> None:
    page = hooks.papers()["papers.md"]
    assert len(re.findall(r"`\S+\.py`, line \d+: `", page)) > 12
    assert not [file for file in re.findall(r"`(\S+\.py)`", page) if not (ROOT / file).exists()]


def test_a_quoted_line_that_has_gone_is_named() -> None:
    with pytest.raises(ValueError, match=r"docs/hooks\.py must have this line once, got it 0"):
        hooks.with_line_numbers("`docs/hooks.py`: `nobody wrote this`")


def test_the_toml_page_has_every_key_and_its_file_is_valid(tmp_path: Path) -> None:
    from scalable_bo.cli.config import Config

    text = hooks.toml_keys()["how-to/toml.md"]
    for section in Config.model_json_schema()["$defs"].values():
        for key in section["properties"]:
            assert f"| `{key}` |" in text
    (file,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    path = tmp_path / "study.toml"
    path.write_text(file)
    space = read_config(path).build_space(imports=False).to_dict()
    assert space["parameters"].keys() == tomllib.loads(file)["space"].keys()


def test_commands_of_the_pages_have_options_that_there_are() -> None:
    root = get_command(app)
    unknown = []
    for page in [README, *PAGES]:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for call in re.findall(r"scalable-bo ((?:bench )?[a-z]+\b[^`\n#|]*)", text):
            command, words = root, call.split()
            while words and words[0] in getattr(command, "commands", {}):
                command = command.commands[words.pop(0)]
            known = {name for option in command.params for name in option.opts} | {"--help"}
            asked = {word for word in words if re.fullmatch(r"--?[a-z][a-z-]*", word)}
            if command is root or asked - known:
                unknown.append(f"{page.name}: scalable-bo {call}")
    assert not unknown


def test_the_page_of_measurements_is_that_of_the_records() -> None:
    measured = load("measured")
    page = measured.PAGE.read_text(encoding="utf-8")
    assert measured.renewed(page) == page, "`python docs/measured.py` renews the tables"
    assert set(re.findall(r"<!-- (\w+) -->", page)) == set(measured.TABLES)
    assert page.count("\n|---|") == len(measured.TABLES), "every table has its record"
    assert len(page.splitlines()) <= 250
    names = [name for *_, own in measured.TABLES.values() for name in own]
    shown = {file for name in names for file in measured.RESULTS.glob(name)}
    assert not set(measured.RESULTS.glob("*.json")) - shown, "every record is on the page"


@pytest.mark.parametrize("name", ["sheets", "recipes"])
def test_the_file_of_a_recipe_is_a_study(name: str, tmp_path: Path) -> None:
    text = (ROOT / f"docs/how-to/{name}.md").read_text(encoding="utf-8")
    (file,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "study.toml").write_text(file)
    space = read_config(tmp_path / "study.toml").build_space(imports=False).to_dict()
    assert space["parameters"].keys() == tomllib.loads(file)["space"].keys()


def test_every_example_ends_with_its_picture() -> None:
    for script in EXAMPLES:
        *_, last = hooks.cells(script.read_text(encoding="utf-8"))
        assert f'"results/{script.stem}.png"' in last[1]


def test_examples_import_what_exists() -> None:
    nodes = [
        node
        for script in EXAMPLES
        for node in ast.walk(ast.parse(script.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(OURS)
    ]
    for node in nodes:
        assert importlib.util.find_spec(node.module)
        with warnings.catch_warnings(action="ignore"):
            try:
                module = importlib.import_module(node.module)
            except ImportError:  # its extra is not installed
                continue
        assert not [each.name for each in node.names if not hasattr(module, each.name)]


def test_every_example_is_in_the_gallery_and_a_notebook_that_compiles() -> None:
    pages = hooks.gallery()
    for script in (ROOT / "examples").glob("*.py"):
        assert f"({script.stem}.md)" in pages["gallery/index.md"]
        notebook = json.loads(pages[f"gallery/{script.stem}.ipynb"])
        code = "\n".join(c["source"] for c in notebook["cells"] if c["cell_type"] == "code")
        theirs = script.read_text(encoding="utf-8")
        kept = {line for line in code.splitlines() if line.strip()}
        assert {line for line in theirs.split('"""', 2)[2].splitlines() if line.strip()} - kept <= {
            line for line in theirs.splitlines() if line.startswith("#")
        }
        compile(code, str(script), "exec")


def test_every_stored_picture_has_its_script_and_every_script_its_picture() -> None:
    scripts = [*EXAMPLES, *(ROOT / "docs/pictures").glob("*.py")]
    drawn = {"examples": "gallery", "pictures": "pictures"}
    expected = {f"{drawn[script.parent.name]}/{script.stem}.png" for script in scripts}
    assert set(hooks.pictures()) == expected, "`make gallery` draws the pictures"


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "index.html").exists()
    files = [*tmp_path.rglob("*.html"), *tmp_path.rglob("*.css")]
    assert not [file for file in files if FETCHED.search(file.read_text(encoding="utf-8"))]


# Types into the field of the search, again until the page's script has come to listen
SEARCHED = """(field => {
    field.focus();
    field.value = 'nystrom';
    field.dispatchEvent(new Event('keyup'));
    return document.querySelector('.md-search-result__link') !== null;
})(document.querySelector('.md-search__input'))"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Write nothing: the browser says what it lacks."""


@pytest.fixture
def address() -> Iterator[str]:
    """Where the site that was built last is served."""
    site = ROOT / "build/site"
    if not (site / "index.html").exists():
        pytest.skip("there is no site in build/site: `make docs` builds it")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.browser
@pytest.mark.skipif(bool(missing()), reason=f"there is no {missing()}")
@pytest.mark.parametrize(("width", "dark"), [(1300, False), (500, True)])
def test_a_browser_finds_all_of_a_page_at_home_and_searches_it(
    address: str, tmp_path: Path, width: int, dark: bool
) -> None:
    with Browser(tmp_path, width, 900, dark=dark) as browser:
        for page in ("reference/scalable_bo-study", "papers", "gallery/index", "index"):
            browser.open(f"{address}/{page}.html")
            browser.wait_for("document.readyState === 'complete'")
            fetched = browser.run(
                "return performance.getEntriesByType('resource').map(entry => entry.name)"
            )
            assert fetched
            assert not [name for name in fetched if not name.startswith(address)]
            assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
            scheme = browser.run("return document.body.dataset.mdColorScheme")
            assert scheme == ("slate" if dark else "default")
        browser.run("document.querySelector('#__search').click()")
        browser.wait_for(SEARCHED)
        assert not browser.console()


def test_what_an_example_has_drawn_is_on_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("examples", "docs/gallery"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("drawn", "plain"):
        (tmp_path / f"examples/{name}.py").write_text('"""Do."""\n\n# %% A step\nx = 1\n')
    (tmp_path / "docs/gallery/drawn.png").touch()
    monkeypatch.setattr(hooks, "ROOT", tmp_path)
    pages = hooks.gallery()
    assert "![Drawn](drawn.png)" in pages["gallery/drawn.md"]
    assert "![" not in pages["gallery/plain.md"]
