"""Points as dicts: a value for each parameter, by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from scalable_bo.space.parameters import Parameter
from scalable_bo.space.plain_values import Choice, refusal
from scalable_bo.space.quoting import quote


def read_dicts(
    params: Mapping[str, Parameter],
    fixed_values: Mapping[str, Choice],
    points: Sequence[Mapping[str, Any]],
    first_row: int,
) -> Tensor:
    """Return the numbers (n, d) of dicts, NaN for parameters that they leave out; arguments as
    ``Space.from_dicts``.
    """
    always = {name for name, param in params.items() if param.active_if is None}
    rows = [[math.nan] * len(params) for _ in points]  # whose cells are set without a tensor each
    for row, values in enumerate(points):
        given = set(values) if isinstance(values, Mapping) else set()
        if not always <= given - set(fixed_values) <= set(params):
            names = [name if isinstance(name, str) else quote(name) for name in given]
            raise ValueError(
                f"Each dict must have exactly the parameters {', '.join(params)}, got "
                f"{', '.join(names) or 'none'} in row {first_row + row}."
            )
        for name, fixed in fixed_values.items():
            if values.get(name, fixed) != fixed:
                raise ValueError(
                    f"`{name}` is fixed to {fixed!r}, got {quote(values[name])} in row"
                    f" {first_row + row}. Leave the row out."
                )
        for column, (name, param) in enumerate(params.items()):
            if name in values:
                rows[row][column] = number = param.number(values[name])
                if math.isnan(number):
                    raise refusal(name, param.requirement, values[name], first_row + row)
    numbers = torch.tensor(rows, dtype=torch.float64, device="cpu")
    return numbers.reshape(len(points), len(params))
