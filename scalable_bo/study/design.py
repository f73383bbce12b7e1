"""The initial design: points of a scrambled Sobol sequence that can be run,
meet the constraints and are new.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from acquisition.constraints import FeasibleSet
from scalable_bo.space.space import Space
from scalable_bo.storage.rows import keys

ENUMERATED_UP_TO = 20_000  # points of a finite space that are listed, and chosen from one by one
BLOCK_SIZE = 64  # points drawn at a time where some will be rejected
MAX_BLOCKS = 256


def default_num_initial(dim: int, most: int = 20) -> int:
    """Return how many values to have before a surrogate of ``dim`` parameters takes over: in many
    dimensions a design tells little of each, and priors that grow with √d make a model sensible
    without it.
    """
    return min(2 * (dim + 1), most)


class NotEnoughLeftError(ValueError):
    """Only ``num_left`` points are left to ask for; ``end`` says what it means if none is."""

    def __init__(
        self, message: str, num_left: int, end: str = "all points of the space have been asked for"
    ) -> None:
        super().__init__(message)
        self.num_left = num_left
        self.end = end


class Design:
    """Points that depend on the seed, on how many were drawn, and on which ones are taken;
    ``points`` are all of a small finite space, in the user's units, ``None`` for other spaces,
    and ``feasible`` are those of the unit cube that may be proposed.
    """

    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._seed = seed
        self.feasible = FeasibleSet.of(space.cube, **space.acquisition_options(space.cube))
        self.points = space.enumerate() if space.num_points <= ENUMERATED_UP_TO else None

    def draw(self, q: int, num_drawn: int, taken: set[bytes]) -> tuple[Tensor, int]:
        """Return q points (q, d) in the user's units that are not taken, and how many points have
        been drawn then; raise NotEnoughLeftError if so many are not found.
        """
        if not q:
            return torch.empty(0, self._space.dim, dtype=torch.float64, device="cpu"), num_drawn
        taken = set(taken)
        found: list[Tensor] = []
        engine = torch.quasirandom.SobolEngine(
            self._space.encoded_dim, scramble=True, seed=self._seed
        )
        engine.fast_forward(num_drawn)

        def blocks() -> Iterator[Tensor]:
            nonlocal num_drawn
            while True:
                num_drawn += max(BLOCK_SIZE, q)
                yield self.feasible.rounded(engine.draw(max(BLOCK_SIZE, q), dtype=torch.float64))

        drawn = blocks()
        for _ in range(MAX_BLOCKS):
            if self.feasible.constrained:
                U = self.feasible.candidates(drawn)
            else:
                size = q - len(found)
                num_drawn += size
                U = self.feasible.rounded(engine.draw(size, dtype=torch.float64))
            X = self._space.unnormalize(U)
            for point, key, feasible in zip(
                X, keys(X), self._space.feasible(X).tolist(), strict=True
            ):
                if feasible and key not in taken and len(found) < q:
                    taken.add(key)
                    found.append(point)
            if len(found) == q:
                return torch.stack(found), num_drawn
        rest = X[:0] if self.points is None else remaining(self.points, taken)
        if len(rest) < q - len(found):
            raise NotEnoughLeftError(
                "`q` must be at most the number of points that are new and meet the constraints,"
                f" got {q} and found {len(found)}. Ask for fewer, or widen the space.",
                len(found) + len(rest),
            )
        return torch.cat([*(point[None] for point in found), rest[: q - len(found)]]), num_drawn


def remaining(points: Tensor, taken: set[bytes]) -> Tensor:
    """Return those of the points (c, d) that are not taken."""
    return points[[key not in taken for key in keys(points)]]
