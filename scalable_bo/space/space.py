"""Search spaces: named parameters and constraints, and their encoding on the unit cube.

Users work with dicts of values, with DataFrames, or with ``X (n, d)`` in their own units, one
column a parameter that varies in the order of ``Space.names``, a choice standing by its position.
Surrogates work on ``U (n, e)`` in [0, 1]^e: a column for each number, and one for each choice of a
``Categorical``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pandas as pd
import torch
from torch import Tensor

from scalable_bo.space.constraints import (
    CallableConstraint,
    LinearConstraint,
    allows,
    read_constraint,
    write_constraint,
)
from scalable_bo.space.frames import read_frame, write_frame
from scalable_bo.space.parameters import (
    Categorical,
    Choice,
    Float,
    Int,
    Parameter,
    is_fixed_value,
    plain,
    read_fields,
    read_parameter,
    refusal,
)
from surrogates import checks

__all__ = ["Categorical", "Float", "Int", "LinearConstraint", "Space"]

VERSION = 1  # of the tables that ``to_dict`` writes


class Space:
    """Named parameters, and constraints between them.

    Args:
        *constraints: a ``LinearConstraint``, or a function that maps a dict of parameters to
            whether it may be evaluated: ``True`` or ``False``, or a number, at least 0 where it
            may.
        **params: the parameters by name, in the order of the columns of ``X``; a string, number or
            boolean in place of a ``Float``, ``Int`` or ``Categorical`` is a fixed value, which
            every point gets.
    Raises:
        TypeError: if a parameter or a constraint is of another kind.
        ValueError: if no parameter varies, or a constraint does not fit the parameters.

    ```python
    optimizer = Categorical(["adam", "sgd"])
    space = Space(lr=Float(1e-5, 1.0, log=True), width=Int(8, 512), optimizer=optimizer, epochs=10)
    ```
    """

    def __init__(
        self, /, *constraints: LinearConstraint | CallableConstraint, **params: Parameter | Choice
    ) -> None:
        if not params:
            raise ValueError(
                "A `Space` needs at least one parameter, got none. Try `Space(x=Float(0, 1))`."
            )
        self.params: dict[str, Parameter] = {}
        self.fixed: dict[str, Choice] = {}
        for name, param in params.items():
            if isinstance(param, Parameter):
                self.params[name] = param
            elif is_fixed_value(param):
                self.fixed[name] = param
            else:
                raise TypeError(
                    f"Parameter `{name}` must be a `Float`, `Int`, `Categorical` or a fixed value,"
                    f" got {param!r}. Try `Float(low, high)`."
                )
        if not self.params:
            raise ValueError(
                "A `Space` needs at least one parameter that varies, got fixed"
                f" {', '.join(self.fixed)}."
            )
        for constraint in constraints:
            if isinstance(constraint, LinearConstraint):
                constraint.check(self.params)
            elif not callable(constraint):
                raise TypeError(
                    "A constraint must be a `LinearConstraint` or a function of a dict, got"
                    f" {constraint!r}."
                )
        self.constraints = constraints

    @classmethod
    def from_bounds(cls, bounds: Any) -> Space:
        """Make a space of parameters ``x0, x1, …`` from BoTorch's bounds.

        Args:
            bounds: (2, d): the lower bounds, then the upper ones (tensor, array or nested list); or
                SciPy's list of d tuples, each of a lower and an upper bound.
        Raises:
            ValueError: if the shape is another, a bound is not finite, or a lower bound is not
                below its upper bound.
        """
        if isinstance(bounds, Sequence) and all(
            isinstance(pair, tuple) and len(pair) == 2 for pair in bounds
        ):
            bounds = list(zip(*bounds, strict=True))
        box = checks.box(_float64(bounds, "bounds"))
        return cls(
            **{f"x{column}": Float(low, high) for column, (low, high) in enumerate(box.T.tolist())}
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the space as tables of plain values, which JSON and TOML can hold.

        Functions among the constraints stand by their module and name, "module:function".
        """
        varying = {name: param.to_dict() for name, param in self.params.items()}
        return {
            "version": VERSION,
            "parameters": varying | {name: plain(value) for name, value in self.fixed.items()},
            "constraints": [write_constraint(constraint) for constraint in self.constraints],
        }

    @classmethod
    def from_dict(
        cls,
        tables: Mapping[str, Any],
        load: Callable[[str, str], CallableConstraint] | None = None,
        place: str = "parameters",
    ) -> Self:
        """Return the space that ``to_dict`` or a configuration has written down.

        Args:
            tables: ``version``, ``parameters`` by name and, if there are any, ``constraints``.
            load: returns the function of a constraint, given its place and "module:function";
                ``None`` to refuse functions. Nothing is imported here.
            place: what errors call the parameters.
        Raises:
            TypeError, ValueError: if the tables are none of a space, or of a newer version.
        """
        found = read_fields(_Tables, tables, "space")
        if found.version != VERSION:
            raise ValueError(
                f"The space must have the `version` {VERSION}, got {found.version!r}. Install the"
                " scalable_bo that wrote it."
            )
        params: dict[str, Any] = {}
        for name, value in found.parameters.items():
            params[name] = read_parameter(value, f"{place}.{name}")
        constraints = [
            read_constraint(table, f"constraints.{number}", load)
            for number, table in enumerate(found.constraints)
        ]
        return cls(*constraints, **params)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters that vary, in the order of the columns."""
        return tuple(self.params)

    @property
    def dim(self) -> int:
        """The number of parameters that vary, d."""
        return len(self.params)

    @property
    def encoded_dim(self) -> int:
        """The number of columns on the unit cube, e."""
        return sum(param.num_columns for param in self.params.values())

    @property
    def num_points(self) -> float:
        """How many points there are, constraints aside; infinite with a ``Float``."""
        return math.prod(param.num_values for param in self.params.values())

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
            (n, e) in [0, 1], float64.
        Raises:
            ValueError: if the shape is another, or a value is not finite or none of its
                parameter's.
        """
        points = self.check(X)
        columns = [
            param.normalize(points[:, j]).reshape(len(points), -1)
            for j, param in enumerate(self.params.values())
        ]
        return torch.cat(columns, dim=1)

    def unnormalize(self, U: Tensor) -> Tensor:
        """Map points of the unit cube, (n, e), to the nearest points in the user's units, (n, d)
        float64 within the bounds.

        Raises:
            ValueError: if the shape is another, or a value lies outside [0, 1].
        """
        points = _points(U, "U", self.encoded_dim)
        if not ((points >= 0) & (points <= 1)).all():
            raise ValueError(
                f"`U` must lie in [0, 1], got values from {points.min():g} to {points.max():g}."
            )
        # −0 and 0 are one point
        return (
            torch.stack([param.unnormalize(part) for param, part in self._split(points)], dim=1)
            + 0.0
        )

    def round(self, U: Tensor) -> Tensor:
        """Move points of the unit cube (..., e) to where they would be evaluated:
        integers to their middle, choices to 0 and 1.
        """
        parts = []
        for param, part in self._split(U):
            placed = part if isinstance(param, Float) else param.normalize(param.unnormalize(part))
            parts.append(placed if isinstance(param, Categorical) else placed.unsqueeze(-1))
        return torch.cat(parts, dim=-1)

    def check(self, X: Any) -> Tensor:
        """Return points in the user's units, (n, d), as float64; constraints are not asked for.

        Raises:
            ValueError: if the shape is another, or a value is not finite or none of its
                parameter's.
        """
        points = _points(X, "X", self.dim)
        for column, (name, param) in enumerate(self.params.items()):
            valid = param.valid(points[:, column])
            if not valid.all():
                row = int((~valid).nonzero()[0])
                raise refusal(name, param, points[row, column].item(), row)
        return points + 0.0

    def feasible(self, X: Tensor) -> Tensor:
        """Return which points (n, d) in the user's units meet the constraints, (n,).

        Raises:
            TypeError: if a constraint returns neither a boolean nor a number.
        """
        met = torch.ones(len(X), dtype=torch.bool)
        for constraint in self.constraints:
            if isinstance(constraint, LinearConstraint):
                met &= constraint.met(X, self.params)
            else:
                rows = met.nonzero().flatten()
                met[rows] = torch.tensor(
                    [allows(constraint, params) for params in self.to_dicts(X[rows])],
                    dtype=torch.bool,
                )
        return met

    def enumerate(self) -> Tensor:
        """Return all points of a finite space that meet the constraints,
        (n, d) in the user's units.
        """
        axes = [
            torch.arange(param.low, param.high + 1, dtype=torch.float64)
            for param in self.params.values()
        ]
        X = torch.cartesian_prod(*axes).reshape(-1, self.dim)
        return X[self.feasible(X)]

    def encode(self, params: Sequence[Mapping[str, Any]]) -> Tensor:
        """Map dicts of values to points of the unit cube, (n, e) float64.

        Raises:
            ValueError: if a dict lacks a parameter, has another one, or a value is none of its
                parameter's.
        """
        return self.normalize(self.from_dicts(params))

    def decode(self, U: Tensor) -> list[dict[str, Any]]:
        """Map points of the unit cube, (n, e), to dicts of values."""
        return self.to_dicts(self.unnormalize(U))

    def from_dicts(self, params: Sequence[Mapping[str, Any]]) -> Tensor:
        """Map dicts of values to points in the user's units, (n, d) float64. Fixed parameters may
        be left out.

        Raises:
            ValueError: if a dict lacks a parameter, has another one, or a value is none of its
                parameter's.
        """
        numbers = torch.empty(len(params), self.dim, dtype=torch.float64)
        for row, values in enumerate(params):
            if set(values) - set(self.fixed) != set(self.params):
                raise ValueError(
                    f"Each dict must have exactly the parameters {', '.join(self.names)}, got "
                    f"{', '.join(map(str, values)) or 'none'} in row {row}."
                )
            for name, fixed in self.fixed.items():
                if values.get(name, fixed) != fixed:
                    raise ValueError(
                        f"`{name}` is fixed to {fixed!r}, got {values[name]!r} in row {row}. Leave"
                        " the row out."
                    )
            for column, (name, param) in enumerate(self.params.items()):
                numbers[row, column] = number = param.number(values[name])
                if math.isnan(number):
                    raise refusal(name, param, values[name], row)
        return self.check(numbers)

    def to_dicts(self, X: Tensor) -> list[dict[str, Any]]:
        """Name the columns of points in the user's units: (n, d) to n dicts,
        with the fixed values.
        """
        items = list(self.params.items())
        return [
            {name: param.value(number) for (name, param), number in zip(items, row, strict=True)}
            | self.fixed
            for row in _points(X, "X", self.dim).tolist()
        ]

    def from_frame(self, frame: pd.DataFrame, first_row: int = 0) -> Tensor:
        """Read points in the user's units, (n, d) float64, from the columns of a DataFrame by their
        names; others are left alone.

        Args:
            frame: a column for each parameter that varies; those of fixed ones may be left out.
            first_row: what the first row is called in an error.
        Raises:
            ValueError: if a column is missing, or a value is none of its parameter's.
        """
        return read_frame(self.params, self.fixed, frame, first_row)

    def to_frame(self, X: Tensor) -> pd.DataFrame:
        """Name the columns of points in the user's units, (n, d), in a DataFrame,
        with the fixed values.
        """
        return write_frame(self.params, self.fixed, _points(X, "X", self.dim).numpy())

    def acquisition_options(self, like: Tensor) -> dict[str, Any]:
        """Return what ``ParallelThompsonSampling`` must know of the space beyond its bounds,
        for points of the dtype of ``like``.
        """
        options: dict[str, Any] = {}
        if not all(isinstance(param, Float) for param in self.params.values()):
            options["rounding"] = self.round
        for constraint in self.constraints:
            if isinstance(constraint, LinearConstraint):
                for name, rows in constraint.on_unit_cube(self.params, like=like).items():
                    options[name] = [*options.get(name, []), *rows]
        if self.constraints:
            options["accepts"] = lambda U: self.feasible(self.unnormalize(U)).to(U.device)
        return options

    def __repr__(self) -> str:
        parts = [
            str(c) if isinstance(c, LinearConstraint) else getattr(c, "__name__", repr(c))
            for c in self.constraints
        ]
        parts += [f"{name}={value!r}" for name, value in (self.params | self.fixed).items()]
        return f"Space({', '.join(parts)})"

    def _split(self, U: Tensor) -> list[tuple[Parameter, Tensor]]:
        """Return each parameter with its column of U (..., e), (...),
        or a choice's columns (..., number of choices).
        """
        parts = U.split([param.num_columns for param in self.params.values()], dim=-1)
        return [
            (param, part if isinstance(param, Categorical) else part.squeeze(-1))
            for param, part in zip(self.params.values(), parts, strict=True)
        ]


@dataclass(frozen=True)
class _Tables:
    """The tables of a space."""

    version: Any
    parameters: Mapping[str, Any]
    constraints: Sequence[Any] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.parameters, Mapping) or not isinstance(self.constraints, Sequence):
            raise TypeError(
                "`parameters` must be a table and `constraints` a list of tables, got"
                f" {self.parameters!r:.80} and {self.constraints!r:.80}."
            )


def _points(points: Any, argument: str, num_columns: int) -> Tensor:
    tensor = _float64(points, argument)
    if tensor.ndim != 2 or tensor.shape[1] != num_columns:
        raise ValueError(
            f"`{argument}` must have shape (n, {num_columns}), one column a parameter, got"
            f" {tuple(tensor.shape)}."
        )
    return tensor


def _float64(values: Any, argument: str) -> Tensor:
    try:
        return torch.as_tensor(values, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"`{argument}` must be an array of numbers, got {type(values).__name__} ({error})."
        ) from error
