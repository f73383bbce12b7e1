"""``scalable-bo serve`` as a process: what it prints, and how it ends."""

import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from typer.testing import CliRunner

from scalable_bo.cli import main
from scalable_bo.serving.client import RemoteStudy
from scalable_bo.space.parameters import Float
from scalable_bo.space.space import Space
from scalable_bo.study.study import Study

CONFIG = """
[study]
path = "run"
maximize = true
num_initial = 1000

[space]
x = { type = "float", low = 0.0, high = 1.0 }
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "study.toml"
    file.write_text(CONFIG)
    return file


def serve(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "scalable_bo", "serve", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def server(config: Path) -> Iterator[subprocess.Popen[str]]:
    process = serve(config, "--port", "0")
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def url_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().split(" ")[0]


def assert_ends_in_order(server: subprocess.Popen[str], number: int, told: str) -> None:
    """Send a signal, and require that the server ends by itself and says what it was told."""
    server.send_signal(number)
    said, complaint = server.communicate(timeout=300)
    assert (server.returncode, complaint) == (0, "")
    assert f"Stopped; {told}, 0 failed" in said


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_server_in_order(
    server: subprocess.Popen[str], tmp_path: Path, number: int
) -> None:
    with RemoteStudy(url_of(server), token_file=tmp_path / "run" / "token") as remote:
        remote.tell(remote.ask().ids, [1.5])
    assert_ends_in_order(server, number, "1 value")


def test_a_study_is_served_again_after_a_kill_with_the_same_token_until_it_is_terminated(
    server: subprocess.Popen[str], tmp_path: Path
) -> None:
    url = url_of(server)
    file = tmp_path / "run" / "token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    refused = CliRunner().invoke(main.app, ["serve", str(tmp_path / "run")])
    assert refused.exit_code == 1 and "in use" in refused.output  # one process writes
    token = file.read_text()
    with RemoteStudy(url, token_file=file) as remote:
        first, second = remote.ask(2).ids
        remote.tell([first], [1.0])
        server.kill()
        server.wait()
        again = serve(tmp_path / "run", "--port", url.rpartition(":")[2])
        try:
            assert url_of(again) == url
            remote.tell([first, second], [1.0, 2.0])  # one of them again, the other late
            assert remote.num_observations == 2
            assert_ends_in_order(again, signal.SIGTERM, "2 values")
        finally:
            again.kill()
            again.communicate()
    assert file.read_text() == token
    with Study.open(tmp_path / "run") as study:
        assert study.best_value == 2.0
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_study_in_a_database_is_served(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    url = f"sqlite:///{tmp_path}/shared.db"
    space = Space(x=Float(0.0, 1.0))
    asked = Study(space, maximize=True, storage=url, name="tuning", num_initial=1000)
    (elsewhere,) = asked.ask(1).ids
    arguments = ["serve", url, "--name", "tuning", "--port", "0"]
    refused = CliRunner().invoke(main.app, arguments)
    assert refused.exit_code == 2 and "Give `--token-file`." in refused.output
    file = tmp_path / "token"
    for told in (1, 2):  # a server that is started again continues from the values
        process = serve(*arguments[1:], "--token-file", file)
        try:
            with RemoteStudy(url_of(process), token_file=file) as remote:
                (number,) = remote.ask().ids
                assert number != elsewhere  # which another process evaluates
                remote.tell([number], [float(told)])
            assert_ends_in_order(process, signal.SIGTERM, f"{told} value{'s' * (told > 1)}")
        finally:
            process.kill()
            process.communicate()
    pending = asked.pending.ids
    assert len(pending) > 1
    assert asked.unfinished().ids == pending  # the servers have left theirs to others
    asked.tell([elsewhere], [3.0])
    assert asked.num_observations == 3
    asked.close()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--host", "0.0.0.0"], "`certificate`"),
        (["--lease", "0"], "`lease`"),
        (["--evaluations", "0"], "`evaluations`"),
    ],
)
def test_wrong_options_are_refused(config: Path, options: list[str], what: str) -> None:
    refused = CliRunner().invoke(main.app, ["serve", str(config), "--port", "0", *options])
    assert refused.exit_code == 2
    assert what in refused.output
    Study.open(config.parent / "run", num_initial=1000).close()  # which nobody holds any more


def test_a_folder_without_a_study_is_refused(tmp_path: Path) -> None:
    refused = CliRunner().invoke(main.app, ["serve", str(tmp_path)])
    assert refused.exit_code == 2
    assert "must hold a study" in refused.output


def test_a_worker_needs_one_thing_to_evaluate(tmp_path: Path) -> None:
    for options in ([], ["--function", "a:b", "--command", "c"]):
        command = ["work", "http://127.0.0.1:1", "--token-file", str(tmp_path / "token"), *options]
        refused = CliRunner().invoke(main.app, command)
        assert refused.exit_code == 2
        assert "Either `--function` or `--command`" in refused.output
