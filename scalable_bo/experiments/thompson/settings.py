"""Settings of the Thompson-sampling benchmark, plain numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from scalable_bo.experiments.solvers import CGBudget, SDDBudget


@dataclass(frozen=True)
class ThompsonPreset:
    """One benchmark's settings.

    Args:
        name: of the preset, and of the records that it writes.
        num_initial: uniform points observed before the first round.
        num_rounds: Thompson rounds.
        q: points a round, one posterior path each.
        lengthscales: the kernel's, one experiment each, in units of the cube's edge.
        num_seeds: seeds 0, 1, … of the published mean.
        dim: inputs, d.
        smoothness: ν of the Matérn kernel.
        outputscale: variance of the prior.
        noise: variance of the observation noise.
        target_features: random features of the target.
        path_features: random features of the surrogate's prior paths.
        share_features: let the prior paths use the target's own features, as the published code
            does.
        coordinate_features: draw the features of target and paths as the published codes do, each
            coordinate's frequency with a scale of its own: those of a product of Matérn kernels of
            one input each, not of the Matérn kernel of all inputs.
        num_candidates: points screened in one screening round, shared by all paths.
        num_screenings: screening rounds, each giving every path its best candidate.
        num_starts: ascents a path, from the best of these; at most ``num_screenings``.
        uniform_fraction: of the candidates; the others lie around good data.
        proposal_std: of the candidates around data; ``None`` for half the lengthscale.
        candidate_weights: of the data that candidates lie around: ``corrected``, y − min y, or
            ``published``, y + min y, which prefers the worst data where the values have both signs.
        num_ascent_steps: Adam steps.
        learning_rate: of Adam, in units of the cube's edge; ``None`` for what the lengthscale
            suggests.
        prune_starts: leave starts behind and let the learning rate fall; all steps from all starts
            at one rate, as published, if false.
        cg: budget of conjugate gradients.
        sdd: budget of stochastic dual descent.
        dtype: ``float32`` or ``float64``.
        scale: how much smaller than the preset of that name it was made; see ``vary``.
    Raises:
        ValueError: if a number is out of range.
    """

    name: str
    num_initial: int
    num_rounds: int
    q: int
    lengthscales: tuple[float, ...]
    num_seeds: int
    dim: int = 8
    smoothness: float = 1.5
    outputscale: float = 1.0
    noise: float = 1e-6
    target_features: int = 5000
    path_features: int = 2000
    share_features: bool = False
    coordinate_features: bool = False
    num_candidates: int = 50_000
    num_screenings: int = 30
    num_starts: int = 30
    uniform_fraction: float = 0.1
    proposal_std: float | None = None
    candidate_weights: str = "corrected"
    num_ascent_steps: int = 100
    learning_rate: float | None = 1e-3
    prune_starts: bool = False
    cg: CGBudget = field(default_factory=CGBudget)
    sdd: SDDBudget = field(default_factory=SDDBudget)
    dtype: str = "float32"
    scale: float = 1.0

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            for number in value if isinstance(value, tuple) else (value,):
                counts = isinstance(number, (int, float)) and not isinstance(number, bool)
                if counts and not (number > 0 and math.isfinite(number)):
                    raise ValueError(f"`{entry.name}` must be positive and finite, got {number}.")
        if self.smoothness not in (0.5, 1.5, 2.5):
            raise ValueError(f"`smoothness` must be 0.5, 1.5 or 2.5, got {self.smoothness}.")
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"`dtype` must be float32 or float64, got {self.dtype!r}.")
        if self.candidate_weights not in ("corrected", "published"):
            raise ValueError(
                "`candidate_weights` must be corrected or published, got"
                f" {self.candidate_weights!r}."
            )
        if self.share_features and self.path_features != self.target_features:
            raise ValueError(
                f"`path_features` must equal `target_features` = {self.target_features} when they"
                f" are shared, got {self.path_features}."
            )
