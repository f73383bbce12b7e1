"""Turns of processes: what one runs into, all hear of."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from surrogates.solvers.turns import Turns

ORDER: Any = SimpleNamespace(position=0, num_parts=1, part=lambda number: torch.arange(3))


@pytest.mark.parametrize("error", [ValueError, MemoryError, torch.OutOfMemoryError])
def test_the_others_hear_of_a_block_that_cannot_be_factorised(error: type[Exception]) -> None:
    heard = []

    def least(value: bool) -> bool:
        heard.append(value)
        return value

    rows = SimpleNamespace(size=2, least=least)
    system: Any = SimpleNamespace(rows=rows, restrict_own=lambda blocks: object())

    def factorise(block: Any) -> Any:
        raise error("no")

    with pytest.raises(error, match="no"):
        Turns.of(system, ORDER, None, factorise)
    assert heard == [False]


def test_a_process_whose_own_block_was_fine_says_that_another_failed() -> None:
    rows = SimpleNamespace(size=2, least=lambda value: False)
    system: Any = SimpleNamespace(rows=rows, restrict_own=lambda blocks: None)
    with pytest.raises(ValueError, match="got a block in another process"):
        Turns.of(system, ORDER, None, lambda block: block)
