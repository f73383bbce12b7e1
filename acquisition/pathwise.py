"""Thompson sampling where BoTorch expects an acquisition function, or a strategy that samples from
candidates.

Notation: q paths, X (batch, q, d) points of an acquisition function, (batch, c, d) candidates of a
strategy.
"""

from typing import Any

import torch
from botorch.acquisition import thompson_sampling
from botorch.acquisition.objective import MCAcquisitionObjective, PosteriorTransform
from botorch.generation.sampling import MaxPosteriorSampling
from botorch.models.model_list_gp_regression import ModelListGP
from torch import Tensor

from acquisition.candidates import model_list
from acquisition.outcomes import OutcomePaths
from acquisition.pools import best_choices
from surrogates import PathwiseGP, checks


class PathwiseThompsonSampling(thompson_sampling.PathwiseThompsonSampling):
    """The sum over i = 1 … q of path i at point i, for ``optimize_acqf``: its maximiser is a
    Thompson batch.

    The paths are drawn at the first evaluation, by the model's solver, and kept, so that the
    function is deterministic, until the model or the pending points change. Values and gradients
    are computed tile by tile. Beyond about 50 points a batch, one optimisation of q · d variables
    no longer scales: use :class:`ParallelThompsonSampling`.

    Args:
        model: a ``PathwiseGP``, or a ``ModelListGP`` of them, without batch shape.
        objective: maps values (..., m) to (...); needed for several outputs, unless
            ``posterior_transform`` makes them one.
        posterior_transform: applied to the values of the paths first.
        seed: of the paths; the model's if ``None``.

    Attributes:
        paths: the q functions; ``None`` before they are drawn.

    Raises:
        TypeError, ValueError: for other models, and a seed that is not an int of at least 0.
        UnsupportedError: for several outputs without an objective.
    References:
        Differs from BoTorch's class of this name: (1) a seed in place of the global generator; (2)
        paths never outlive what they were drawn from; (3) after pending points, as in
        ``optimize_acqf(…, sequential=True)``, comes the next path, not the same one again.
    """

    def __init__(
        self,
        model: PathwiseGP | ModelListGP,
        objective: MCAcquisitionObjective | None = None,
        posterior_transform: PosteriorTransform | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        models = model_list(model)
        super().__init__(model, objective, posterior_transform)
        self.models = models
        self.seed = checks.optional(checks.integer, "seed", seed, 0)
        self.paths: OutcomePaths | None = None
        self.set_X_pending()  # none
        self._drawn_from: tuple[Any, ...] = ()
        self._num_redraws = 0

    def redraw(self, batch_size: int | None = None) -> None:
        """Draw other paths: ``batch_size`` of them, or as many as there are."""
        self._num_redraws += 1
        self.paths = None
        size = self.batch_size if batch_size is None else batch_size
        if size is not None:
            self._draw(checks.positive_int("batch_size", size))

    def _pathwise_forward(self, X: Tensor) -> Tensor:
        """Return path i at point i, (batch, q), for X (batch, q, d)."""
        batch_size = X.shape[-2]
        if self.paths is None or not self._is_fresh():
            self._draw(batch_size if self.batch_size is None else self.batch_size)
        if self.paths is None or batch_size != self.paths.num_samples:
            raise ValueError(
                f"`X` must hold q = {self.batch_size} points, one a path, got {batch_size}. Call"
                " `redraw(batch_size)` first."
            )
        points = X.reshape(-1, batch_size, X.shape[-1]).transpose(0, 1)
        return self.paths.each(points).T.reshape(X.shape[:-1])

    def _draw(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.paths = _functions(self, batch_size, self._num_redraws + self._num_pending)
        keys = (model._state_key().frozen() for model in self.models)
        self._drawn_from = (self._num_pending, *keys)

    @property
    def _num_pending(self) -> int:
        return 0 if self.X_pending is None else len(self.X_pending)

    def _is_fresh(self) -> bool:
        num_pending, *keys = self._drawn_from
        for model in self.models:
            model.eval()
        return num_pending == self._num_pending and all(
            model._state_key().matches(key) for model, key in zip(self.models, keys, strict=True)
        )


class PathwiseMaxPosteriorSampling(MaxPosteriorSampling):
    """Choose among candidates the maximiser of each of ``num_samples`` paths: BoTorch's
    ``MaxPosteriorSampling`` for any number of them.

    Where BoTorch's draws from the joint posterior of all candidates, this evaluates functions, tile
    by tile. Every call draws new ones.

    Args:
        model: as in :class:`PathwiseThompsonSampling`, and so are the objective and the transform.
        replacement: whether a candidate may be chosen by several paths; otherwise each takes its
            best of those that are left.
        seed: of the first call's paths; the model's if ``None``.

    Raises:
        TypeError, ValueError: for other models, and a seed that is not an int of at least 0.
    """

    def __init__(
        self,
        model: PathwiseGP | ModelListGP,
        objective: MCAcquisitionObjective | None = None,
        posterior_transform: PosteriorTransform | None = None,
        replacement: bool = True,
        *,
        seed: int | None = None,
    ) -> None:
        models = model_list(model)
        super().__init__(model, objective, posterior_transform, replacement)
        self.models = models
        self.seed = checks.optional(checks.integer, "seed", seed, 0)
        self._num_calls = 0

    @torch.no_grad()
    def forward(self, X: Tensor, num_samples: int = 1, observation_noise: bool = False) -> Tensor:
        """Return (batch, num_samples, d) of the candidates X (batch, c, d), chosen by the same
        paths in every element of the batch.

        Raises:
            ValueError: if ``observation_noise`` is set, or there are fewer candidates than samples
                without replacement.
        """
        num_samples = checks.positive_int("num_samples", num_samples)
        if observation_noise:
            raise ValueError(
                "`observation_noise` must be False, got True: paths are functions without noise."
            )
        if not self.replacement and num_samples > X.shape[-2]:
            raise ValueError(
                f"`num_samples` must be at most the {X.shape[-2]} candidates without replacement,"
                f" got {num_samples}."
            )
        functions = _functions(self, num_samples, self._num_calls)
        self._num_calls += 1
        chosen = [
            best_choices(functions, candidates, repeats=self.replacement)
            for candidates in X.reshape(-1, *X.shape[-2:])
        ]
        return torch.stack(chosen).reshape(*X.shape[:-2], num_samples, X.shape[-1])


def _functions(
    sampler: PathwiseThompsonSampling | PathwiseMaxPosteriorSampling, count: int, number: int
) -> OutcomePaths:
    models = sampler.models
    seed = models[0].seed if sampler.seed is None else sampler.seed
    generator = torch.Generator().manual_seed(seed + number)
    parts = tuple(model.paths(count, generator=generator) for model in models)
    objective, transform = sampler.objective, sampler.posterior_transform
    if transform is None:
        return OutcomePaths(parts, objective)
    return OutcomePaths(parts, lambda Y: objective(transform.evaluate(Y)))
