"""Constraints between named parameters.

Notation: ``X (n, d)`` in the user's units, ``U (n, e)`` on the unit cube.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import numpy as np
import torch
from botorch.optim.parameter_constraints import get_constraint_tolerance
from torch import Tensor

from scalable_bo.space.parameters import Categorical, Float, Int, Parameter
from scalable_bo.space.plain_values import finite, read_fields
from scalable_bo.space.quoting import quote

CallableConstraint = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class LinearConstraint:
    """``at_least`` ≤ Σ coefficient · value ≤ ``at_most``, to within 1e-8 of the range of the
    sum; an equality to within 1e-6.

    Args:
        coefficients: by the name of the parameter, a ``Float`` or an ``Int``.
        at_least: lower limit, ``None`` for none.
        at_most: upper limit, ``None`` for none; equal limits are an equality.
    Raises:
        TypeError: if something is not a number.
        ValueError: if there is no coefficient other than 0, no limit, or the limits are reversed.

    ```python
    mix = LinearConstraint({"steel": 1, "copper": 1}, at_most=1)
    Space(mix, steel=Float(0, 1), copper=Float(0, 1))
    ```
    """

    coefficients: Mapping[str, float]
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.coefficients, Mapping):
            raise TypeError(
                f"`coefficients` must be a dict of numbers by name, got {quote(self.coefficients)}."
            )
        named = [(f"coefficients[{name!r}]", value) for name, value in self.coefficients.items()]
        for name, value in (*named, ("at_least", self.at_least), ("at_most", self.at_most)):
            if value is None and not name.startswith("coefficients"):
                continue
            finite(name, value, " Leave it out?")
        if not any(self.coefficients.values()):
            raise ValueError(
                f"`coefficients` must have one that is not 0, got {dict(self.coefficients)!r}."
            )
        if self.at_least is None and self.at_most is None:
            raise ValueError("`at_least` or `at_most` must be given, got neither.")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(
                f"`at_least` must not exceed `at_most`, got {self.at_least} and {self.at_most}."
                " Swap them?"
            )
        object.__setattr__(self, "coefficients", dict(self.coefficients))

    def to_dict(self) -> dict[str, Any]:
        """Return the constraint as a table of plain values, limits that are not there left out."""
        limits = {"at_least": self.at_least, "at_most": self.at_most}
        return {
            "coefficients": {name: float(value) for name, value in self.coefficients.items()},
            **{name: float(limit) for name, limit in limits.items() if limit is not None},
        }

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], place: str = "constraint") -> Self:
        """Return the constraint of a table; ``place`` is what errors call it."""
        return read_fields(cls, table, place)

    @property
    def is_equality(self) -> bool:
        """Whether both limits are the same."""
        return self.at_least == self.at_most

    @property
    def _limits(self) -> tuple[float, float]:
        low = -math.inf if self.at_least is None else self.at_least
        return low, math.inf if self.at_most is None else self.at_most

    def check(self, params: Mapping[str, Parameter]) -> None:
        """Require that the constraint can be met by ``params``.

        Raises:
            TypeError, ValueError: if a name is unknown or not a number's, or an equality has a
                parameter that cannot follow it, or no point of the ranges meets it.
        """
        for name in self.coefficients:
            if name not in params:
                raise ValueError(
                    f"A constraint must be on parameters that vary, {', '.join(params)}, got"
                    f" `{name}`."
                )
            if isinstance(params[name], Categorical):
                raise TypeError(
                    f"A `LinearConstraint` must be on numbers, got the categorical `{name}`. Use a"
                    " function instead."
                )
            if params[name].active_if is not None:
                raise ValueError(
                    f"A `LinearConstraint` must be on parameters that are always active, got"
                    f" `{name}`. Use a function instead."
                )
            if self.is_equality and params[name] != Float(params[name].low, params[name].high):
                raise ValueError(
                    f"An equality must be on `Float`s without `log`, got `{name}`. Compute one"
                    " parameter from the others."
                )
        ends = [
            (c * params[name].low, c * params[name].high) for name, c in self.coefficients.items()
        ]
        lowest, highest = sum(map(min, ends)), sum(map(max, ends))
        slack = self.slack(params)
        if lowest - slack > self._limits[1] or highest + slack < self._limits[0]:
            raise ValueError(
                f"A `LinearConstraint` must leave a point of the space, got {self}, where the sum"
                f" is {lowest:g} to {highest:g}. Relax it, or widen the ranges of its parameters."
            )

    def met(self, X: Tensor, params: Mapping[str, Parameter]) -> Tensor:
        """Return which points (n, d) meet the constraint, (n,)."""
        columns = list(params)
        total = X.new_zeros(len(X))
        for name, coefficient in self.coefficients.items():
            total = total + coefficient * X[:, columns.index(name)]
        slack = self.slack(params)
        low, high = self._limits
        return (total >= low - slack) & (total <= high + slack)

    def slack(
        self, params: Mapping[str, Parameter], dtype: torch.dtype | None = torch.float64
    ) -> float:
        """Return by how much two ways of adding the same numbers may differ in ``dtype``; for an
        equality always in float32, since a search in float32 must be able to meet it. ``None`` is
        for what float64 rounds, without BoTorch's tolerance.
        """
        if self.is_equality:
            dtype = torch.float32
        largest = varies = 0.0
        for name, c in self.coefficients.items():
            low, high = params[name].low, params[name].high
            largest += abs(c) * max(abs(low), abs(high))
            varies += abs(c) * (high - low)
        rounding = len(self.coefficients) * torch.finfo(torch.float64).eps * largest
        return rounding + (0.0 if dtype is None else get_constraint_tolerance(dtype) * varies)

    def on_unit_cube(
        self, params: Mapping[str, Parameter], *, like: Tensor
    ) -> dict[str, list[Any]]:
        """Return the constraint in the acquisition's arguments, for points like ``like``: linear,
        or nonlinear if a parameter is ``log``.

        Inequalities are wider by half of what the arithmetic rounds, so that it loses no feasible
        integer. Those of real numbers keep their limits in float64 and are narrower in float32, so
        that no point found breaks them.
        """
        margin, rounding = (0.5 * self.slack(params, of) for of in (like.dtype, None))
        is_real = any(
            params[name].num_values == math.inf for name, c in self.coefficients.items() if c
        )
        if is_real:
            low, high = self._limits
            margin = -min(margin, 0.25 * (high - low)) if like.dtype == torch.float32 else rounding
        # Σ sign · coefficient · value ≥ sign · limit − margin, of an equality = limit
        signed = [(1.0, self.at_least), (-1.0, self.at_most)]
        if self.is_equality:
            signed, margin = signed[:1], 0.0
        limits = [(sign, sign * limit) for sign, limit in signed if limit is not None]
        widths = (param.num_columns for param in params.values())
        starts = dict(zip(params, accumulate(widths, initial=0), strict=False))
        # Lines of numbers alone, as check() has refused categorical parameters
        terms = [(starts[n], params[n].line, c) for n, c in self.coefficients.items() if c]  # type: ignore[union-attr]
        if any(param.log for _, param, _ in terms):
            found = [_at_least(terms, sign, least - margin) for sign, least in limits]
            return {"nonlinear_inequality_constraints": found}
        indices = torch.tensor([column for column, _, _ in terms], device="cpu")
        slopes = like.new_tensor([c * (param.high - param.low) for _, param, c in terms])
        offset = sum(c * param.low for _, param, c in terms)
        rows = [(indices, s * slopes, least - s * offset - margin) for s, least in limits]
        return {"equality_constraints" if self.is_equality else "inequality_constraints": rows}

    def __str__(self) -> str:
        total = " + ".join(
            f"{coefficient:g} · {name}" for name, coefficient in self.coefficients.items()
        )
        if self.is_equality:
            return f"{total} = {self.at_least:g}"
        low = "" if self.at_least is None else f"{self.at_least:g} ≤ "
        return low + total + ("" if self.at_most is None else f" ≤ {self.at_most:g}")


def narrowed(
    params: Mapping[str, Parameter], constraints: Sequence[LinearConstraint]
) -> dict[str, Parameter]:
    """Return the parameters with the ranges that constraints leave. Each constraint narrows the
    ranges of its parameters by those of the others; this is repeated, at most once per constraint.

    A range stays what it is on logarithmic scales and grids of other steps than 1, and where the
    constraint's slack or a single integer is all that would be left.
    """
    found, before = dict(params), dict[str, Parameter]()
    for number, constraint in enumerate([one for _ in constraints for one in constraints]):
        if number % len(constraints) == 0:
            if found == before:
                break
            before = dict(found)
        low, high = constraint._limits
        slack = constraint.slack(params)
        factors = {name: c for name, c in constraint.coefficients.items() if c}
        terms = {n: sorted((c * found[n].low, c * found[n].high)) for n, c in factors.items()}
        least, most = (math.fsum(ends) for ends in zip(*terms.values(), strict=True))
        for name, c in factors.items():
            param, (own_least, own_most) = found[name], terms[name]
            left = (low - slack - most + own_most) / c, (high + slack - least + own_least) / c
            lower, upper = max(param.low, min(left)), min(param.high, max(left))
            kind: Any = type(param)
            if kind is Int:
                lower, upper = math.ceil(lower), math.floor(upper)
            is_linear = param == kind(param.low, param.high)
            if is_linear and (upper - lower) * abs(c) > 4.0 * slack:  # which widens both ends
                found[name] = kind(lower, upper)
    return found


def write_constraint(constraint: LinearConstraint | CallableConstraint) -> dict[str, Any]:
    """Return a constraint as a table; of a function, its module and its name."""
    if isinstance(constraint, LinearConstraint):
        return constraint.to_dict()
    module = getattr(constraint, "__module__", "")
    return {"function": f"{module}:{function_name(constraint)}"}


def function_name(function: CallableConstraint) -> str:
    """Return what a function is known by: its name, or that of its type."""
    return str(getattr(function, "__name__", type(function).__name__))


def read_constraint(
    table: Any, place: str, load: Callable[[str, str], CallableConstraint] | None
) -> LinearConstraint | CallableConstraint:
    """Return the constraint of a table, a function by ``load(its place, what stands there)``; raise
    TypeError or ValueError, which names the ``place``, if it is none.
    """
    if not isinstance(table, Mapping) or ("function" in table) == ("coefficients" in table):
        raise ValueError(
            f"`{place}`: a constraint must have either `coefficients` with limits, or `function`,"
            f" got {quote(table)}."
        )
    if "coefficients" in table:
        return LinearConstraint.from_dict(table, place)
    if others := [name for name in table if name != "function"]:
        raise ValueError(
            f"`{place}`: `at_least` and `at_most` go with `coefficients`; a function returns"
            f" whether the parameters are allowed, got `{others[0]}`."
        )
    if load is None:
        raise ValueError(
            f"`{place}.function` is {table['function']!r}, and nothing is imported here. Give"
            " `load`, which returns the function."
        )
    return load(f"{place}.function", table["function"])


def allows(constraint: CallableConstraint, params: dict[str, Any]) -> bool:
    """Return whether a function allows the parameters; raise TypeError if it returns neither a
    boolean nor a number.
    """
    answer = constraint(params)
    if isinstance(answer, bool | np.bool_):
        return bool(answer)
    try:
        return float(answer) >= 0.0
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"A constraint must return True or False, or a number, got {quote(answer)}."
        ) from error


def _at_least(
    terms: list[tuple[int, Float, float]], sign: float, limit: float
) -> Callable[[Tensor], Tensor]:
    def margin(u: Tensor) -> Tensor:
        values = [
            c
            * (
                param.unnormalize(u[column])
                if param.log
                else param.low + u[column] * (param.high - param.low)
            )
            for column, param, c in terms
        ]
        return sign * torch.stack(values).sum() - limit

    return margin
