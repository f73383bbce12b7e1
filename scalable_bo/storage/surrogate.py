"""The surrogate of a study: a model of its values, fitted on a schedule, kept between rounds and in
checkpoints.

Notation: n values; ``U (n, e)`` on the unit cube.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from gpytorch import Module
from gpytorch.kernels import Kernel
from torch import Tensor

from scalable_bo.space.space import Space
from scalable_bo.storage.checkpoints import Checkpoint
from scalable_bo.storage.rows import Rows
from surrogates import PathwiseGP, SamplePaths, Solver, fit_exact
from surrogates.models.batches import data_sets
from surrogates.operators.differentiable import KernelBasis

# Hyperparameters are fitted to at most so many observations, drawn anew each time: O(n³) a
# likelihood evaluation.
MAX_FIT_POINTS = 1000
# They are fitted again when the observations are this many times those of the last fit.
REFIT_GROWTH = 1.5
MEAN_WEIGHTS = "mean_weights"


@dataclass(frozen=True, eq=False)
class TrainingData:
    """What a surrogate is trained on.

    Attributes:
        U: (n, e), on the unit cube.
        y: (n, 1) standardised values, of which the largest is best.
        noise: (n, 1) known variances in the units of ``y``, or ``None``.
        scale: the user's units in one of ``y``.
    """

    U: Tensor
    y: Tensor
    noise: Tensor | None
    scale: float

    @classmethod
    def of(cls, U: Tensor, values: Tensor, noise: Tensor | None, maximize: bool) -> TrainingData:
        """Standardise values (n,) and their variances (n,)."""
        signed = values * (1.0 if maximize else -1.0)
        scale = signed.std().item() if len(signed) > 1 else 0.0
        scale = scale if scale > 0 else 1.0
        y = (signed - signed.mean()) / scale
        return cls(U, y[:, None], None if noise is None else noise[:, None] / scale**2, scale)

    @classmethod
    def first(cls, num_observed: int, rows: Rows, space: Space, maximize: bool) -> TrainingData:
        """Return the first values told."""
        ids = rows.observed[:num_observed]
        noise = rows.noise[ids] if rows.noise_is_known else None
        return cls.of(space.normalize(rows.X[ids]), rows.values[ids], noise, maximize)


@dataclass(frozen=True, eq=False)
class SurrogateFactory:
    """Makes the models of a study.

    Attributes:
        kernel: on the unit cube, not changed.
        solver: as in ``PathwiseGP``.
        dtype: of the models.
        device: of the models.
    """

    kernel: Kernel
    solver: Solver | None
    dtype: torch.dtype
    device: torch.device

    def fit(self, data: TrainingData, generator: torch.Generator) -> PathwiseGP:
        """Return a small model whose hyperparameters maximise the likelihood of a random subset."""
        rows = torch.randperm(len(data.U), generator=generator)[:MAX_FIT_POINTS]
        # In float64 whatever the surrogate's dtype: the optimiser's line search fails on float32
        # gradients.
        noise = None if data.noise is None else data.noise[rows]
        return fit_exact(
            PathwiseGP(
                data.U[rows],
                data.y[rows],
                noise,
                covar_module=deepcopy(self.kernel),
                outcome_transform=None,
            )
        )

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

    def checkpoint(self, ask: int, model: PathwiseGP, mean_weights: Tensor) -> Checkpoint:
        """Return what ``restore`` needs to make ``model`` again."""
        return Checkpoint(
            ask, describe_module(self.kernel), {**model.state_dict(), MEAN_WEIGHTS: mean_weights}
        )

    def restore(self, data: TrainingData, checkpoint: Checkpoint) -> PathwiseGP | None:
        """Return the model behind a checkpoint on its data;
        ``None`` if the checkpoint is of another kernel.
        """
        if checkpoint.kernel != describe_module(self.kernel):
            return None
        small = TrainingData(
            data.U[:1], data.y[:1], None if data.noise is None else data.noise[:1], data.scale
        )
        fresh = PathwiseGP(
            small.U,
            small.y,
            small.noise,
            covar_module=deepcopy(self.kernel),
            outcome_transform=None,
        )
        model = self.build(data, fresh)
        tensors = dict(checkpoint.tensors)
        weights = tensors.pop(MEAN_WEIGHTS)
        if {n: t.shape for n, t in tensors.items()} != {
            n: t.shape for n, t in model.state_dict().items()
        } or len(weights) != len(data.U):
            return None
        model.load_state_dict(tensors)
        return model.start_from(weights.to(self.device, self.dtype))


def posterior_mean(
    factory: SurrogateFactory, data: TrainingData, checkpoint: Checkpoint
) -> Callable[[Tensor], Tensor] | None:
    """Return the mean behind a checkpoint on its data, from (k, e) to (k,) in standardised units,
    without a solve.

    ``None`` if the checkpoint is of another kernel.
    """
    model = factory.restore(data, checkpoint)
    if model is None:
        return None
    weights = checkpoint.tensors[MEAN_WEIGHTS].to(factory.device, factory.dtype)
    (whole,) = data_sets(model)
    mean = SamplePaths(
        None, KernelBasis(whole.kernel, whole.X), weights, weights, whole.mean_module
    ).mean

    @torch.no_grad()
    def evaluate(U: Tensor) -> Tensor:
        return mean(U.to(factory.device, factory.dtype)).to("cpu", torch.float64)

    return evaluate


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
