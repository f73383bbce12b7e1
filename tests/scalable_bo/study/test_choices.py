"""A study takes what a strategy answers with only if it is a batch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from acquisition import Request
from acquisition.selection import DUPLICATE_DISTANCE
from scalable_bo.space.space import Float, Space
from scalable_bo.study.study import Study
from tests import problems
from tests.acquisition.random_points import RandomPoints

PLANE = Space(x=Float(0.0, 1.0), y=Float(-5.0, 5.0))


class Changed:
    """Points at random, changed afterwards."""

    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        self.change = change

    def generate(self, request: Request) -> Any:
        return self.change(RandomPoints().generate(request))


def make_study(change: Callable[[Tensor], Any], **options: Any) -> Study:
    """Return a study that has its design."""
    study = Study(PLANE, maximize=True, seed=0, strategy=Changed(change), num_initial=4, **options)
    X = problems.uniform(40, 2)
    study.add_data(X, X[:, 0])
    return study


@pytest.mark.parametrize("seconds", [None, 1e-9])
@pytest.mark.parametrize(
    ("change", "error", "received"),
    [
        (lambda X: X[:-1], ValueError, r"shape \(2, 2\)"),
        (lambda X: X[:0], ValueError, r"shape \(0, 2\)"),
        (lambda X: X.repeat(2, 1), ValueError, r"shape \(6, 2\)"),
        (lambda X: X[0], ValueError, r"shape \(2,\)"),
        (lambda X: X[0, 0], ValueError, r"shape \(\)"),
        (lambda X: X[:, :1], ValueError, r"shape \(3, 1\)"),
        (lambda X: torch.nan * X, ValueError, r"the point \[nan, nan\]"),
        (lambda X: torch.inf * X, ValueError, r"the point \[inf, inf\]"),
        (lambda X: 0.0 * X - 1e-3, ValueError, r"the point \[-0.001, -0.001\]"),
        (lambda X: X.numpy(), TypeError, "ndarray"),
        (lambda X: X.tolist(), TypeError, "list"),
        (lambda X: None, TypeError, "NoneType"),
    ],
)
def test_an_answer_that_is_no_batch_is_an_error_that_names_the_strategy(
    change: Callable[[Tensor], Any], error: type[Exception], received: str, seconds: float | None
) -> None:
    study = make_study(change, ask_seconds=seconds)
    message = (
        r"`generate` of the strategy `Changed` must return a tensor of shape \(q, d\) = \(3, 2\),"
        rf" finite and within `request.bounds`, got {received}. Draw"
    )
    with pytest.raises(error, match=message):
        study.ask(3)
    assert study.result.num_pending == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda X: X.float().requires_grad_(),
        lambda X: (
            X.clamp(0.5, 0.5 + 0.5 * DUPLICATE_DISTANCE) + 0.5
        ),  # by rounding beyond the bounds
    ],
)
def test_a_batch_may_miss_the_bounds_by_rounding(change: Callable[[Tensor], Any]) -> None:
    batch = make_study(change).ask(3)
    assert batch.X.shape == (3, 2)
    assert torch.equal(batch.X, batch.X.clamp(*PLANE.bounds))


def test_a_run_does_not_end_early_with_a_strategy_that_has_no_points() -> None:
    study = make_study(lambda X: X[:0])
    with pytest.raises(ValueError, match=r"`Changed` must return .* got shape \(0, 2\)"):
        study.optimize(lambda params: params["x"], rounds=2, batch=3)
