"""Choosing inducing points: what each method promises, and what all of them refuse."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from surrogates import choose_inducing_points, memory
from surrogates.rules import inducing_points
from surrogates.rules.inducing_points import (
    INDUCING_METHODS,
    eliminate_neighbours,
    k_means,
    random_subset,
)
from tests import problems
from tests.pairs import each_pair
from tests.problems import seeded
from tests.refusals import assert_refused

N = 300
D = 2
X = problems.uniform(N, D)
CLUSTERS = torch.cat(
    [
        centre + 0.01 * problems.normal(40, D, seed=i)
        for i, centre in enumerate(torch.eye(D).double() * 5.0)
    ]
)


def rows_of(Z: Tensor, X: Tensor) -> Tensor:
    """Return whether each row of Z is a row of X."""
    return (Z.unsqueeze(1) == X).all(-1).any(1)


@each_pair(method=INDUCING_METHODS, m=[1, 37, N], dtype=[torch.float32, torch.float64])
def test_every_method_returns_m_distinct_points_of_the_datas_kind(
    method: str, m: int, dtype: torch.dtype
) -> None:
    Z = choose_inducing_points(X.to(dtype), m, method, generator=seeded())
    assert Z.shape == (m, D) and Z.dtype == dtype
    assert len(torch.unique(Z, dim=0)) == m
    assert method == "k-means" or rows_of(Z, X.to(dtype)).all()


@pytest.mark.parametrize("method", INDUCING_METHODS)
def test_a_seed_means_the_same_points_and_another_seed_others(method: str) -> None:
    state = torch.get_rng_state()
    first, second, other = (
        choose_inducing_points(X, 20, method, generator=seeded(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, second) and not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("method", INDUCING_METHODS)
def test_duplicates_beyond_the_distinct_points_are_allowed(method: str) -> None:
    duplicates = X[:10].repeat(5, 1)
    Z = choose_inducing_points(duplicates, 25, method, generator=seeded())
    assert Z.shape == (25, D)
    assert rows_of(Z, duplicates).all()
    if method == "k-means":
        assert len(torch.unique(Z, dim=0)) == 10


@pytest.mark.parametrize("radius", [0.01, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("lengthscale", [None, torch.tensor([0.5, 2.0], dtype=torch.float64)])
def test_a_point_is_kept_if_no_earlier_kept_one_is_near(
    radius: float, lengthscale: Tensor | None
) -> None:
    units = X if lengthscale is None else X / lengthscale
    kept: list[int] = []
    for i in torch.randperm(N, generator=seeded()).tolist():
        if (torch.cdist(units[i : i + 1], units[kept]) > radius).all():
            kept.append(i)
    found = eliminate_neighbours(X, radius, generator=seeded(), lengthscale=lengthscale)
    assert torch.equal(X[kept], found)


def test_elimination_to_a_number_covers_better_than_random_points() -> None:
    dense_and_sparse = torch.cat(
        [0.05 * problems.uniform(500, D), problems.uniform(100, D, seed=1)]
    )
    covered = eliminate_neighbours(dense_and_sparse, m=60, generator=seeded())
    random = random_subset(dense_and_sparse, 60, seeded())
    gaps = [torch.cdist(dense_and_sparse, Z).amin(1).max() for Z in (covered, random)]
    assert len(covered) == 60
    assert gaps[0] < 0.5 * gaps[1]


def test_k_means_finds_the_centres_of_clusters() -> None:
    Z = k_means(CLUSTERS, D, seeded())
    centres = torch.stack([part.mean(0) for part in CLUSTERS.split(40)])
    torch.testing.assert_close(
        Z[Z[:, 0].argsort()], centres[centres[:, 0].argsort()], rtol=0, atol=5e-3
    )


def test_the_lengthscale_decides_what_is_near() -> None:
    # Spread along the second input alone matters once the first is measured in long units.
    Z = k_means(CLUSTERS, 2, seeded(), lengthscale=torch.tensor([1e6, 1e-3]))
    assert (Z[:, 1].max() - Z[:, 1].min()) > 1.0
    assert torch.equal(Z, Z.clamp(CLUSTERS.amin(0), CLUSTERS.amax(0)))  # in the data's units
    anisotropic = eliminate_neighbours(X, 1.0, lengthscale=torch.tensor([1e6, 0.05]))
    assert len(anisotropic) <= 20
    assert len(eliminate_neighbours(X, 1.0, lengthscale=0.05)) > 100


def test_a_lengthscale_keeps_all_its_digits() -> None:
    exact = torch.tensor(0.3, dtype=torch.float64)
    Z = k_means(CLUSTERS, D, seeded(), lengthscale=0.3)
    assert torch.equal(Z, k_means(CLUSTERS, D, seeded(), lengthscale=exact))


def test_what_does_not_fit_is_refused() -> None:
    def chosen(method: str, **wrong: Any) -> torch.Tensor:
        given = {"X": X, "m": 5, "method": method, "generator": seeded()}
        return choose_inducing_points(**given | wrong)

    for method in INDUCING_METHODS:
        by = partial(chosen, method)
        assert_refused(TypeError, by, m=[2.0])
        inputs = [X[:0], X[0], torch.full_like(X, torch.inf)]
        assert_refused(ValueError, by, m=[N + 1, 0], X=inputs)


@pytest.mark.parametrize("lengthscale", [0.0, -1.0, torch.nan, torch.ones(D + 1)])
@pytest.mark.parametrize("method", ["k-means", "neighbours"])
def test_a_lengthscale_that_is_none_is_refused(method: str, lengthscale: Any) -> None:
    with pytest.raises(
        ValueError, match="`lengthscale` must be a finite number above 0, or 2 of them"
    ):
        choose_inducing_points(X, 5, method, generator=seeded(), lengthscale=lengthscale)


def test_elimination_needs_a_radius_or_a_number() -> None:
    for arguments in ({}, {"radius": 0.1, "m": 5}):
        with pytest.raises(ValueError, match="Exactly one of `radius` and `m` must be given"):
            eliminate_neighbours(X, **arguments)
    with pytest.raises(ValueError, match="`radius` must be finite and above 0, got -1"):
        eliminate_neighbours(X, -1.0)


def test_no_two_centres_of_repeated_data_coincide(generator: torch.Generator) -> None:
    places = torch.cat([problems.uniform(60, 2), 3.0 + problems.uniform(40, 2, seed=1)])
    data = torch.cat(
        [places[:60].repeat(900, 1) + 1e-7 * problems.normal(54_000, 2, seed=2), places[60:]]
    )
    assert len(data) > memory.part_size(80)  # in mini-batches
    Z = k_means(data, 80, generator)
    distances = torch.cdist(Z, Z) + torch.eye(80)
    assert len(Z) == 80 and distances.min() > 1e-3


def test_few_distinct_points_with_many_copies_need_few_radii(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[float] = []
    kept = inducing_points._kept

    def counted(points: Any, search: Any, radius: float) -> torch.Tensor:
        tried.append(radius)
        return kept(points, search, radius)

    monkeypatch.setattr(inducing_points, "_kept", counted)
    points = problems.uniform(20, 2).repeat(10, 1).numpy()
    assert len(inducing_points._kept_at_least(points, 40)) == len(points)
    assert len(tried) < 30  # those between the extent of the points and float32's rounding of it
