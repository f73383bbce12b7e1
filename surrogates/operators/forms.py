"""What is known of classes of kernels beyond what GPyTorch evaluates: how a stored model names
them, and where their random features come from. A sum or product has what all of its parts have.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel
from torch import Tensor

# What a subclass may define without becoming another function
HARMLESS = {"__init__", "__doc__", "__module__", "__annotations__", "__repr__", "__str__"}
HARMLESS |= {"__abstractmethods__", "_abc_impl", "__firstlineno__", "__static_attributes__"}


@dataclass(frozen=True)
class KernelForm:
    """What is known of a class of kernels.

    Attributes:
        settings: attributes that are arguments of its constructor and no tensors, beside the batch
            shape and the active dimensions; ``None`` if models with it are not stored.
        waves: draws its random waves, see :mod:`surrogates.functions.spectra`; ``None`` if there is
            no way.
        has_tails: whether ``waves`` draws from a law of higher frequencies where it is asked to.
    """

    settings: tuple[str, ...] | None = None
    waves: Callable[..., Any] | None = None
    has_tails: bool = False


# By class, none of which is a subclass of another; :mod:`surrogates.functions.spectra` adds those
# with random features, and :func:`register_kernel` those of users
FORMS: dict[type[Kernel], KernelForm] = {
    kind: KernelForm(()) for kind in (ScaleKernel, AdditiveKernel, ProductKernel)
}


def kind_of(kernel: Kernel) -> type[Kernel]:
    """Return the class that ``kernel`` is the same function as: its own, or the known one that it
    is derived from without overriding anything but the constructor.
    """
    own = type(kernel)
    if own in FORMS:
        return own
    for known in FORMS:
        if isinstance(kernel, known):
            added = set(own.__mro__) - set(known.__mro__)
            defined = set().union(*map(vars, added)) - HARMLESS
            return known if defined.isdisjoint(dir(known)) else own
    return own


def form_of(kernel: Kernel) -> KernelForm:
    """Return what is known of the class of a kernel."""
    return FORMS.get(kind_of(kernel), KernelForm())


def visible(kernel: Kernel, columns: Tensor) -> Tensor:
    """Return those of the input ``columns`` that ``kernel`` picks when it is called."""
    return columns if kernel.active_dims is None else columns[kernel.active_dims.to(columns.device)]
