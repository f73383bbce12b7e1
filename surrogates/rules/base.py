"""What makes a posterior, whatever its model: the rule that says what carries its weights, which
system they solve and how it is conditioned on.

Notation: X (n, d) data, y (n,) their values, Σ noise variances, μ the prior mean, s paths; v and a
the representer weights of :mod:`surrogates.functions.paths`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from surrogates import memory
from surrogates.functions.balance import balanced_normal
from surrogates.functions.categories import check_codes
from surrogates.functions.features import PriorPaths
from surrogates.functions.paths import SamplePaths
from surrogates.operators.differentiable import Basis, KernelBasis, combine
from surrogates.rules.data import DataSet
from surrogates.solvers.base import Callback, Solver
from surrogates.solvers.run import Solution
from surrogates.systems.base import LinearSystem
from surrogates.systems.targets import Targets

DIRECT_SOLVE_UP_TO = 4096
# In the posterior's covariance: several feature draws average the features' own error out
PATHS_PER_DRAW = 32
COLUMNS_HELD = 13  # copies of an (n, s) matrix that the hungriest solver and the paths hold at once

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
        """Return what observations at Q (..., q, d) tell of the deviations of ``paths`` from their
        mean, (s, ..., q).
        """
        return paths(Q) - paths.mean(Q)

    def between(self, Q: Tensor) -> CovarianceWith:
        """Return c(·, Q), which maps A (..., a, d) to (..., a, k);
        differentiable once in A and Q.
        """
        if Q.shape[-2] == 0:  # BoTorch imagines values at no points, too
            return lambda A: A.new_zeros(*A.shape[:-1], 0)
        return self._between(Q)

    @abstractmethod
    def _between(self, Q: Tensor) -> CovarianceWith:
        """Return c(·, Q) for k ≥ 1."""


@dataclass(frozen=True, eq=False)
class FiniteRank(Covariance):
    """c(x, z) = φ(x)ᵀ R Rᵀ φ(z) of finitely many functions φ.

    Attributes:
        basis: φ, p functions.
        root: R (p, r).
        explained: (p, s) weights of what observations tell of the paths' deviations; ``None`` for
            all.
    """

    basis: Basis
    root: Tensor
    perturbed: bool = False
    explained: Tensor | None = None

    def deviations(self, paths: SamplePaths, Q: Tensor) -> Tensor:
        if self.explained is None:
            return super().deviations(paths, Q)
        return combine(self.basis, Q.reshape(-1, Q.shape[-1]), self.explained).T.reshape(
            -1, *Q.shape[:-1]
        )

    def _between(self, Q: Tensor) -> CovarianceWith:
        of_Q = self._features(Q).mT
        return lambda A: self._features(A) @ of_Q

    def _features(self, X: Tensor) -> Tensor:
        return combine(self.basis, X.reshape(-1, X.shape[-1]), self.root).reshape(
            *X.shape[:-1], self.root.shape[1]
        )


class Rule(ABC):
    """What carries the weights of a posterior; made of a model's present settings, and used at
    once.

    Attributes:
        is_exact: whether there is no approximation but the paths, so that a direct solve gives what
            ``SingleTaskGP`` gives.
    """

    is_exact: ClassVar[bool] = False

    @abstractmethod
    def draw(
        self,
        data: DataSet,
        num_paths: int,
        generator: torch.Generator,
        *,
        spanning: bool = False,
        prior: PriorPaths | None = None,
        warm: Tensor | None = None,
        callback: Callback | None = None,
    ) -> tuple[SamplePaths, Solution | None]:
        """Return ``num_paths`` functions of the posterior of ``data``, and the account of the solve
        if there was one.

        Args:
            spanning: draw the functions behind a posterior, whose covariance about the mean is its
                own as far as so many can have it.
            prior: the prior paths to condition; drawn if ``None``.
            warm: (k, 1) weights of the first k points to start the mean from; ``None`` for zeros.
        """

    @abstractmethod
    def covariance(self, data: DataSet, paths: SamplePaths) -> Covariance:
        """Return the covariance of the posterior of ``data``, of which ``paths`` are."""

    def check_start(self, previous: "Rule") -> None:  # noqa: B027  # most have nothing to require
        """Require a rule whose weights those of this one may start from.

        Raises:
            ValueError: naming what differs.
        """

    def own_fit(self, n: int) -> tuple[str, str] | None:
        """Return the method of ``fit`` for n points that belongs to this rule, and why; ``None``
        for the methods of all models.
        """
        return None


@dataclass(frozen=True, eq=False)
class SolvedRule(Rule):
    """Weights at centres that solve a linear system.

    Attributes:
        solver: ``None`` for the rule's default.
        num_features: of the prior paths.
        memory_budget: bytes a kept kernel matrix may take; ``None`` for the default.
        seed: of the solves for the covariance.
    """

    solver: Solver | None
    num_features: int
    memory_budget: int | None
    seed: int

    @abstractmethod
    def centres(self, data: DataSet) -> Tensor:
        """Return the points (m, d) that carry the weights."""

    @abstractmethod
    def system(self, data: DataSet) -> LinearSystem:
        """Return the system that the weights solve."""

    @abstractmethod
    def default_solver(self, num_centres: int) -> Solver:
        """Return the solver for a model that was given none."""

    def solver_for(self, num_centres: int) -> Solver:
        """Return the solver given, or else the default."""
        return self.default_solver(num_centres) if self.solver is None else self.solver

    def draw(
        self,
        data: DataSet,
        num_paths: int,
        generator: torch.Generator,
        *,
        spanning: bool = False,
        prior: PriorPaths | None = None,
        warm: Tensor | None = None,
        callback: Callback | None = None,
    ) -> tuple[SamplePaths, Solution | None]:
        """Solve for v (first column) and the a of every path (the others) in one block: H v = y −
        μ(X), H a = f(X) + ε, with ε ~ N(0, Σ).
        """
        if prior is None:
            prior = draw_prior(data, num_paths, self.num_features, spanning, generator)
        X = data.X
        memory.require(
            COLUMNS_HELD * len(X) * (num_paths + 1) * X.element_size(),
            X.device,
            f"Solving for {num_paths} paths at {len(X)} points",
            "Draw fewer paths at a time.",
        )
        centres = self.centres(data)
        system = self.system(data)
        solver = self.solver_for(len(centres))
        residuals = (data.y - data.mean_module(X)).unsqueeze(1)
        values = prior(X).T
        std = data.noise.sqrt().unsqueeze(-1)
        noise = std * balanced_normal(values / std, generator)
        targets = Targets(
            torch.cat([residuals, values], dim=1),
            torch.cat([torch.zeros_like(residuals), noise], dim=1),
        )
        initial = None
        if warm is not None and len(warm) <= system.n:
            initial = X.new_zeros(system.n, num_paths + 1)
            initial[: len(warm), :1] = warm
        rhs = targets if solver.splits_targets else system.rhs(targets)
        del targets, values, noise  # many columns: only one copy of them is kept
        solution = solver.solve(
            system, rhs, initial=initial, generator=generator, callback=callback
        )
        mean_weights = solution.value[:, :1].clone()
        paths = SamplePaths(
            prior=prior,
            data=KernelBasis(data.kernel, centres),
            weights=mean_weights - solution.value[:, 1:],
            mean_weights=mean_weights,
            prior_mean=data.mean_module,
        )
        return paths, solution


def draw_prior(
    data: DataSet, num_paths: int, num_features: int, spanning: bool, generator: torch.Generator
) -> PriorPaths:
    """Return prior paths of the kernel of ``data`` by random features: by several draws of them, if
    their covariance is that of a posterior.
    """
    check_codes(data.kernel, data.X)
    return PriorPaths.draw(
        data.kernel,
        data.X.shape[1],
        num_paths,
        num_features=num_features,
        num_draws=math.ceil(num_paths / PATHS_PER_DRAW) if spanning else 1,
        generator=generator,
        like=data.X,
    )
