"""How a model knows that what it keeps still belongs to its data, hyperparameters and settings."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from gpytorch.models import ExactGP
from torch import Tensor

from surrogates.functions.paths import BatchPaths, SamplePaths


class StateKey(NamedTuple):
    """All that a posterior depends on, compared by value: GPyTorch's setters write through
    ``.data``, past every version counter.

    Attributes:
        tensors: parameters, buffers, noise and data.
        settings: the model's own, and the types and plain numbers of its mean and kernel, such as
            Matérn's ν.
    """

    tensors: tuple[Tensor, ...]
    settings: tuple[Any, ...]

    @classmethod
    def of(cls, model: ExactGP, *settings: Any) -> Self:
        """Return the present key of ``model``, which shares its tensors."""
        tensors = (
            *model.parameters(),
            *model.buffers(),
            model.noise,
            *model.train_inputs,
            model.train_targets,
        )
        plain = [
            (
                type(part),
                *(value for value in vars(part).values() if isinstance(value, int | float | str)),
            )
            for module in (model.mean_module, model.covar_module)
            for part in module.modules()
        ]
        return cls(tensors, (*settings, *plain))

    def frozen(self) -> "StateKey":
        """Return a key that no longer follows the model."""
        return StateKey(tuple(tensor.detach().clone() for tensor in self.tensors), self.settings)

    def matches(self, other: "StateKey | None") -> bool:
        return (
            other is not None
            and self.settings == other.settings
            and len(self.tensors) == len(other.tensors)
            and all(map(_same, self.tensors, other.tensors))
        )


@dataclass(frozen=True, eq=False)
class PathsState:
    """The paths behind ``posterior``, and what they were drawn from.

    Attributes:
        covariances: the posterior's :class:`Covariance` of each data set that fantasies have asked
            for; all that is ever added, so that copies of the model share the state.
    """

    key: StateKey
    paths: SamplePaths | BatchPaths
    covariances: dict[int, Any] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
