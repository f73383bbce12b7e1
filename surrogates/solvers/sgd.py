"""Stochastic gradient descent on the primal objective, with the noise in the regulariser."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from surrogates import checks
from surrogates.functions.features import RandomFeatures
from surrogates.solvers.epochs import AveragedDescent, EpochMonitor
from surrogates.solvers.run import IterativeSolver, Start
from surrogates.systems.system import KernelSystem, LinearSystem


@dataclass
class SGDState(AveragedDescent):
    count: int
    rhs: Tensor  # (num_data, s) f + ε
    noise_draw: Tensor  # (num_data, s) ε, zeros if B came in one part
    projected_noise: Tensor | None  # (m, s) K_ZX Σ⁻¹ ε, with inducing points
    first_step: Tensor  # (s,)


@dataclass(frozen=True)
class SGD(IterativeSolver[LinearSystem, None, SGDState]):
    """Solve (K + Σ) W = f + ε by minimising, for every column,
    ``(f − K a)ᵀ Σ⁻¹ (f − K a) + (a − Σ⁻¹ε)ᵀ K (a − Σ⁻¹ε)``.

    The gradient, times half the mean noise σ² and over n, is estimated from a batch of rows and
    from fresh random features Φ:

        g = (1/b) K_bᵀ σ² Σ_b⁻¹ (K_b a − f_b)  +  (1/n) Φ Φᵀ σ² (a − Σ⁻¹ ε)

    Other kernels than a single RBF or Matérn kernel use the batch's rows of K in place of Φ Φᵀ:

        g = (1/b) K_bᵀ σ² Σ_b⁻¹ (K_b a − f_b + Σ_b a_b − ε_b),

    which is zero at the solution for every batch; with inducing points, K_ZZ a is exact.

    The noise ε stands in the regulariser, not among the batch's targets, which lowers the variance;
    given B in one part, f = B and ε = 0. Steps are Nesterov's, each column's g clipped to norm
    ``clip``; a running average of the iterates is returned. A column whose residual grows returns
    to its best iterate and goes on with a quarter of its step.

    Of an :class:`InducingSystem`, given :class:`Targets`, it minimises
    ``(f + ε − K_XZ a)ᵀ Σ⁻¹ (f + ε − K_XZ a) + aᵀ K_ZZ a`` by the same step, O(b m s), with the
    noise's part of the gradient computed once, exactly, in tiles:

        g = (1/b) K_bZᵀ σ² Σ_b⁻¹ (K_bZ a − f_b)  +  (1/n) (Φ_Z Φ_Zᵀ σ² a − σ² K_ZX Σ⁻¹ ε).

    Batches then show the misfit to the data, which tells divergence, but not the residual of A w =
    B: the budget alone ends the run, and the residual is evaluated after it.

    Args:
        step_size: of a step along g.
        sample_step_size: likewise, of columns with noise ε, which are those of samples; ``None``
            for ``step_size``.
        batch_size: b, at most n of which are used; ``None`` for 512.
        num_features: of Φ, drawn anew at every step.
        momentum: in [0, 1).
        clip: largest norm of a column's g.
        averaging: share of the newest iterate in the average, once there are 1/``averaging``;
            before, it is their mean. 0 for the mean of all.

    Raises:
        TypeError: when solving an ``InducingSystem`` for B in one part.
    References:
        Lin et al. (2023), "Sampling from Gaussian Process Posteriors using Stochastic Gradient
        Descent", Section 3 and Appendix A.
        Differs: (1) the norm is clipped a column at a time, so that columns do not influence each
        other; (2) a vector of noise variances; (3) batches are the parts of a random partition; (4)
        divergence is undone; (5) with inducing points, K_ZX Σ⁻¹ ε is exact, where Section 3.3
        estimates it by features, which would add their variance to every step; (6) the average
        forgets, as that of the authors' program does: the mean of all iterates keeps those far from
        the solution.
    """

    splits_targets: ClassVar[bool] = True

    step_size: float = 0.5
    sample_step_size: float | None = field(default=None, kw_only=True)
    batch_size: int | None = None
    num_features: int = 100
    momentum: float = 0.9
    clip: float = 0.1
    averaging: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(self, ["step_size", "sample_step_size", "clip"], checks.positive_float)
        checks.fields(self, ["batch_size", "num_features"], checks.positive_int)
        checks.fields(self, ["averaging"], checks.fraction)
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"`momentum` must be in [0, 1), got {self.momentum}.")

    @classmethod
    def paper(cls, **settings: Any) -> Self:
        """Return the published settings of regressions: steps of 0.5 for the mean and of 0.1 for
        samples, on batches of 512 and 100 features.
        """
        return cls(**{"step_size": 0.5, "sample_step_size": 0.1, "batch_size": 512, **settings})

    def prepare(self, system: LinearSystem, generator: torch.Generator) -> None:
        return None

    def epochs_per_step(self, system: LinearSystem, num_columns: int) -> float:
        is_drawn = isinstance(system, KernelSystem) or system.stationary is not None
        exact = 0 if is_drawn else system.n
        return (self._batch_size(system.num_data) + exact) / system.num_data

    def _batch_size(self, n: int) -> int:
        return min(n, self.batch_size or 512)

    def init(self, system: LinearSystem, start: Start[None]) -> SGDState:
        initial = start.initial
        data = system.regression(start.rhs, start.targets)
        # With inducing points: the weighted misfit of zero weights, which bounds the solution's
        misfit = start.gap
        if data.projected_noise is not None:
            misfit = data.rhs * _relative_precision(system, len(data.rhs)).sqrt()
        norms = system.rows.norm(misfit)
        is_sample = system.rows.norm(data.noise_draw) > 0
        step = torch.full_like(norms, self.step_size)
        if self.sample_step_size is not None:
            step[is_sample] = self.sample_step_size
        return SGDState(
            point=initial.clone(),
            V=torch.zeros_like(initial),
            average=initial.clone(),
            step=step,
            monitor=EpochMonitor.start(initial, norms, system.num_data),
            count=0,
            rhs=data.rhs,
            noise_draw=data.noise_draw,
            projected_noise=data.projected_noise,
            first_step=step,
        )

    def step(
        self, system: LinearSystem, rhs: Tensor, state: SGDState, generator: torch.Generator
    ) -> SGDState:
        index, monitor = state.monitor.deal(self._batch_size(system.num_data), generator)
        point = state.point
        V = state.V
        average = state.average
        gradient, gap = self.gradient(
            system, state.rhs, state.noise_draw, point, index, generator, state.projected_noise
        )
        gradient.mul_((self.clip / system.rows.norm(gradient)).clamp_max(1.0) * state.step)
        V.mul_(self.momentum).sub_(gradient)
        A = point.sub_(gradient)  # point = A + momentum · V, so that this is A + V
        count = state.count + 1
        average.lerp_(A, max(1.0 / count, self.averaging))
        A.add_(V, alpha=self.momentum)  # the next point
        return replace(state, count=count, monitor=monitor.observe(gap)).end_step()

    def gradient(
        self,
        system: LinearSystem,
        rhs: Tensor,
        noise_draw: Tensor,
        point: Tensor,
        index: Tensor,
        generator: torch.Generator,
        projected_noise: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the stochastic gradient g (n, s) at ``point``, and the residuals of the batch's
        rows (b, s).

        Those are (K + Σ) a − B, or, with inducing points, the misfits K_XZ a − f − ε in units of
        the noise over its mean.

        Args:
            rhs, noise_draw: (num_data, s) f + ε and ε.
            projected_noise: (m, s) K_ZX Σ⁻¹ ε with inducing points.
        """
        relative = _relative_precision(system, len(rhs))
        by_rows = projected_noise is None and system.stationary is None
        if by_rows:
            gradient = torch.zeros_like(point)
        elif projected_noise is None:
            gradient = self._prior_product(
                system, system.mean_noise * point - relative * noise_draw, generator
            )
        else:
            gradient = self._prior_product(system, system.mean_noise * point, generator).sub_(
                system.mean_noise * projected_noise
            )
        gradient.div_(system.num_data)
        rows = system.kernel_rows(index)
        precision = system.rows.take(relative, index)
        positions, held = system.rows.owned(index)
        misfit = rows @ point
        misfit[positions] -= rhs[held] - noise_draw[held]
        misfit = system.rows.sum(misfit)
        if projected_noise is None:
            own = torch.zeros_like(misfit)
            own[positions] = (system.mean_noise / precision[positions]) * point[held]
            own[positions] -= noise_draw[held]
            gap = misfit + system.rows.sum(own)
        else:
            gap = (misfit - noise_draw[index]) * precision.sqrt()
        fitted = gap if by_rows else misfit
        gradient.addmm_(rows.T, fitted * precision, alpha=1.0 / len(index))
        return gradient, gap

    def _prior_product(self, system: LinearSystem, M: Tensor, generator: torch.Generator) -> Tensor:
        """Return Φ Φᵀ M for fresh features, unbiased for K M; K M itself for kernels without."""
        if system.stationary is None:
            return system.kernel_matmul(M)
        X = system.points
        features = RandomFeatures.draw(
            system.stationary,
            X.shape[1],
            self.num_features,
            weighted=False,
            generator=generator,
            like=X,
        )(X)
        return features @ system.rows.sum(features.T @ M)

    def estimate(self, system: LinearSystem, state: SGDState) -> Tensor:
        return state.estimate(system.rows)

    def residual_norm(self, system: LinearSystem, state: SGDState) -> Tensor | None:
        is_new = state.monitor.has_judged and state.projected_noise is None
        return state.monitor.residual if is_new else None

    def describe(self, state: SGDState) -> str:
        return state.describe(state.first_step)


def _relative_precision(system: LinearSystem, num_rows: int) -> Tensor:
    """Return σ² Σ⁻¹ of the data held here, (num_rows, 1), σ² the mean noise."""
    return (system.mean_noise / system.noise).expand(num_rows).unsqueeze(1)
