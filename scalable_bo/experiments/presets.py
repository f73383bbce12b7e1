"""The settings of the Thompson benchmark, plain numbers: by name, and what varies them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any

from scalable_bo.experiments.solvers import SPEND_IT_ALL, CGBudget, SDDBudget
from surrogates import checks


@dataclass(frozen=True)
class ThompsonPreset:
    """One benchmark's settings.

    Args:
        name: of the preset, and of the records that it writes.
        num_initial: uniform points observed before the first round.
        q: points a round, one posterior path each.
        lengthscales: the kernel's, one experiment each, in units of the cube's edge.
        num_seeds: seeds 0, 1, … of the published mean.
        dim: inputs, d.
        smoothness: ν of the Matérn kernel.
        outputscale: variance of the prior.
        noise: variance of the observation noise.
        target_features: random features of the target.
        path_features: random features of the surrogate's prior paths.
        share_features: let the prior paths use the target's own features, as in the published code.
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
        learning_rate: of Adam, in units of the cube's edge; ``None`` derives it from lengthscales.
        prune_starts: leave starts behind and let the learning rate fall; all steps from all starts
            at one rate, as published, if false.
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
        checks.one_of("candidate_weights", self.candidate_weights, ("corrected", "published"))
        if self.share_features and self.path_features != self.target_features:
            raise ValueError(
                f"`path_features` must equal `target_features` = {self.target_features} when they"
                f" are shared, got {self.path_features}."
            )


# What varies a preset, by the argument of ``vary``; the search is that of
# ``ParallelThompsonSampling`` by default, in place of the published one
VARIATIONS: dict[str, dict[str, Any]] = {
    "share_features": {"share_features": True},
    "coordinate_features": {"coordinate_features": True},
    "published_weights": {"candidate_weights": "published"},
    "own_search": {
        "num_candidates": 250,
        "num_screenings": 120,
        "num_starts": 120,
        "num_ascent_steps": 80,
        "learning_rate": None,
        "prune_starts": True,
    },
}


def _lin2023(name: str, budget_factor: int) -> ThompsonPreset:
    """Lin et al. (2023), Section 4.2 and Appendix A; Lin et al. (2024) for dual descent."""
    return ThompsonPreset(
        name=name,
        num_initial=50_000,
        num_rounds=30,
        q=1000,
        lengthscales=(0.1, 0.2, 0.3, 0.4, 0.5),
        num_seeds=10,
        cg=CGBudget(
            SPEND_IT_ALL,
            num_iterations=10 * budget_factor,
            preconditioner="pivoted-cholesky",
            rank=100,
        ),
        sdd=SDDBudget(
            SPEND_IT_ALL, num_steps=15_000 * budget_factor, batch_size=500, step_size=50.0
        ),
    )


THOMPSON_PRESETS = {
    preset.name: preset
    for preset in (
        ThompsonPreset(
            name="smoke",
            num_initial=200,
            num_rounds=2,
            q=8,
            lengthscales=(0.5,),
            num_seeds=1,
            dim=3,
            target_features=500,
            path_features=500,
            num_candidates=500,
            num_screenings=5,
            num_starts=5,
            num_ascent_steps=20,
            learning_rate=2e-2,
        ),
        ThompsonPreset(
            name="laptop",
            num_initial=5000,
            num_rounds=5,
            q=100,
            lengthscales=(0.5,),
            num_seeds=3,
            **VARIATIONS["own_search"],
        ),
        _lin2023("lin2023-small", 1),
        _lin2023("lin2023-large", 5),
        # The ADASAP paper (2025), Section 5.3 and Appendix D.5, and its published code where the
        # paper is silent.
        ThompsonPreset(
            name="adasap2025",
            num_initial=250_000,
            num_rounds=10,
            q=1000,
            lengthscales=(2.0, 3.0),
            num_seeds=5,
            path_features=5000,
            learning_rate=0.1,
            cg=CGBudget(SPEND_IT_ALL, num_iterations=10, preconditioner="gaussian", rank=100),
            sdd=SDDBudget(SPEND_IT_ALL, num_epochs=10, num_blocks=5, step_size=1.0),
        ),
    )
}


def find_preset(name: str) -> ThompsonPreset:
    """Return a preset by name; a ValueError lists the names there are."""
    return THOMPSON_PRESETS[checks.one_of("preset", name, THOMPSON_PRESETS)]


def vary(preset: ThompsonPreset, *, scale: float = 1.0, **chosen: bool) -> ThompsonPreset:
    """Return a preset made smaller, or closer to the published codes or to our defaults, with a
    name that says so.

    Args:
        scale: factor in (0, 1] of initial points, points a round, candidates and SDD's batches; the
            rounds and the random features shrink by its square root, while passes, blocks a pass,
            ranks and all of the ascent stay.
        chosen: which of ``VARIATIONS``. Paths that share the target's features have as many.
    Raises:
        ValueError: if ``scale`` is out of range.
    """
    if not 0.0 < scale <= 1.0:
        raise ValueError(f"`scale` must be above 0 and at most 1, got {scale}.")
    words = [preset.name]
    changes = {}
    if scale < 1.0:
        words.append(f"x{scale:g}")
        changes = _scaled(preset, scale)
    for name, change in VARIATIONS.items():
        if chosen.get(name):
            words.append({"share_features": "shared-features"}.get(name, name.replace("_", "-")))
            changes |= change
    if chosen.get("share_features"):
        changes["path_features"] = changes.get("target_features", preset.target_features)
    return replace(preset, name="-".join(words), **changes)


def _scaled(preset: ThompsonPreset, scale: float) -> dict[str, Any]:
    def part(number: int, factor: float, even: bool = False) -> int:
        return 2 * max(1, round(number * factor / 2)) if even else max(1, round(number * factor))

    sdd = preset.sdd
    if sdd.batch_size is not None:
        sdd = replace(sdd, batch_size=part(sdd.batch_size, scale))
    root = math.sqrt(scale)
    return {
        "scale": scale * preset.scale,
        "num_initial": part(preset.num_initial, scale),
        "q": part(preset.q, scale),
        "num_candidates": part(preset.num_candidates, scale),
        "sdd": sdd,
        "num_rounds": part(preset.num_rounds, root),
        "target_features": part(preset.target_features, root, even=True),
        "path_features": part(preset.path_features, root, even=True),
    }
