"""What is released: one version everywhere, and archives with the packages and nothing else."""

import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
PACKAGES = ("scalable_bo", "surrogates", "acquisition")
BESIDE = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "PKG-INFO", "README.md", "constraints.txt",
          "pyproject.toml", ".gitignore"}  # fmt: skip
MOST_BYTES = 1_000_000
SMOKE = """
import scalable_bo as sbo
study = sbo.Study(sbo.Space(x=sbo.Float(0, 1)), maximize=False, seed=0)
print(study.optimize(lambda params: params["x"], rounds=3, batch=4, progress=False).best_value)
X = sbo.PathwiseGP(study.result.X, study.result.values.unsqueeze(1)).paths(3)(study.result.X)
print(tuple(X.shape), sbo.GPRegressor().fit(study.result.X, study.result.values).n_features_in_)
print(sbo.__file__)
"""


def test_the_version_is_the_same_in_all_places() -> None:
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()
    headings = [
        line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line[:3] == "## "
    ]
    assert headings[0].split()[1] == VERSION


def test_a_version_has_at_most_eighty_lines_in_the_change_log() -> None:
    versions = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
    assert versions and all(len(version.splitlines()) <= 80 for version in versions)


def built(pattern: str) -> Path:
    found = sorted((ROOT / "dist").glob(pattern))
    if not found:
        pytest.skip(f"no {pattern} in dist/: `make dist` builds it")
    (archive,) = found
    return archive


@pytest.mark.slow
def test_the_wheel_holds_the_three_packages_alone() -> None:
    wheel = built("*.whl")
    assert wheel.stat().st_size < MOST_BYTES
    assert wheel.name == f"scalable_bo-{VERSION}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {*PACKAGES, f"scalable_bo-{VERSION}.dist-info"}
    assert {
        path.relative_to(ROOT).as_posix()
        for top in PACKAGES
        for path in ROOT.glob(f"{top}/**/*.py")
    } <= set(names)
    assert {"scalable_bo/report/style.css", "scalable_bo/py.typed"} <= set(names)
    assert "surrogates/operators/native.c" in names


@pytest.mark.slow
def test_the_sdist_holds_what_the_wheel_is_built_from() -> None:
    with tarfile.open(built("*.tar.gz")) as archive:
        names = archive.getnames()
    assert {name.split("/")[1] for name in names if "/" in name} <= {*PACKAGES, *BESIDE}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our three packages come from the wheel, what they depend on from this environment."""
    folder = tmp_path_factory.mktemp("environment")
    wheel = built("*.whl")
    venv.create(folder, with_pip=False)
    (site,) = (folder / "lib").glob("python*/site-packages")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site)]
    subprocess.run([*command, str(wheel)], check=True)
    (site / "dependencies.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("site-packages"))
    )
    return folder


@pytest.fixture(scope="module")
def lowest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own with the wheel and the lowest versions that it allows, of torch the
    build that is installed here unless ``LOWEST`` names another.
    """
    chosen = os.environ.get("LOWEST")
    if not chosen:
        pytest.skip("downloads an environment: `make dist-lowest`")
    folder = tmp_path_factory.mktemp("lowest")
    needed = [Requirement(text) for text in PROJECT["dependencies"]]
    bounds = [f"{one.name}=={one.specifier}".replace("==>=", "==") for one in needed]
    pins = [chosen, *(pin for pin in bounds if not pin.startswith("torch=="))]
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", built("*.whl"), *pins], check=True)
    return folder


@pytest.mark.slow
def test_the_wheel_runs_on_the_lowest_versions_that_it_allows(lowest: Path) -> None:
    ran = run(lowest, "-W", "ignore", "-c", SMOKE)
    assert ran.returncode == 0, ran.stderr
    assert run(lowest, "-m", "scalable_bo", "--version").stdout == f"scalable-bo {VERSION}\n"
    ran = run(lowest, "-m", "scalable_bo", "bench", "thompson", "--help")
    assert ran.returncode == 0, ran.stderr


def run(environment: Path, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run its Python with ``path`` as ``PYTHONPATH``, from a folder without our packages."""
    return subprocess.run(
        [environment / "bin/python", *arguments],
        cwd=environment,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_the_wheel_runs_in_an_empty_environment(environment: Path) -> None:
    ran = run(environment, "-c", SMOKE)
    assert ran.returncode == 0, ran.stderr
    assert Path(ran.stdout.splitlines()[-1]).is_relative_to(environment)
    ran = run(environment, "-m", "scalable_bo", "--version")
    assert (ran.returncode, ran.stdout) == (0, f"scalable-bo {VERSION}\n")


@pytest.mark.slow
def test_beside_a_foreign_package_of_the_same_name_the_wheel_says_so(
    environment: Path, tmp_path: Path
) -> None:
    (tmp_path / "surrogates").mkdir()
    (tmp_path / "surrogates/__init__.py").touch()
    ran = run(environment, "-c", "import scalable_bo", path=str(tmp_path))
    assert ran.returncode == 1
    assert "another module of that name" in ran.stderr
