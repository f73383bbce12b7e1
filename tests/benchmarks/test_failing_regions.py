"""Problems with a region in which every evaluation fails."""

import numpy as np
import pytest

from benchmarks.failing_regions import PROBLEMS, evaluate, run_problem


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_region_is_a_twentieth_to_a_half_of_the_box(name: str) -> None:
    X = np.random.default_rng(1).random((4000, PROBLEMS[name][0]))
    values = evaluate(name, X)
    assert 0.04 < np.isnan(values).mean() < 0.53
    assert np.isfinite(values[~np.isnan(values)]).all()


def test_failures_after_the_design_are_counted() -> None:
    account = run_problem("50 %, rising", "sobol", 0)
    assert 15 <= account["failed"] <= 25  # of 40
    assert 0.0 <= account["regret"] < 0.3
