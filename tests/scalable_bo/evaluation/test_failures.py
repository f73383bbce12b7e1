"""When failures end a run: too many, too many in a row, or the first ones alike."""

import math

import pytest

from scalable_bo.evaluation.evaluator import Evaluation
from scalable_bo.evaluation.failures import FailureLimit


def test_failures_between_successes_do_not_end_a_run_without_a_limit() -> None:
    bad = Evaluation.failed(0, "bad", ValueError("bad"))
    for batch, most in ((1, 10), (12, 12)):
        limit = FailureLimit(None, batch)
        for _ in range(5):
            limit.check([Evaluation(0, 1.0)] + [bad] * (most - 1))
        with pytest.raises(RuntimeError, match=f"The last {most} evaluations failed"):
            limit.check([bad])


def test_failures_of_points_do_not_end_a_run_at_once_as_those_of_the_objective_do() -> None:
    nan = Evaluation.of(0, math.nan)
    other = Evaluation.failed(0, "ValueError: 1", ValueError("1"))
    for first in ([nan] * 3, [other, other, nan], [other, nan, other, other, other]):
        FailureLimit(None).check(first)
        FailureLimit(100).check([other] * 10)
    message = "The last 10 evaluations failed or lack outcomes, without `max_failures`"
    with pytest.raises(RuntimeError, match=message):
        FailureLimit(None).check([nan] * 10)
    with pytest.raises(RuntimeError, match="The first 3 evaluations all raised the same"):
        FailureLimit(None).check([other] * 4)


def test_points_that_lack_some_outcomes_are_no_failures_to_the_limit() -> None:
    partial = Evaluation(0, 1.0, "w: there is no value", None, (math.nan,))
    limit = FailureLimit(0)
    limit.check([partial] * 20)
    with pytest.raises(
        RuntimeError,
        match=r"1 of 21 evaluations failed, more than `max_failures` = 0; the last reason: bad\. M",
    ):
        limit.check([Evaluation.failed(0, "bad.")])
