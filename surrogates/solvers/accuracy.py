"""The error of an iterative posterior, in posterior standard deviations.

Notation: H = K + Σ (n, n) with noise variances σ_j². The first right-hand side is the mean's, y −
μ(X); each of the others is f + ε, a draw of the prior and of the noise. W (n, 1 + s) are weights, R
= B − H W their residuals, estimated from m random rows.

An error E of the weights changes the functions at the data by K E = R − Σ E: by R, except in
directions that the noise hides. So r_j is compared with the standard deviation of the posterior.
The weights a = H⁻¹ (f + ε) of a draw are distributed as N(0, H⁻¹), and its path deviates from f at
x_j by σ_j² a_j − ε_j, so that

    h_j = E a_j² = (H⁻¹)_jj,    p_j = E (σ_j² a_j − ε_j)² = σ_j² v_j h_j,    v_j = p_j / (σ_j² h_j),

where v_j = 1 / (H⁻¹)_jj − σ_j² is the posterior variance at x_j given all data but the j-th: the
variance at a point as far from the data as they are from each other. Neither factor suffers from
cancellation, whether the variance comes from noise or from distance.

During a solve, weights that have not converged are too small, which makes v_j too large. Two bounds
hold from the first step on: v_j is at most the variance given the nearest neighbours of x_j alone,
and the share of directions that have not been solved,

    u = 1 − tr(Q H) / n = E ε_j r_j / σ_j²,    where W = Q B,

is an error of that many posterior standard deviations. It is that of the columns looked at: others
have stopped, and what they leave unsolved would keep these from ever being solved.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from surrogates import memory
from surrogates.solvers.solver import NUM_GROUPS, Judge, ResidualRows, groups_by, random_rows
from surrogates.systems.system import Apply, LinearSystem, Targets, require_blocks


@dataclass(eq=False)
class PosteriorError(ResidualRows, Judge):
    """Estimates the errors of a solve's columns from random rows of their residuals in float64.

    The rows are grouped by their variance given their neighbours, since clustered data converge
    later than the rest. Variances are averaged within a group, and the error of a column is that of
    its worst group.
    """

    noise_draw: Tensor  # (m, 1 + s) ε in these rows
    # How many of the first columns are means, if several posteriors are solved at once
    num_means: int = 1
    num_neighbours: int = 15  # whose data bound a variance
    negligible: float = 1e-3  # errors below are not examined further

    @classmethod
    def for_targets(
        cls, system: LinearSystem, targets: Targets, num_means: int = 1
    ) -> "PosteriorError":
        """Return the estimator for a solve with the given ``targets`` at all data."""
        blocks = require_blocks(system)
        index = random_rows(system)
        values = system.rows.take(targets.values, index).double()
        noise_draw = system.rows.take(targets.noise_draw, index).double()
        return cls(blocks, index, values + noise_draw, noise_draw, num_means)

    def first_tolerance(self) -> Tensor:
        """Return the relative residual at which each column's error is about one posterior standard
        deviation, (1 + s,), taking variances given the nearest neighbours alone.
        """
        square = self.rhs.square().mean(0)
        return (self._left.mean() / torch.where(square > 0, square, 1.0)).sqrt()

    def of_residuals(self, W: Tensor, R: Tensor, solve: Apply) -> Tensor:
        """Return the errors of all columns of a direct solve, (1 + s,), given W and R (n, 1 + s).
        They come from rounding alone, so that no bound for unconverged weights is needed.

        A variance v_j is smallest if all data are at one place, about σ² / n. Errors that are
        negligible beside that variance are not examined further.
        """
        system = self.system
        W, R = W / self.scale, R / self.scale
        least = system.smallest_noise / (system.n + system.smallest_noise / system.largest_entry)
        most: Tensor = (R.square().mean(0) / least).sqrt().double()
        if bool((most <= self.negligible).all()):
            return most
        self.weights = W[self.index].double()
        self.gaps = R[self.index].double()
        return self._errors(torch.full_like(self.rhs[:, 0], math.inf), 1)

    def errors(self) -> Tensor:
        """Return the error of every column as of its last look, (1 + s,)."""
        return self._errors(self._left, NUM_GROUPS)

    def _errors(self, left: Tensor, num_groups: int) -> Tensor:
        """Return the errors, rows grouped by ``left`` (m,), their variances given neighbours."""
        known = torch.isfinite(self.weights).all(0) & torch.isfinite(self.gaps).all(0)
        known[: self.num_means] = False
        drawn = known.nonzero().squeeze(1)
        if not len(drawn):
            return torch.full_like(self.rhs[0], math.nan)
        noise = self._noise
        std = noise.sqrt()
        a, e, r = (part[:, drawn] for part in (self.weights, self.noise_draw, self.gaps))
        groups = groups_by(left, num_groups)
        deviation = (std * a - e / std).square().mean(1)[groups].mean(1, keepdim=True)
        inverse = a.square().mean(1)[groups].mean(1, keepdim=True)
        variance = torch.minimum((deviation / inverse).expand(groups.shape), left[groups])
        squares = (self.gaps.square()[groups] / variance.unsqueeze(2)).mean(1)
        found = squares.mean(0)
        of_paths = squares[:, drawn].mean(1)
        uneven = of_paths.max() / of_paths.mean() if bool(of_paths.mean() > 0) else 1.0
        shares = (e * r / noise)[:, torch.isin(drawn, self.looked_at)]
        if shares.numel() < 2:  # of one, the scatter is not known
            return (found * uneven).sqrt()
        scatter = shares.var() / shares.numel()
        unsolved = (shares.mean().square() - scatter).clamp_min(0.0) / deviation.mean()
        return (found * uneven + unsolved).sqrt()

    @cached_property
    def _noise(self) -> Tensor:
        noise = self.system.noise_column.double()
        if noise.ndim:
            return self.system.rows.take(noise, self.index)
        return noise.expand(len(self.index), 1)

    @cached_property
    def _left(self) -> Tensor:
        """The variance (m,) of rows given nearest neighbours, as many as cost an epoch at most."""
        rows = self.system.rows
        size = min(1 + self.num_neighbours, int(self.system.n / len(self.index) ** 0.5))
        eps = 10.0 * size * torch.finfo(torch.float64).eps
        nearest = []
        for index in self.index.split(memory.part_size(self.system.n, self.system.dtype)):
            likeness = self.system.kernel_rows(index)
            positions, held = rows.owned(index)
            own = torch.arange(len(index), device=index.device)[positions]
            likeness[own, held] = math.inf  # the row itself comes first
            nearest.append(rows.largest(likeness, size))
        blocks = self._double.small_blocks(torch.cat(nearest)).double()
        blocks.diagonal(dim1=1, dim2=2).mul_(1.0 + eps)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(blocks))
        noise = self._noise.squeeze(1)
        return torch.maximum(1.0 / inverse[:, 0, 0] - noise, eps * noise)
