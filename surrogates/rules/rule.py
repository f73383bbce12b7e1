"""What makes a posterior, whatever its model: the rule that says what carries its weights, which
system they solve and how it is conditioned on.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from surrogates.functions.features import PriorPaths
from surrogates.functions.paths import SamplePaths
from surrogates.operators.differentiable import Basis, combine
from surrogates.rules.data_set import DataSet
from surrogates.solvers.solver import Callback, Solution

CovarianceWith = Callable[[Tensor], Tensor]


class Covariance(ABC):
    """The covariance c of the posterior of one data set: c(·, Q) with k points Q, as the update of
    the posterior by values at Q needs it.

    Notation: T the batch of sets of points Q (*T, k, d); A (..., a, d) any points, with a batch
    that T broadcasts to.

    Attributes:
        perturbed: whether the paths were fitted to values with noise of their own by the mean's
            gain, which is not the best for them: c is then not theirs, and they are to be updated
            in that way, too.
    """

    perturbed: bool = False

    def deviations(self, paths: SamplePaths, Q: Tensor) -> Tensor:
        """Return what data at Q (..., q, d) tell of ``paths`` less their mean, (s, ..., q)."""
        return paths(Q) - paths.mean(Q)

    def between(self, Q: Tensor) -> CovarianceWith:
        """Return c(·, Q), from A (..., a, d) to (..., a, k), differentiable once in A and Q."""
        if Q.shape[-2] == 0:  # BoTorch imagines values at no points, too
            return lambda A: A.new_zeros(*A.shape[:-1], 0)
        return self._between(Q)

    @abstractmethod
    def _between(self, Q: Tensor) -> CovarianceWith:
        """Return c(·, Q) for k ≥ 1."""


@dataclass(frozen=True, eq=False)
class FiniteRank(Covariance):
    """c(x, z) = φ(x)ᵀ R Rᵀ φ(z) of finitely many functions φ."""

    basis: Basis  # φ, p functions
    root: Tensor  # R (p, r)
    perturbed: bool = False
    # (p, s) weights of what observations tell of the paths' deviations; ``None`` for all
    explained: Tensor | None = None

    def deviations(self, paths: SamplePaths, Q: Tensor) -> Tensor:
        if self.explained is None:
            return super().deviations(paths, Q)
        return combine(self.basis, Q, self.explained)

    def _between(self, Q: Tensor) -> CovarianceWith:
        of_Q = self._features(Q).mT
        return lambda A: self._features(A) @ of_Q

    def _features(self, X: Tensor) -> Tensor:
        return combine(self.basis, X, self.root).movedim(0, -1)


@dataclass(frozen=True, eq=False)
class Draw:
    """A request for paths of a posterior."""

    data: DataSet  # that the posterior is of
    num_paths: int  # s
    generator: torch.Generator  # of all randomness
    # Whether to draw the functions behind a posterior, whose covariance about the mean is its own
    # as far as so many can have it
    spanning: bool = False
    prior: PriorPaths | None = None  # the prior paths to condition; drawn if ``None``
    # (k, 1) weights of the first k points to start the mean from; ``None`` for zeros
    warm: Tensor | None = None
    callback: Callback | None = None  # of the solve


class Rule(ABC):
    """What carries the weights of a posterior; made of a model's present settings, for use at once.

    Attributes:
        is_exact: whether there is no approximation but the paths, so that a direct solve gives what
            ``SingleTaskGP`` gives.
        takes_start: whether weights are solved for, from those that it is given.
    """

    is_exact: ClassVar[bool] = False
    takes_start: ClassVar[bool] = False

    @abstractmethod
    def draw(self, wanted: Draw) -> tuple[SamplePaths, Solution | None]:
        """Return functions of a posterior, and the account of the solve if there was one."""

    def draw_share(self, wanted: Draw, own: slice) -> tuple[SamplePaths, Solution | None]:
        """Return the functions ``own`` of all, as ``draw`` does; called by all processes, each for
        its share, with the same data and the generator in the same state. A rule that does not
        share the work of drawing does it in every process.
        """
        paths, solution = self.draw(wanted)
        return paths.part(own), solution

    @abstractmethod
    def covariance(self, data: DataSet, paths: SamplePaths) -> Covariance:
        """Return the covariance of the posterior of ``data``, of which ``paths`` are."""

    def check_start(self, previous: "Rule") -> None:  # noqa: B027  # most have nothing to require
        """Require a rule whose weights those of this one may start from.

        Raises:
            ValueError: naming what differs.
        """

    def own_fit(self, n: int) -> tuple[str, str] | None:
        """Return this rule's own method of ``fit`` for n points, and why, or ``None``."""
        return None
