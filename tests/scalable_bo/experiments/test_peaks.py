"""Nothing is refused whose measured peak of memory is below half the budget."""

from pathlib import Path

import pytest
import torch

from tests.scalable_bo.peaks import apart, of_ask, of_paths

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="only Linux resets the peak"
)


@pytest.mark.parametrize(
    ("name", "n", "num_paths"),
    [
        ("cholesky", 2000, 4),
        ("cholesky", 500, 3000),
        ("asap", 1000, 1000),
        ("sdd", 1000, 1000),
        ("cg", 1000, 1000),
        ("auto", 2000, 200),
    ],
)
def test_paths_are_drawn_with_twice_the_memory_that_they_take(
    name: str, n: int, num_paths: int
) -> None:
    wanted, peak = apart(of_paths, name, n, num_paths)
    assert 0 < wanted <= 2 * peak


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "dtype"),
    [(100, torch.float64), (4000, torch.float64), (18_000, torch.float64), (24_000, torch.float32)],
)
def test_a_study_is_found_to_fit_in_twice_the_memory_that_it_takes(
    n: int, dtype: torch.dtype
) -> None:
    wanted, peak = apart(of_ask, n, 10, dtype)
    assert 0 < wanted <= 2 * peak
