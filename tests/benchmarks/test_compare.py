"""The comparison of two commits: a slow-down is seen, the same code gives no alarm,
and what a commit lacks is absent.
"""

import ast
import json
import subprocess
from pathlib import Path

import pytest

from benchmarks import workloads
from benchmarks.compare import Comparison, compare, main
from benchmarks.workloads import WORKLOADS

WORKLOADS_OF_THE_TEST = """
import json, sys

if len(sys.argv) == 1:
    print(json.dumps(["work", "new"]))
else:
    try:
        import code_of_the_test
        print(json.dumps({"seconds": getattr(code_of_the_test, sys.argv[1])()}))
    except AttributeError as error:
        print(json.dumps({"absent": str(error)}))
"""


def git(repository: Path, *arguments: str) -> str:
    author = "-c user.name=nobody -c user.email=nobody@example.org -c commit.gpgsign=false"
    command = ["git", "-C", str(repository), *author.split(), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of two commits: the second takes twice as long and has one function more;
    the working tree is as the first.
    """
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    code = folder / "code_of_the_test.py"
    sources = ["def work(): return 0.5\n", "def work(): return 1.0\ndef new(): return 1.0\n"]
    for number, source in enumerate(sources):
        code.write_text(source)
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", f"commit {number}")
    code.write_text(sources[0])
    (tmp_path / "script.py").write_text(WORKLOADS_OF_THE_TEST)
    return folder


def arguments(repository: Path, *more: str) -> list[str]:
    script = str(repository.parent / "script.py")
    return [*more, "--repository", str(repository), "--script", script, "--repeats", "2"]


def test_a_slow_down_by_two_is_seen_and_recorded(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = repository.parent / "record.json"
    assert (
        main(arguments(repository, "HEAD~1", "HEAD", "--workloads", "work", "--out", str(out))) == 1
    )
    assert "SLOWER" in capsys.readouterr().out
    record = json.loads(out.read_text())
    assert record["slower"] == ["work"]
    assert record["results"][0]["ratio"] == 2.0
    assert record["results"][0]["before"] == [0.5, 0.5]
    assert record["settings"]["commits"]["after"] == git(repository, "rev-parse", "HEAD").strip()


def test_the_same_code_gives_no_alarm(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(repository, "HEAD~1", ".", "--workloads", "work")) == 0
    assert "nothing is slower" in capsys.readouterr().out


def test_what_the_first_commit_lacks_is_absent_and_what_the_second_lacks_lost(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(repository, "HEAD~1", "HEAD", "--workloads", "new")) == 0
    assert "absent" in capsys.readouterr().out
    assert main(arguments(repository, "HEAD", ".", "--workloads", "new")) == 1
    assert "LOST" in capsys.readouterr().out


def test_the_working_tree_is_left_as_it_is(repository: Path) -> None:
    compare(repository, "HEAD~1", "HEAD", repository.parent / "script.py", ["work"], 1)
    assert git(repository, "status", "--porcelain").split() == ["M", "code_of_the_test.py"]
    assert git(repository, "worktree", "list").count("\n") == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["nowhere"], "`commit` must name a commit"),
        (["--workloads", "play"], "`workloads` must be among work, new, got 'play'"),
    ],
)
def test_bad_input_is_named(
    repository: Path, given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(repository, *given)) == 2
    assert message in capsys.readouterr().err


def test_a_workload_that_fails_is_no_result(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "code_of_the_test.py").write_text("def work(): return 1 / 0\n")
    assert main(arguments(repository, "HEAD", ".", "--workloads", "work")) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_noise_in_some_pairs_is_no_alarm() -> None:
    assert not Comparison("work", [1.0, 1.0, 1.0], [1.5, 1.5, 0.9]).is_slower(1.2)
    assert not Comparison("work", [1.0, 1.0, 1.0], [1.1, 1.1, 1.1]).is_slower(1.2)
    assert Comparison("work", [1.0, 1.0, 1.0], [1.5, 1.5, 1.1]).is_slower(1.2)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_runs_on_the_code_as_it_is(name: str) -> None:
    WORKLOADS[name]()()


def test_the_workloads_import_what_older_commits_have_too() -> None:
    tree = ast.parse(Path(workloads.__file__).read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    ours = {module for module in modules if module.startswith(("surr", "acq", "scalable"))}
    assert ours == {"surrogates", "acquisition", "scalable_bo"}
