"""Pages that the build makes: the reference, the keys of the TOML file, the gallery, and the lines
of the papers' equations.

MkDocs calls ``on_files`` and ``on_page_content``. Everything else here maps what the code says to
Markdown, and is tested without MkDocs.
"""

import ast
import importlib
import json
import re
from collections import defaultdict
from inspect import isclass, isfunction
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("scalable_bo", "acquisition", "surrogates")
FACES = (
    *PACKAGES,
    "surrogates.operators",
    "surrogates.solvers",
    "surrogates.fitting",
    "scalable_bo.visualization",
)
COPIED = {"changelog": "CHANGELOG", "contributing": "CONTRIBUTING", "security": "SECURITY"}
# Further objects that the pages link to, though no face has them
BESIDE = (
    "scalable_bo.storage.storage.Storage",
    "scalable_bo.integrations.ax.pathwise_generation_strategy",
    "scalable_bo.integrations.optuna.ThompsonSampler",
)
# A role of Sphinx in a docstring, before the code that it names
ROLE = re.compile(r":(?:class|func|meth|attr|mod|data|exc):(?=<code>|<a )")
# A line of code on the page of the papers, with its file
QUOTED_LINE = re.compile(r"`(\S+\.py)`: `([^`]+)`")
Pages = dict[str, str]


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for uri, content in {**reference(), **gallery(), **copies(), **toml_keys(), **papers()}.items():
        if stale := files.get_file_from_path(uri):
            files.remove(stale)
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_content(html: str, **_: Any) -> str:
    return ROLE.sub("", html)


def public_objects() -> dict[str, str]:
    """Return where each public name is defined, by ``face.name``."""
    found = {}
    for face in FACES:
        module = importlib.import_module(face)
        for name in module.__all__:
            value = getattr(module, name)
            defined = isclass(value) or isfunction(value)
            home = value.__module__ if defined and not hasattr(value, "__origin__") else face
            found[f"{face}.{name}"] = f"{home}.{name}"
    return found


def reference() -> Pages:
    """Return a page for each folder of each package with its public names, and an index."""
    pages = defaultdict(set)
    for home in [*public_objects().values(), *BESIDE]:
        if home.split(".")[0] in PACKAGES:  # not what others define, such as a type's alias
            package, *inner = home.split(".")[:-1]
            topic = inner[0] if inner and (ROOT / package / inner[0]).is_dir() else ""
            pages[f"{package}-{topic}" if topic else package].add(home)
    written = {}
    index = [
        "# Reference",
        "",
        "The reference has the docstring of every public name. `import scalable_bo as sbo` gives"
        " the names for studies and models; `surrogates` and `acquisition` have their parts.",
        "",
    ]
    for page, homes in sorted(pages.items()):
        package, _, topic = page.partition("-")
        title = f"{package}: {topic.replace('_', ' ')}" if topic else package
        ordered = sorted(homes, key=lambda home: home.rsplit(".", 1)[1].lower())
        blocks = "\n\n".join(f"::: {home}" for home in ordered)
        written[f"reference/{page}.md"] = f"# {title}\n\n{blocks}\n"
        links = ", ".join(f"[`{home.rsplit('.', 1)[1]}`]({page}.md#{home})" for home in ordered)
        index += [f"## [{title}]({page}.md)", "", links, ""]
    return {"reference/index.md": "\n".join(index), **written}


def toml_keys() -> Pages:
    """Return the page of the TOML file, with a table of its keys from the schema of ``Config``."""
    from scalable_bo.cli.config import Config

    schema = Config.model_json_schema()
    page = (ROOT / "docs/how-to/toml.md").read_text(encoding="utf-8")
    tables = []
    for table, field in schema["properties"].items():
        reference = json.dumps(field)
        section = re.search(r"#/\$defs/(\w+)", reference)
        if section is None:  # what the text of the page describes
            continue
        part = schema["$defs"][section[1]]
        repeated = '"array"' in reference
        tables += [f"### `{'[[' if repeated else '['}{table}{']]' if repeated else ']'}`", ""]
        tables += [part["description"].replace("``", "`"), ""]
        tables += ["| key | kind | default |", "|---|---|---|"]
        for key, content in part["properties"].items():
            tables.append(f"| `{key}` | {_kind(content)} | {_default(key, content, part)} |")
        tables.append("")
    return {"how-to/toml.md": page.replace("<!-- keys -->", "\n".join(tables))}


def papers() -> Pages:
    """Return the page of the papers, with the number of each line of code that it quotes."""
    page = (ROOT / "docs/papers.md").read_text(encoding="utf-8")
    return {"papers.md": with_line_numbers(page)}


def with_line_numbers(text: str) -> str:
    """Return a text with the number of each line of code that it quotes after its file.

    Raises:
        ValueError: if a line is not in its file, or not once.
    """

    def numbered(quoted: re.Match[str]) -> str:
        file, code = quoted.groups()
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        found = [number for number, line in enumerate(lines, 1) if line.strip() == code]
        if len(found) != 1:
            raise ValueError(f"{file} must have this line once, got it {len(found)} times: {code}")
        return f"`{file}`, line {found[0]}: `{code}`"

    return QUOTED_LINE.sub(numbered, text)


def _kind(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        kinds = [_kind(option) for option in schema["anyOf"] if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return ", ".join(f'`"{choice}"`' for choice in schema["enum"])
    if "const" in schema:
        return f'`"{schema["const"]}"`'
    kind = {"string": "text", "boolean": "`true` or `false`", "object": "table"}.get(
        schema["type"], schema["type"]
    )
    if kind == "array":
        kind = f"list of {_kind(schema['items'])}"
    bounds = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most"}
    return kind + "".join(
        f", {word} {schema[key]}" for key, word in bounds.items() if key in schema
    )


def _default(key: str, schema: dict[str, Any], part: dict[str, Any]) -> str:
    if key in part.get("required", ()):
        return "**required**"
    value = schema.get("default")
    return "none" if value is None else f"`{json.dumps(value)}`"


def gallery() -> Pages:
    """Return a page, a notebook and a line of the index for every script in ``examples/``."""
    written = {}
    index = [
        "# Gallery",
        "",
        "Every script is in `examples/`, and can be downloaded as a notebook. `make examples` runs"
        " all scripts, and `make gallery` draws the pictures again. Both run the largest scripts in"
        " their small form, `EXAMPLES=small`.",
        "",
        '<div class="grid cards" markdown>',
        "",
    ]
    for script in sorted((ROOT / "examples").glob("*.py")):
        source = script.read_text(encoding="utf-8")
        summary = " ".join((ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0].split())
        title = script.stem.replace("_", " ").capitalize()
        drawn = f"gallery/{script.stem}.png" in pictures()
        shown = f"![{title}]({script.stem}.png)\n\n" if drawn else ""
        parts = "\n\n".join(
            f"{note}\n\n```{{.py}}\n{code}\n```" if code else note for note, code in cells(source)
        )
        written[f"gallery/{script.stem}.md"] = (
            f"# {title}\n\n{shown}[As a notebook]({script.stem}.ipynb){{ download }}\n\n{parts}\n"
        )
        written[f"gallery/{script.stem}.ipynb"] = notebook(source)
        picture = f"[![{title}]({script.stem}.png)]({script.stem}.md)\n\n    " if drawn else ""
        index.append(f"-   {picture}**[{title}]({script.stem}.md)**: {summary}\n")
    return {"gallery/index.md": "\n".join([*index, "</div>"]) + "\n", **written}


def pictures() -> dict[str, Path]:
    """Return the stored pictures by their addresses; ``make gallery`` draws them again."""
    docs = ROOT / "docs"
    found = (
        picture for folder in ("gallery", "pictures") for picture in docs.glob(f"{folder}/*.png")
    )
    return {picture.relative_to(docs).as_posix(): picture for picture in sorted(found)}


def cells(source: str) -> list[tuple[str, str]]:
    """Return (text, code) of each cell of a script in percent format; the first is its head."""
    docstring = ast.get_docstring(ast.parse(source)) or ""
    body = source.split('"""', 2)[2]
    head, *rest = re.split(r"^# %%[ ]?", body, flags=re.MULTILINE)
    found = [(docstring.replace("``", "`"), head.strip())]
    for cell in rest:
        lines = cell.splitlines()
        note = [lines[0]]
        while len(lines) > len(note) and lines[len(note)].startswith("# "):
            note.append(lines[len(note)][2:])
        found.append((" ".join(note), "\n".join(lines[len(note) :]).strip()))
    return found


def notebook(source: str) -> str:
    """Return a script in percent format as a notebook without output."""
    content: list[dict[str, Any]] = []
    for note, code in cells(source):
        content.append({"cell_type": "markdown", "metadata": {}, "source": note})
        if code:
            empty = {"execution_count": None, "outputs": []}
            content.append({"cell_type": "code", "metadata": {}, "source": code, **empty})
    for number, cell in enumerate(content):
        cell["id"] = f"cell-{number}"
    return json.dumps(
        {"cells": content, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1
    )


def copies() -> Pages:
    """Return the texts of the repository's root that the site shows, with links that suit it."""
    written = {}
    for page, name in COPIED.items():
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
        text = re.sub(r"\]\(docs/", "](", text)
        for other, file in COPIED.items():
            text = text.replace(f"]({file}.md)", f"]({other}.md)")
        written[f"{page}.md"] = text
    return written
