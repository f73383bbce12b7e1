"""The dependency arrows between the packages, what library code never does,
and the guard against foreign packages.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalable_bo._packages import check_sibling_packages

ROOT = Path(__file__).parents[1]
PACKAGES = ("surrogates", "acquisition", "scalable_bo")

# From the bottom up: a module imports from its own layer and those below.
# Modules of `surrogates` without a line here serve every layer.
LAYERS = (
    ("surrogates.operators",),
    ("surrogates.systems",),
    ("surrogates.systems.preconditioners", "surrogates.functions.features", "surrogates.solvers"),
    ("surrogates.functions.paths",),
    (
        "surrogates.models.posterior",
        "surrogates.models.pathwise",
        "surrogates.models.inducing",
        "surrogates.fitting",
        "surrogates.models.registrations",
    ),
    ("acquisition",),
    ("scalable_bo",),
)
WITHOUT_BOTORCH = ("surrogates.operators", "surrogates.solvers")
UNPICKLING = ("pickle", "cloudpickle", "dill", "joblib.load", "torch.load")
GLOBAL_STATE = (
    "torch.manual_seed",
    "torch.random.manual_seed",
    "torch.seed",
    "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all",
    "torch.set_default_dtype",
    "torch.set_default_device",
    "botorch.manual_seed",
    "botorch.utils.sampling.manual_seed",
    "random.seed",
)

SOURCES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for package in PACKAGES
    for file in sorted((ROOT / package).rglob("*.py"))
}

MODULES_BELOW = {
    face: tuple(name for name in SOURCES if name.startswith(f"{face}.")) for face in PACKAGES
}


def inside(name: str, parents: tuple[str, ...]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


def imports(module: str) -> Iterator[str]:
    """Yield the absolute dotted name of everything that `module` imports, wherever in the file."""
    package = module if SOURCES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(SOURCES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = (
                package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            )
            yield from (
                ".".join([*above, *filter(None, [node.module]), alias.name]) for alias in node.names
            )


def uses(module: str) -> Iterator[str]:
    """Yield what `module` imports, and every dotted name that it writes out."""
    yield from imports(module)
    for node in ast.walk(ast.parse(SOURCES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def layer(name: str) -> int | None:
    for height, members in enumerate(LAYERS):
        if inside(name, members):
            return height
    return None


@pytest.mark.parametrize("module", SOURCES)
def test_imports_point_down(module: str) -> None:
    height = layer(module)
    if height is None:  # a helper, or the face of `surrogates`, stays below the other packages
        height = layer("surrogates.models.pathwise")
    upward = [
        name for name in imports(module) if (target := layer(name)) is not None and target > height
    ]
    assert not upward


@pytest.mark.parametrize(
    "module", [module for module in SOURCES if inside(module, ("surrogates", "acquisition"))]
)
def test_no_module_imports_from_its_own_package_face(module: str) -> None:
    face = module.partition(".")[0]
    siblings = [name for name in imports(module) if inside(name, (face,))]
    assert module == face or not [
        name for name in siblings if not inside(name, MODULES_BELOW[face])
    ]


@pytest.mark.parametrize(
    "module", [module for module in SOURCES if inside(module, WITHOUT_BOTORCH)]
)
def test_operators_and_solvers_know_nothing_of_botorch(module: str) -> None:
    assert not [name for name in imports(module) if inside(name, ("botorch",))]


@pytest.mark.parametrize("module", SOURCES)
def test_library_code_never_unpickles_nor_touches_global_state(module: str) -> None:
    assert not [name for name in uses(module) if inside(name, UNPICKLING + GLOBAL_STATE)]


def test_every_layer_has_been_found() -> None:
    assert {layer(module) for module in SOURCES} >= set(range(len(LAYERS)))


def import_scalable_bo(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import scalable_bo"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("file", ["surrogates.py", "surrogates/__init__.py", "acquisition.py"])
def test_a_foreign_package_in_the_way_is_named(tmp_path: Path, file: str) -> None:
    foreign = tmp_path / file
    foreign.parent.mkdir(exist_ok=True)
    foreign.write_text("raise SystemExit('the foreign module was imported')\n")
    run = import_scalable_bo(tmp_path)
    assert run.returncode == 1
    last_line = run.stderr.strip().splitlines()[-1]
    assert last_line.startswith("ImportError: ")
    assert str(foreign) in last_line


def test_a_foreign_package_that_is_already_imported_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "acquisition", pytest)
    with pytest.raises(ImportError, match="acquisition") as error:
        check_sibling_packages()
    assert error.value.path == pytest.__file__


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalable_bo._packages.SIBLINGS", ("surrogates_that_nobody_wrote",))
    with pytest.raises(
        ImportError, match="surrogates_that_nobody_wrote.*Install scalable-bo again"
    ):
        check_sibling_packages()


def test_our_own_packages_pass(tmp_path: Path) -> None:
    check_sibling_packages()
    assert import_scalable_bo(tmp_path).returncode == 0
