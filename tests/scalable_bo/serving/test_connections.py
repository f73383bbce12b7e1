"""Strangers who connect and say nothing, or too often, keep nobody out."""

import resource
import socket
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi")

from scalable_bo.serving import server as serving
from scalable_bo.serving.client import RemoteStudy
from scalable_bo.serving.server import Server
from scalable_bo.space.space import Float, Space
from scalable_bo.study.study import Study


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(serving.Connection, "patience", 0.5)
    monkeypatch.setattr(serving, "most_connections", lambda: 8)
    with Study(Space(x=Float(0.0, 1.0)), maximize=True) as study, Server(study) as started:
        yield started


def connect(server: Server, sent: bytes = b"") -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    stranger = socket.create_connection((host, int(port)), timeout=10)
    stranger.sendall(sent)
    return stranger


def ends(stranger: socket.socket) -> bool:
    """Return whether the server ends a connection, in ten seconds."""
    try:
        return stranger.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost: a\r\n"])
def test_a_connection_without_a_request_is_ended(server: Server, sent: bytes) -> None:
    start = time.monotonic()
    with connect(server, sent) as stranger:
        assert ends(stranger)
    assert 0.4 < time.monotonic() - start < 5


def test_one_address_cannot_take_all_and_workers_that_are_there_go_on(server: Server) -> None:
    with RemoteStudy(server.url, token=server.token, patience=20.0) as remote:
        remote.tell(remote.ask().ids, [1.0])
        strangers = [connect(server) for _ in range(20)]
        assert sum(map(ends, strangers)) == 20  # most at once, the others when their time is over
        remote.tell(remote.ask().ids, [2.0])
        assert remote.num_observations == 2
        for stranger in strangers:
            stranger.close()


def test_there_are_fewer_connections_than_the_process_may_open_files() -> None:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert serving.most_connections() < files


@pytest.mark.parametrize(
    "url", ["http://192.0.2.1:8765", "http://example.org", "ftp://host", None, 3, "host"]
)
def test_a_token_does_not_travel_in_the_clear(url: object) -> None:
    with pytest.raises(ValueError, match="`url` must begin with http"):
        RemoteStudy(url, token="secret")  # type: ignore[arg-type]


def test_something_else_may_encrypt() -> None:
    RemoteStudy("http://192.0.2.1:8765", token="secret", plain=True).close()
    RemoteStudy("http://localhost:8765", token="secret").close()
    RemoteStudy("http://[::1]:8765", token="secret").close()
