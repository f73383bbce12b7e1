"""Search spaces: named parameters with bounds, and their encoding on the unit cube.

Surrogates work on ``U (n, d)`` in [0, 1]^d, one column a parameter; users work with dicts of values, or with
``X (n, d)`` in their own units, columns in the order of ``Space.names``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from surrogates import checks


@dataclass(frozen=True)
class Float:
    """A real parameter between ``low`` and ``high``, both included.

    Args:
        low: smallest value, in the user's units.
        high: largest value, above ``low``.
        log: spread the search evenly over log(value); needs ``low`` > 0.
    Raises:
        TypeError: if a bound is not a number.
        ValueError: if a bound is not finite, the bounds are reversed or equal, or ``log`` is set with ``low`` <= 0.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        for name, bound in (("low", self.low), ("high", self.high)):
            if isinstance(bound, bool) or not isinstance(bound, (int, float)):
                raise TypeError(f"`{name}` must be a number, got {bound!r}.")
            if not math.isfinite(bound):
                raise ValueError(f"`{name}` must be finite, got {bound}.")
        if self.low >= self.high:
            raise ValueError(f"`low` must be below `high`, got low = {self.low} and high = {self.high}. Swap them?")
        if self.log and self.low <= 0:
            raise ValueError(f"`low` must be positive with `log=True`, got {self.low}. Raise it or use `log=False`.")

    def normalize(self, values: Tensor) -> Tensor:
        """Map values in [``low``, ``high``] to [0, 1]."""
        low, high = self.low, self.high
        if self.log:
            low, high, values = math.log(low), math.log(high), values.log()
        return ((values - low) / (high - low)).clamp(0.0, 1.0)

    def unnormalize(self, units: Tensor) -> Tensor:
        """Map numbers in [0, 1] to values in [``low``, ``high``]; the ends to the bounds themselves, whatever the rounding."""
        if self.log:
            values = torch.exp(math.log(self.low) + units * (math.log(self.high) - math.log(self.low)))
        else:
            values = self.low + units * (self.high - self.low)
        values = torch.where(units == 1, self.high, torch.where(units == 0, self.low, values))
        return values.clamp(self.low, self.high)


class Space:
    """A box of named parameters.

    Args:
        **params: the parameters by name, in the order of the columns of ``X``.
    Raises:
        TypeError: if a parameter is not a ``Float``.
        ValueError: if there is none.

    ```python
    space = Space(lr=Float(1e-5, 1.0, log=True), dropout=Float(0.0, 0.5))
    ```
    """

    def __init__(self, **params: Float) -> None:
        if not params:
            raise ValueError("A `Space` needs at least one parameter, got none. Try `Space(x=Float(0, 1))`.")
        for name, param in params.items():
            if not isinstance(param, Float):
                raise TypeError(f"Parameter `{name}` must be a `Float`, got {param!r}. Try `Float(low, high)`.")
        self.params: dict[str, Float] = dict(params)

    @classmethod
    def from_bounds(cls, bounds: Any) -> Space:
        """Make a space of parameters ``x0, x1, …`` from BoTorch's bounds.

        Args:
            bounds: (2, d): the lower bounds, then the upper ones (tensor, array or nested list).
        Raises:
            ValueError: if the shape is another, a bound is not finite, or a lower bound is not below its upper bound.
        """
        box = checks.box(_float64(bounds, "bounds"))
        return cls(**{f"x{column}": Float(low, high) for column, (low, high) in enumerate(box.T.tolist())})

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names, in the order of the columns."""
        return tuple(self.params)

    @property
    def dim(self) -> int:
        """The number of parameters, d."""
        return len(self.params)

    @property
    def bounds(self) -> Tensor:
        """(2, d) lower and upper bounds in the user's units, float64."""
        pairs = [(param.low, param.high) for param in self.params.values()]
        return torch.tensor(pairs, dtype=torch.float64).T.contiguous()

    def normalize(self, X: Any) -> Tensor:
        """Map points in the user's units to the unit cube.

        Args:
            X: (n, d), columns in the order of ``names``.
        Returns:
            (n, d) in [0, 1], float64.
        Raises:
            ValueError: if the shape is another, or a value is not finite or lies outside its bounds.
        """
        points = self._points(X, "X")
        for column, (name, param) in enumerate(self.params.items()):
            inside = (points[:, column] >= param.low) & (points[:, column] <= param.high)  # False for NaN
            if not inside.all():
                row = int((~inside).nonzero()[0])
                raise ValueError(
                    f"`{name}` must be between {param.low} and {param.high}, got {points[row, column].item()} in row "
                    f"{row}. Widen the space or leave the row out."
                )
        return torch.stack([p.normalize(points[:, j]) for j, p in enumerate(self.params.values())], dim=1)

    def unnormalize(self, U: Tensor) -> Tensor:
        """Map points of the unit cube, (n, d), to the user's units, (n, d) float64 within the bounds.

        Raises:
            ValueError: if the shape is another, or a value lies outside [0, 1].
        """
        points = self._points(U, "U")
        if not ((points >= 0) & (points <= 1)).all():
            raise ValueError(f"`U` must lie in [0, 1], got values from {points.min():g} to {points.max():g}.")
        return torch.stack([p.unnormalize(points[:, j]) for j, p in enumerate(self.params.values())], dim=1)

    def encode(self, params: Sequence[Mapping[str, float]]) -> Tensor:
        """Map dicts of values to points of the unit cube, (n, d) float64.

        Raises:
            ValueError: if a dict lacks a parameter, has another one, or a value lies outside its bounds.
        """
        for row, values in enumerate(params):
            if set(values) != set(self.params):
                raise ValueError(
                    f"Each dict must have exactly the parameters {', '.join(self.names)}, got "
                    f"{', '.join(map(str, values)) or 'none'} in row {row}."
                )
        rows = [[float(values[name]) for name in self.names] for values in params]
        return self.normalize(torch.tensor(rows, dtype=torch.float64).reshape(-1, self.dim))

    def decode(self, U: Tensor) -> list[dict[str, float]]:
        """Map points of the unit cube, (n, d), to dicts of values within the bounds."""
        return self.to_dicts(self.unnormalize(U))

    def to_dicts(self, X: Tensor) -> list[dict[str, float]]:
        """Name the columns of points in the user's units: (n, d) to n dicts."""
        return [dict(zip(self.names, row, strict=True)) for row in self._points(X, "X").tolist()]

    def __repr__(self) -> str:
        return f"Space({', '.join(f'{name}={param!r}' for name, param in self.params.items())})"

    def _points(self, points: Any, argument: str) -> Tensor:
        tensor = _float64(points, argument)
        if tensor.ndim != 2 or tensor.shape[1] != self.dim:
            raise ValueError(f"`{argument}` must have shape (n, {self.dim}), one column a parameter, got {tuple(tensor.shape)}.")
        return tensor


def _float64(values: Any, argument: str) -> Tensor:
    try:
        return torch.as_tensor(values, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError) as error:
        raise TypeError(f"`{argument}` must be an array of numbers, got {type(values).__name__} ({error}).") from error
