"""The optimisers of the league by name: the strategies of a study, its peers with their defaults,
and the former inside of some of the latter.

A further one is a class of ``Optimiser`` in a file of its own, and a line in ``PEERS``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from acquisition.strategies import STRATEGIES
from benchmarks.league.base import Optimiser
from benchmarks.league.ours import StudySearch
from scalable_bo._packages import is_installed, require
from scalable_bo.space.space import Space
from surrogates import checks

_HERE = "benchmarks.league"


@dataclass(frozen=True)
class Peer:
    """An optimiser behind another interface than ours.

    Attributes:
        module: where its class is, which imports its packages.
        kind: the class.
        options: its arguments beside space, seed and q.
        packages: what must be installed.
    """

    module: str
    kind: str
    options: tuple[tuple[str, str], ...] = ()
    packages: tuple[str, ...] = ()

    def make(self, space: Space, seed: int, q: int) -> Optimiser:
        """Return a fresh one."""
        kind: Any = getattr(import_module(f"{_HERE}.{self.module}"), self.kind)
        optimiser: Optimiser = kind(space, seed, q, **dict(self.options))
        return optimiser


def _optuna(sampler: str, *packages: str) -> Peer:
    return Peer("optuna_peers", "OptunaSearch", (("sampler", sampler),), ("optuna", *packages))


_AX = ("ax_peers", "AxSearch")
PEERS = {
    "optuna-gp": _optuna("gp"),
    "optuna-tpe": _optuna("tpe"),
    "optuna-cmaes": _optuna("cmaes", "cmaes"),
    "botorch-qlognei": Peer("botorch_peers", "ExpectedImprovementSearch"),
    "botorch-turbo": Peer("botorch_peers", "TrustRegionSearch"),
    "cma": Peer("cma_peer", "CMASearch", packages=("cma",)),
    "sobol": Peer("base", "SobolSearch"),
    "ax": Peer(*_AX, packages=("ax",)),
    # Ours inside of other frameworks
    "ax-auto": Peer(*_AX, (("strategy", "auto"),), ("ax",)),
    "optuna-auto": _optuna("auto"),
}
OPTIMISERS = (*STRATEGIES, *PEERS)


def make_optimiser(name: str, space: Space, seed: int, q: int) -> Optimiser:
    """Return an optimiser by its name.

    Raises:
        ImportError: if one of its packages is not installed.
        ValueError: if there is none of this name.
    """
    if name in STRATEGIES:
        return StudySearch(space, seed, q, name)
    peer = PEERS[checks.one_of("optimiser", name, OPTIMISERS)]
    for package in peer.packages:
        require(package, extra="league", user=f"`{name}`")
    return peer.make(space, seed, q)


def missing_packages(names: Sequence[str]) -> dict[str, str]:
    """Return, for each optimiser that cannot run here, the first package that it lacks.

    Raises:
        ValueError: if there is none of a name.
    """
    missing = {}
    for name in names:
        checks.one_of("optimiser", name, OPTIMISERS)
        packages = PEERS[name].packages if name in PEERS else ()
        absent = [package for package in packages if not is_installed(package)]
        if absent:
            missing[name] = absent[0]
    return missing
