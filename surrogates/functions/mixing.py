"""Which waves of the factors of a product meet, and in what order."""

import math

import torch
from torch import Tensor

SEVERAL = 0.25  # of a product's high waves are so in several factors


def turns(
    tails: Tensor, num_factors: int, weighted: bool, generator: torch.Generator
) -> list[Tensor]:
    """Return which of ``tails`` (h,) are high in each of the factors: three in four of them in one
    factor, in turn, and the fourth in each of m factors with probability 2/m.
    """
    number = tails.cumsum(0) - 1
    period = round(1.0 / SEVERAL)
    several = tails & (number % period == period - 1)
    alone = tails & ~several
    turn = alone.cumsum(0) % max(1, num_factors)
    own_tails = []
    for i in range(num_factors):
        own = several
        if num_factors > 2 and weighted:
            own = several & (_uniform(len(tails), generator) < 2.0 / num_factors)
        own_tails.append(own | (alone & (turn == i)))
    return own_tails


def shuffled(tails: Tensor, weighted: bool, generator: torch.Generator) -> Tensor:
    """Return a random order of the waves in which those of ``tails`` swap only among themselves."""
    if not weighted:
        return permutation(len(tails), generator)
    order = torch.empty(len(tails), dtype=torch.long, device="cpu")
    for chosen in (tails, ~tails):
        order[chosen] = chosen.nonzero().squeeze(1)[spread(int(chosen.sum()), generator)]
    return order


def spread(count: int, generator: torch.Generator) -> Tensor:
    """Return a random order of ``count`` sorted waves that takes one from each of √count equal
    parts by turns: what meets them in its own order meets all of them evenly.
    """
    if count == 0:
        return torch.empty(0, dtype=torch.long, device="cpu")
    part = torch.arange(count, device="cpu") * math.isqrt(count) // count
    order = permutation(count, generator)
    by_part = order[torch.argsort(part[order], stable=True)]
    turn = torch.arange(count, device="cpu") - torch.searchsorted(part, part)
    return by_part[torch.argsort(turn + _uniform(count, generator))]


def permutation(count: int, generator: torch.Generator) -> Tensor:
    """Return a random order of ``count``."""
    return torch.randperm(count, generator=generator, device=generator.device).cpu()


def _uniform(count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator, device=generator.device).cpu()
