"""Tells that wait are stored together, and fail alone."""

import threading
from typing import Any

import pytest

from scalable_bo.serving.tells import Teller, Told
from tests.waiting import eventually


class Notes:
    """What was told, call by call; a value of 13 is refused."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.told: list[int] = []
        self.num_calls = 0
        self.trouble: OSError | None = None
        self.may_go_on = threading.Event()

    def tell(self, ids: Any, values: Any, *others: Any) -> None:
        self.num_calls += 1
        assert self.may_go_on.wait(60)
        if self.trouble is not None:
            raise self.trouble
        if 13.0 in values:
            raise ValueError("unlucky")
        self.calls.append(list(ids))
        self.told += ids


def test_what_waits_is_told_in_one_call_and_what_is_wrong_alone_is_refused() -> None:
    notes = Notes()
    teller = Teller(notes.tell)
    first = teller.tell([Told(0, 1.0)])
    rest = [teller.tell([Told(id, 13.0 if id == 3 else 1.0)]) for id in range(1, 6)]
    notes.may_go_on.set()
    first.result(60)
    for id, done in enumerate(rest, 1):
        if id == 3:
            with pytest.raises(ValueError, match="unlucky"):
                done.result(60)
        else:
            done.result(60)
    teller.close()
    assert sorted(notes.told) == [0, 1, 2, 4, 5]


def test_closing_tells_what_waits() -> None:
    notes = Notes()
    teller = Teller(notes.tell)
    done = [teller.tell([Told(id, 1.0)]) for id in range(1000)]
    notes.may_go_on.set()
    teller.close()
    assert all(one.done() for one in done)
    assert sorted(notes.told) == list(range(1000))
    assert max(map(len, notes.calls)) > 1


def test_who_does_not_wait_any_more_keeps_nobody_else_from_telling() -> None:
    notes = Notes()
    teller = Teller(notes.tell)
    done = [teller.tell([Told(id, 13.0 if id == 2 else 1.0)]) for id in range(4)]
    for one in done[1:3]:
        one.cancel()  # as when a server ends in the middle of them
    notes.may_go_on.set()
    done[0].result(60)
    done[3].result(60)
    teller.close()
    assert sorted(notes.told) == [0, 1, 3]


def test_what_cannot_be_stored_is_answered_to_all_at_once() -> None:
    notes = Notes()
    teller = Teller(notes.tell)
    first = teller.tell([Told(0, 1.0)])
    eventually(lambda: notes.num_calls)
    rest = [teller.tell([Told(id, 1.0)]) for id in range(1, 6)]
    notes.trouble = OSError("the disk is full")
    notes.may_go_on.set()
    for done in (first, *rest):
        with pytest.raises(OSError, match="the disk is full"):
            done.result(60)
    teller.close()
    assert notes.num_calls == 2  # of the first, and of all that waited meanwhile
