"""How a pathwise model is conditioned on its data, and how it knows that what it keeps still belongs to them."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from gpytorch.models import ExactGP
from torch import Tensor

from surrogates import checks
from surrogates.features import PriorPaths, standard_normal
from surrogates.paths import SamplePaths
from surrogates.solvers import Callback, Solution, Solver
from surrogates.systems import LinearSystem, Targets


class StateKey(NamedTuple):
    """All that a posterior depends on, compared by value: GPyTorch's setters write through ``.data``, past every version counter.

    Attributes:
        tensors: parameters, buffers, noise and data.
        settings: the model's own, and the types and plain numbers of its mean and kernel, such as Matérn's ν.
    """

    tensors: tuple[Tensor, ...]
    settings: tuple[Any, ...]

    @classmethod
    def of(cls, model: ExactGP, *settings: Any) -> Self:
        """Return the present key of ``model``, which shares its tensors."""
        parts = [*model.mean_module.modules(), *model.covar_module.modules()]
        plain = [(type(part), *(value for value in vars(part).values() if isinstance(value, int | float | str))) for part in parts]
        tensors = (*model.parameters(), *model.buffers(), model.noise, *model.train_inputs, model.train_targets)
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
    """The paths behind ``posterior``, and what they were drawn from."""

    key: StateKey
    paths: SamplePaths


def solve_weights(
    system: LinearSystem,
    prior: PriorPaths,
    X: Tensor,
    residuals: Tensor,
    noise: Tensor,
    *,
    solver: Solver,
    warm: Tensor | None,
    generator: torch.Generator,
    callback: Callback | None = None,
) -> Solution:
    """Solve for v (first column) and the a of every prior path (the others) in one block: H v = y − μ(X), H a = f(X) + ε.

    Args:
        system: of the weights' points.
        prior: s functions f.
        X: (n, d) data.
        residuals: (n,) y − μ(X).
        noise: Σ, a scalar or (n,) variances.
        warm: (k, 1) weights of the first k points to start the mean from; ``None`` for zeros.
    """
    n, s = len(X), prior.num_paths
    mean_targets = residuals.unsqueeze(1)
    noise_draw = noise.sqrt().unsqueeze(-1) * standard_normal((n, s), X, generator)
    targets = Targets(
        torch.cat([mean_targets, prior(X).T], dim=1),
        torch.cat([torch.zeros_like(mean_targets), noise_draw], dim=1),
    )
    initial = None
    if warm is not None and len(warm) <= system.n:
        initial = X.new_zeros(system.n, s + 1)
        initial[: len(warm), :1] = warm
    rhs = targets if solver.splits_targets else system.rhs(targets)
    del targets, noise_draw  # many columns: only one copy of them is kept
    return solver.solve(system, rhs, initial=initial, generator=generator, callback=callback)


def check_observations(X: Any, Y: Any, noise: Any, *, like: Tensor, known_noise: bool) -> None:
    """Require X (k, d), Y (k, 1) and, if the model's noise is known, ``noise`` (k, 1): what is appended to a model of paths.

    Raises:
        TypeError, ValueError: naming what does not fit.
    """
    checks.floating_tensor("X", X)
    checks.floating_tensor("Y", Y)
    if X.ndim != 2 or X.shape[1] != like.shape[1]:
        raise ValueError(f"`X` must have shape (k, {like.shape[1]}), got {tuple(X.shape)}.")
    if Y.shape != (len(X), 1):
        raise ValueError(
            f"`Y` must have shape ({len(X)}, 1) for a model whose posterior is its paths, got {tuple(Y.shape)}. "
            "Batches of fantasies need the exact posterior of `solver=Cholesky()`."
        )
    checks.like("X", X, "train_X", like)
    checks.like("Y", Y, "train_X", like)
    if known_noise and noise is None:
        raise ValueError("`noise` must be given, (k, 1) variances in standardised units: the model's noise is known for every point.")
    if known_noise:
        checks.floating_tensor("noise", noise)
        if noise.shape != Y.shape or not (noise > 0).all():
            raise ValueError(f"`noise` must be variances above 0 of the shape of `Y`, {tuple(Y.shape)}, got {tuple(noise.shape)}.")


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
