"""Changes that are made together, or part by part where one of them is refused."""

import pytest

from scalable_bo.study.optimize import apply_together


def test_what_is_right_is_changed_in_one_call_and_beside_what_is_refused_part_by_part() -> None:
    calls: list[list[int]] = []

    def change(items: list[int]) -> None:
        if 13 in items:
            raise ValueError("unlucky")
        calls.append(items)

    assert apply_together(change, [[1, 2], [3]]) == [None, None]
    first, second, third = apply_together(change, [[4], [13, 5], [6]])
    assert (first, str(second), third) == (None, "unlucky", None)
    assert calls == [[1, 2, 3], [4], [6]]


def test_what_is_no_refusal_is_raised_at_once() -> None:
    calls: list[list[int]] = []

    def change(items: list[int]) -> None:
        calls.append(items)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        apply_together(change, [[1], [2]])
    assert calls == [[1, 2]]
