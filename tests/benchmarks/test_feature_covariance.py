"""The measurement of posterior variances is that of the models themselves."""

import torch

from benchmarks.feature_covariance import NOISES, NUM_PATHS, Problem, of_model, of_paths, ratios
from surrogates.rules.solved import draw_prior


def test_the_paths_that_are_measured_are_those_of_a_model() -> None:
    problem = Problem(2, 1.5, 1.0, 80)
    X, T = problem.points
    generator = torch.Generator().manual_seed(4)
    prior = draw_prior(problem.data, NUM_PATHS, 2048, True, generator)
    _, A = problem.exact(1e-2)
    measured = of_paths(prior(torch.cat([T, X])).T, A, 1e-2, generator)
    torch.testing.assert_close(measured, of_model(problem, 1e-2, 4), rtol=1e-5, atol=0.0)


def test_every_noise_has_its_ratios() -> None:
    cells = list(ratios(Problem(1, 0.5, 0.5, 40), 256))
    assert [cell["noise"] for cell in cells] == list(NOISES)
    for cell in cells:
        assert all(0.7 < ratio < 1.4 for ratio in cell["paths"])
