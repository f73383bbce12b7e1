"""Batches on grids: every point a grid point, the best one on its path, and none twice."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from acquisition import ParallelThompsonSampling, Request, ThompsonStrategy
from scalable_bo.integrations.discrete import discrete_batch
from surrogates import PathwiseGP

UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
SMALL = partial(
    ParallelThompsonSampling, num_candidates=100, num_rounds=2, num_starts=2, num_steps=20
)
STEPS = torch.tensor([0.1, 0.1], dtype=torch.float64)
GRID = torch.cartesian_prod(torch.arange(11), torch.arange(11)).double() / 10


def tenths(X: Tensor) -> Tensor:
    return (10 * X).round() / 10


def make_model() -> PathwiseGP:
    X = tenths(torch.rand(12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    model = PathwiseGP(X, torch.sin(7 * X).sum(1, keepdim=True), num_features=256)
    model.covar_module.lengthscale = 0.3
    model.likelihood.noise = 1e-3
    return model


def draw(model: PathwiseGP, q: int, **options: Any) -> Tensor:
    settings = {"to_grid": tenths, "steps": STEPS, **options}
    request = Request(
        model,
        q,
        UNIT,
        torch.Generator().manual_seed(5),
        X_pending=settings.pop("X_pending", None),
    )
    return discrete_batch(ThompsonStrategy(SMALL), request, **settings)


def test_a_path_gets_its_best_grid_point() -> None:
    model = make_model()
    (path,) = model.paths(1, generator=torch.Generator().manual_seed(5))(GRID)
    known = (GRID[:, None] - model.train_inputs[0]).abs().amax(-1).lt(1e-9).any(1)
    best = GRID[torch.where(known, -torch.inf, path).argmax()]
    torch.testing.assert_close(draw(model, 1)[0], best)


def test_points_are_distinct_grid_points_that_are_neither_known_nor_pending() -> None:
    model = make_model()
    pending = GRID[60:80]
    batch = draw(model, 40, X_pending=pending)
    torch.testing.assert_close(batch, tenths(batch))
    assert len(batch) == 40
    assert torch.cdist(batch, torch.cat([pending, model.train_inputs[0]])).min() > 0.05
    assert torch.pdist(batch).min() > 0.05


def test_an_exhausted_grid_gives_what_is_left() -> None:
    model = make_model()
    left = len(GRID) - len(torch.unique(model.train_inputs[0], dim=0)) - 5
    pending = GRID[(GRID[:, None] - model.train_inputs[0]).abs().amax(-1).gt(1e-9).all(1)][:5]
    assert len(draw(model, 119, X_pending=pending)) == left


def test_a_continuous_input_keeps_its_maximiser() -> None:
    steps = torch.tensor([0.1, 0.0], dtype=torch.float64)

    def first_to_tenths(X: Tensor) -> Tensor:
        return torch.stack([tenths(X[..., 0]), X[..., 1]], dim=-1)

    batch = draw(make_model(), 8, to_grid=first_to_tenths, steps=steps)
    torch.testing.assert_close(batch[:, 0], tenths(batch[:, 0]))
    assert (batch[:, 1] - tenths(batch[:, 1])).abs().max() > 1e-3
