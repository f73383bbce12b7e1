"""Points as DataFrames: a column for each parameter, by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalable_bo._packages import require
from scalable_bo.space.constraints import Conditions
from scalable_bo.space.parameters import Categorical, Int, Parameter
from scalable_bo.space.tables import Choice, refusal

require("pandas", extra="tables", user="A table of points")

import pandas as pd


def read_frame(
    params: Mapping[str, Parameter],
    conditions: Conditions | None,
    fixed_values: Mapping[str, Choice],
    frame: pd.DataFrame,
    first_row: int,
) -> Tensor:
    """Read points (n, d) from the columns of a DataFrame; arguments as ``Space.from_frame``."""
    if missing := [name for name in params if name not in frame.columns]:
        raise ValueError(
            f"The data must have the columns {', '.join(params)}, got none for"
            f" {', '.join(missing)}. Rename them."
        )
    wanted = frame.columns[frame.columns.isin([*params, *fixed_values])]
    if repeated := [str(name) for name in wanted[wanted.duplicated()].unique()]:
        raise ValueError(
            f"The data must have each column once, got several of {', '.join(repeated)}. Rename or"
            " drop the others."
        )
    for name, fixed in fixed_values.items():
        if name not in frame.columns:
            continue
        same = (frame[name] == fixed).to_numpy(dtype=bool)
        if not same.all():
            row = int(np.flatnonzero(~same)[0])
            raise ValueError(
                f"`{name}` is fixed to {fixed!r}, got {frame[name].iloc[row]!r} in row"
                f" {first_row + row}. Leave the row out."
            )
    read = [_numbers(param, frame[name]) for name, param in params.items()]
    points = torch.from_numpy(np.stack(read, axis=1))
    active = torch.ones_like(points, dtype=torch.bool)
    if conditions is not None:
        points = conditions.settled(points)
        active = conditions.active(points)
    for column, (name, param) in enumerate(params.items()):
        valid = param.valid(points[:, column]) | ~active[:, column]
        if not valid.all():
            row = int((~valid).nonzero()[0])
            raise refusal(name, param.requirement, frame[name].iloc[row], first_row + row)
        points[:, column] = param.placed(points[:, column])
    return points + 0.0


def write_frame(
    params: Mapping[str, Parameter], fixed_values: Mapping[str, Choice], points: np.ndarray
) -> pd.DataFrame:
    """Return points (n, d) as a DataFrame, with the fixed values."""
    columns: dict[str, Any] = {}
    for column, (name, param) in enumerate(params.items()):
        numbers = points[:, column]
        if isinstance(param, Categorical):
            chosen = [None if math.isnan(n) else param.value(n) for n in numbers]
            # Beside None, pandas would make numbers of integers and NaN of None
            columns[name] = pd.Series(chosen, dtype=object) if None in chosen else chosen
        elif isinstance(param, Int):
            missing = np.isnan(numbers)
            whole = np.where(missing, 0.0, numbers).astype(np.int64)
            columns[name] = pd.arrays.IntegerArray(whole, missing) if missing.any() else whole
        else:
            columns[name] = numbers
    return pd.DataFrame(columns, index=range(len(points))).assign(**fixed_values)


def _numbers(param: Parameter, column: pd.Series) -> np.ndarray:
    """Return the numbers of a column's values, NaN for what is none; each choice is looked up
    once.
    """
    if isinstance(param, Categorical) or column.dtype.kind == "b":
        known = np.array([_number(param, value) for value in column.unique().tolist()])
        return known[column.factorize(use_na_sentinel=False)[0]]
    numbers = pd.to_numeric(column, errors="coerce")
    return numbers.to_numpy(dtype=np.float64, na_value=np.nan)


def _number(param: Parameter, value: Any) -> float:
    """Return the number of a cell; what is empty stands for None, where that is a choice."""
    number = param.number(value)
    if not math.isnan(number) or not isinstance(param, Categorical) or None not in param.choices:
        return number
    if pd.isna(value) or value == "":
        return param.number(None)
    try:  # beside empty cells, numbers are read as text
        return param.number(float(value))
    except ValueError:
        return math.nan
