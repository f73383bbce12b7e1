"""The optimisers of the league by name: the strategies of a study, its peers with their defaults,
and the former inside of some of the latter.

A further one is a class of ``Optimiser`` in a file of its own, and a line in ``PEERS``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

from acquisition.strategies import STRATEGIES
from benchmarks.league.base import Optimiser, StudySearch
from scalable_bo._packages import is_installed, require
from scalable_bo.space.space import Space
from surrogates import checks


class Peer(NamedTuple):
    """An optimiser behind another interface than ours.

    Attributes:
        module: of this package, where its class is, which imports its packages.
        options: its arguments beside space, seed and q.
        packages: what must be installed.
    """

    module: str
    kind: str
    options: Mapping[str, Any] = MappingProxyType({})
    packages: tuple[str, ...] = ()


def _optuna(sampler: str, *packages: str) -> Peer:
    return Peer("optuna_peers", "OptunaSearch", {"sampler": sampler}, ("optuna", *packages))


_AX = ("ax_peers", "AxSearch")
PEERS = {
    "optuna-gp": _optuna("gp"),
    "optuna-tpe": _optuna("tpe"),
    "optuna-cmaes": _optuna("cmaes", "cmaes"),
    "botorch-qlognei": Peer("botorch_peers", "ExpectedImprovementSearch"),
    # This one takes failures for the worst value so far
    "botorch-qlognei-worst": Peer(
        "botorch_peers", "ExpectedImprovementSearch", {"failed": "worst"}
    ),
    "botorch-turbo": Peer("botorch_peers", "TrustRegionSearch"),
    "cma": Peer("cma_peer", "CMASearch", packages=("cma",)),
    "sobol": Peer("base", "SobolSearch"),
    "ax": Peer(*_AX, packages=("ax",)),
    # Ours inside of other frameworks
    "ax-auto": Peer(*_AX, {"strategy": "auto"}, ("ax",)),
    "optuna-auto": _optuna("auto"),
    "optuna-nsga2": _optuna("nsga2"),
    "botorch-qlognehvi": Peer("botorch_peers", "ExpectedImprovementSearch"),
}
OPTIMISERS = (*STRATEGIES, *PEERS)
FOR_ONE = tuple(name for name in OPTIMISERS if name != "botorch-qlognehvi")
# Optimisers that take several objectives
FRONT_OPTIMISERS = (
    *("auto", "thompson", "log-ei", "optuna-gp", "optuna-tpe", "optuna-nsga2", "optuna-auto"),
    *("botorch-qlognehvi", "sobol"),
)


def make_optimiser(
    name: str, space: Space, seed: int, q: int, num_objectives: int = 1
) -> Optimiser:
    """Return an optimiser by its name; raise ImportError if one of its packages is not installed,
    and ValueError if there is none of this name for so many objectives.
    """
    several = num_objectives > 1
    checks.one_of("optimiser", name, FRONT_OPTIMISERS if several else FOR_ONE)
    if name in STRATEGIES:
        return StudySearch(space, seed, q, name, num_objectives)
    peer = PEERS[name]
    for package in peer.packages:
        require(package, extra="league", user=f"`{name}`")
    module = import_module(f"benchmarks.league.{peer.module}")
    options = {**peer.options, **({"num_objectives": num_objectives} if several else {})}
    optimiser: Optimiser = getattr(module, peer.kind)(space, seed, q, **options)
    return optimiser


def missing_packages(names: Iterable[str]) -> dict[str, str]:
    """Return, for each optimiser that cannot run here, the first package that it lacks."""
    return {
        name: absent[0]
        for name in names
        if name in PEERS and (absent := [p for p in PEERS[name].packages if not is_installed(p)])
    }
