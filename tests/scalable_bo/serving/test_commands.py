"""``scalable-bo serve`` as a process: what it prints, and how it ends."""

import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from typer.testing import CliRunner

from scalable_bo.cli import main
from scalable_bo.serving.client import RemoteStudy
from scalable_bo.space.parameters import Float
from scalable_bo.space.space import Space
from scalable_bo.study.study import Study
from tests.forked import start_program
from tests.waiting import eventually

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


class Serving:
    """``scalable-bo serve`` in a process of its own, until the test ends."""

    def __init__(self, out: Path, *arguments: str | Path) -> None:
        self.out = out
        self.out.touch()
        self.process = start_program(out, command, "serve", *map(str, arguments))

    @property
    def url(self) -> str:
        eventually(lambda: "\n" in self.out.read_text())
        return self.out.read_text().split(" ")[0]

    def assert_ends_in_order(self, number: int, told: str) -> None:
        """Send a signal, and require that the server ends by itself and says what it was told."""
        os.kill(self.process.pid or 0, number)
        self.process.join(300)
        assert (self.process.exitcode, self.out.with_suffix(".err").read_text()) == (0, "")
        assert f"Stopped; {told}, 0 failed" in self.out.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def command(*words: str) -> None:
    sys.argv = ["scalable-bo", *words]
    main.main()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    """Starts servers, and kills those that are left at the end."""
    started: list[Serving] = []

    def start(*arguments: str | Path) -> Serving:
        started.append(Serving(tmp_path / f"{len(started)}.out", *arguments))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_server_in_order(
    serve: Callable[..., Serving], config: Path, number: int
) -> None:
    server = serve(config, "--port", "0")
    with RemoteStudy(server.url, token_file=config.parent / "run" / "token") as remote:
        remote.tell(remote.ask().ids, [1.5])
    server.assert_ends_in_order(number, "1 value")


def test_a_study_is_served_again_after_a_kill_with_the_same_token_until_it_is_terminated(
    serve: Callable[..., Serving], config: Path, tmp_path: Path
) -> None:
    server = serve(config, "--port", "0")
    url = server.url
    file = tmp_path / "run" / "token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    refused = CliRunner().invoke(main.app, ["serve", str(tmp_path / "run")])
    assert refused.exit_code == 1 and "in use" in refused.output  # one process writes
    token = file.read_text()
    with RemoteStudy(url, token_file=file) as remote:
        first, second = remote.ask(2).ids
        remote.tell([first], [1.0])
        server.kill()
        again = serve(tmp_path / "run", "--port", url.rpartition(":")[2])
        assert again.url == url
        remote.tell([first, second], [1.0, 2.0])  # one of them again, the other late
        assert remote.num_observations == 2
        again.assert_ends_in_order(signal.SIGTERM, "2 values")
    assert file.read_text() == token
    with Study.open(tmp_path / "run") as study:
        assert study.best_value == 2.0
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_study_in_a_database_is_served(serve: Callable[..., Serving], tmp_path: Path) -> None:
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
        server = serve(*arguments[1:], "--token-file", file)
        with RemoteStudy(server.url, token_file=file) as remote:
            (number,) = remote.ask().ids
            assert number != elsewhere  # which another process evaluates
            remote.tell([number], [float(told)])
        server.assert_ends_in_order(signal.SIGTERM, f"{told} value{'s' * (told > 1)}")
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
