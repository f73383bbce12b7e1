"""What a fit that fails leaves behind: the model as it was."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import wraps
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])


@contextmanager
def restoring(model: Any) -> Iterator[None]:
    """Leave ``model``, a module or a regressor, as it was if the block fails or leaves a parameter
    that is not finite: parameters, buffers, mode and data. A Ctrl-C keeps what a module has learned
    if that is finite.

    Raises:
        FloatingPointError: on leaving, if a parameter was not finite.
    """
    is_module = isinstance(model, torch.nn.Module)
    parts = list(model.modules()) if is_module else [model]
    before = [
        {name: copy(value) if isinstance(value, dict) else value for name, value in own.items()}
        for own in map(vars, parts)
    ]
    tensors = [*model.parameters(), *model.buffers()] if is_module else []
    values = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
        if not _is_finite(model):
            raise FloatingPointError(
                "A hyperparameter stopped being finite; the model is as it was. Use float64, or a"
                " smaller step."
            )
    except BaseException as error:
        if not (isinstance(error, KeyboardInterrupt) and is_module and _is_finite(model)):
            for part, attributes in zip(parts, before, strict=True):
                vars(part).clear()
                vars(part).update(attributes)
            with torch.no_grad():
                for tensor, value in zip(tensors, values, strict=True):
                    if not torch.equal(tensor, value):  # else what rests on it stays valid
                        tensor.copy_(value)
        raise


def restored_on_failure(fit: F) -> F:
    """Return ``fit``, a function of a model, or a method, that is :func:`restoring` it."""

    @wraps(fit)
    def fit_or_restore(model: Any, *args: Any, **settings: Any) -> Any:
        has_state = isinstance(getattr(model, "__dict__", None), dict)
        with restoring(model) if has_state else nullcontext():
            return fit(model, *args, **settings)

    return cast("F", fit_or_restore)


def _is_finite(model: Any) -> bool:
    parameters = model.parameters() if isinstance(model, torch.nn.Module) else ()
    return all(bool(torch.isfinite(parameter).all()) for parameter in parameters)
