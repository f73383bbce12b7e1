"""What an ask is predicted to take."""

import torch

from scalable_bo.study.prediction import predicted_bytes
from surrogates.rules.solved import COLUMNS_HELD


def test_memory_is_predicted_to_grow_with_the_rows_the_points_and_the_precision() -> None:
    free = 2**40
    base = predicted_bytes(50_000, 100, torch.float32, free)
    assert predicted_bytes(100_000, 100, torch.float32, free) > 1.5 * base
    assert (
        predicted_bytes(50_000, 500, torch.float32, free) - base == COLUMNS_HELD * 50_000 * 400 * 4
    )
    assert (
        predicted_bytes(50_000, 100, torch.float64, free) - base == COLUMNS_HELD * 50_000 * 101 * 4
    )
    assert predicted_bytes(100_000, 500, torch.float64, free) < 14 * 2**30


def test_a_matrix_that_is_not_kept_and_a_preconditioner_that_does_not_fit_are_not_predicted() -> (
    None
):
    # 1.9 and 2.2 GiB of K
    kept, evaluated = (predicted_bytes(n, 10, torch.float64, 2**40) for n in (16_000, 17_000))
    assert kept > 12 * 16_000**2
    assert evaluated < kept / 4
    n = 100_000
    needed = predicted_bytes(n, 10, torch.float64, 0)
    assert needed < 8 * n * 11 * 11 + 2**29
    preconditioner = 3 * n * n // 20 * 4
    assert [
        predicted_bytes(n, 10, torch.float64, needed + free) - needed
        for free in (preconditioner - 1, preconditioner)
    ] == [0, preconditioner]
