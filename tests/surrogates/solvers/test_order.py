"""Random orders of the rows."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from surrogates.solvers.state import Order


def parts(n: int, size: int, seed: int) -> list[torch.Tensor]:
    order = Order(n).shuffled(size, torch.Generator().manual_seed(seed), torch.device("cpu"))
    dealt = []
    while not order.is_at_end:
        part, order = order.next()
        dealt.append(part)
    return dealt


@settings(max_examples=25)
@given(n=st.integers(1, 300), size=st.integers(4, 50))
def test_the_parts_are_those_of_a_random_permutation_of_all_rows(n: int, size: int) -> None:
    permutation = torch.randperm(n, generator=torch.Generator().manual_seed(4))
    expected = permutation.tensor_split(-(-n // size))
    for part, rows in zip(parts(n, size, seed=4), expected, strict=True):
        assert torch.equal(part, rows)
