"""A small study that is served on the loopback device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from scalable_bo.serving.client import RemoteStudy
from scalable_bo.space.space import Categorical, Float, Space
from scalable_bo.study.study import Study

if TYPE_CHECKING:
    from scalable_bo.serving.server import Server

SPACE = Space(x=Float(0.0, 1.0), kind=Categorical(["a", "b"]))


@pytest.fixture
def study() -> Study:
    return Study(SPACE, maximize=True, seed=0, num_initial=10_000)


@pytest.fixture
def server(study: Study) -> Iterator[Server]:
    from scalable_bo.serving.server import Server  # which needs the packages of an extra

    with Server(study) as server:
        yield server


@pytest.fixture
def remote(server: Server) -> Iterator[RemoteStudy]:
    with RemoteStudy(server.url, token=server.token, patience=20.0) as remote:
        yield remote
