"""How a pathwise model is conditioned on its data, and how it knows that what it keeps still
belongs to them.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from gpytorch.models import ExactGP
from torch import Tensor
from torch.nn import Module

from surrogates import checks
from surrogates.functions.features import PriorPaths, standard_normal
from surrogates.functions.paths import BatchPaths, SamplePaths
from surrogates.solvers.base import Callback, Solver
from surrogates.solvers.run import Solution
from surrogates.systems.base import LinearSystem, Targets


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
        parts = cls.of_parts([model.mean_module, model.covar_module])
        tensors = (
            *model.parameters(),
            *model.buffers(),
            model.noise,
            *model.train_inputs,
            model.train_targets,
        )
        return cls(tensors, (*settings, *parts.settings))

    @classmethod
    def of_parts(cls, modules: list[Module]) -> Self:
        """Return the present key of ``modules`` alone, which shares their tensors."""
        parts = [part for module in modules for part in module.modules()]
        plain = [
            (
                type(part),
                *(value for value in vars(part).values() if isinstance(value, int | float | str)),
            )
            for part in parts
        ]
        return cls(
            tuple(
                tensor for module in modules for tensor in (*module.parameters(), *module.buffers())
            ),
            tuple(plain),
        )

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
    """Solve for v (first column) and the a of every prior path (the others) in one block: H v = y −
    μ(X), H a = f(X) + ε.

    Args:
        system: of the weights' points.
        prior: s functions f.
        X: (n, d) data.
        residuals: (n,) y − μ(X).
        noise: Σ, a scalar or (n,) variances.
        warm: (k, 1) weights of the first k points to start the mean from; ``None`` for zeros.
    """
    n = len(X)
    s = prior.num_paths
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


def join_solutions(solutions: list[Solution | None]) -> Solution | None:
    """Return one account of several solves, over the columns of all of them;
    ``None`` if there were none.
    """
    done = [solution for solution in solutions if solution is not None]
    if len(done) < 2:
        return done[0] if done else None
    return Solution(
        value=torch.cat([solution.value for solution in done], dim=1),
        residual=torch.cat([solution.residual for solution in done]),
        converged=torch.cat([solution.converged for solution in done]),
        steps=torch.cat([solution.steps for solution in done]),
        epochs=sum(solution.epochs for solution in done),
        seconds=sum(solution.seconds for solution in done),
        note="; ".join(dict.fromkeys(solution.note for solution in done if solution.note)),
    )


def check_observations(
    X: Any, Y: Any, noise: Any, *, like: Tensor, shape: tuple[int, ...], known_noise: bool
) -> None:
    """Require X (*batch, k, d), Y (*batch, k, m) and, if the model's noise is known, ``noise`` of
    the shape of Y.

    Args:
        like: the model's inputs.
        shape: (*batch, -1, m).

    Raises:
        TypeError, ValueError: naming what does not fit.
    """
    checks.floating_tensor("X", X)
    checks.floating_tensor("Y", Y)
    *batch, _, m = shape
    front = "".join(f"{size}, " for size in batch)
    d = like.shape[-1]
    if X.ndim != len(shape) or X.shape[:-2] != shape[:-2] or X.shape[-1] != d:
        raise ValueError(f"`X` must have shape ({front}k, {d}), got {tuple(X.shape)}.")
    if Y.shape != (*X.shape[:-1], m):
        raise ValueError(f"`Y` must have shape {(*X.shape[:-1], m)}, got {tuple(Y.shape)}.")
    checks.like("X", X, "train_X", like)
    checks.like("Y", Y, "train_X", like)
    if known_noise and noise is None:
        raise ValueError(
            "`noise` must be given, variances of the shape of `Y` in standardised units: the"
            " model's noise is known."
        )
    if known_noise:
        checks.floating_tensor("noise", noise)
        if noise.shape != Y.shape or not (noise > 0).all():
            raise ValueError(
                f"`noise` must be variances above 0 of the shape of `Y`, {tuple(Y.shape)}, got"
                f" {tuple(noise.shape)}."
            )


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
