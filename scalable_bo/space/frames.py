"""Points as tables: a column for each parameter, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from scalable_bo.space.parameters import Categorical, Choice, Int, Parameter, refusal


def read_frame(
    params: Mapping[str, Parameter],
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
    columns = []
    for name, param in params.items():
        numbers = _numbers(param, frame[name])
        valid = param.valid(torch.tensor(numbers)).numpy()
        if not valid.all():
            row = int(np.flatnonzero(~valid)[0])
            raise refusal(name, param, frame[name].iloc[row], first_row + row)
        columns.append(numbers)
    return torch.from_numpy(np.stack(columns, axis=1)) + 0.0


def write_frame(
    params: Mapping[str, Parameter], fixed_values: Mapping[str, Choice], points: np.ndarray
) -> pd.DataFrame:
    """Return points (n, d) as a DataFrame, with the fixed values."""
    columns: dict[str, Any] = {}
    for column, (name, param) in enumerate(params.items()):
        numbers = points[:, column]
        if isinstance(param, Categorical):
            columns[name] = [param.choices[position] for position in numbers.astype(int)]
        else:
            columns[name] = numbers.astype(np.int64) if isinstance(param, Int) else numbers
    return pd.DataFrame(columns, index=range(len(points))).assign(**fixed_values)


def _numbers(param: Parameter, column: pd.Series) -> np.ndarray:
    """Return the numbers of a column's values, NaN for what is none; each choice is looked up
    once.
    """
    if isinstance(param, Categorical) or column.dtype.kind == "b":
        known = np.array([param.number(value) for value in column.unique().tolist()])
        return known[column.factorize(use_na_sentinel=False)[0]]
    numbers = pd.to_numeric(column, errors="coerce")
    return numbers.to_numpy(dtype=np.float64, na_value=np.nan)
