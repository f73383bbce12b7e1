"""Parallel Thompson sampling: q posterior paths, and the maximiser of each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from acquisition.candidates import propose
from acquisition.multistart import ascend, screen
from surrogates import PathwiseGP, SamplePaths, checks

DUPLICATE_DISTANCE = 1e-6  # in units of the box's sides


@dataclass(frozen=True)
class AcquisitionProgress:
    """A moment of a running ``generate``: the stage (``"screening"`` or ``"ascent"``) and how much of it is done."""

    stage: str
    done: int
    total: int


class ParallelThompsonSampling:
    """A batch of q points, each the maximiser of a path of its own.

    For every path: (1) ``num_rounds`` rounds of candidates, shared by all paths, partly uniform and partly near good data; each
    path keeps its best of every round; (2) ``num_steps`` Adam steps on that path from its ``num_starts`` best; (3) the best point
    found. A point already in the batch is passed over for the path's next best start. Memory is bounded by tiles whatever q and n.

    Args:
        model: draws the paths.
        bounds: (2, d), in the units of the model's inputs, of its dtype and device.
        num_candidates: a round.
        num_rounds: at least ``num_starts``.
        num_starts: ascents a path.
        uniform_fraction: share of uniform candidates.
        proposal_std: standard deviation around data points, a number or (d,); half the kernel's lengthscale if ``None``.
        num_steps: of Adam.
        learning_rate: of Adam, in units of the box's sides. The published 1e-3 ends a sixth of the ascent short (lengthscale 0.5, d = 8).
        maximize: ``False`` to take minimisers.
        seed: of paths and candidates; the same seed gives the same batch.
        callback: called with :class:`AcquisitionProgress`.

    Raises:
        TypeError, ValueError: for arguments out of their range.
    References:
        Lin et al. (2023), App. A.3. Differs: (1) data points drawn by ``y − min(y)``; (2) the best point visited, not the last;
        (3) duplicates are passed over.
    """

    def __init__(
        self,
        model: PathwiseGP,
        bounds: Tensor,
        *,
        num_candidates: int = 50_000,
        num_rounds: int = 30,
        num_starts: int = 30,
        uniform_fraction: float = 0.1,
        proposal_std: float | Tensor | None = None,
        num_steps: int = 100,
        learning_rate: float = 2e-2,
        maximize: bool = True,
        seed: int | None = None,
        callback: Callable[[AcquisitionProgress], None] | None = None,
    ) -> None:
        if not isinstance(model, PathwiseGP):
            raise TypeError(f"`model` must be a PathwiseGP, got {type(model).__name__}.")
        self.model, self.bounds = model, checks.box(bounds)
        X = original_inputs(model)
        if self.bounds.shape[1] != X.shape[1]:
            raise ValueError(f"`bounds` must have shape (2, {X.shape[1]}) for this model, got {tuple(self.bounds.shape)}.")
        checks.like("bounds", self.bounds, "train_X", X)
        self.num_candidates = checks.positive_int("num_candidates", num_candidates)
        self.num_rounds = checks.positive_int("num_rounds", num_rounds)
        self.num_starts = checks.positive_int("num_starts", num_starts)
        if num_starts > num_rounds:
            raise ValueError(f"`num_starts` must be at most `num_rounds` = {num_rounds}, got {num_starts}. Each round gives one start.")
        self.uniform_fraction = checks.fraction("uniform_fraction", uniform_fraction)
        self.proposal_std = self._proposal_std(proposal_std)
        self.num_steps = checks.integer("num_steps", num_steps, 0)
        self.learning_rate = checks.positive_float("learning_rate", learning_rate)
        self.sign = 1.0 if maximize else -1.0
        self.seed = model.seed if seed is None else checks.integer("seed", seed, 0)
        self.callback = callback

    def generate(self, q: int, *, paths: SamplePaths | None = None) -> Tensor:
        """Return the batch (q, d).

        Args:
            q: points, and paths.
            paths: q paths to maximise; drawn from the model if ``None``.
        """
        checks.positive_int("q", q)
        generator = torch.Generator().manual_seed(self.seed)
        if paths is None:
            paths = self.model.paths(q, generator=generator)
        elif paths.num_samples != q:
            raise ValueError(f"`paths` must hold q = {q} paths, got {paths.num_samples}.")
        starts = screen(
            paths,
            self._candidate_rounds(generator),
            sign=self.sign,
            after_round=self._report("screening", self.num_rounds),
        )
        if self.num_starts < self.num_rounds:
            order = (self.sign * paths.each(starts)).topk(self.num_starts, dim=1).indices
            starts = starts.take_along_dim(order.unsqueeze(-1), dim=1)
        points, values = ascend(
            paths,
            starts,
            self.bounds,
            num_steps=self.num_steps,
            learning_rate=self.learning_rate,
            sign=self.sign,
            after_step=self._report("ascent", self.num_steps),
        )
        return distinct_best(points, self.sign * values, self.bounds)

    def _candidate_rounds(self, generator: torch.Generator) -> Iterator[Tensor]:
        X, y = original_inputs(self.model), self.sign * self.model.train_targets
        for _ in range(self.num_rounds):
            yield propose(
                X,
                y,
                self.bounds,
                self.num_candidates,
                uniform_fraction=self.uniform_fraction,
                proposal_std=self.proposal_std,
                generator=generator,
            )

    def _proposal_std(self, given: float | Tensor | None) -> Tensor:
        width = self.bounds[1] - self.bounds[0]
        if given is None:
            return default_proposal_std(self.model, width)
        if not isinstance(given, int | float | Tensor):
            raise TypeError(f"`proposal_std` must be a number or a tensor, got {type(given).__name__} {given!r}.")
        std = torch.as_tensor(given, dtype=width.dtype, device=width.device)
        if std.shape not in ((), width.shape) or not bool((torch.isfinite(std) & (std > 0)).all()):
            raise ValueError(f"`proposal_std` must be a number or ({len(width)},) numbers above 0, got {given!r}.")
        return std.expand_as(width)

    def _report(self, stage: str, total: int) -> Callable[[], None]:
        done = 0

        def report() -> None:
            nonlocal done
            done += 1
            if self.callback is not None:
                self.callback(AcquisitionProgress(stage, done, total))

        return report


def original_inputs(model: PathwiseGP) -> Tensor:
    """Return the training inputs of ``model`` as they were given, before its input transform."""
    model.eval()
    return getattr(model, "_original_train_inputs", model.train_inputs[0]) if hasattr(model, "input_transform") else model.train_inputs[0]


def default_proposal_std(model: PathwiseGP, width: Tensor) -> Tensor:
    """Return half the kernel's lengthscale (d,), in the units of the inputs; a tenth of the box where it has none."""
    kernel = getattr(model.covar_module, "base_kernel", model.covar_module)
    on_all_inputs = kernel.active_dims is None and model.covar_module.active_dims is None
    if not kernel.has_lengthscale or not on_all_inputs or hasattr(model, "input_transform"):
        return 0.1 * width
    return (0.5 * kernel.lengthscale.detach().reshape(-1)).to(width).expand_as(width)


def distinct_best(points: Tensor, values: Tensor, bounds: Tensor) -> Tensor:
    """Return for each of s functions its best of k points (s, k, d) by value (s, k) that no earlier function has taken: (s, d).

    A function whose every point is taken keeps its best one.
    """
    order = values.argsort(dim=1, descending=True)
    ranked = points.take_along_dim(order.unsqueeze(-1), dim=1)
    chosen = ranked[:, 0].clone()
    scaled, taken = ranked / (bounds[1] - bounds[0]), ranked.new_empty(len(ranked), ranked.shape[2])
    for i in range(len(ranked)):
        distances = torch.cdist(scaled[i], taken[:i], compute_mode="donot_use_mm_for_euclid_dist")
        free = (distances > DUPLICATE_DISTANCE).all(dim=1).nonzero()
        k = int(free[0]) if len(free) else 0
        chosen[i], taken[i] = ranked[i, k], scaled[i, k]
    return chosen
