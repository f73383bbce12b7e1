"""What every optimiser of the league does: points of its space, q at a time, better than chance."""

import pytest
import torch

from acquisition import STRATEGIES
from benchmarks.league import registry
from benchmarks.league.base import Optimiser
from benchmarks.league.registry import (
    FOR_ONE,
    FRONT_OPTIMISERS,
    OPTIMISERS,
    PEERS,
    make_optimiser,
    missing_packages,
)
from scalable_bo.space.space import Categorical, Float, Int, Space

pytestmark = pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ax\..*")  # of Ax to itself

BOX = Space(a=Float(-1.0, 2.0), b=Float(1e-3, 1.0, log=True))
MIXED = Space(a=Float(-1.0, 2.0), n=Int(1, 9), kind=Categorical(["x", "y", "z"]))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let BoTorch's searches be short."""
    search = {"num_restarts": 1, "raw_samples": 8, "max_iterations": 5}
    of_class = {"ExpectedImprovementSearch": search, "TrustRegionSearch": {"most_candidates": 100}}
    for name, peer in PEERS.items():
        options = {**peer.options, **of_class.get(peer.kind, {})}
        monkeypatch.setitem(PEERS, name, peer._replace(options=options))


def bowl(X: torch.Tensor) -> torch.Tensor:
    """Smallest, 0, at a = 0.5."""
    return (X[:, 0] - 0.5).square()


def make(name: str, space: Space, q: int, num_objectives: int = 1) -> Optimiser:
    if missing_packages([name]):
        pytest.skip(f"needs {missing_packages([name])[name]}")
    return make_optimiser(name, space, 0, q, num_objectives)


@pytest.mark.parametrize(
    "name",
    # Ax searches mixed spaces for a minute
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "ax" else name
        for name in PEERS
        if name in FOR_ONE
    ],
)
@pytest.mark.parametrize("space", [BOX, MIXED], ids=["box", "mixed"])
def test_points_lie_in_the_space_and_the_best_is_recommended(name: str, space: Space) -> None:
    optimiser = make(name, space, 4)
    for q in (4, 4, 2):
        X = optimiser.ask(q)
        assert X.shape == (q, space.dim)
        space.check(X)
        optimiser.tell(X, bowl(X))
    assert len(optimiser.X) == len(optimiser.values) == 10
    best = optimiser.recommend()
    assert best.shape == (1, space.dim)
    assert float(bowl(best)) == float(optimiser.values.min()) < 0.05


@pytest.mark.parametrize("name", FRONT_OPTIMISERS)
def test_several_objectives_take_points_in_the_space_and_all_are_recommended(name: str) -> None:
    optimiser = make(name, BOX, 4, num_objectives=2)
    for q in (4, 4, 2):
        X = optimiser.ask(q)
        BOX.check(X)
        optimiser.tell(X, torch.stack([bowl(X), X[:, 1]], 1))
    assert optimiser.values.shape == (10, 2)
    assert torch.equal(optimiser.recommend(), optimiser.X)


def test_an_optimiser_of_one_objective_is_refused_for_several() -> None:
    with pytest.raises(ValueError, match="`optimiser` must be one of auto, .*, got 'cma'"):
        make_optimiser("cma", BOX, 0, 4, num_objectives=2)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_study_takes_part_by_the_name_of_its_strategy(name: str) -> None:
    optimiser = make(name, BOX, 4)
    X = optimiser.ask(4)
    optimiser.tell(X, bowl(X))
    assert optimiser.ask(2).shape == (2, 2)
    best = optimiser.recommend()  # of the whole space
    BOX.check(best)
    assert bowl(best) <= bowl(optimiser.X).min()


@pytest.mark.parametrize("name", ["optuna-gp", "optuna-tpe", "optuna-cmaes", "cma", "sobol"])
def test_the_same_seed_gives_the_same_points(name: str) -> None:
    points = []
    for _ in range(2):
        optimiser = make(name, BOX, 3)
        for _ in range(4):
            X = optimiser.ask(3)
            optimiser.tell(X, bowl(X))
        points.append(optimiser.X)
    torch.testing.assert_close(*points)


def test_a_region_that_has_shrunk_begins_anew_elsewhere() -> None:
    optimiser = make("botorch-turbo", BOX, 4)
    flat = torch.zeros(4)
    for _ in range(8):
        X = optimiser.ask(4)
        optimiser.tell(X, flat)  # no batch improves: the length is halved until it is too small
    assert optimiser._region.restart  # type: ignore[attr-defined]
    optimiser.tell(optimiser.ask(4), flat)
    assert optimiser._first == 32  # type: ignore[attr-defined]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "is_installed", lambda module: module == "optuna")
    missing = missing_packages(["auto", "sobol", "optuna-gp", "optuna-cmaes", "cma"])
    assert missing == {"optuna-cmaes": "cmaes", "cma": "cma"}
    assert len(OPTIMISERS) == len(set(OPTIMISERS))
