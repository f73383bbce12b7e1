"""Points as DataFrames: a column for each parameter, by name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalable_bo._packages import require
from scalable_bo.space.cell_texts import position
from scalable_bo.space.parameters import Categorical, Int, Parameter
from scalable_bo.space.plain_values import Choice

require("pandas", extra="tables", user="A table of points")

import pandas as pd


def read_frame(
    params: Mapping[str, Parameter],
    fixed_values: Mapping[str, Choice],
    frame: pd.DataFrame,
    first_row: int,
) -> Tensor:
    """Return the numbers (n, d) in a frame's columns, NaN elsewhere; as ``Space.from_frame``."""
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
        wrong = np.isnan(_positions((fixed,), frame[name]))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise ValueError(
                f"`{name}` is fixed to {fixed!r}, got {frame[name].iloc[row]!r} in row"
                f" {first_row + row}. Leave the row out."
            )
    read = [_numbers(param, frame[name]) for name, param in params.items()]
    return torch.from_numpy(np.stack(read, axis=1))


def write_frame(
    params: Mapping[str, Parameter], fixed_values: Mapping[str, Choice], points: np.ndarray
) -> pd.DataFrame:
    """Return points (n, d) as a DataFrame, with the fixed values."""
    columns: dict[str, Any] = {}
    for column, (name, param) in enumerate(params.items()):
        numbers = points[:, column]
        if isinstance(param, Categorical):
            chosen = [None if math.isnan(n) else param.value(n) for n in numbers]
            found = pd.Series(chosen)
            # Pandas would make NaN of None, and round large integers beside other numbers
            columns[name] = found if found.tolist() == chosen else pd.Series(chosen, dtype=object)
        elif isinstance(param, Int):
            missing = np.isnan(numbers)
            whole = np.where(missing, 0.0, numbers).astype(np.int64)
            columns[name] = pd.arrays.IntegerArray(whole, missing) if missing.any() else whole
        else:
            columns[name] = numbers
    return pd.DataFrame(columns | dict(fixed_values), index=range(len(points)))


def _numbers(param: Parameter, column: pd.Series) -> np.ndarray:
    """Return the numbers of a column's values, NaN for what is none."""
    if isinstance(param, Categorical):
        return _positions(param.choices, column)
    if column.dtype.kind in "bcmM":  # also complex numbers, durations and dates
        return np.full(len(column), np.nan)
    numbers = pd.to_numeric(column, errors="coerce")
    return numbers.to_numpy(dtype=np.float64, na_value=np.nan)


def _positions(choices: Sequence[Choice], column: pd.Series) -> np.ndarray:
    """Return the positions of a column's choices, NaN for what is none; each is looked up once."""
    known = np.array([cell_position(choices, cell) for cell in column.unique().tolist()])
    return known[column.factorize(use_na_sentinel=False)[0]]


def cell_position(choices: Sequence[Choice], cell: Any) -> float:
    """Return the position of the choice in a cell, as it is or as people and programs write it."""
    found = (position(value, choices) for value in _readings(cell))
    return next((number for number in found if not math.isnan(number)), math.nan)


def _readings(cell: Any) -> Iterator[Any]:
    """Yield what a cell may stand for: itself, None for an empty one, a text's number or flag."""
    yield cell
    if pd.isna(cell) or cell == "":
        yield None
    elif isinstance(cell, str):
        with suppress(ValueError):
            yield float(cell)
        yield {"true": True, "false": False}.get(cell.lower(), cell)
