"""Expected improvement: its maximiser in a box, beside pending points, of several outcomes."""

from dataclasses import replace
from typing import Any

import torch
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.sampling.normal import SobolQMCNormalSampler
from torch import Tensor

from acquisition import LogEIStrategy, Request
from surrogates import PathwiseGP, gaussian_likelihood

BOX = torch.tensor([[-5.0, 100.0], [10.0, 300.0]], dtype=torch.float64)


def make_request(make_model: Any, q: int = 1, **options: Any) -> Request:
    return Request(make_model(BOX, n=12), q, BOX, torch.Generator().manual_seed(3), **options)


def everywhere(num_points: int = 4000) -> Tensor:
    engine = torch.quasirandom.SobolEngine(2, scramble=True, seed=1)
    return torch.lerp(BOX[0], BOX[1], engine.draw(num_points, dtype=torch.float64))


def means(request: Request) -> Tensor:
    model = request.model
    assert isinstance(model, PathwiseGP)
    return model.posterior(model.train_inputs[0]).mean


@torch.no_grad()
def test_one_point_has_the_largest_improvement_of_all(make_model: Any) -> None:
    request = make_request(make_model)
    point = LogEIStrategy().generate(request)
    logarithm = LogExpectedImprovement(request.model, means(request).max())
    values = logarithm(torch.cat([point, everywhere()]).unsqueeze(1))
    assert values.argmax() == 0


@torch.no_grad()
def test_the_second_point_adds_most_to_the_first(make_model: Any) -> None:
    request = make_request(make_model, q=2)
    first, second = LogEIStrategy().generate(request)
    sampler = SobolQMCNormalSampler(torch.Size([512]), seed=9)
    joint = qLogExpectedImprovement(request.model, means(request).max(), sampler=sampler)
    others = torch.cat([second[None], everywhere(1000)]).unsqueeze(1)
    values = joint(torch.cat([first.expand_as(others), others], dim=1))
    assert values[0] > values[1:].max() - 0.02  # 128 draws chose it, others judge


def test_a_pending_point_leads_elsewhere(make_model: Any) -> None:
    alone = LogEIStrategy().generate(make_request(make_model))
    beside = LogEIStrategy().generate(make_request(make_model, X_pending=alone))
    assert ((alone - beside) / (BOX[1] - BOX[0])).norm() > 0.05


def test_a_point_is_sought_where_an_outcome_is_feasible() -> None:
    X = torch.rand(30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    Y = torch.stack([X.sum(1), X[:, 0]], dim=1)  # as large as can be where x₀ ≤ 0.3
    model = PathwiseGP(X, Y, likelihood=gaussian_likelihood(1e-4))
    goal = {
        "objective": lambda Y: Y[..., 0],
        "outcome_constraints": [lambda Y: Y[..., 1] - 0.3],
    }
    box = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    request = Request(model, 1, box, torch.Generator().manual_seed(0), goal=goal)
    ((x0, x1),) = LogEIStrategy().generate(request).tolist()
    assert 0.2 < x0 < 0.35
    assert x1 > 0.9
    down = replace(request, goal={"objective": lambda Y: Y[..., 0], "maximize": False})
    assert LogEIStrategy().generate(down).sum() < 0.3
