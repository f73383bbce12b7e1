"""The house: every file on its floor, arrows that point down, no circles, nothing too large.

Also what library code never does.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("surrogates", "acquisition", "scalable_bo")

# From the bottom up: a module imports from its own floor and those below. A folder is a floor.
FLOORS = (
    (
        "surrogates.checks",
        "surrogates.memory",
        "surrogates.atomic",
        "surrogates.callers",
        "surrogates.restoring",
    ),
    ("surrogates.operators",),
    ("surrogates.systems",),
    ("surrogates.functions", "surrogates.solvers"),
    ("surrogates.rules",),
    ("surrogates.models",),
    ("surrogates.fitting",),
    ("surrogates.regressors",),
    ("surrogates",),
    ("acquisition",),
    ("scalable_bo._packages", "scalable_bo.experiments.problems"),
    ("scalable_bo.space",),
    ("scalable_bo.evaluation",),
    ("scalable_bo.storage",),
    ("scalable_bo.modelling",),
    ("scalable_bo.report",),
    ("scalable_bo.study",),
    ("scalable_bo.integrations",),
    ("scalable_bo.experiments", "scalable_bo.visualization", "scalable_bo.serving"),
    ("scalable_bo.cli",),
    ("scalable_bo.__main__", "scalable_bo"),
)
MOST_ENTRIES = 15  # files and folders in the root of a package
LONGEST_CHAIN = 10  # files of `surrogates` that import one another in a row
# Outside tests; both only fall
MOST_LINES = 52_155
MOST_CONSTANTS = 95  # module-level numbers
LONGEST_FUNCTION = 60  # lines, without the docstring
MOST_PARAMETERS = 12
# Constructors whose arguments BoTorch or a paper dictates, and kernels that take their sizes.
MANY_PARAMETERS = {
    "scalable_bo/study/study.py:Study.__init__",
    "surrogates/models/pathwise.py:PathwiseGP.__init__",
    "surrogates/operators/triton_kernels.py:_matmul",
    "surrogates/operators/triton_kernels.py:_rowwise",
}
WITHOUT_BOTORCH = ("surrogates.operators", "surrogates.systems", "surrogates.solvers")
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
FACTORIES = {
    f"torch.{name}"
    for name in (
        *("arange", "as_tensor", "empty", "eye", "full", "linspace", "ones", "rand", "randint"),
        *("randn", "randperm", "tensor", "zeros"),
    )
}
# Whose own code is all there is around them, and modules, which PyTorch makes where users say
FOLLOWING_THE_DEFAULT_DEVICE = (
    "scalable_bo.experiments",
    "scalable_bo.cli",
    "surrogates.functions.feature_maps",
)

SOURCES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for package in PACKAGES
    for file in sorted((ROOT / package).rglob("*.py"))
}
FACES = {module for module, file in SOURCES.items() if file.name == "__init__.py"}


def inside(name: str, parents: tuple[str, ...]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


def floor(module: str) -> int:
    """Return the floor of ``module``: that of the longest name that it lies in."""
    heights = {
        member: height
        for height, members in enumerate(FLOORS)
        for member in members
        if inside(module, (member,))
    }
    return heights[max(heights, key=len)]


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(SOURCES[module].read_text(encoding="utf-8"))


def imports(module: str) -> Iterator[str]:
    """Yield the absolute dotted name of everything that ``module`` imports, wherever in the file:
    an import that is deferred, or for type checkers alone, counts as any other.
    """
    package = module if module in FACES else module.rpartition(".")[0]
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            depth = len(package.split(".")) - node.level + 1
            above = package.split(".")[:depth] if node.level else []
            base = [*above, *filter(None, [node.module])]
            yield from (".".join([*base, alias.name]) for alias in node.names)


def uses(module: str) -> Iterator[str]:
    """Yield what ``module`` imports, and every dotted name that it writes out."""
    yield from imports(module)
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node)


@cache
def arrows(module: str) -> frozenset[str]:
    """Return the modules of ours that ``module`` imports from."""
    found = set()
    for name in imports(module):
        while name and name not in SOURCES:
            name = name.rpartition(".")[0]
        found.add(name)
    return frozenset(found - {"", module})


@cache
def functions() -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Return every function outside the tests, with its place."""
    found = []
    parsed = {file: tree(module) for module, file in SOURCES.items()}
    for file in (*ROOT.glob("benchmarks/*.py"), *ROOT.glob("examples/*.py")):
        parsed[file] = ast.parse(file.read_text(encoding="utf-8"))
    for file, whole in parsed.items():
        todo: list[tuple[str, ast.AST]] = [("", whole)]
        while todo:
            prefix, parent = todo.pop()
            for node in ast.iter_child_nodes(parent):
                inner = prefix
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    inner = f"{prefix}{node.name}."
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    found.append((f"{file.relative_to(ROOT)}:{prefix}{node.name}", node))
                todo.append((inner, node))
    return found


def test_every_file_has_a_floor_and_imports_point_down_to_where_a_name_is_defined() -> None:
    without = [
        module
        for module in SOURCES
        if floor(module) == floor(package := module.partition(".")[0])
        and not (module in FLOORS[-1] or module in PACKAGES or package == "acquisition")
    ]
    assert not without, "give them a floor in FLOORS, or move them into a folder that has one"
    pairs = [(module, name) for module in SOURCES for name in arrows(module)]
    assert not [(module, name) for module, name in pairs if floor(name) > floor(module)]
    assert not [
        (module, name)
        for module, name in pairs
        if module not in FACES and name in FACES and inside(name, (module.partition(".")[0],))
    ]


def test_there_are_no_circles_and_no_long_chains_of_imports() -> None:
    try:
        TopologicalSorter({module: arrows(module) for module in SOURCES}).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))

    @cache
    def chain(module: str) -> tuple[str, ...]:
        below = (chain(name) for name in arrows(module) if inside(name, ("surrogates",)))
        return (module, *max(below, key=len, default=()))

    longest = max((chain(name) for name in SOURCES if inside(name, ("surrogates",))), key=len)
    assert len(longest) <= LONGEST_CHAIN, " imports ".join(longest)


def test_there_is_no_more_than_there_was() -> None:
    for package in PACKAGES:
        entries = {entry.name for entry in (ROOT / package).iterdir()} - {"__pycache__"}
        assert len(entries) <= MOST_ENTRIES, sorted(entries)
    files = [
        path for package in (*PACKAGES, "benchmarks") for path in (ROOT / package).rglob("*.py")
    ]
    texts = [path.read_text() for path in files]
    lines = sum(len(text.splitlines()) for text in texts)
    constants = sum(
        _is_number(node.value)
        for text in texts
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
    )
    assert lines <= MOST_LINES
    assert constants <= MOST_CONSTANTS


def _is_number(node: ast.expr) -> bool:
    """Return whether ``node`` is a number, a computation with numbers, or a collection of them."""
    match node:
        case ast.Constant():
            return isinstance(node.value, int | float) and not isinstance(node.value, bool)
        case ast.UnaryOp():
            return _is_number(node.operand)
        case ast.BinOp():
            return _is_number(node.left) and _is_number(node.right)
        case ast.Tuple() | ast.List():
            return bool(node.elts) and all(map(_is_number, node.elts))
        case ast.Dict():
            return bool(node.values) and all(map(_is_number, node.values))
    return False


def test_a_name_means_one_thing_in_a_package() -> None:
    """No two files have, or define as a class or a public function, the same name, and none defines
    one twice, except the `main` of scripts; a file may be named as what it defines.
    """
    for package in (*PACKAGES, "benchmarks"):
        places = defaultdict(list)
        for path in sorted((ROOT / package).rglob("*.py")):
            nodes = ast.parse(path.read_text()).body
            defined = [n.name for n in nodes if isinstance(n, ast.ClassDef | ast.FunctionDef)]
            for name in [*defined, *{path.stem}.difference(defined)]:
                places[name].append(path)
        twice = {
            name: found
            for name, found in places.items()
            if len(found) > 1 and not name.startswith("_") and name != "main"
        }
        assert not twice


def test_functions_fit_a_screen_and_take_few_parameters() -> None:
    long, many = {}, {}
    for place, node in functions():
        documented = ast.get_docstring(node) is not None
        lines = sum(part.end_lineno - part.lineno + 1 for part in node.body[:1] if documented)
        size = node.end_lineno - node.lineno + 1 - lines
        if size > LONGEST_FUNCTION:
            long[place] = size
        arguments = node.args
        names = [a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]
        count = len([name for name in names if name not in ("self", "cls")])
        if count > MOST_PARAMETERS:
            many[place] = count
    assert not long
    assert many.keys() <= MANY_PARAMETERS


def test_operators_and_solvers_know_nothing_of_botorch() -> None:
    lower = [module for module in SOURCES if inside(module, WITHOUT_BOTORCH)]
    assert not [(m, name) for m in lower for name in imports(m) if inside(name, ("botorch",))]


def test_kinds_of_parameters_are_told_apart_in_their_own_folder_alone() -> None:
    kinds = {"Float", "Int", "Categorical", "Parameter"}
    told_apart = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in (*PACKAGES, "benchmarks")
        for path in (ROOT / package).rglob("*.py")
        if ROOT / "scalable_bo" / "space" not in path.parents
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"
        if kinds & {ast.unparse(one).rpartition(".")[2] for one in ast.walk(node.args[1])}
    ]
    assert not told_apart


def test_library_code_never_unpickles_nor_touches_global_state() -> None:
    forbidden = UNPICKLING + GLOBAL_STATE
    assert not [(m, name) for m in SOURCES for name in uses(m) if inside(name, forbidden)]


def test_tensors_are_made_on_a_device_that_is_named() -> None:
    """PyTorch's default device may be another than that of the data."""
    unnamed = [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module in SOURCES
        if not inside(module, FOLLOWING_THE_DEFAULT_DEVICE)
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in FACTORIES
        and not {"device", None} & {keyword.arg for keyword in node.keywords}
    ]
    assert not unnamed
