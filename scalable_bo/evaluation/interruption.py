"""How signals end a run: Ctrl-C once or twice, and those by which a system ends programs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self


class Interruption:
    """While entered, the first Ctrl-C sets ``requested``, the second raises ``KeyboardInterrupt``.

    It may be entered again. In other threads than the main one, and beside a handler of the
    program's own, it changes nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._installed = False

    def __enter__(self) -> Self:
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        return self

    def __exit__(self, *error: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._installed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


class EndedBySignalError(KeyboardInterrupt):
    """The process is to end: as after Ctrl-C, by the signal ``number``."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


@contextmanager
def handling(
    numbers: Iterable[int], handle: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    """Let signals be handled by a function in the block."""
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in before:
            signal.signal(number, handle)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def signals_as_interruptions() -> Iterator[None]:
    """Let SIGTERM, and SIGHUP where it is not ignored, raise ``EndedBySignalError`` once, so that
    what was begun is ended in order.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        for each in taken:
            signal.signal(each, signal.SIG_IGN)
        raise EndedBySignalError(number)

    taken = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if threading.current_thread() is threading.main_thread()
        and signal.getsignal(number) is signal.SIG_DFL
    ]
    with handling(taken, handle):
        yield
