"""GPyTorch's exact posterior, by float64 arithmetic.

GPyTorch predicts by a copy of the model, whose hyperparameters and data nobody changes: what
GPyTorch keeps there is never out of date. In float32 the rounding of the kernel matrix is as large
as a noise variance of 1e-7 n, and what is left of the prior variance cancels. So the data,
hyperparameters and points are taken for float64 numbers, and what is returned is rounded once.
"""

from collections.abc import Iterator
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from botorch.models import SingleTaskGP
from gpytorch.distributions import MultivariateNormal
from gpytorch.utils.memoize import add_to_cache, get_from_cache
from linear_operator.operators import (
    ConstantMulLinearOperator,
    LinearOperator,
    RootLinearOperator,
    TriangularLinearOperator,
)
from torch import Tensor
from torch.nn import Module, Parameter


@dataclass(frozen=True, eq=False)
class ExactPosterior:
    """The exact posterior of a model as it is now, with gradients in data that require them."""

    model: Any  # a copy in float64, with what GPyTorch keeps of it
    dtype: torch.dtype  # of the model

    @classmethod
    def of(cls, model: SingleTaskGP, learns: bool) -> Self:
        """Return the posterior of ``model``, with gradients in hyperparameters if it ``learns``."""
        return cls(doubled(model, learns), model.train_targets.dtype)

    def __del__(self) -> None:
        """Break the cycle of GPyTorch's caches and their hooks, which Python does not collect."""
        strategy = self.model.prediction_strategy
        if strategy is not None:
            vars(strategy).clear()

    def __call__(self, *inputs: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Return the posterior at points, rounded to the model's dtype."""
        X = [points.double() for points in inputs]
        is_on = torch.is_grad_enabled()
        # GPyTorch keeps tensors, through which gradients may have to pass afterwards
        with torch.inference_mode(False), torch.set_grad_enabled(is_on):
            law = SingleTaskGP.__call__(self.model, *X, **kwargs)
        if self.dtype == torch.float64:
            return law
        return MultivariateNormal(law.mean.float(), Rounded(law.lazy_covariance_matrix))

    def with_data(
        self, inputs: Tensor, targets: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> Self:
        """Return the posterior of appended data, by GPyTorch's update of what it has kept."""
        SingleTaskGP.__call__(self.model, self.model.train_inputs[0][..., :1, :])
        given = {} if noise is None else {"noise": noise.double()}
        model = SingleTaskGP.get_fantasy_model(
            self.model, inputs.double(), targets.double(), **given, **kwargs
        )
        # GPyTorch looks for its update of the mean's cache under another name
        strategy = model.prediction_strategy
        add_to_cache(strategy, "mean_cache", get_from_cache(strategy, "mean_cache"), "ignore")
        return replace(self, model=model)


class Rounded(LinearOperator):
    """A float64 covariance that is read in float32; its roots, too, are found in float64.

    Args:
        base: (*batch, n, n).
    """

    def __init__(self, base: LinearOperator):
        super().__init__(base)
        self.base = base

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def scaled(self, factor: Tensor) -> "Rounded":
        """Return the covariance times ``factor``, of the batch shape or one number."""
        return Rounded(ConstantMulLinearOperator(self.base, factor))

    def to_dense(self) -> Tensor:
        return self.base.to_dense().float()

    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        root = self.base.root_decomposition(method=method).root
        return RootLinearOperator(root.to_dense().float())

    def _matmul(self, rhs: Tensor) -> Tensor:
        return self.base._matmul(rhs.double()).float()

    def _size(self) -> torch.Size:
        return self.base.shape

    def _transpose_nonbatch(self) -> "Rounded":
        return Rounded(self.base._transpose_nonbatch())

    def _diagonal(self) -> Tensor:
        return self.base.diagonal(dim1=-1, dim2=-2).float()

    def _cholesky(self, upper: bool | None = False) -> LinearOperator:
        factor = self.base.cholesky(upper=bool(upper)).to_dense()
        return TriangularLinearOperator(factor.float(), upper=bool(upper))

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> "Rounded":
        return Rounded(self.base._expand_batch(batch_shape))

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> "Rounded":
        return Rounded(self.base._getitem(row_index, col_index, *batch_indices))

    def _get_indices(self, row_index: Any, col_index: Any, *batch_indices: Any) -> Tensor:
        return self.base._get_indices(row_index, col_index, *batch_indices).float()


def doubled(model: Any, learns: bool) -> Any:
    """Return ``model`` in float64; gradients reach its data and, if it ``learns``, parameters."""
    constants = set() if learns else set(map(id, model.parameters()))
    copies = {
        id(part): _doubled(part.detach() if id(part) in constants else part)
        for part in (*held_tensors(model), *model.train_inputs, model.train_targets)
        if part.is_floating_point()
    }
    twin = copy(model)
    # Copies look up there what they must not copy
    for name in ("_modules", "_parameters", "_buffers"):
        twin.__dict__[name] = deepcopy(model.__dict__[name], copies)
    twin.train_inputs = tuple(copies[id(X)] for X in model.train_inputs)
    twin.train_targets = copies[id(model.train_targets)]
    twin.prediction_strategy = None
    twin._load_state_dict_pre_hooks = {}  # a method of ``model``, which copies would copy with it
    return twin


def attached_copy(module: Any) -> Any:
    """Return a copy of a module that shares the tensors with a graph, which nothing copies."""
    graphs = {id(part): part for part in held_tensors(module) if not part.is_leaf}
    return deepcopy(module, graphs)


def held_tensors(module: Module) -> Iterator[Tensor]:
    """Yield the parameters, buffers and unregistered tensors, such as noise, of all its parts."""
    yield from module.parameters()
    yield from module.buffers()
    for part in module.modules():
        yield from (value for value in vars(part).values() if isinstance(value, Tensor))


def _doubled(tensor: Tensor) -> Tensor:
    """Return a float64 copy, whose own deep copies are leaves: GPyTorch makes some of the kernels
    of a batch and of fantasies, and PyTorch copies nothing else.
    """
    double: Any = tensor.to(torch.float64, copy=True)
    if double.requires_grad:
        double.__deepcopy__ = lambda memo: Parameter(double.detach().clone())
    return double
