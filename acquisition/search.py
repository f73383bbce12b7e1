"""Where candidates come from: the data they gather around, and the part of the box they are sought
in.

Notation: X (n, d) data, y (n,) their values (larger is better), bounds (2, d).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from acquisition.candidates import propose, sampling_weights
from acquisition.constraints import FeasibleSet
from acquisition.trust_region import TrustRegion
from surrogates import PathwiseGP


@dataclass(frozen=True, eq=False)
class Search:
    """What rounds of candidates are drawn from.

    Attributes:
        X: (n, d), what candidates gather around.
        y: (n,), larger is better.
        feasible: where candidates may lie.
        proposal_std: (d,) standard deviation around X.
        num_candidates: a round.
        uniform_fraction: share of uniform candidates.
        weights: maps y to the probabilities of the data points that candidates lie around, (n,).
        center: (d,) of the trust region; ``None`` without one.
    """

    X: Tensor
    y: Tensor
    feasible: FeasibleSet
    proposal_std: Tensor
    num_candidates: int
    uniform_fraction: float
    weights: Callable[[Tensor], Tensor] = sampling_weights
    center: Tensor | None = None

    def within(self, trust_region: TrustRegion, bounds: Tensor, lengthscale: Tensor) -> Self:
        """Return the search in the trust region around the best feasible data point,
        among the data inside; the best of all if none is.
        """
        X = torch.clamp(self.X, self.feasible.bounds[0], self.feasible.bounds[1])
        allowed = self.feasible.contains(X)
        ranking = torch.where(allowed, self.y, -torch.inf) if allowed.any() else self.y
        center = X[ranking.argmax()]
        box = trust_region.bounds(center, bounds, lengthscale)
        inside = torch.clamp(X, box[0], box[1]).eq(X).all(-1)
        return replace(
            self, X=X[inside], y=self.y[inside], feasible=self.feasible.within(box), center=center
        )

    def rounds(self, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield feasible candidates (num_candidates, d), without end; fewer in a round where few
        are found.

        Raises:
            ValueError: if none is found.
        """
        draws = self._draws(generator)
        while True:
            yield self.feasible.candidates(draws) if self.feasible.constrained else next(draws)

    def _draws(self, generator: torch.Generator) -> Iterator[Tensor]:
        while True:
            candidates = propose(
                self.X,
                self.y,
                self.feasible.bounds,
                self.num_candidates,
                uniform_fraction=self.uniform_fraction,
                proposal_std=self.proposal_std,
                weights=self.weights,
                center=self.center,
                generator=generator,
            )
            yield self.feasible.rounded(candidates)


def original_inputs(model: PathwiseGP) -> Tensor:
    """Return the training inputs (n, d) of ``model`` as they were given,
    before its input transform.
    """
    model.eval()
    X = (
        getattr(model, "_original_train_inputs", model.train_inputs[0])
        if hasattr(model, "input_transform")
        else model.train_inputs[0]
    )
    return X if X.ndim == 2 else X[0]  # the outputs of a model share them


def all_inputs(models: Sequence[PathwiseGP]) -> Tensor:
    """Return the training inputs of all models, each point once if they differ."""
    X, *others = (original_inputs(model) for model in models)
    return (
        X
        if all(torch.equal(X, other) for other in others)
        else torch.unique(torch.cat([X, *others]), dim=0)
    )


def default_proposal_std(model: PathwiseGP, width: Tensor) -> Tensor:
    """Return half the kernel's lengthscale (d,), in the units of the inputs;
    a tenth of the box where it has none.
    """
    kernel = getattr(model.covar_module, "base_kernel", model.covar_module)
    on_all_inputs = kernel.active_dims is None and model.covar_module.active_dims is None
    if not kernel.has_lengthscale or not on_all_inputs or hasattr(model, "input_transform"):
        return 0.1 * width
    lengthscale = kernel.lengthscale.detach()
    # The shortest of all outputs
    return (0.5 * lengthscale.reshape(-1, lengthscale.shape[-1]).amin(0)).to(width).expand_as(width)


def finest_proposal_std(models: Sequence[PathwiseGP], width: Tensor) -> Tensor:
    """Return the smallest default of the models in each dimension, (d,)."""
    return torch.stack([default_proposal_std(model, width) for model in models]).amin(0)
