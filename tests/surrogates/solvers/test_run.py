"""A solve holds as many matrices as it says."""

from dataclasses import replace

import pytest

from surrogates import IterativeSolver
from tests import problems
from tests.card import CARD
from tests.live_matrices import LiveMatrices


@pytest.mark.parametrize(
    # Samplers of blocks hold factors that happen to be of the same size
    "name",
    [
        name
        for name, solver in CARD.items()
        if isinstance(solver, IterativeSolver) and name not in ("sap-leverage", "sap-dpp")
    ],
)
def test_a_solve_holds_as_many_matrices_as_it_says(name: str) -> None:
    solver = CARD[name]
    system = problems.system(700)
    rhs = problems.normal(700, 7)
    with LiveMatrices(rhs) as live:
        replace(solver, max_epochs=3.0).solve(system, rhs)
    assert 1 < live.most + 1 <= solver.matrices_held  # with B
