"""How processes are told apart, and whether one has ended."""

import os
import subprocess
import sys
from unittest.mock import patch

from scalable_bo.storage import lock
from scalable_bo.storage.lock import has_ended, process_mark


def test_a_process_has_a_mark_of_its_own_until_it_ends() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    marks = process_mark(os.getpid()), process_mark(child.pid)
    assert len(set(marks)) == 2
    assert {len(mark) for mark in marks} == {24}
    assert not any(map(has_ended, marks))
    child.communicate(b"\n")
    assert [has_ended(mark) for mark in marks] == [False, True]
    assert process_mark(child.pid) == ""


def test_nothing_is_said_of_processes_that_cannot_be_seen() -> None:
    mark = process_mark(os.getpid())
    elsewhere = "0" * 8 + mark[8:14] + "0" * 10
    assert not has_ended(elsewhere)
    later = mark[:14] + "f" * 10
    assert has_ended(later)  # another process has its number now
    with patch.object(os, "kill", side_effect=PermissionError):
        assert not has_ended(later)
    with patch.object(lock.socket, "gethostname", side_effect=PermissionError):
        assert process_mark(os.getpid()) == ""
        assert not has_ended(mark)
