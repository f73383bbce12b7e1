"""From standardised values to the user's units: an affine map that posteriors keep their form
under, and what comes after it.
"""

from typing import NamedTuple, Self

import torch
from botorch.models.transforms.outcome import ChainedOutcomeTransform, OutcomeTransform, Standardize
from botorch.posteriors.posterior import Posterior
from torch import Tensor


class Units(NamedTuple):
    """The inverse of an outcome transform: ``offset + scale · standardised``, then the inverses of
    ``others``, last first.

    Attributes:
        offset: of the batch shape B of the standardised values, outputs last if there are several.
        scale: of shape B.
        others: transforms other than a last ``Standardize``, in the order in which they were
            applied to the outcomes.
    """

    offset: Tensor
    scale: Tensor
    others: tuple[OutcomeTransform, ...] = ()

    @classmethod
    def of(cls, transform: OutcomeTransform | None, batch_shape: torch.Size, like: Tensor) -> Self:
        """Return the units of a model whose standardised targets have shape (*batch_shape, n)."""
        chain = _links(transform)
        if not chain or type(chain[-1]) is not Standardize:
            return cls(like.new_zeros(batch_shape), like.new_ones(batch_shape), chain)
        means, scales = (
            _batched(values, chain[-1]._m, batch_shape)
            for values in (chain[-1].means, chain[-1].stdvs)
        )
        return cls(means.to(like), scales.to(like), chain[:-1])

    def untransform(self, Y: Tensor, X: Tensor) -> Tensor:
        """Return Y (..., q, m) at X, on which the affine map has been applied,
        in the user's units.
        """
        for transform in reversed(self.others):
            Y, _ = transform.untransform(Y, X=X)
        return Y

    def untransform_posterior(
        self, posterior: Posterior, X: Tensor, outputs: list[int] | None = None
    ) -> Posterior:
        """Return the posterior, on which the affine map has been applied,
        of ``outputs`` (all if ``None``) in the user's units.
        """
        for transform in reversed(self.others):
            part = transform if outputs is None else transform.subset_output(outputs)
            posterior = part.untransform_posterior(posterior, X=X)
        return posterior


def _links(transform: OutcomeTransform | None) -> tuple[OutcomeTransform, ...]:
    if transform is None:
        return ()
    if isinstance(transform, ChainedOutcomeTransform):
        return tuple(link for part in transform.values() for link in _links(part))  # type: ignore[arg-type]
    return (transform,)


def _batched(values: Tensor, num_outputs: int, batch_shape: torch.Size) -> Tensor:
    """Return what ``Standardize`` keeps as (*batch, 1, m) in the shape (*batch, m),
    or (*batch) for one output.
    """
    values = values.detach().squeeze(-2)
    return (values if num_outputs > 1 else values.squeeze(-1)).expand(batch_shape)
