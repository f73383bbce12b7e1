"""The settings of the Thompson benchmark by name, and what varies them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from scalable_bo.experiments.solvers import SPEND_IT_ALL, CGBudget, SDDBudget
from scalable_bo.experiments.thompson.settings import ThompsonPreset
from surrogates import checks

# Of ``ParallelThompsonSampling`` by default, in place of the published search
_OWN_SEARCH: dict[str, Any] = {
    "num_candidates": 250,
    "num_screenings": 120,
    "num_starts": 120,
    "num_ascent_steps": 80,
    "learning_rate": None,
    "prune_starts": True,
}


def _lin2023(name: str, budget_factor: int) -> ThompsonPreset:
    """Lin et al. (2023), Section 4.2 and Appendix A;
    stochastic dual descent as in Lin et al. (2024).
    """
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
            **_OWN_SEARCH,
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
            cg=CGBudget(SPEND_IT_ALL, num_iterations=10, rank=100),
            sdd=SDDBudget(SPEND_IT_ALL, num_epochs=10, num_blocks=5, step_size=1.0),
        ),
    )
}


def find_preset(name: str) -> ThompsonPreset:
    """Return a preset by name.

    Raises:
        ValueError: if there is none of that name; the message lists those there are.
    """
    return THOMPSON_PRESETS[checks.one_of("preset", name, THOMPSON_PRESETS)]


def vary(
    preset: ThompsonPreset,
    *,
    scale: float = 1.0,
    share_features: bool = False,
    coordinate_features: bool = False,
    published_weights: bool = False,
    own_search: bool = False,
) -> ThompsonPreset:
    """Return a preset made smaller, or closer to the published codes or to our defaults, with a
    name that says so.

    Args:
        preset: to start from.
        scale: factor in (0, 1] of initial points, points a round, candidates and SDD's batches; the
            rounds and the random features shrink by its square root, while passes, blocks a pass,
            ranks and all of the ascent stay.
        share_features: see :class:`ThompsonPreset`; the paths then have as many features as the
            target.
        coordinate_features: likewise.
        published_weights: for ``candidate_weights="published"``.
        own_search: maximise the paths as ``ParallelThompsonSampling`` does by default.
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
    for name, chosen, change in (
        ("shared-features", share_features, {"share_features": True}),
        ("coordinate-features", coordinate_features, {"coordinate_features": True}),
        ("published-weights", published_weights, {"candidate_weights": "published"}),
        ("own-search", own_search, _OWN_SEARCH),
    ):
        if chosen:
            words.append(name)
            changes |= change
    if share_features:
        changes["path_features"] = changes.get("target_features", preset.target_features)
    return replace(preset, name="-".join(words), **changes)


def _scaled(preset: ThompsonPreset, scale: float) -> dict[str, Any]:
    def part(number: int, factor: float, even: bool = False) -> int:
        return 2 * max(1, round(number * factor / 2)) if even else max(1, round(number * factor))

    batch_size = preset.sdd.batch_size
    root = math.sqrt(scale)
    return {
        "scale": scale * preset.scale,
        "num_initial": part(preset.num_initial, scale),
        "q": part(preset.q, scale),
        "num_candidates": part(preset.num_candidates, scale),
        "sdd": (
            preset.sdd
            if batch_size is None
            else replace(preset.sdd, batch_size=part(batch_size, scale))
        ),
        "num_rounds": part(preset.num_rounds, root),
        "target_features": part(preset.target_features, root, even=True),
        "path_features": part(preset.path_features, root, even=True),
    }
