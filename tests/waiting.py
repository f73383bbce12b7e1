"""Waits for what another thread or process does; the deadline guards against hanging alone."""

import time
from collections.abc import Callable
from typing import Any


def eventually(found: Callable[[], Any], seconds: float = 300.0) -> Any:
    """Return the first true value that ``found`` returns."""
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end, found
        time.sleep(0.005)
    return value
