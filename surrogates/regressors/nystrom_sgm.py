"""Kernel regression by stochastic gradient steps in a Nyström subspace: the number of passes over
the data is the regulariser.

Notation: X (n, d) inputs, y (n,) targets, Z (m, d) centres chosen among X, K_nm = k(X, Z), K_mm =
k(Z, Z) of rank r, R (m, r) with R Rᵀ = K_mm⁺, features Φ = K_nm R (n, r), κ² = max k(x, x), step
size η, batch size b. One pass is n / b steps.
"""

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from gpytorch.kernels import Kernel, RBFKernel
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from surrogates import checks, memory
from surrogates.callers import warn
from surrogates.operators.kernel_matrix import kernel_operator
from surrogates.operators.tiles import spans, tile_side
from surrogates.regressors.nystrom_steps import (
    Rows,
    Schedule,
    approximate_leverage_scores,
    descend,
    flattening,
    inverse_root,
    regime_schedule,
)
from surrogates.restoring import restored_on_failure
from surrogates.solvers.blocks import draw_without_replacement

SUBSETS = ("uniform", "leverage")
REGIMES = ("I", "II", "III", "IV")
CURVATURE_SAMPLE = 2000  # rows of Φ from which the largest eigenvalue of ΦᵀΦ/n is estimated
LARGEST_BATCH = 2 * CURVATURE_SAMPLE  # of those steps, which flatten what such a sample shows


@dataclass(eq=False, repr=False)
class NystromSGM(RegressorMixin, BaseEstimator):
    """Nyström stochastic gradient regression, f(·) = k(·, Z) R c, as a scikit-learn estimator.

    Each step draws b data j, uniformly and independently, and goes down the gradient of their
    squared error in the span of the centres:

        c ← c − (η/b) Rᵀ Σ_j (K_mj K_mjᵀ R c − y_j K_mj),   c = 0 at first.

    There is no penalty: stopping early regularises. Without a ``regime``, a step size or number of
    passes that is ``None`` is chosen on held-out data: every step size of a grid runs on the rest
    of the data, with the same indices j, until the held-out error has not become smaller for as
    many passes again, and the step size and pass of the smallest error are taken, with which all
    data are then fitted. Where ``max_passes`` come first, a :class:`ConvergenceWarning` says that
    the error was still falling. The grid begins at half the longest stable step, 1/(λ + κ²/b) with
    λ the largest eigenvalue of ΦᵀΦ/n. Targets are taken as they are: centre those whose mean is far
    from 0. Arithmetic is in float64 on the CPU.

    Args:
        kernel: a GPyTorch kernel without batch shape, or the lengthscale ℓ of
            ``exp(−‖x − z‖² / 2ℓ²)``; ``None`` for ℓ² = d Var(X) / 2.
        num_centers: m, at most the number of data that are not held out; ``None`` for
            ``n^(1/p) log n``, p = 2ζ + γ + 1, or by leverage for ``n^(γ/p) log n``.
        subset: ``"uniform"``, or ``"leverage"`` to draw centres in proportion to
            :func:`approximate_leverage_scores`.
        leverage_regularization: λ of the scores; ``None`` for ``n^(−1/p)`` of the largest
            eigenvalue of K / n.
        regime: ``"I"`` to ``"IV"`` for the step size, batch size and passes of
            :func:`regime_schedule`; those given explicitly stand.
        source_exponent: ζ in [0, 1/2], the smoothness of the target; 0 assumes nothing.
        capacity_exponent: γ in [0, 1], where the effective dimension is O(λ^−γ); 1 assumes nothing.
        step_size: η. Up to 2/κ² is stable for any batch.
        batch_size: b, at most the number of data that are not held out; ``None`` for its
            square root; if preconditioned, 32 times that, up to three quarters of them and 4000.
            All of them give the batch gradient.
        num_passes: passes over the data.
        max_passes: passes that are tried where ``num_passes`` is chosen.
        validation_fraction: of the data, held out where something is chosen.
        refit: fit all data with what was chosen; else the fit without the held-out data is kept.
        preconditioned: run in coordinates in which the largest eigenvalues of ΦᵀΦ/n are the same,
            see :func:`flattening`: many times fewer passes, and much closer to kernel ridge
            regression, for smooth kernels. A ``regime``, and a given step size, are those of the
            paper: without it.
        random_state: seed of the held-out set, the centres and the batches.
        memory_budget: bytes that the features Φ may take; rows beyond it are evaluated for every
            batch. ``None`` for 2 GiB.

    Attributes:
        centers_: Z (m, d).
        coefficients_: R c (m,) after ``num_passes_`` passes.
        coefficient_path_: (passes run, m), the same after every pass; those of a refit.
        step_size_, batch_size_, num_passes_: as given, scheduled or chosen.
        step_sizes_: those that were tried.
        validation_error_: (passes run,), the mean squared error on the held-out data after every
            pass; ``None`` if none were held out.
        kernel_: the GPyTorch kernel.

    Warns:
        ConvergenceWarning: when fitting, if the held-out error still fell at ``max_passes``.
    Raises:
        TypeError, ValueError: when fitting, if a parameter is out of range, or the step size so
            large that the iteration diverges.
        MemoryError: when fitting, if the m × m matrices do not fit in free memory.
    References:
        Lin, Rosasco (2017), "Optimal Rates for Learning with Nyström Stochastic Gradient Methods",
        eq. 2.3, Corollary 3.3, Section 5.9.
        Differs: (1) with b = n a step takes every datum once; (2) predictions are not truncated at
            max |y|; (3) centres are distinct; (4) preconditioned, where the step size is chosen.
    """

    kernel: Kernel | float | None = None
    num_centers: int | None = None
    _: KW_ONLY
    subset: str = "uniform"
    leverage_regularization: float | None = None
    regime: str | None = None
    source_exponent: float = 0.0
    capacity_exponent: float = 1.0
    step_size: float | None = None
    batch_size: int | None = None
    num_passes: int | None = None
    max_passes: int = 1000
    validation_fraction: float = 0.1
    refit: bool = True
    random_state: int | np.random.RandomState | None = None
    memory_budget: int | None = None
    preconditioned: bool = True

    @restored_on_failure
    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to X (n, d) and y (n,)."""
        inputs, outputs = validate_data(
            self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2
        )
        self._check_parameters()
        generator = torch.Generator().manual_seed(
            int(check_random_state(self.random_state).randint(2**31 - 1))
        )
        order = torch.randperm(len(inputs), generator=generator, device="cpu")
        held_out, kept = order.tensor_split([self._num_held_out(len(inputs))])
        order = torch.cat([kept, held_out])
        everything = checks.of_array(inputs)[order]
        targets = checks.of_array(np.asarray(outputs, np.float64))[order]
        scale = targets.abs().max().item() or 1.0
        targets /= scale  # so that no square overflows or vanishes
        n = len(kept)
        data = everything[:n]

        self.kernel_ = self._kernel(data)
        centers = data[self._choose_centers(data, generator)]
        root = inverse_root(kernel_operator(self.kernel_, centers).to_dense())
        self.batch_size_, passes = self._schedule(data)
        if self._is_flattened:
            sample = kernel_operator(self.kernel_, data[:CURVATURE_SAMPLE], centers).to_dense()
            root = root @ flattening(sample @ root, self.batch_size_)
        rows = self._features(everything, centers, root)
        step_sizes = self._step_sizes(everything, rows)
        held_rows = rows(slice(n, len(everything)))
        search = self.num_passes is None and len(held_out) > 0
        path = []
        errors: list[Tensor] = []
        settings = {"batch_size": self.batch_size_, "num_passes": passes, "generator": generator}
        fitted = (data, targets[:n])
        for c in self._descend(rows, fitted, step_sizes, **settings):
            path.append(c)
            errors.append((held_rows @ c - targets[n:].unsqueeze(1)).square().mean(0))
            # As many passes again, and 20, that have brought no smaller error
            if search and len(errors) >= 2 * _last_improvement(errors) + 20:
                break
        else:
            if search:
                self._warn_of_the_cap(errors)
        self.step_sizes_ = tuple(step_sizes.tolist())
        chosen = self._choose(errors, search, scale)
        if self.refit and len(held_out) > 0:
            batch_size = len(everything) if self.batch_size_ == n else self.batch_size_
            settings |= {"num_passes": self.num_passes_, "batch_size": batch_size}
            step_sizes = step_sizes[chosen : chosen + 1]
            fitted = (everything, targets)
            path = list(self._descend(rows, fitted, step_sizes, **settings))
            chosen = 0
        weights = torch.stack([root @ c[:, chosen] for c in path])
        self._refuse_divergence(centers, weights[self.num_passes_ - 1], *fitted)
        self.coefficient_path_ = (scale * weights).numpy()
        self.coefficients_ = self.coefficient_path_[self.num_passes_ - 1].copy()
        self.centers_ = centers.numpy()
        return self

    def _descend(
        self, rows: Rows, data: tuple[Tensor, Tensor], step_sizes: Tensor, **settings: Any
    ) -> Iterator[Tensor]:
        """Yield the coefficients (r, s) after every pass over ``data``, which come first in Φ."""
        X, targets = data
        start = torch.zeros(
            rows(slice(1)).shape[1], len(step_sizes), dtype=torch.float64, device="cpu"
        )
        for c in descend(rows, targets, start, step_sizes, **settings):
            if not c.isfinite().all():
                raise self._divergence(X)
            yield c

    def _refuse_divergence(self, Z: Tensor, weights: Tensor, X: Tensor, targets: Tensor) -> None:
        """Raise if a given step size led further from the targets than the batches' noise does."""
        if self.step_size is None or self.step_size * self._kernel_bound(X) <= 2.0:
            return
        fit = kernel_operator(self.kernel_, X, Z, memory_budget=0) @ weights[:, None]
        # At half the longest stable step, that noise adds on average at most what c = 0 leaves
        if not (fit[:, 0] - targets).square().mean() <= 2.0 * targets.square().mean():
            raise self._divergence(X)

    def _divergence(self, X: Tensor) -> ValueError:
        return ValueError(
            f"`step_size` must be below 2/κ² = {2.0 / self._kernel_bound(X):.3g} to be sure to"
            f" converge, got {self.step_size}, with which the iteration diverges. Reduce it."
        )

    def _choose(self, errors: list[Tensor], search: bool, scale: float) -> int:
        table = torch.stack(errors)  # (passes, step sizes), NaN where nothing is held out
        self.num_passes_ = len(table)
        chosen = int(table[-1].argmin())
        if search:
            self.num_passes_ = int(table.argmin()) // len(errors[0]) + 1
            chosen = int(table.argmin()) % len(errors[0])
        self.step_size_ = self.step_sizes_[chosen]
        held_out = not table.isnan().all()
        self.validation_error_ = (table[:, chosen] * scale * scale).numpy() if held_out else None
        return chosen

    def _warn_of_the_cap(self, errors: list[Tensor]) -> None:
        if len(errors) - _last_improvement(errors) <= 0.1 * len(errors):
            warn(
                f"The held-out error was still falling after `max_passes` = {len(errors)} passes:"
                " the fit is smoother than the data ask for. Raise `max_passes`, or choose a"
                " shorter lengthscale.",
                ConvergenceWarning,
            )

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the predictions (q,) at X (q, d)."""
        check_is_fitted(self)
        return self._combine(X, self.coefficients_[:, None])[:, 0]

    def staged_predict(self, X: ArrayLike) -> np.ndarray:
        """Return the predictions (passes run, q) at X (q, d) after every pass; without a refit,
        beyond the chosen one too.
        """
        check_is_fitted(self)
        return self._combine(X, self.coefficient_path_.T).T

    def _combine(self, X: ArrayLike, weights: np.ndarray) -> np.ndarray:
        inputs = checks.of_array(validate_data(self, X, dtype=np.float64, reset=False))
        centers = checks.of_array(self.centers_)
        tiled = kernel_operator(self.kernel_, inputs, centers, memory_budget=0)
        return (tiled @ checks.of_array(weights)).numpy()

    def _num_held_out(self, n: int) -> int:
        if self.regime is not None or None not in (self.step_size, self.num_passes):
            return 0
        return min(math.ceil(self.validation_fraction * n), n - 1)

    @property
    def _is_flattened(self) -> bool:
        return self.preconditioned and self.regime is None and self.step_size is None

    def _kernel(self, X: Tensor) -> Kernel:
        if isinstance(self.kernel, Kernel):
            return deepcopy(self.kernel).to(X).requires_grad_(False)
        kernel = RBFKernel().to(X).requires_grad_(False)
        # Any lengthscale will do for one point or a constant
        largest = X.abs().max().item() or 1.0
        spread = largest * (X / largest).std(correction=0).item() or 1.0
        lengthscale = (
            math.sqrt(0.5 * X.shape[1]) * spread if self.kernel is None else float(self.kernel)
        )
        kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64, device="cpu")
        return kernel

    def _kernel_bound(self, X: Tensor) -> float:
        return max(
            self.kernel_(X[part], diag=True).max().item()
            for part in spans(len(X), tile_side(X.device))
        )

    def _schedule(self, X: Tensor) -> tuple[int, int]:
        n = len(X)
        batch_size = max(1, round(math.sqrt(n)))
        if self._is_flattened:
            # Smaller ones leave more noise and flatten less, all data flatten what is noise, too
            largest = min(math.ceil(0.75 * n), LARGEST_BATCH)
            batch_size = min(round(32.0 * math.sqrt(n)), largest)
        num_passes = self.max_passes
        if self.regime is not None:
            plan = self._plan(X)
            batch_size = plan.batch_size
            num_passes = max(1, round(plan.num_iterations * plan.batch_size / n))
        batch_size = batch_size if self.batch_size is None else int(self.batch_size)
        if batch_size > n:
            raise ValueError(
                f"`batch_size` must be at most the {n} data that are not held out, got"
                f" {batch_size}. Reduce it."
            )
        return batch_size, int(num_passes if self.num_passes is None else self.num_passes)

    def _step_sizes(self, X: Tensor, rows: Rows) -> Tensor:
        """Return the step sizes to try, for the data X, those held out last."""
        if self.step_size is not None:
            return torch.tensor([float(self.step_size)], dtype=torch.float64, device="cpu")
        if self.regime is not None:
            return torch.tensor([self._plan(X).step_size], dtype=torch.float64, device="cpu")
        n = len(X)
        # The last rows: the first are flatter than others, since it is these that are flattened
        sample = rows(slice(max(0, n - CURVATURE_SAMPLE), n))
        # With replacement, a batch's mean of φφᵀ exceeds ΦᵀΦ/n by at most κ²/b in expectation.
        curvature = torch.linalg.matrix_norm(sample, 2).square() / len(sample)
        if self.batch_size_ < n - self._num_held_out(n):
            curvature = curvature + sample.square().sum(1).max() / self.batch_size_
        # Shares of half the longest step at which the iteration is stable
        return torch.tensor([1.0, 0.25, 0.0625], dtype=torch.float64, device="cpu") / curvature

    def _plan(self, X: Tensor) -> Schedule:
        assert self.regime is not None
        return regime_schedule(
            self.regime, len(X), self.source_exponent, self.capacity_exponent, self._kernel_bound(X)
        )

    def _choose_centers(self, X: Tensor, generator: torch.Generator) -> Tensor:
        n = len(X)
        order = torch.randperm(n, generator=generator, device="cpu")
        uniform_rate = n ** (1.0 / (2.0 * self.source_exponent + self.capacity_exponent + 1.0))
        rate = uniform_rate if self.subset == "uniform" else uniform_rate**self.capacity_exponent
        given = self.num_centers
        m = min(n, max(1, round(rate * math.log(n)))) if given is None else int(given)
        if m > n:
            raise ValueError(
                f"`num_centers` must be at most the {n} data that are not held out, got {m}."
                " Reduce it."
            )
        memory.require(
            memory.squares_bytes(m**2),
            X.device,
            f"A Nyström subspace of {m} centres",
            "Reduce `num_centers`.",
        )
        if self.subset == "uniform":
            return order[:m]
        # As many as uniform centres would have to be
        sketch = order[: max(m, round(uniform_rate * math.log(n)))]
        regularization = self.leverage_regularization
        if regularization is None:
            block = kernel_operator(self.kernel_, X[sketch]).to_dense()
            regularization = torch.linalg.eigvalsh(block)[-1].item() / (len(sketch) * uniform_rate)
        scores = approximate_leverage_scores(self.kernel_, X, sketch, regularization)
        return draw_without_replacement(scores, m, generator)

    def _features(self, X: Tensor, centers: Tensor, root: Tensor) -> Rows:
        """Return what gives rows of Φ: the matrix if it fits the budget, else a function."""
        budget = (
            memory.default_budget(X.device) if self.memory_budget is None else self.memory_budget
        )
        operator = kernel_operator(self.kernel_, X, centers, memory_budget=0)
        if 8 * len(X) * root.shape[1] > budget:
            return lambda index: operator.rows(index).to_dense() @ root
        return (operator @ root).__getitem__

    def _check_parameters(self) -> None:
        checks.one_of("subset", self.subset, SUBSETS)
        if self.regime is not None and self.regime not in REGIMES:
            raise ValueError(
                f"`regime` must be None or one of {', '.join(map(repr, REGIMES))}, got"
                f" {self.regime!r}."
            )
        for name in ("num_centers", "batch_size", "num_passes", "max_passes"):
            checks.optional(checks.positive_int, name, getattr(self, name))
        for name in ("step_size", "leverage_regularization"):
            checks.optional(checks.positive_float, name, getattr(self, name))
        for name in ("source_exponent", "capacity_exponent", "validation_fraction"):
            checks.fraction(name, getattr(self, name))
        if self.source_exponent > 0.5:
            raise ValueError(
                "`source_exponent` must be at most 1/2, where the method saturates, got"
                f" {self.source_exponent}."
            )
        if not 0.0 < self.validation_fraction < 1.0:
            raise ValueError(
                "`validation_fraction` must be above 0 and below 1, got"
                f" {self.validation_fraction}."
            )
        checks.optional(checks.integer, "memory_budget", self.memory_budget, 0)
        if not isinstance(self.preconditioned, bool | np.bool_):
            raise TypeError(
                "`preconditioned` must be True or False, got"
                f" {type(self.preconditioned).__name__} {self.preconditioned!r}."
            )
        if isinstance(self.kernel, Kernel):
            if self.kernel.batch_shape:
                raise ValueError(
                    f"`kernel` must have no batch shape, got {tuple(self.kernel.batch_shape)}."
                )
        elif self.kernel is not None:
            checks.positive_float("kernel", self.kernel)


def _last_improvement(errors: list[Tensor], share: float = 1e-2) -> int:
    """Return the pass, from 1, after which no error of any step size was smaller by a ``share``."""
    lowest = math.inf
    last = 0
    for number, error in enumerate(errors, 1):
        if error.min().item() < (1.0 - share) * lowest:
            lowest = error.min().item()
            last = number
    return last
