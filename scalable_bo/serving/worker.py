"""A worker: it asks a server for points, evaluates them and tells their values."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from scalable_bo.evaluation.evaluator import Evaluation, LateError
from scalable_bo.evaluation.failures import FailureLimit
from scalable_bo.serving.client import RemoteStudy

logger = logging.getLogger(__name__)


def work(
    study: RemoteStudy,
    evaluate: Callable[[int, dict[str, Any]], Evaluation],
    *,
    stopped: Callable[[], bool] = lambda: False,
    max_failures: int | None = None,
) -> int:
    """Evaluate points, one after the other, until all have been or ``stopped()``; return how many
    this worker has told. What is interrupted by an exception goes back to the server.

    Args:
        evaluate: from an id and a dict of parameters to an ``Evaluation``.
        stopped: asked between evaluations.
        max_failures: failed evaluations beyond which this worker ends; ``None`` to end when 10
            fail in a row, or the first three raise the same.
    Raises:
        RuntimeError: if too many evaluations fail, from what the objective raised.
        ConnectionError, PermissionError: as ``RemoteStudy``.
    """
    limit = FailureLimit(max_failures)
    num_told = 0
    while (batch := study.ask(1, stopped=stopped)).ids:
        ((id, params),) = zip(batch.ids, batch.params, strict=True)
        try:
            with study.holding(batch.ids):
                evaluation = evaluate(id, params)
                num_told += _tell(study, evaluation)
        except BaseException:
            with suppress(OSError, ValueError):  # the lease expires
                study.release(batch.ids)
            raise
        limit.check([evaluation])
    return num_told


def _tell(study: RemoteStudy, evaluation: Evaluation) -> bool:
    """Tell an evaluation; return whether it came in time."""
    id, failure = evaluation.id, evaluation.failure
    reasons = {} if failure is None else {id: failure}
    try:
        study.tell([id], [evaluation.told], reasons=reasons, seconds=[evaluation.seconds])
    except LateError:
        logger.warning(
            "Point %d was told another value before: by a worker that got it when the lease of this"
            " one had expired, or by another process of the study.",
            evaluation.id,
        )
        return False
    return True
