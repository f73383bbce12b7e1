"""The initial design: how many values it gives, and what a batch holds while it lacks some."""

import math

import pytest
import torch
from torch import Tensor

from scalable_bo.space.space import Float, LinearConstraint, Space
from scalable_bo.study.study import Study
from tests.quick import QUICK


def make(dim: int = 3, num_initial: int | None = None) -> Study:
    box = torch.tensor([[0.0] * dim, [1.0] * dim])
    return Study(box, maximize=False, seed=4, num_initial=num_initial, sampler=QUICK)


def the_design(num_points: int) -> Tensor:
    return make().ask(num_points).X


def evaluate(study: Study, q: int, num_failures: int = 0) -> Tensor:
    """Ask for q points and tell their values, but for the first ones, which fail."""
    batch = study.ask(q)
    values = (batch.X - 0.3).square().sum(1)
    values[:num_failures] = math.nan
    study.tell(batch.ids, values)
    return batch.X


def is_in(points: Tensor, others: Tensor) -> list[bool]:
    return [bool((others == point).all(1).any()) for point in points]


def test_one_failure_costs_the_next_batch_one_point() -> None:
    study = make(num_initial=8)
    evaluate(study, 8, num_failures=1)
    batch = evaluate(study, 8)
    assert is_in(batch, the_design(16)) == [True] + 7 * [False]
    assert study.model is not None
    assert not any(is_in(evaluate(study, 4), the_design(32)))


def test_a_batch_takes_what_is_left_of_the_design_and_the_rest_from_the_model() -> None:
    study = make(num_initial=8)
    parts = [is_in(evaluate(study, 5), the_design(20)) for _ in range(3)]
    assert [sum(part) for part in parts] == [5, 3, 0]


def test_pending_points_count_as_given_once_there_are_values_for_a_model() -> None:
    study = make(num_initial=8)
    batch = study.ask(8)
    assert all(is_in(study.ask(2).X, the_design(16)))  # nothing is known yet
    study.tell(batch.ids[:4], batch.X[:4, 0])
    assert not any(is_in(study.ask(2).X, the_design(32)))


def test_without_enough_values_all_points_are_of_the_design() -> None:
    study = make(num_initial=8)
    evaluate(study, 8, num_failures=5)
    assert all(is_in(evaluate(study, 8), the_design(16)))
    assert study.model is None


@pytest.mark.parametrize(
    ("param", "limits"),
    [
        (Float(0, 1), {"at_least": 0.05, "at_most": 0.05}),
        (Float(0, 1), {"at_most": 0.15}),
        (Float(0, 1), {"at_least": 3.85}),
        (Float(1e-4, 1, log=True), {"at_least": 3.98}),
    ],
)
def test_no_point_of_a_design_between_constraints_occurs_twice(
    param: Float, limits: dict[str, float]
) -> None:
    names = ("a", "b", "c", "d")
    space = Space(
        LinearConstraint(dict.fromkeys(names, 1), **limits), **dict.fromkeys(names, param)
    )
    study = Study(space, maximize=False, seed=0, num_initial=30)
    for _ in range(6):
        evaluate(study, 5)
    assert study.model is None
    X = study.result.X
    assert len(X.unique(dim=0)) == 30
    assert space.feasible(X).all()
    if not param.log:
        num_at_an_end = (X.eq(0) | X.eq(1)).sum(1)  # in corners three of four or all
        assert num_at_an_end.double().mean() < 1


@pytest.mark.parametrize(("dim", "num_initial"), [(1, 4), (2, 6), (9, 20), (19, 20), (100, 20)])
def test_a_design_grows_with_the_parameters_up_to_twenty_values(dim: int, num_initial: int) -> None:
    assert make(dim).num_initial == num_initial
