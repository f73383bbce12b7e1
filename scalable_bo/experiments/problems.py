"""Objectives to try an optimiser on: draws from a Gaussian process prior, and BoTorch's standard
test functions.

All of them are to be *maximised*, within ``bounds (2, d)``.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, final

import torch
from botorch.test_functions import synthetic
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates import PriorPaths, checks

TEST_FUNCTIONS = (
    *("Ackley", "Beale", "Branin", "Bukin", "Cosine8", "DixonPrice", "DropWave", "EggHolder"),
    *("Griewank", "Hartmann", "HolderTable", "Levy", "Michalewicz", "Powell", "Rastrigin"),
    *("Rosenbrock", "Shekel", "SixHumpCamel", "StyblinskiTang", "ThreeHumpCamel"),
)


class Problem(ABC):
    """An objective to maximise: ``problem(X)`` is its value, ``problem.observe(X, generator)`` a
    noisy measurement.

    Attributes:
        bounds: (2, d) lower and upper bounds.
        noise: variance of the observation noise.
        optimal_value: the largest value within the bounds, where it is known.
    """

    def __init__(self, bounds: Tensor, noise: float, optimal_value: float | None = None) -> None:
        if not (math.isfinite(noise) and noise >= 0):
            raise ValueError(f"`noise` must be a finite variance >= 0, got {noise}.")
        self.bounds = bounds
        self.noise = noise
        self.optimal_value = optimal_value

    @property
    def dim(self) -> int:
        """The number of inputs, d."""
        return self.bounds.shape[1]

    def __call__(self, X: Tensor) -> Tensor:
        """Return the noiseless values (n,) at ``X`` (n, d).

        Raises:
            ValueError: if ``X`` has another shape or lies outside ``bounds``.
        """
        if X.ndim != 2 or X.shape[1] != self.dim:
            raise ValueError(f"`X` must have shape (n, {self.dim}), got {tuple(X.shape)}.")
        low, high = self.bounds.to(X)
        if not ((low <= X) & (high >= X)).all():
            raise ValueError(
                "`X` must lie within the problem's `bounds`. Clamp it, or scale it from the unit"
                " cube."
            )
        return self._evaluate(X)

    def observe(self, X: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return the values at ``X`` (n, d) plus independent noise N(0, ``noise``), (n,).

        Args:
            X: (n, d) points within ``bounds``.
            generator: a CPU generator for the noise; ``None`` uses a fresh one.
        """
        return self.add_noise(self(X), generator)

    def add_noise(self, values: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return noiseless ``values`` (n,) plus independent noise N(0, ``noise``), (n,)."""
        draws = torch.randn(
            len(values), generator=generator or _fresh_generator(), dtype=values.dtype
        )
        return values + math.sqrt(self.noise) * draws.to(values.device)

    @abstractmethod
    def _evaluate(self, X: Tensor) -> Tensor: ...


@final
class GPPrior(Problem):
    """A function drawn from a zero-mean Gaussian process prior on [0, 1]^d, by random features.

    The features are the target's own: a surrogate that draws others does not have the target in the
    span of its prior paths. To share them, as the published benchmarks do, give
    ``target.share_features(…)`` to the surrogate's ``paths``.

    Args:
        kernel: a GPyTorch kernel that has random features (RBF or Matérn, ARD, inside
            ``ScaleKernel``).
        dim: number of inputs, d.
        noise: variance of the observation noise.
        num_features: random features of the draw, an even number.
        generator: a CPU generator; ``None`` uses a fresh one.
        dtype: of the features; points and values have it, too.
        device: where the values are computed.
    Raises:
        ValueError: if ``dim``, ``noise`` or ``num_features`` is out of range.
    """

    def __init__(
        self,
        kernel: Kernel,
        dim: int,
        *,
        noise: float = 1e-6,
        num_features: int = 5000,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        dim = checks.positive_int("dim", dim)
        bounds = torch.tensor([[0.0], [1.0]], dtype=dtype, device=device).repeat(1, dim)
        super().__init__(bounds, noise)
        self.prior = PriorPaths.draw(
            kernel,
            dim,
            num_paths=1,
            num_features=num_features,
            weighted=False,  # as published targets are drawn
            generator=generator or _fresh_generator(),
            like=bounds,
        )

    def share_features(
        self, num_paths: int, generator: torch.Generator | None = None
    ) -> PriorPaths:
        """Draw ``num_paths`` functions of the prior, with the target's features and new weights."""
        ((features, weights),) = self.prior.draws
        shape = (features.num_features, num_paths)
        fresh = torch.randn(shape, generator=generator or _fresh_generator(), dtype=weights.dtype)
        return PriorPaths(((features, fresh.to(weights.device)),))

    def _evaluate(self, X: Tensor) -> Tensor:
        with torch.no_grad():
            return self.prior(X)[0]


@final
class TestFunction(Problem):
    """One of BoTorch's synthetic functions, negated where the literature minimises it;
    see ``test_function``.

    Attributes:
        optimizers: (k, d) where the largest value is, where BoTorch knows it.
    """

    __test__ = False  # pytest would take the name for a test class

    def __init__(self, function: synthetic.SyntheticTestFunction, noise: float) -> None:
        self._sign = -1.0 if function.is_minimization_problem else 1.0
        self._function = function
        try:
            optimal_value = self._sign * function.optimal_value
        except NotImplementedError:  # known in some dimensions only
            optimal_value = None
        super().__init__(torch.as_tensor(function.bounds), noise, optimal_value)
        self.optimizers: Tensor | None = None
        with suppress(AttributeError, NotImplementedError):
            self.optimizers = torch.as_tensor(function.optimizers)

    def _evaluate(self, X: Tensor) -> Tensor:
        low, high = self.bounds
        # A bound rounded to float32 may lie outside in float64
        inside = X.to(self.bounds).clamp(low, high)
        with torch.no_grad():
            return (self._sign * self._function.evaluate_true(inside)).to(X)


def test_function(name: str, dim: int | None = None, noise: float = 0.0) -> TestFunction:
    """Make one of BoTorch's standard test functions, as a problem to maximise on its native bounds.

    Args:
        name: one of ``TEST_FUNCTIONS``; case, underscores and hyphens do not matter.
        dim: number of inputs; ``None`` takes BoTorch's default. Some have one only.
        noise: variance of the observation noise.
    Raises:
        ValueError: if the name is unknown or the function does not exist in ``dim`` dimensions.
    """
    names = {known.lower(): known for known in TEST_FUNCTIONS}
    key = name.lower().replace("_", "").replace("-", "")
    cls: Any = getattr(synthetic, names.get(key) or checks.one_of("name", name, TEST_FUNCTIONS))
    if dim is None:
        return TestFunction(cls(), noise)
    dim = checks.positive_int("dim", dim)
    if "dim" not in inspect.signature(cls).parameters:
        if dim != cls.dim:
            raise ValueError(f"`dim` must be {cls.dim} for {names[key]}, got {dim}. Leave it out.")
        return TestFunction(cls(), noise)
    try:
        return TestFunction(cls(dim=dim), noise)
    except ValueError as error:
        raise ValueError(f"`dim` = {dim} is not possible for {names[key]}: {error}") from error


def _fresh_generator() -> torch.Generator:
    generator = torch.Generator()
    generator.seed()
    return generator
