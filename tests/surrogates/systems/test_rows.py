"""Rows in one process: the same, whether they are all here or shared with nobody."""

import torch

from surrogates import SharedRows
from surrogates.systems.system import Rows
from tests import problems

N = 30
INDEX = torch.tensor([7, 0, 29])


def test_rows_that_are_shared_with_nobody_are_those_that_are_all_here() -> None:
    here = Rows(N)
    shared = SharedRows(N, torch.device("cpu"))
    A = problems.normal(N, 3)
    B = problems.normal(N, 3, seed=1)
    D = problems.normal(3, 3, seed=2)
    assert (here.n, here.num_held, here.rank, here.size) == (N, N, 0, 1)
    assert (shared.n, shared.num_held, shared.rank, shared.size) == (N, N, 0, 1)
    for rows in (here, shared):
        torch.testing.assert_close(rows.norm(A), A.square().sum(0).sqrt())
        torch.testing.assert_close(rows.dot(A, B), (A * B).sum(0))
        assert torch.equal(rows.take(A, INDEX), A[INDEX])
        expected = A.clone()
        expected[INDEX] += 2.0 * D
        assert torch.equal(rows.add(A.clone(), INDEX, D, alpha=2.0), expected)
        assert rows.all(torch.tensor([[True, True], [True, False]])).tolist() == [True, False]
        assert torch.equal(rows.sum(A.clone()), A)
        assert rows.least(5) == 5 and rows.agree(True) and not rows.agree(False)
        generator = torch.Generator()
        assert rows.agreed(generator, 3) is generator
