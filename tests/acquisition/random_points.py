"""A strategy from outside the packages: points at random."""

import torch
from torch import Tensor

from acquisition import Request
from acquisition.candidates import all_inputs, model_list
from acquisition.selection import KnownPoints


class RandomPoints:
    """Feasible points at random, without a look at the model's values.

    Attributes:
        requests: what it has been asked, in turn.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def generate(self, request: Request) -> Tensor:
        self.requests.append(request)
        feasible = request.feasible_set
        X = all_inputs(model_list(request.model))
        known = KnownPoints(
            torch.cat([X, X[:0] if request.X_pending is None else request.X_pending]),
            request.bounds,
        )
        points = X[:0]
        for _ in range(50):
            U = torch.rand(200, X.shape[1], generator=request.generator, dtype=X.dtype)
            drawn = feasible.rounded(torch.lerp(*feasible.bounds, U))
            if request.choices is not None:
                drawn = request.choices[feasible.contains(request.choices)]
            elif feasible.constrained:
                drawn = feasible.candidates(iter([drawn] * 500))
            points = torch.unique(torch.cat([points, drawn[~known.near(drawn)]]), dim=0)
            if len(points) >= request.q:
                order = torch.randperm(len(points), generator=request.generator)
                return points[order[: request.q]]
        raise ValueError(f"`q` must be at most the {len(points)} points left, got {request.q}.")
