"""How many evaluations may fail before a run ends."""

from __future__ import annotations

from collections.abc import Sequence

from scalable_bo.evaluation.evaluator import Evaluation


class FailureLimit:
    """Counts failures.

    Without a maximum, a number of failures in a row is too many, and so are a few evaluations that
    raise the same before any gave a value: the objective does not work at all.

    Args:
        maximum: of failures, over all evaluations; ``None`` for the rules above.
        batch: points that are evaluated together, which may all fail.
        alike: how many that raise the same are too many.
        in_a_row: how many failures in a row are too many.
    """

    def __init__(
        self, maximum: int | None, batch: int = 1, *, alike: int = 3, in_a_row: int = 10
    ) -> None:
        self._maximum = maximum
        self._in_a_row = max(batch, in_a_row)
        self._num_alike = alike
        self._total = 0
        self._row = 0
        self._alike: str | None = None  # what all so far have raised
        self._num_checked = 0
        self._last: Evaluation | None = None

    def check(self, evaluations: Sequence[Evaluation]) -> None:
        """Count evaluations; beyond the limit raise RuntimeError from what the objective raised."""
        for one in evaluations:
            lacks = one.reason is not None  # a value, or one of several
            raised = one.reason if one.error is not None else None
            self._alike = raised if raised == self._alike or not self._num_checked else None
            self._num_checked += 1
            self._row = self._row + 1 if lacks else 0
            self._total += one.failure is not None
            if lacks:
                self._last = one
            if self._maximum is None and self._alike and self._row == self._num_alike:
                break
        if self._maximum is not None and self._total > self._maximum:
            what = (
                f"{self._total} of {self._num_checked} evaluations failed, more than"
                f" `max_failures` = {self._maximum}"
            )
        elif self._maximum is None and self._alike and self._row >= self._num_alike:
            what = f"The first {self._row} evaluations all raised the same"
        elif self._maximum is None and self._row >= self._in_a_row:
            what = (
                f"The last {self._row} evaluations failed or lack outcomes, without `max_failures`"
            )
        else:
            return
        assert self._last is not None
        raise RuntimeError(
            f"{what}; the last reason: {str(self._last.reason).rstrip('.')}. Mend the objective, or"
            " set `max_failures` to go on; all values are kept, and `retry` has what failed"
            " evaluated again."
        ) from self._last.error
