"""Sample paths whose weights several processes share, for as many data as fit all of them together.

Notation: process r of p holds the points X_r (n_r, d), their targets, and its rows of the weights
(n, s).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

import torch
from gpytorch.means import ZeroMean
from torch import Tensor

from surrogates import checks, memory
from surrogates.functions.features import PriorPaths
from surrogates.functions.paths import SamplePaths
from surrogates.operators.differentiable import Basis, KernelBasis
from surrogates.operators.terms import FunctionMap
from surrogates.rules.solved import shared_targets, solve_arguments
from surrogates.solvers.sketch_and_project import SketchAndProject
from surrogates.solvers.solver import Callback, Solution, Solver
from surrogates.systems.shared import DistributedKernelSystem
from surrogates.systems.shared_rows import SharedRows


@dataclass(frozen=True, eq=False)
class SharedBasis(Basis):
    """The functions of all processes, of which ``own`` are this one's; combinations are summed over
    the processes.

    All processes evaluate it at the same points.
    """

    own: Basis
    rows: SharedRows

    @property
    def dim(self) -> int:
        return self.own.dim

    @property
    def dtype(self) -> torch.dtype:
        return self.own.dtype

    def to(self, place: memory.Place) -> NoReturn:
        raise TypeError(
            "Paths of shared weights keep the device and dtype of the system they were drawn from."
        )

    def matmul(self, X: Tensor, W: Tensor) -> Tensor:
        return self.rows.sum(self.own.matmul(X, W))

    def matmul_gradient(self, X: Tensor, W: Tensor, cotangent: Tensor) -> Tensor:
        return self.rows.sum(self.own.matmul_gradient(X, W, cotangent))

    def rowwise(self, X: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        values, gradient = self.own.rowwise(X, W)
        return self.rows.sum(values), self.rows.sum(gradient)

    def pieces(self, width: int) -> Iterable[tuple[slice, FunctionMap]]:
        return self.own.pieces(width)

    def total(self, part: Tensor) -> Tensor:
        return self.rows.sum(part)


@torch.no_grad()
def shared_paths(
    system: DistributedKernelSystem,
    targets: Tensor,
    num_samples: int,
    *,
    mean: Callable[[Tensor], Tensor] | None = None,
    solver: Solver | None = None,
    num_features: int = 2048,
    generator: torch.Generator | None = None,
    callback: Callback | None = None,
) -> tuple[SamplePaths, Solution]:
    """Draw paths of the posterior of all data, of which each process holds its rows; called by all,
    in the same way.

    Evaluating the paths is a joint call, too: all processes give the same points, and get the same
    values and gradients. How the rows are shared changes the rounding alone, and by it the paths to
    within the error that the solver's residuals leave.

    Args:
        system: k(X, X) + Σ of the data.
        targets: (n_r,) y of this process.
        num_samples: s, how many paths.
        mean: μ, maps (..., q, d) to (..., q); ``None`` for 0.
        solver: ``None`` for ``SketchAndProject.asap()``.
        num_features: F, of the prior paths.
        generator: in the same state in all processes; one seeded with 0 if ``None``.

    Raises:
        TypeError, ValueError: if the targets are not finite or do not fit, or the kernel has no
            random features.
        ConnectionError: if another process ended, or was not heard of within the group's timeout.
    """
    X = system.kernel.tiles.X1
    checks.floating_tensor("targets", targets)
    checks.like("targets", targets, "X", X)
    if targets.shape != X.shape[:1]:
        raise ValueError(
            f"`targets` must have shape ({len(X)},), as this process holds so many points, got"
            f" {tuple(targets.shape)}."
        )
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    mean = ZeroMean() if mean is None else mean
    prior = PriorPaths.draw(
        system.gpytorch_kernel,
        X.shape[1],
        num_samples,
        num_features=num_features,
        generator=generator,
        like=X,
    )
    solver = SketchAndProject.asap() if solver is None else solver
    misfit = (targets - mean(X)).unsqueeze(1)
    both = shared_targets(system, misfit, prior(X).T, generator)
    solution = solver.solve(
        system, **solve_arguments(system, both, solver), generator=generator, callback=callback
    )
    solution.warn_if_unsolved("The mean and paths")
    mean_weights = solution.value[:, :1].clone()
    paths = SamplePaths(
        prior=prior,
        data=SharedBasis(KernelBasis(system.gpytorch_kernel, X), system.rows),
        weights=mean_weights - solution.value[:, 1:],
        mean_weights=mean_weights,
        prior_mean=mean,
    )
    return paths, solution
