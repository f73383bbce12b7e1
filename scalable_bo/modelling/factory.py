"""The surrogate of a study: the kernels that it may have, and how it is made again from
hyperparameters or a checkpoint.

Notation: n values; ``U (n, e)`` on the unit cube.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from gpytorch import Module
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import AdditiveKernel, Kernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.priors import GammaPrior
from torch import Tensor

from scalable_bo.modelling.training import SCALES, TrainingData
from scalable_bo.space.quoting import quote
from scalable_bo.storage.checkpoints import Checkpoint
from surrogates import PathwiseGP, SamplePaths, Solver
from surrogates.models.data import data_sets
from surrogates.operators.differentiable import KernelBasis
from surrogates.operators.main_effects import MainEffectsKernel
from surrogates.rules.hyperparameters import ModerateLengthscalePrior

MEAN_WEIGHTS = "mean_weights"
WARPED = "warped"  # in a checkpoint's tensors if its values are: the number of the scale
LEAST_NOISE = 1e-6  # of few values: less than that is none
# Further kernels, as an ask's reason has them
APART = "inputs that act apart"
SMOOTH = "a smooth, elongated function"


@dataclass(frozen=True, eq=False)
class SurrogateFactory:
    """Makes the models of a study.

    Attributes:
        kernel: on the unit cube, not changed.
        kernel_of_few: the one of few values; ``None`` for the same.
        further: makers of others for few values, by name, each from the default kernel of few as it
            was fitted: ``APART``, of functions in which inputs act apart; ``SMOOTH``, of those that
            are all but polynomials. One is taken where values are likelier by it.
        encoding: what the columns mean, without which hyperparameters in a checkpoint mean nothing.
    """

    kernel: Kernel
    solver: Solver | None
    dtype: torch.dtype
    device: torch.device
    kernel_of_few: Kernel | None = None
    further: Mapping[str, Callable[[Any], Kernel]] = field(default_factory=dict)
    encoding: str = ""

    @classmethod
    def default(
        cls,
        dim: int,
        dtype: torch.dtype,
        device: torch.device,
        solver: Solver | None = None,
        kernel: Kernel | None = None,
    ) -> SurrogateFactory:
        """Return the factory of a copy of the user's ``kernel`` or, without one, of BoTorch's: RBF
        with dimension-scaled priors, and Matérn's of ν = 5/2 for few values, which takes a function
        for less smooth than it may be, with an output scale of its own and lengthscales that are
        not short. Values of up to 10 inputs are tried by further kernels: by its sum with functions
        of one input each, and by RBF without priors, for rotated valleys: a hundred times longer
        than wide, these have no place among moderate lengthscales. Among more inputs, as many free
        lengthscales follow whatever values there are.

        Raises:
            TypeError: if ``kernel`` is none.
        """
        if kernel is not None:
            if not isinstance(kernel, Kernel):
                remedy = "Try `gpytorch.kernels.MaternKernel()`."
                raise TypeError(f"`kernel` must be a Kernel, got {quote(kernel)}. {remedy}")
            return cls(deepcopy(kernel), solver, dtype, device)
        with torch.device("cpu"):
            smooth = get_covar_module_with_dim_scaled_prior(ard_num_dims=dim)
            matern = get_covar_module_with_dim_scaled_prior(ard_num_dims=dim, use_rbf_kernel=False)
            matern.register_prior("lengthscale_prior", ModerateLengthscalePrior(), "lengthscale")
            scaled = ScaleKernel(matern, outputscale_prior=GammaPrior(2.0, 1.0))
            scaled.outputscale = 1.0
        further: dict[str, Callable[[Any], Kernel]] = {SMOOTH: _kernel_smooth} if dim <= 10 else {}
        if further and dim > 1:
            further[APART] = _kernel_apart
        return cls(smooth, solver, dtype, device, scaled, further)

    def modules(
        self, few: bool, further: str | None = None, usual: PathwiseGP | None = None
    ) -> dict[str, Any]:
        """Return a new kernel and, for few values, a new likelihood; one of the ``further`` kernels
        by its name, from what the ``usual`` one has learned, of a model of the same values.
        """
        if not few:
            return {"covar_module": deepcopy(self.kernel), "likelihood": None}
        with torch.device("cpu"):
            likelihood = GaussianLikelihood(
                noise_prior=GammaPrior(1.1, 30.0),
                noise_constraint=GreaterThan(LEAST_NOISE, initial_value=1e-2),
            )
            kernel = deepcopy(self.kernel_of_few or self.kernel)
            if further is not None:
                kernel = self.further[further](kernel if usual is None else usual.covar_module)
        made: dict[str, Any] = {"covar_module": kernel, "likelihood": likelihood}
        if usual is not None:
            made["likelihood"] = deepcopy(usual.likelihood)
            made["mean_module"] = deepcopy(usual.mean_module)
        return made

    def build(self, data: TrainingData, hyperparameters: PathwiseGP) -> PathwiseGP:
        """Return the model of all data with the hyperparameters of another."""
        return PathwiseGP(
            data.U.to(self.device, self.dtype),
            data.y.to(self.device, self.dtype),
            None if data.noise is None else data.noise.to(self.device, self.dtype),
            likelihood=hyperparameters.likelihood if data.noise is None else None,
            covar_module=hyperparameters.covar_module,
            mean_module=hyperparameters.mean_module,
            outcome_transform=None,
            solver=self.solver,
        ).eval()

    def checkpoint(
        self, ask: int, model: PathwiseGP, mean_weights: Tensor, *, few: bool, scale_name: str
    ) -> Checkpoint:
        """Return what ``restore`` needs to make ``model`` again."""
        tensors = {**model.state_dict(), MEAN_WEIGHTS: mean_weights}
        if scale_name != "plain":
            tensors[WARPED] = torch.tensor([float(list(SCALES).index(scale_name))], device="cpu")
        kernel = _describe(self.modules(few, self.further_of(model))) + self.encoding
        return Checkpoint(ask, kernel, tensors)

    def further_of(self, model: PathwiseGP) -> str | None:
        """Return the name of the one of :attr:`further` that a model is by, if it is by one."""
        return self._further_names.get(describe_module(model.covar_module))

    @cached_property
    def _further_names(self) -> dict[str, str]:
        kernels = {name: self.modules(True, name)["covar_module"] for name in self.further}
        return {describe_module(kernel): name for name, kernel in kernels.items()}

    def load(
        self, data: TrainingData, state: Mapping[str, Tensor], start: Tensor | None
    ) -> PathwiseGP:
        """Return the model of ``data`` with the state dict of another, by :attr:`kernel`; its next
        solve starts from the weights ``start``, or from zeros.
        """
        model = self._unfitted(data, self.modules(few=False))
        model.load_state_dict(state)
        return model if start is None else model.start_from(start.to(self.device, self.dtype))

    def _unfitted(self, data: TrainingData, modules: dict[str, Any]) -> PathwiseGP:
        return self.build(data, model_of_rows(data, torch.arange(1, device="cpu"), modules))

    def restore(
        self, data: TrainingData, checkpoint: Checkpoint
    ) -> tuple[PathwiseGP, TrainingData] | None:
        """Return a checkpoint's model and its data as it has them, if kernel and encoding match."""
        all_modules = [self.modules(False), *(self.modules(True, n) for n in (None, *self.further))]
        modules = next(
            (m for m in all_modules if checkpoint.kernel == _describe(m) + self.encoding), None
        )
        if modules is None:
            return None
        tensors = dict(checkpoint.tensors)
        if (number := tensors.pop(WARPED, None)) is not None:
            data = data.on(list(SCALES)[int(number)])
        model = self._unfitted(data, modules)
        weights = tensors.pop(MEAN_WEIGHTS)
        if {n: t.shape for n, t in tensors.items()} != {
            n: t.shape for n, t in model.state_dict().items()
        } or len(weights) != len(data.U):
            return None
        model.load_state_dict(tensors)
        return model.start_from(weights.to(self.device, self.dtype)), data


def _kernel_smooth(usual: ScaleKernel) -> Kernel:
    """Return a kernel without priors, of the lengthscales and the variance of another."""
    learned = usual.base_kernel.lengthscale.detach()
    # Rounding of the largest output scale leaves three digits of the least noise
    bound = Interval(LEAST_NOISE, 1e-3 * LEAST_NOISE / torch.finfo(torch.float64).eps)
    rbf = RBFKernel(ard_num_dims=learned.shape[-1]).to(learned)
    smooth = ScaleKernel(rbf, outputscale_constraint=bound).to(learned)
    smooth.base_kernel.lengthscale = learned
    smooth.outputscale = usual.outputscale.detach().clamp_min(2.0 * LEAST_NOISE)
    return smooth


def _kernel_apart(usual: ScaleKernel) -> Kernel:
    """Return the sum of a kernel of all inputs, little at first, and functions of one each."""
    together = deepcopy(usual.base_kernel)
    single = MainEffectsKernel(together.lengthscale.shape[-1])
    single.register_prior("lengthscale_prior", ModerateLengthscalePrior(), "lengthscale")
    single.lengthscale = 0.5
    apart = ScaleKernel(single, outputscale_prior=GammaPrior(1.1, 0.25))
    apart.outputscale = 3.0
    rest = ScaleKernel(together, outputscale_prior=GammaPrior(1.1, 1.0))
    rest.outputscale = 0.1
    return AdditiveKernel(rest, apart)


def model_of_rows(data: TrainingData, rows: Tensor, modules: Mapping[str, Any]) -> PathwiseGP:
    """Return a model of rows (m,), with the likelihood of ``modules`` unless noise is known."""
    return PathwiseGP(
        data.U[rows],
        data.y[rows],
        None if data.noise is None else data.noise[rows],
        outcome_transform=None,
        **{**modules, "likelihood": modules["likelihood"] if data.noise is None else None},
    )


def _describe(modules: dict[str, Any]) -> str:
    """Return a kernel and, if it has one of its own, a likelihood as text."""
    return "; likelihood ".join(describe_module(m) for m in modules.values() if m is not None)


def mean_of(
    factory: SurrogateFactory, data: TrainingData, checkpoint: Checkpoint
) -> Callable[[Tensor], Tensor] | None:
    """Return the mean behind a checkpoint on its data, from the unit cube (k, e) to values (k,) of
    which the largest is best, without a solve, of warped values the median; ``None`` if the
    checkpoint is of another kernel.
    """
    restored = factory.restore(data, checkpoint)
    if restored is None:
        return None
    model, fitted_to = restored
    weights = checkpoint.tensors[MEAN_WEIGHTS].to(factory.device, factory.dtype)
    (whole,) = data_sets(model)
    basis = KernelBasis(whole.kernel, whole.X)
    paths = SamplePaths(None, basis, weights, weights, whole.mean_module)

    @torch.no_grad()
    def mean(U: Tensor) -> Tensor:
        means = paths.mean(U.to(factory.device, factory.dtype)).to("cpu", torch.float64)
        return fitted_to.values_of(means)

    return mean


def describe_module(module: Module) -> str:
    """Return the types and plain settings of a module's parts, such as Matérn's ν, as text."""
    plain = bool | int | float | str
    parts = []
    for name, part in module.named_modules():
        settings = {
            key: value
            for key, value in vars(part).items()
            if isinstance(value, plain) and key != "training"
        }
        parts.append(f"{name}:{type(part).__name__}{settings}")
    return "; ".join(parts)
