"""Sampled blocks against the probabilities that they should have."""

import itertools

import pytest
import torch

from surrogates import SketchAndProject
from surrogates.solvers.blocks import DeterminantalSampler, LeverageSampler, _low_rank
from tests import problems
from tests.problems import seeded

N = 7
NUM_DRAWS = 2_000


def frequencies(
    sampler: LeverageSampler | DeterminantalSampler, size: int
) -> dict[tuple[int, ...], float]:
    random = seeded(1)
    counts = dict.fromkeys(itertools.combinations(range(N), size), 0)
    for _ in range(NUM_DRAWS):
        counts[tuple(sorted(sampler.draw(size, random).tolist()))] += 1
    return {rows: count / NUM_DRAWS for rows, count in counts.items()}


def assert_within_monte_carlo_error(
    found: dict[tuple[int, ...], float], expected: dict[tuple[int, ...], float]
) -> None:
    for rows, probability in expected.items():
        error = (probability * (1 - probability) / NUM_DRAWS) ** 0.5
        assert abs(found[rows] - probability) < 4.5 * error + 1e-4, (rows, found[rows], probability)


@pytest.mark.parametrize("rank", [3, N])
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_determinantal_blocks_have_the_probabilities_of_their_determinants(
    rank: int, size: int
) -> None:
    system = problems.system(N, 0.05)
    L, floor = _low_rank(system, seeded(), rank)
    matrix = L @ L.T + floor * torch.eye(N, dtype=torch.float64)
    weights = {
        rows: torch.linalg.det(matrix[list(rows)][:, list(rows)]).item()
        for rows in itertools.combinations(range(N), size)
    }
    expected = {rows: weight / sum(weights.values()) for rows, weight in weights.items()}
    assert_within_monte_carlo_error(
        frequencies(DeterminantalSampler.of(system, seeded(), rank), size), expected
    )


def test_leverage_blocks_are_drawn_by_their_scores() -> None:
    sampler = LeverageSampler(
        torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], dtype=torch.float64)
    )
    p = sampler.scores / sampler.scores.sum()
    expected = {
        (i, j): (p[i] * p[j] / (1 - p[i]) + p[j] * p[i] / (1 - p[j])).item()
        for i, j in itertools.combinations(range(N), 2)
    }
    assert_within_monte_carlo_error(frequencies(sampler, 2), expected)


def test_scores_are_the_ridge_leverage_scores_where_the_columns_are_all() -> None:
    system = problems.system(40, 0.2)
    K = system.kernel.to_dense()
    exact = torch.linalg.solve(K + 0.2 * torch.eye(40, dtype=torch.float64), K).diagonal()
    torch.testing.assert_close(
        LeverageSampler.of(system, seeded()).scores, exact, rtol=1e-3, atol=1e-6
    )


@pytest.mark.parametrize(
    ("blocks", "make"), [("leverage", SketchAndProject.sap), ("dpp", SketchAndProject.asap)]
)
def test_sampled_blocks_lead_to_the_solution(blocks: str, make: type[SketchAndProject]) -> None:
    system = problems.system(120, 0.01)
    rhs = problems.normal(120, 3)
    solution = make(block_size=30, blocks=blocks, tolerance=1e-4, max_epochs=400.0).solve(
        system, rhs
    )
    assert solution.converged.all(), str(solution)
    exact = torch.linalg.solve(system.to_dense(), rhs)
    assert problems.relative_error(solution.value, exact) < 1e-2


def test_the_residual_that_sampled_blocks_show_is_that_of_all_rows() -> None:
    residual = problems.normal(200, 1)
    sampler = LeverageSampler(torch.logspace(0.0, 1.0, 200, dtype=residual.dtype))
    squares = torch.stack(
        [
            (residual[rows] * sampler.weights[rows].unsqueeze(1)).square().mean() * 200
            for rows in (sampler.draw(4, seeded(i)) for i in range(3000))
        ]
    )
    assert squares.mean().sqrt() == pytest.approx(residual.norm().item(), rel=0.05)


def test_unknown_blocks_are_refused() -> None:
    with pytest.raises(
        ValueError, match="`blocks` must be one of partition, cells, leverage, dpp, got 'best'"
    ):
        SketchAndProject(blocks="best")
