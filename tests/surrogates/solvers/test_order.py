"""Random orders of the rows."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from surrogates.solvers.order import Order


def parts(n: int, size: int, seed: int = 0) -> list[torch.Tensor]:
    order = Order(n).shuffled(size, torch.Generator().manual_seed(seed), torch.device("cpu"))
    dealt = []
    while not order.is_at_end:
        part, order = order.next()
        dealt.append(part)
    return dealt


@settings(max_examples=25)
@given(n=st.integers(1, 300), size=st.integers(4, 50))
def test_the_parts_are_all_rows_once(n: int, size: int) -> None:
    dealt = parts(n, size)
    assert len(dealt) == -(-n // size)
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    assert torch.cat(dealt).sort().values.tolist() == list(range(n))


def test_parts_are_those_of_a_random_permutation() -> None:
    expected = torch.randperm(103, generator=torch.Generator().manual_seed(4)).tensor_split(11)
    assert all(map(torch.equal, parts(103, 10, seed=4), expected))
