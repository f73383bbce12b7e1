"""What is maximised over several models: an objective of their joint draws, subject to constraints
on outcomes.

Notation: m outputs of all models, s joint draws, values Y (..., m) of the outputs at a point.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from surrogates import SamplePaths
from surrogates.functions.paths import BatchPaths

Outcome = Callable[[Tensor], Tensor]
Paths = SamplePaths | BatchPaths
# Maps points (..., q, d) to the probabilities (..., q) that evaluations there succeed
Success = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Demands:
    """What s paths demand of the probability that an evaluation succeeds."""

    success: Success  # the probability
    least: Tensor  # (s,) what each path demands

    @classmethod
    def draw(
        cls, success: Success, num_paths: int, X: Tensor, generator: torch.Generator
    ) -> "Demands":
        """Return demands between half of the mean probability at points X (n, d) that succeeded and
        all of it, evenly: so the paths of a batch do not all go as far as the same edge.
        """
        shares = torch.rand(num_paths, generator=generator, dtype=torch.float64, device="cpu")
        with torch.no_grad():
            usual = success(X).mean()
        return cls(success, 0.5 * usual * (1.0 + shares.to(usual)))

    def shortfall(self, X: Tensor, num_dims: int) -> Tensor:
        """Return by how much points miss the demands, at least 0: (s, ..., q), of ``num_dims``
        dimensions, for X (..., q, d) that all demands apply to or X (s, ..., q, d), of which
        demand i applies to ``X[i]``.
        """
        return (self.least.view(-1, *[1] * (num_dims - 1)) - self.success(X)).clamp_min(0.0)


@dataclass(frozen=True, eq=False)
class Scalarisations:
    """An objective of each of s paths from k outputs of which larger is better: how far values come
    in a direction λ of the path's own, min_j z_j / λ_j, where z are their heights above a reference
    point, which may be its own, too, 1 at the best values so far.

    With directions uniform on the positive part of the unit sphere, the mean of the k-th power of
    how far a set of points comes is the hypervolume that it dominates, up to a factor. So the
    maximisers of paths spread a batch over the front and beyond its ends, and the expected
    improvement in random directions is that of the hypervolume.

    References:
        Zhang, Golovin (2020), "Random Hypervolume Scalarizations for Provable Multi-Objective Black
        Box Optimization", Lemma 5. Paria et al. (2020), "A Flexible Framework for Multi-Objective
        Bayesian Optimization using Random Scalarizations": a draw for every path.
    """

    directions: Tensor  # (s, k), above 0, of unit length
    reference: Tensor  # (s, k) the reference points
    best: Tensor  # (k,) the best values so far

    @classmethod
    def draw(
        cls, num_paths: int, reference: Tensor, best: Tensor, generator: torch.Generator
    ) -> "Scalarisations":
        """Return scalarisations in random directions from a reference point (k,), or one each."""
        shape = (num_paths, len(best))
        steps = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        directions = torch.nn.functional.normalize(steps.abs()).to(best)
        return cls(directions, reference.expand(shape), best)

    def redrawn(self, num_paths: int, generator: torch.Generator) -> "Scalarisations":
        """Return so many in other directions, from some of the reference points, in float64."""
        taken = self.reference[self.some(num_paths, generator)]
        return self.draw(num_paths, taken.double(), self.best.double(), generator)

    def some(self, number: int, generator: torch.Generator) -> Tensor:
        """Return the numbers of random paths, with replacement."""
        return torch.randint(len(self.reference), (number,), generator=generator, device="cpu")

    def part(self, paths: slice) -> "Scalarisations":
        """Return those of some of the paths."""
        return replace(self, directions=self.directions[paths], reference=self.reference[paths])

    def __call__(self, Y: Tensor) -> Tensor:
        """Return the objective of each path at its values Y (s, ..., m): (s, ...)."""
        k = len(self.best)
        width = self.best - self.reference
        width = torch.where(width > 0, width, 1.0)  # where no value keeps to a limit
        own = (len(self.directions), *[1] * (Y.ndim - 2), k)
        heights = Y[..., :k] - self.reference.view(own)
        return (heights / (width * self.directions).view(own)).amin(-1)

    def volume(self, Y: Tensor) -> Tensor:
        """Return the k-th powers of the objectives at Y (s, ..., m), their signs kept: (s, ...)."""
        far = self(Y)
        return far * far.abs() ** (len(self.best) - 1)

    def of_all(self, Y: Tensor) -> Tensor:
        """Return values (n,) that rank points with Y (n, m): how little they fall short of the best
        of them, where they do so least.
        """
        values = self(Y.expand(len(self.directions), *Y.shape))
        return (values - values.amax(1, keepdim=True)).amax(0)


@dataclass(frozen=True, eq=False)
class OutcomePaths:
    """s functions of which larger is better: the objective where draw i is feasible; where not,
    below all that, less the violation.

    Feasibility comes first: any point that meets the constraints by a draw exceeds any point that
    does not, and among those the one with the least total violation is the best.

    References:
        Eriksson, Poloczek (2021), "Scalable Constrained Bayesian Optimization", Section 3: the
        order of the points.
    """

    parts: tuple[Paths, ...]  # s paths of each model; draw i is path i of all of them
    objective: Outcome  # maps Y (..., m) to (...)
    # Map Y (..., m) to (...), feasible where ≤ 0. Their violations are added up: give them
    # comparable units
    constraints: tuple[Outcome, ...] = ()
    sign: float = 1.0  # 1 to maximise the objective, −1 to minimise it
    demands: Demands | None = None  # a further constraint of each path; ``None`` for none

    @property
    def num_samples(self) -> int:
        """The number of functions, s."""
        return self.parts[0].num_samples

    @property
    def is_constrained(self) -> bool:
        """Whether points may be infeasible."""
        return bool(self.constraints) or self.demands is not None

    def __call__(self, X: Tensor) -> Tensor:
        """Return every function at X (..., q, d): (s, ..., q)."""
        return self.merit(self._outputs([paths(X) for paths in self.parts]), X)

    def each(self, X: Tensor) -> Tensor:
        """Return function i at ``X[i]``: (s, q), for X (s, q, d)."""
        return self.merit(self._outputs([paths.each(X) for paths in self.parts]), X)

    @torch.no_grad()
    def standing(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the points among X (n, d) best in the models' means, with values that rank them.

        These are the feasible ones with their objective or, if there are none, all with the
        negative violation.
        """
        Y = self._outputs([paths.mean(X) for paths in self.parts])
        objective = self.objective
        if isinstance(objective, Scalarisations):
            objective = objective.of_all
        value = self.sign * objective(Y)
        violation = self.violation(Y)
        feasible = violation <= 0
        return (X[feasible], value[feasible]) if feasible.any() else (X, -violation)

    def _outputs(self, values: list[Tensor]) -> Tensor:
        several = [isinstance(paths, BatchPaths) and paths.several_outputs for paths in self.parts]
        parts = zip(values, several, strict=True)
        return torch.cat([Y if last else Y.unsqueeze(-1) for Y, last in parts], dim=-1)

    def merit(self, Y: Tensor, X: Tensor) -> Tensor:
        """Return every function at points X where the outputs are Y (s, ..., q, m): (s, ..., q)."""
        value = self.sign * self.objective(Y)
        if not self.is_constrained:
            return value
        violation = self.violation(Y)
        if self.demands is not None:
            violation = violation + self.demands.shortfall(X, violation.ndim)
        feasible = violation <= 0
        floor = torch.finfo(Y.dtype).max ** 0.5
        ranked = torch.where(feasible, value, -floor * (1.0 + violation)).detach()
        smooth = torch.where(feasible, value, -violation)
        # The values of the one, the gradients of the other
        return ranked + (smooth - smooth.detach())

    def violation(self, Y: Tensor) -> Tensor:
        """Return the total violation of the constraints, at least 0, by Y (..., m): (...)."""
        total = Y.new_zeros(Y.shape[:-1])
        for constraint in self.constraints:
            total = total + constraint(Y).clamp_min(0.0)
        return total


def only_output(Y: Tensor) -> Tensor:
    """Return the values (...) of a single output from Y (..., 1)."""
    return Y.squeeze(-1)
