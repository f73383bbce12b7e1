"""Validation at the places where a user's data enter. Every message names the argument,
the requirement, the value and the remedy.
"""

import math
import os
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from reprlib import repr as brief  # which a value's own errors do not reach
from typing import Any, TypeVar

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

Checked = TypeVar("Checked")


def of_array(values: Any) -> Tensor:
    """Return a copy of an array as a CPU tensor, whatever its strides, byte order and flags."""
    array = np.array(values)
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


class DataError(InputDataError, ValueError):
    """Data that are not finite: BoTorch's error, and Python's for values."""


def integer(name: str, value: Any, minimum: int, remedy: str = "") -> int:
    """Return ``value``, NumPy's or Python's, as an int if it is one of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"`{name}` must be an int, got {type(value).__name__} {brief(value)}.")
    value = int(value)
    if value < minimum or value.bit_length() > 63:
        limit = f"least {minimum}" if value < minimum else "most 2⁶³ - 1"
        raise ValueError(f"`{name}` must be at {limit}, got {brief(value)}. {remedy}".rstrip())
    return value


def optional(check: Callable[..., Checked], name: str, value: Any, *limits: Any) -> Checked | None:
    """Return ``value`` if it is ``None`` or passes ``check`` with these limits."""
    return None if value is None else check(name, value, *limits)


def fields(record: Any, names: Iterable[str], check: Callable[..., Any], *limits: Any) -> None:
    """Require that these fields of the dataclass ``record`` pass ``check``, or are ``None`` where
    that is their default, and give it Python's numbers in place of NumPy's.
    """
    for name in names:
        value = getattr(record, name)
        if value is not None or record.__dataclass_fields__[name].default is not None:
            plain = check(name, value, *limits)
            object.__setattr__(record, name, plain if isinstance(value, np.number) else value)


def positive_int(name: str, value: Any, remedy: str = "") -> int:
    """Return ``value`` if it is an int of at least 1."""
    return integer(name, value, 1, remedy)


def one_of(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``choices``."""
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        close = get_close_matches(value, known, 1) if isinstance(value, str) else []
        remedy = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"`{name}` must be one of {', '.join(known)}, got {brief(value)}.{remedy}")
    return str(value)


def fraction(name: str, value: Any) -> float:
    """Return ``value``, NumPy's or Python's, as a float if it is a number in [0, 1]."""
    if isinstance(value, bool) or not issubclass(type(value), Real):
        raise TypeError(f"`{name}` must be a number, got {type(value).__name__} {brief(value)}.")
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"`{name}` must be in [0, 1], got {value}.")
    return float(value)


def positive_float(name: str, value: Any, remedy: str = "") -> float:
    """Return ``value``, NumPy's or Python's, as a float if it is a finite number above 0."""
    if isinstance(value, bool) or not issubclass(type(value), Real):
        raise TypeError(f"`{name}` must be a number, got {type(value).__name__} {brief(value)}.")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"`{name}` must be finite and above 0, got {value}. {remedy}".rstrip())
    return float(value)


def path(name: str, value: Any, what: str) -> Path:
    """Return ``value`` if it can be the path of ``what``, which need not be there."""
    if not isinstance(value, str | os.PathLike) or isinstance(os.fspath(value), bytes):
        raise TypeError(f"`{name}` must be {what}, got {type(value).__name__} {brief(value)}.")
    if not os.fspath(value) or "\0" in os.fspath(value):
        raise ValueError(f"`{name}` must be {what}, got {brief(value)}.")
    return Path(value)


def existing_file(name: str, value: str | os.PathLike[str]) -> Path:
    """Return the absolute path of ``value`` if it is that of a file."""
    path = Path(value)
    if not path.is_file():
        raise FileNotFoundError(
            f"`{name}` must be the path of a file, got {os.fspath(path)!r}, which"
            f" {'is a folder' if path.is_dir() else 'does not exist'}. Check the path: relative"
            f" ones start at {os.getcwd()!r}."
        )
    return path.absolute()


def device(name: str, value: Any) -> torch.device:
    """Return the device that ``value`` names, ``None`` for the CPU, if it is there."""
    try:
        found = torch.device("cpu" if value is None else value)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"`{name}` must name a torch device, got {brief(value)}. Try cpu or cuda."
        ) from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"`{name}` is {str(value)!r}, and torch finds no CUDA device. Use cpu.")
    return found


def tensor(name: str, value: Any) -> None:
    """Require a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"`{name}` must be a torch.Tensor, got {type(value).__name__}. Use torch.as_tensor."
        )


def floating_tensor(name: str, value: Any, remedy: str = "Remove those rows.") -> Tensor:
    """Return ``value`` if it is a float32 or float64 tensor.

    Args:
        remedy: for NaN and infinity.
    Raises:
        TypeError: for anything else.
        DataError: for NaN and infinity.
    """
    tensor(name, value)
    if value.dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"`{name}` must have dtype float32 or float64, got {value.dtype}. Convert it with"
            " `.double()`."
        )
    finite = torch.isfinite(value)
    if not finite.all():
        where = tuple((~finite).nonzero()[0].tolist())
        count = int((~finite).sum())
        raise DataError(
            f"`{name}` must be finite, got {value[where].item()} at index {where} ({count} such"
            f" values). {remedy}"
        )
    return value


def like(name: str, value: Tensor, reference_name: str, reference: Tensor) -> None:
    """Require the dtype and device of ``reference``."""
    if value.dtype != reference.dtype:
        raise TypeError(
            f"`{name}` must have the dtype of `{reference_name}`, {reference.dtype}, got"
            f" {value.dtype}. Convert one of them."
        )
    if value.device != reference.device:
        raise ValueError(
            f"`{name}` must be on the device of `{reference_name}`, {reference.device}, got"
            f" {value.device}. Move one of them."
        )


def box(bounds: Any, name: str = "bounds") -> Tensor:
    """Return ``bounds`` (2, d) if every lower bound lies below its upper bound."""
    bounds = floating_tensor(name, bounds)
    if bounds.ndim != 2 or len(bounds) != 2 or bounds.shape[1] < 1:
        raise ValueError(
            f"`{name}` must have shape (2, d), lower bounds first, got {tuple(bounds.shape)}."
        )
    if not (bounds[0] < bounds[1]).all():
        i = int((bounds[0] >= bounds[1]).nonzero()[0])
        received = f"[{bounds[0, i]:g}, {bounds[1, i]:g}] in dimension {i}"
        raise ValueError(
            f"`{name}` must have each lower bound below its upper bound, got {received}. Swap or"
            " widen them."
        )
    return bounds


def points(name: str, X: Any, bounds: Tensor) -> Tensor:
    """Return points (p, d), of booleans or integers as well, if finite and like ``bounds``."""
    if isinstance(X, Tensor) and not (X.is_floating_point() or X.is_complex()):
        X = X.to(bounds)
    like(name, floating_tensor(name, X), "bounds", bounds)
    if X.ndim != 2 or X.shape[1] != bounds.shape[1]:
        raise ValueError(
            f"`{name}` must have shape (number of points, {bounds.shape[1]}), got {tuple(X.shape)}."
        )
    return X


def point_width(X: Tensor, dim: int) -> None:
    """Require points X (..., q, d) of the dimension ``dim``; X (q,) are points of one dimension."""
    if X.ndim > 1 and X.shape[-1] != dim:
        raise ValueError(
            f"`X` must have shape (..., q, {dim}), as the data, got {tuple(X.shape)}. Give points a"
            " column for every input."
        )


def batch_of_points(X: Tensor, batch_shape: tuple[int, ...]) -> None:
    """Require points X (..., q, d) whose batch broadcasts with the data sets' ``batch_shape``."""
    if any(
        1 not in (own, size) and own != size
        for own, size in zip(X.shape[-3::-1], batch_shape[::-1], strict=False)
    ):
        raise ValueError(
            "`X` must have a batch shape that broadcasts with that of the model,"
            f" {tuple(batch_shape)}, got {tuple(X.shape[:-2])}. Give each data set its points, or"
            " all the same."
        )


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Return whether ``shape`` broadcasts to ``target``."""
    return len(shape) <= len(target) and all(
        a in (1, b) for a, b in zip(shape[::-1], target[::-1], strict=False)
    )


def inputs_and_targets(train_X: Any, train_Y: Any) -> tuple[Tensor, Tensor]:
    """Return X (*batch, n, d) and Y (*batch, n, m): finite, alike in dtype and device."""
    X = floating_tensor("train_X", train_X)
    Y = floating_tensor("train_Y", train_Y)
    if X.ndim < 2 or 0 in X.shape:
        raise ValueError(
            "`train_X` must have shape (n, d) or (*batch, n, d) with n, d ≥ 1, got"
            f" {tuple(X.shape)}."
        )
    if Y.ndim < 2 or not Y.shape[-1]:
        raise ValueError(
            f"`train_Y` must have shape (n, m) with m ≥ 1, got {tuple(Y.shape)}. Use `.reshape(-1,"
            " 1)` for one output."
        )
    if X.shape[-2] != Y.shape[-2]:
        raise ValueError(
            f"`train_X` and `train_Y` must have the same number of rows, got {X.shape[-2]} and"
            f" {Y.shape[-2]}."
        )
    if X.shape[:-2] != Y.shape[:-2]:
        raise ValueError(
            f"`train_X` and `train_Y` must have the same batch shape, got {tuple(X.shape[:-2])} and"
            f" {tuple(Y.shape[:-2])}."
        )
    like("train_Y", Y, "train_X", X)
    if not bool(torch.isfinite(Y.square().sum())):
        raise ValueError(
            f"`train_Y` must have finite squares in {Y.dtype}, got values of up to"
            f" {Y.abs().max().item():.1e} in size. Scale it, or use float64."
        )
    return X, Y


def valid_inducing_points(Z: Any, data_name: str, X: Tensor) -> Tensor:
    """Return ``Z`` (m, d) if its points are finite, at least one,
    at most as many as the data ``X`` (n, d), and like them.
    """
    Z = floating_tensor("inducing_points", Z)
    if Z.ndim != 2 or not len(Z) or Z.shape[1] != X.shape[1]:
        raise ValueError(
            f"`inducing_points` must have shape (m, {X.shape[1]}) with m ≥ 1, got {tuple(Z.shape)}."
        )
    if len(Z) > len(X):
        raise ValueError(
            f"`inducing_points` must be at most n = {len(X)}, got m = {len(Z)}. Use fewer, or a"
            " system of all data."
        )
    like("inducing_points", Z, data_name, X)
    return Z


def outside_transforms(what: str, remedy: str) -> None:
    """Require that no transform of ``torch.func`` is active: tensors made in one do not outlive it.

    Raises:
        NotImplementedError: if one is.
    """
    try:
        torch.empty(0, device="cpu").requires_grad_()  # which PyTorch refuses in all of them
    except RuntimeError:
        raise NotImplementedError(
            f"{what} outside of the transforms of `torch.func`, which its result would not outlive."
            f" {remedy}"
        ) from None
