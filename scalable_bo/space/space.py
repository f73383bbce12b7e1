"""Search spaces: named parameters and constraints, and their encoding on the unit cube.

Users work with dicts of values, with DataFrames, or with ``X (n, d)`` in their own units, one
column a parameter that varies in the order of ``Space.names``, a choice standing by its position.
Surrogates work on ``U (n, e)`` in [0, 1]^e: a column for each number, and one for each choice of a
``Categorical`` without an order. A parameter that is not active at a point is left out of its dict,
NaN in ``X``, and stands in the middle of its columns in ``U``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from scalable_bo.space.constraints import (
    CallableConstraint,
    LinearConstraint,
    allows,
    narrowed,
    read_constraint,
    write_constraint,
)
from scalable_bo.space.parameters import (
    Categorical,
    Float,
    Int,
    Parameter,
    is_fixed_value,
    read_parameter,
)
from scalable_bo.space.plain_values import Choice, plain, read_fields, refusal
from scalable_bo.space.quoting import quote
from surrogates import checks

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Categorical", "Float", "Int", "LinearConstraint", "Space"]

VERSION = 1  # of the tables that ``to_dict`` writes


class Space:
    """Named parameters, and constraints between them.

    Args:
        *constraints: a ``LinearConstraint``, or a function that maps a dict of parameters to
            whether it may be evaluated: ``True`` or ``False``, or a number ≥ 0 where it may.
        **params: the parameters by name, in the order of the columns of ``X``; a string, number or
            boolean in place of a ``Float``, ``Int`` or ``Categorical`` is a fixed value, which
            every point gets.
    Raises:
        TypeError: if a parameter or a constraint is of another kind.
        ValueError: if no parameter varies, or a constraint or ``active_if`` does not fit them.

    ```python
    space = Space(
        lr=Float(1e-5, 1.0, log=True),
        width=Int(8, 512, step=8),
        optimizer=Categorical(["adam", "sgd"]),
        momentum=Float(0.0, 0.99, active_if={"optimizer": "sgd"}),
        epochs=10,
    )
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
                    f" got {quote(param)}. Try `Float(low, high)`."
                )
        if not self.params:
            raise ValueError(
                "A `Space` needs at least one parameter that varies, got fixed"
                f" {', '.join(self.fixed)}."
            )
        self._conditions = _conditions(self.params)
        for constraint in constraints:
            if isinstance(constraint, LinearConstraint):
                constraint.check(self.params)
            elif not callable(constraint):
                raise TypeError(
                    "A constraint must be a `LinearConstraint` or a function of a dict, got"
                    f" {quote(constraint)}."
                )
        self.constraints = constraints
        linear = [one for one in constraints if isinstance(one, LinearConstraint)]
        # The unit cube has columns for these
        self._axes = narrowed(self.params, linear) if linear else self.params

    @classmethod
    def from_bounds(cls, bounds: Any) -> Space:
        """Make a space of parameters ``x0, x1, …`` from BoTorch's bounds.

        Args:
            bounds: (2, d): the lower bounds, then the upper ones (tensor, array or nested list); or
                SciPy's list of d tuples, each of a lower and an upper bound.
        Raises:
            TypeError: if these are no numbers, such as a dict of parameters.
            ValueError: if the shape is another, a bound is not finite, or a lower bound is not
                below its upper bound.
        """
        if isinstance(bounds, Mapping):
            raise TypeError(
                "`space` must be a `Space`, or bounds, got a dict. Use"
                f" `Space({', '.join(f'{name}=...' for name in list(bounds)[:3])})`."
            )
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
        params = {n: read_parameter(value, f"{place}.{n}") for n, value in found.parameters.items()}
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
    def choices(self) -> dict[str, Sequence[Choice]]:
        """The values that each categorical parameter can take, and each fixed value, by name."""
        varying = {n: p.choices for n, p in self.params.items() if isinstance(p, Categorical)}
        return varying | {name: (value,) for name, value in self.fixed.items()}

    @property
    def dim(self) -> int:
        """The number of parameters that vary, d."""
        return len(self.params)

    @property
    def encoded_dim(self) -> int:
        """The number of columns on the unit cube, e."""
        return sum(param.num_columns for param in self.params.values())

    @property
    def encoding(self) -> str:
        """The ranges on the unit cube that are narrower than the parameters', as text."""
        pairs = self._axes.items()
        return "; ".join(f"{name} as {one}" for name, one in pairs if one != self.params[name])

    @property
    def cube(self) -> Tensor:
        """The corners (2, e) of the unit cube."""
        return torch.tensor([[0.0], [1.0]], dtype=torch.float64, device="cpu").repeat(
            1, self.encoded_dim
        )

    @property
    def num_points(self) -> float:
        """How many points there are at most; infinite with a ``Float`` without steps."""
        return math.prod(param.num_values for param in self.params.values())

    @property
    def bounds(self) -> Tensor:
        """(2, d) lower and upper bounds in the user's units, float64."""
        pairs = [(param.low, param.high) for param in self.params.values()]
        return torch.tensor(pairs, dtype=torch.float64, device="cpu").T.contiguous()

    def normalize(self, X: Any) -> Tensor:
        """Map points in the user's units to the unit cube.

        Args:
            X: (n, d), columns in the order of ``names``.
        Returns:
            (n, e) in [0, 1], float64; beyond it where linear constraints rule a number out.
        Raises:
            ValueError: if the shape is another, or a value is not finite or none of its
                parameter's.
        """
        return self._encoded(self.check(X, observed=True))

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
        return self._settled(self._decoded(points)) + 0.0  # −0 and 0 are one point

    def round(self, U: Tensor) -> Tensor:
        """Move points of the unit cube (..., e) to where they would be evaluated:
        integers to their middle, choices to 0 and 1, what is not active to the middle.
        """
        X = self._settled(self._decoded(U))
        placed = self._encoded(X)
        real = [param.num_values == math.inf for param in self.params.values()]
        widths = [param.num_columns for param in self.params.values()]
        # A real number stays where it is, to the last bit, where it is active
        stays = torch.tensor(real, device=U.device) & ~X.isnan()
        stays = stays.repeat_interleave(torch.tensor(widths, device=U.device), dim=-1)
        return torch.where(stays, U, placed)

    def check(
        self,
        X: Any,
        first_row: int = 0,
        *,
        observed: bool = False,
        cells: pd.DataFrame | None = None,
    ) -> Tensor:
        """Return points in the user's units, (n, d), as float64, NaN for parameters that are not
        active, whatever stood there; constraints are not asked for.

        Args:
            first_row: what the first row is called in an error.
            observed: whether values between steps will do, too: something was observed there.
            cells: what errors show in place of the numbers, by the names of the parameters.
        Raises:
            ValueError: if the shape is another, or a value is not finite or none of its
                parameter's.
        """
        points = _points(X, "X", self.dim)
        found = [
            param.observed(numbers) if observed else (param.placed(numbers), param.valid(numbers))
            for param, numbers in zip(self.params.values(), points.unbind(1), strict=True)
        ]
        placed = self._settled(torch.stack([numbers for numbers, _ in found], dim=1))
        active = self._active(placed)
        for column, (name, param) in enumerate(self.params.items()):
            wrong = active[:, column] & ~found[column][1]
            if wrong.any():
                row = int(wrong.nonzero()[0])
                received = points[row, column].item() if cells is None else cells[name].iloc[row]
                raise refusal(name, param.requirement, received, first_row + row)
        return placed + 0.0

    def read(self, params: Any, *, observed: bool = False) -> Tensor:
        """Return a dict, dicts or points as points (n, d) in the user's units, as :meth:`check`."""
        points = [params] if isinstance(params, Mapping) else params
        if isinstance(points, Sequence) and all(isinstance(one, Mapping) for one in points):
            return self.from_dicts(points, observed=observed)
        return self.check(points, observed=observed)

    def read_feasible(self, params: Any, argument: str) -> Tensor:
        """Return points as :meth:`read` does, all of which meet the constraints.

        Args:
            argument: what they are called in an error.
        Raises:
            ValueError: if a point lies outside the space or breaks a constraint.
        """
        X = self.read(params)
        if not (feasible := self.feasible(X)).all():
            row = int((~feasible).nonzero()[0])
            raise ValueError(
                f"`{argument}` must meet the constraints of the space, got"
                f" {self.to_dicts(X[[row]])[0]!r} in row {row}. Change it or leave it out."
            )
        return X

    def completed(self, X: Tensor) -> Tensor:
        """Return points (n, d) with the middle of its range for each parameter that is active and
        has no value, such as after a change of one that it depends on.
        """
        middle = self._decoded(X.new_full((1, self.encoded_dim), 0.5))
        return self._settled(torch.where(X.isnan(), middle, X))

    def feasible(self, X: Tensor) -> Tensor:
        """Return which points (n, d) in the user's units meet the constraints, (n,).

        Raises:
            TypeError: if a constraint returns neither a boolean nor a number.
        """
        met = torch.ones(len(X), dtype=torch.bool, device="cpu")
        for constraint in self.constraints:
            if isinstance(constraint, LinearConstraint):
                met &= constraint.met(X, self.params)
            else:
                rows = met.nonzero().flatten()
                met[rows] = torch.tensor(
                    [allows(constraint, params) for params in self.to_dicts(X[rows])],
                    dtype=torch.bool,
                    device="cpu",
                )
        return met

    def without_a_point(self) -> ValueError:
        """Return the error to raise where no point is found that meets the constraints."""
        return ValueError(
            "The constraints of the space must leave a point to evaluate, and none was found that"
            f" meets {' and '.join(self._rules())}. Relax them, or widen the parameters' ranges."
        )

    def enumerate(self) -> Tensor:
        """Return all feasible points of a finite space, (n, d), in the user's units."""
        axes = [param.values() for param in self.params.values()]
        X = self._settled(torch.cartesian_prod(*axes).reshape(-1, self.dim))
        if self._conditions:  # points that differ in what is not active are one
            X = X.nan_to_num(math.inf).unique(dim=0)
            X = torch.where(X.isinf(), math.nan, X)
        return X[self.feasible(X)]

    def encode(self, params: Sequence[Mapping[str, Any]]) -> Tensor:
        """Map dicts of values to points of the unit cube, (n, e) float64.

        Raises:
            ValueError: if a dict lacks a parameter, has another, or a value is not its parameter's.
        """
        return self.normalize(self.from_dicts(params))

    def decode(self, U: Tensor) -> list[dict[str, Any]]:
        """Map points of the unit cube, (n, e), to dicts of values."""
        return self.to_dicts(self.unnormalize(U))

    def from_dicts(
        self, params: Sequence[Mapping[str, Any]], first_row: int = 0, *, observed: bool = False
    ) -> Tensor:
        """Map dicts of values to points in the user's units, (n, d) float64. Fixed parameters may
        be left out.

        Args:
            first_row: what the first dict is called in an error.
            observed: as in :meth:`check`.
        Raises:
            ValueError: if a dict lacks a parameter, has another, or a value is not its parameter's.
        """
        numbers = self._numbers_of(params, first_row)
        X = self.check(numbers, first_row, observed=observed)
        if (extra := X.isnan() & ~numbers.isnan()).any():
            row, column = extra.nonzero()[0].tolist()
            name = self.names[column]
            raise ValueError(
                f"`{name}` must be left out where it is not active, got"
                f" {params[row][name]!r} in row {first_row + row}; it is active if"
                f" {self.params[name].active_if}."
            )
        return X

    def to_dicts(self, X: Tensor) -> list[dict[str, Any]]:
        """Name the columns of points in the user's units: (n, d) to n dicts, without what is not
        active and with the fixed values.
        """
        items = list(self.params.items())
        return [
            {
                name: param.value(number)
                for (name, param), number in zip(items, row, strict=True)
                if not math.isnan(number)
            }
            | self.fixed
            for row in _points(X, "X", self.dim).tolist()
        ]

    def from_frame(
        self, frame: pd.DataFrame, first_row: int = 0, *, observed: bool = False
    ) -> Tensor:
        """Read points in the user's units, (n, d) float64, from the columns of a DataFrame by their
        names; others are left alone.

        Args:
            frame: a column for each parameter that varies; those of fixed ones may be left out.
            first_row: what the first row is called in an error.
            observed: as in :meth:`check`.
        Raises:
            ValueError: if a column is missing, or a value is none of its parameter's.
            ImportError: if pandas is not installed; the extra ``tables`` brings it.
        """
        from scalable_bo.space.frames import read_frame  # which needs an extra

        points = read_frame(self.params, self.fixed, frame, first_row)
        return self.check(points, first_row, observed=observed, cells=frame)

    def to_frame(self, X: Tensor) -> pd.DataFrame:
        """Name the columns of points in the user's units, (n, d), in a DataFrame,
        with the fixed values.

        Raises:
            ImportError: if pandas is not installed; the extra ``tables`` brings it.
        """
        from scalable_bo.space.frames import write_frame  # which needs an extra

        return write_frame(self.params, self.fixed, _points(X, "X", self.dim).numpy())

    def acquisition_options(self, like: Tensor) -> dict[str, Any]:
        """Return what the acquisition must know beyond bounds, for points like ``like``."""
        options: dict[str, Any] = {}
        real = all(param.num_values == math.inf for param in self.params.values())
        if not real or self._conditions:
            options["rounding"] = self.round
        for constraint in self.constraints:
            if isinstance(constraint, LinearConstraint):
                for name, rows in constraint.on_unit_cube(self._axes, like=like).items():
                    options[name] = [*options.get(name, []), *rows]
        if self.constraints:
            options["accepts"] = lambda U: self.feasible(self.unnormalize(U)).to(U.device)
        return options

    def __repr__(self) -> str:
        params = [f"{name}={value!r}" for name, value in (self.params | self.fixed).items()]
        return f"Space({', '.join([*self._rules(), *params])})"

    def _rules(self) -> list[str]:
        return [
            str(c) if isinstance(c, LinearConstraint) else getattr(c, "__name__", repr(c))
            for c in self.constraints
        ]

    def _numbers_of(self, points: Sequence[Mapping[str, Any]], first_row: int) -> Tensor:
        """Return the numbers (n, d) of dicts, NaN for parameters that they leave out."""
        always = {name for name, param in self.params.items() if param.active_if is None}
        rows = [[math.nan] * self.dim for _ in points]  # whose cells are set without a tensor each
        for row, values in enumerate(points):
            given = set(values) if isinstance(values, Mapping) else set()
            if not always <= given - set(self.fixed) <= set(self.params):
                names = [name if isinstance(name, str) else quote(name) for name in given]
                raise ValueError(
                    f"Each dict must have exactly the parameters {', '.join(self.params)}, got "
                    f"{', '.join(names) or 'none'} in row {first_row + row}."
                )
            for name, fixed in self.fixed.items():
                if values.get(name, fixed) != fixed:
                    raise ValueError(
                        f"`{name}` is fixed to {fixed!r}, got {quote(values[name])} in row"
                        f" {first_row + row}. Leave the row out."
                    )
            for column, (name, param) in enumerate(self.params.items()):
                if name in values:
                    rows[row][column] = number = param.number(values[name])
                    if math.isnan(number):
                        raise refusal(name, param.requirement, values[name], first_row + row)
        return torch.tensor(rows, dtype=torch.float64, device="cpu").reshape(-1, self.dim)

    def _active(self, X: Tensor) -> Tensor:
        """Return which entries of points X (..., d) are of active parameters, (..., d)."""
        active = torch.ones_like(X, dtype=torch.bool)
        for column, others in self._conditions.items():
            for other, numbers in others.items():
                active[..., column] &= torch.isin(X[..., other], numbers.to(X))
                active[..., column] &= active[..., other]
        return active

    def _settled(self, X: Tensor) -> Tensor:
        """Return points (..., d) with NaN where a parameter is not active."""
        return torch.where(self._active(X), X, math.nan) if self._conditions else X

    def _decoded(self, U: Tensor) -> Tensor:
        """Return the nearest points (..., d) to U (..., e), those of all parameters."""
        parts = U.split([param.num_columns for param in self.params.values()], dim=-1)
        columns = []
        for param, part in zip(self._axes.values(), parts, strict=True):
            columns.append(param.unnormalize(part if param.num_columns > 1 else part.squeeze(-1)))
        return torch.stack(columns, dim=-1)

    def _encoded(self, X: Tensor) -> Tensor:
        """Return the columns (..., e) of points (..., d), NaN where a parameter is not active."""
        columns = []
        for column, param in enumerate(self._axes.values()):
            numbers = X[..., column]
            missing = numbers.isnan()
            units = param.normalize(torch.where(missing, param.low, numbers))
            if param.num_columns == 1:
                columns.append(torch.where(missing, 0.5, units).unsqueeze(-1))
            else:
                columns.append(torch.where(missing.unsqueeze(-1), 1.0 / units.shape[-1], units))
        return torch.cat(columns, dim=-1)


@dataclass(frozen=True)
class _Tables:
    version: Any
    parameters: Mapping[str, Any]
    constraints: Sequence[Any] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.parameters, Mapping) or not isinstance(self.constraints, Sequence):
            raise TypeError(
                "`parameters` must be a table and `constraints` a list of tables, got"
                f" {quote(self.parameters)} and {quote(self.constraints)}."
            )


def _conditions(params: Mapping[str, Parameter]) -> dict[int, dict[int, Tensor]]:
    """Return, by the column of a parameter that is not always active, the columns of those that it
    depends on with the numbers of the values that it asks of them; raise ValueError if it depends
    on anything but a value of a parameter before it that has finitely many.
    """
    names = list(params)
    wanted = {}
    for column, (name, param) in enumerate(params.items()):
        for other in param.active_if or {}:
            if other not in names[:column] or math.isinf(params[other].num_values):
                raise ValueError(
                    f"`active_if` of `{name}` must name parameters before it that have"
                    f" choices, integers or steps, got `{other}`."
                )
        if param.active_if is not None:
            wanted[column] = {
                names.index(other): _numbers(name, params[other], values)
                for other, values in param.active_if.items()
            }
    return wanted


def _numbers(name: str, param: Parameter, values: Any) -> Tensor:
    """Return the numbers of the values of ``param`` on which ``name`` depends."""
    numbers = torch.tensor(
        [param.number(value) for value in values], dtype=torch.float64, device="cpu"
    )
    valid = param.valid(numbers)
    if not valid.all():
        received = values[int((~valid).nonzero()[0])]
        raise ValueError(
            f"`active_if` of `{name}` must ask for what is {param.requirement}, got {received!r}."
        )
    return param.placed(numbers)


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
        if not isinstance(values, Tensor | Sequence):
            values = checks.of_array(values)
        return torch.as_tensor(values, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(
            f"`{argument}` must be an array of numbers, got {type(values).__name__} ({error})."
        ) from error
