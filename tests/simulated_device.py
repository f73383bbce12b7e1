"""A device for tests where there is none: its tensors are computed on the CPU, and refuse to meet
the CPU's where CUDA's would.

What a program has to get right on any accelerator is so tested without one: that no tensor is made
on the CPU and then used with those of the device, that no generator of the CPU draws on it, that
nothing becomes an array without ``cpu()``. What only CUDA does, its kernels, memory and speed, is
not.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

NAME = "simulated"

_aten = torch.ops.aten
_COPIES = {_aten.copy_.default, _aten._to_copy.default}  # between devices
_INDEX_FROM_ANYWHERE = {
    _aten.index.Tensor,
    _aten.index_put_.default,
    _aten.index_put.default,
    _aten._index_put_impl_.default,
}
# Must be there
_SCALARS_TOO = {
    _aten.mm.default,
    _aten.bmm.default,
    _aten.cat.default,
    _aten.index_select.default,
    _aten.gather.default,
}
_WAITS = {_aten._local_scalar_dense.default, _aten.nonzero.default}  # for numbers and sizes

_waits: list[Any] | None = None
_seeds_there: set[int] = set()
_library = torch.library.Library("aten", "IMPL")


@contextmanager
def simulated_device() -> Iterator[torch.device]:
    """Give the device, on which tensors can be made inside the context, once it is registered;
    where there is another, skip the test.
    """
    if torch.cuda.is_available():
        pytest.skip("a process has one kind of accelerator, here CUDA")
    with _Mode():
        yield torch.device(NAME, 0)


@contextmanager
def counting_waits() -> Iterator[list[Any]]:
    """Give a list to which every operator is added for whose result the CPU has to wait."""
    global _waits
    _waits = []
    try:
        yield _waits
    finally:
        _waits = None


class SimulatedTensor(Tensor):
    """A tensor of the device; ``held`` has its numbers."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> "SimulatedTensor":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=torch.device(NAME, 0),
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(
        cls,
        function: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return _run(function, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        return f"{self.held!r} on {self.device}"

    def tolist(self) -> Any:
        return self.held.tolist()

    def numpy(self, **_: Any) -> NoReturn:
        raise TypeError(
            f"can't convert a tensor on {self.device} to numpy. Use Tensor.cpu() first."
        )

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        self.numpy()


class SimulatedGenerator(torch.Generator):
    """A generator that draws on the device. Operators know it by its seed: one of the CPU must not
    have the same.
    """

    def __new__(cls, seed: int) -> "SimulatedGenerator":
        made = super().__new__(cls)
        made.manual_seed(seed)
        _seeds_there.add(seed)
        return made

    @property
    def device(self) -> torch.device:
        return torch.device(NAME, 0)


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return _run(function, args, kwargs or {})


def _run(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call the operator on the CPU, and give its results the device they would have."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = any(isinstance(tensor, SimulatedTensor) for tensor in tensors)
    device = kwargs.get("device")
    result_there = there if device is None else torch.device(device).type == NAME
    if not there and not result_there:
        return function(*args, **kwargs)
    generator = kwargs.get("generator")
    if generator is not None and result_there != (generator.initial_seed() in _seeds_there):
        raise RuntimeError(
            f"Expected a generator of the device of the result, but found one of"
            f" '{generator.device}' ({function})."
        )
    if there and function not in _COPIES:
        _require_one_device(
            function,
            [tensor for tensor in tensors if not isinstance(tensor, SimulatedTensor)],
            kwargs,
        )
    held_args, held_kwargs = tree_map_only(
        SimulatedTensor, lambda tensor: tensor.held, (args, kwargs)
    )
    if result_there and device is not None:
        held_kwargs["device"] = torch.device("cpu")
    if _waits is not None and function in _WAITS:
        _waits.append(function)
    result = function(*held_args, **held_kwargs)
    if not result_there:
        return result
    result = tree_map_only(Tensor, SimulatedTensor, result)
    return return_and_correct_aliasing(function, args, kwargs, result) if there else result


def _require_one_device(function: Any, strangers: list[Tensor], kwargs: dict[str, Any]) -> None:
    unwelcome = strangers
    if function in _INDEX_FROM_ANYWHERE:
        unwelcome = [tensor for tensor in strangers if tensor.is_floating_point()]
    elif function not in _SCALARS_TOO:
        unwelcome = [tensor for tensor in strangers if tensor.ndim or tensor is kwargs.get("out")]
    if unwelcome:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found {NAME}:0 and cpu in"
            f" {function}."
        )


class _Backend(_DummyBackendModule):
    """What PyTorch asks of any device, such as the state of its random numbers:
    this one has none of its own.
    """

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None: ...


@cache
def register() -> None:
    """Register the device, and the operators that are called before the mode can see them;
    before the first gradient of the process.
    """

    def empty(size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
        return SimulatedTensor(torch.empty(size, dtype=dtype))

    def empty_strided(
        size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any
    ) -> Tensor:
        return SimulatedTensor(torch.empty_strided(size, stride, dtype=dtype))

    def copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
        held_source, held_target = tree_map_only(
            SimulatedTensor, lambda tensor: tensor.held, (source, target)
        )
        held_target.copy_(held_source)
        return target

    _setup_privateuseone_for_python_backend(NAME, _Backend())
    operators: dict[str, Callable[..., Tensor]] = {
        "empty.memory_format": empty,
        "empty_strided": empty_strided,
        "_copy_from": copy_from,
    }
    for name, operator in operators.items():
        _library.impl(name, operator, "PrivateUse1")
