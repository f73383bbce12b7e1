"""Ridge leverage scores: evaluated in parts that fit in memory."""

from typing import Any

import pytest
import torch

from surrogates.operators import tiles
from surrogates.regressors import nystrom_steps
from surrogates.regressors.nystrom_steps import approximate_leverage_scores
from tests import problems

X = problems.uniform(200, 2)
REGULARIZATION = 1e-3
KERNEL = problems.rbf().double()


@pytest.mark.parametrize("fails", [2, 3])
def test_when_memory_runs_out_scores_come_in_smaller_parts(
    fails: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sketch = torch.arange(0, 200, 8)
    expected = approximate_leverage_scores(KERNEL, X, sketch, REGULARIZATION)
    evaluate = nystrom_steps.kernel_operator
    tried = []

    def limited(kernel: Any, *points: Any) -> Any:
        tried.append(len(points[-1]))
        if len(tried) == fails:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return evaluate(kernel, *points)

    monkeypatch.setitem(tiles.TILE_SIDE, "cpu", 128)
    monkeypatch.setattr(nystrom_steps, "kernel_operator", limited)
    torch.testing.assert_close(
        approximate_leverage_scores(KERNEL, X, sketch, REGULARIZATION), expected
    )
    assert tried == [len(sketch), *[128, 72][: fails - 1], 64, 64, 64, 8]
