"""Studies behind a server on the loopback device, and their clients."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from scalable_bo.serving.client import RemoteStudy
from scalable_bo.space.space import Float, Space
from scalable_bo.study.study import Study

if TYPE_CHECKING:
    from scalable_bo.serving.server import Server

SPACE = Space(x=Float(0.0, 1.0))


def make_study(**options: Any) -> Study:
    """Return a study of points of the design alone, so that an ask takes no time."""
    goal = {} if "objectives" in options else {"maximize": True}
    return Study(SPACE, **{"num_initial": 10_000} | goal | options)


@contextmanager
def served(study: Study, **options: Any) -> Iterator[tuple["Server", RemoteStudy]]:
    """Serve a study, and give the server and a client."""
    pytest.importorskip("fastapi")
    from scalable_bo.serving.server import Server

    with Server(study, **options) as server, RemoteStudy(server.url, token=server.token) as remote:
        yield server, remote
