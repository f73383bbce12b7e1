"""Where to evaluate next: points of the design, then maximisers of paths; and how a study finds
back to where it was.

Notation: n values known to an ask, q points; ``X`` in the user's units, ``U`` on the unit cube.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from acquisition.strategies import AutoStrategy
from acquisition.strategy import Request, Strategy
from scalable_bo.progress import describe_search, describe_solve
from scalable_bo.space.space import Space
from scalable_bo.storage.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.rows import Rows, keys
from scalable_bo.storage.storage import Ask
from scalable_bo.storage.surrogate import REFIT_GROWTH, SurrogateFactory, TrainingData
from scalable_bo.study.design import Design, NotEnoughLeftError, remaining
from surrogates import PathwiseGP, SamplePaths, memory
from surrogates.rules.all_data import default_solver
from surrogates.rules.base import COLUMNS_HELD, DIRECT_SOLVE_UP_TO

FEWEST_VALUES = 2  # for a model, unless the design is smaller
SQUARES_OF_A_FACTOR = 4  # (n, n) matrices that a direct solve holds at once
COLUMNS_OF_A_PRECONDITIONER = 3  # copies of its (n, n/20) factor held at once
WORKSPACE = 2**28  # bytes


@dataclass(frozen=True, eq=False)
class Known:
    """What an ask is based on; values that arrive while it runs wait for the one after.

    Attributes:
        asks: those before.
        num_observed: n.
        num_pending: points asked and not told.
        unusable: (p, d) points without a value: pending ones and failed ones.
        taken: ``keys`` of the points that are not to be asked: the unusable ones, in a finite space
            all.
        batches: values of the batches so far, of which the largest is best, NaN where failed: first
            all from before the first model, then those of an ask each, with what was added after
            it.
        data: returns the first n values as training data.
    """

    asks: Sequence[Ask]
    num_observed: int
    num_pending: int
    unusable: Tensor
    taken: set[bytes]
    batches: tuple[Tensor, ...]
    data: Callable[[int], TrainingData]

    @classmethod
    def of(
        cls,
        space: Space,
        rows: Rows,
        asks: Sequence[Ask],
        maximize: bool,
        data: Callable[[int], TrainingData],
    ) -> Known:
        """Return what the rows of a study are as they stand."""
        unusable = rows.X[rows.values.isnan()]
        # A point of a finite space comes up by chance again; a Float makes that as good as
        # impossible.
        taken = rows.X if math.isfinite(space.num_points) else unusable
        first = next((ask.number for ask in asks if ask.refitted is not None), len(asks) + 1)
        numbers = rows.asks[rows.told].clamp_min(first - 1).numpy()
        values = rows.values[rows.told] * (1.0 if maximize else -1.0)
        _, sizes = np.unique(np.maximum.accumulate(numbers), return_counts=True)
        return cls(
            asks=tuple(asks),
            num_observed=len(rows.observed),
            num_pending=len(rows) - rows.num_told,
            unusable=unusable,
            taken=set(keys(taken)),
            batches=values.split(sizes.tolist()),
            data=data,
        )

    @property
    def num_drawn(self) -> int:
        """How many points of the design have been drawn."""
        return self.asks[-1].num_drawn if self.asks else 0


class Proposer:
    """Proposes the points of one ask after the other. All randomness of the k-th ask comes from the
    seed and k.

    Args:
        space: where.
        seed: of the design and of every ask.
        num_initial: values that the design is to give; half of them are enough for a surrogate.
        factory: of surrogates.
        strategy: chooses the points then.
        checkpoints: the folder for them; ``None`` to keep none.
    """

    def __init__(
        self,
        space: Space,
        seed: int,
        num_initial: int,
        factory: SurrogateFactory,
        strategy: Strategy,
        checkpoints: Path | None,
    ) -> None:
        self._space = space
        self._seed = seed
        self._num_initial = num_initial
        self._factory = factory
        self._strategy = strategy
        self._checkpoints = checkpoints
        self._design = Design(space, seed)
        self.model: PathwiseGP | None = None
        self._scale = 1.0  # of the values behind it
        self._of_few = False  # whether it is the one for few points and values
        self.checkpoint: Checkpoint | None = None

    def propose(
        self, q: int, known: Known, callback: Callable[[str], None] | None = None
    ) -> tuple[Tensor, Ask, AskReport]:
        """Return points (q, d) in the user's units, how the ask is to be recorded, and what it
        cost.

        Args:
            callback: receives a line of text whenever the solve or the search has got on.
        Raises:
            NotEnoughLeftError: if fewer than q points are left.
            MemoryError: if the solve cannot fit in free memory.
        """
        points = self._design.points
        left = None if points is None else remaining(points, known.taken)
        if left is not None and len(left) < q:
            raise NotEnoughLeftError(
                "`q` must be at most the number of points that have not been asked for or added,"
                f" {len(left)} in this finite space, got {q}. "
                + ("Ask for fewer." if len(left) else "It is exhausted: see `result`."),
                len(left),
            )
        number = len(known.asks) + 1
        num_of_design = self._num_of_design(q, known)
        if num_of_design == q:
            X, num_drawn = self._design.draw(q, known.num_drawn, known.taken)
            return X, Ask(number, q, known.num_observed, num_drawn, None), AskReport()
        memory.require(
            _columns_bytes(known.num_observed, q, self._factory.dtype),
            self._factory.device,
            f"An ask for {q} points among {known.num_observed} rows",
            "Ask for fewer at a time, or use `dtype=torch.float32`.",
        )
        start = time.perf_counter()
        self._restore(known)
        few = self._is_for_few(q, known.num_observed)
        refit = few or self._is_outgrown(known)
        generator = self._generator(number)
        data = known.data(known.num_observed)
        model, data = self._make_model(data, refit, few, generator)
        fitted = time.perf_counter()
        paths = model.paths(
            q,
            generator=generator,
            callback=callback and (lambda progress: callback(describe_solve(progress))),
        )
        assert isinstance(paths, SamplePaths)  # of one data set
        solved = time.perf_counter()
        batch = self._strategy.generate(
            self._request(model, paths, known, left, generator, callback)
        )
        X, num_drawn = self._completed(batch[: q - num_of_design], num_of_design, known)
        self.checkpoint = self._factory.checkpoint(
            number, model, paths.mean_weights, few=few, warped=data.warp is not None
        )
        if self._checkpoints is not None:
            save_checkpoint(self._checkpoints, self.checkpoint)
        self._keep(model, data, few)
        assert model.solution is not None  # paths() has just made it
        report = AskReport(
            seconds_fit=fitted - start,
            seconds_solve=solved - fitted,
            seconds_acquisition=time.perf_counter() - solved,
            residual=float(model.solution.residual.max()),
            converged=bool(model.solution.converged.all()),
            solver=repr(self._factory.solver or default_solver(known.num_observed)),
            choice=self._reason(q, data),
        )
        return X, Ask(number, q, known.num_observed, num_drawn, refit), report

    def _num_of_design(self, q: int, known: Known) -> int:
        """Return how many of q points are of the design: what it lacks of its values, those that
        are pending counted in; all, while there are too few values for a model.
        """
        enough = min(self._num_initial, max(FEWEST_VALUES, math.ceil(self._num_initial / 2)))
        if known.num_observed < enough:
            return q
        return min(q, max(0, self._num_initial - known.num_observed - known.num_pending))

    def _keep(self, model: PathwiseGP, data: TrainingData, few: bool) -> None:
        """Keep the surrogate of an ask for the next one."""
        self.model = model
        self._scale = data.scale
        self._of_few = few

    def _is_outgrown(self, known: Known) -> bool:
        """Whether hyperparameters are to be fitted again, to many more values or another kernel."""
        fits = [ask.num_observed for ask in known.asks if ask.refitted]
        return self.model is None or self._of_few or known.num_observed >= REFIT_GROWTH * fits[-1]

    def _is_for_few(self, q: int, num_observed: int) -> bool:
        """Whether the surrogate of an ask is the one for few points and values."""
        strategy = self._strategy
        return isinstance(strategy, AutoStrategy) and strategy.is_for_few(q, num_observed)

    def _reason(self, q: int, data: TrainingData) -> str:
        """Return how points are chosen and why; nothing where the user has said how."""
        if not isinstance(self._strategy, AutoStrategy):
            return ""
        reason = self._strategy.reason(q, len(data.U))
        return reason if data.warp is None else f"{reason}; values as the logarithm of their gaps"

    def _make_model(
        self, data: TrainingData, refit: bool, few: bool, generator: torch.Generator
    ) -> tuple[PathwiseGP, TrainingData]:
        """Return the surrogate of an ask and its data as it has them: refitted, or with the last
        hyperparameters and weights to start from.
        """
        if few:
            fitted, data = self._factory.fit_few(data, generator)
            return self._factory.build(data, fitted), data
        if refit or self.model is None:
            return self._factory.build(data, self._factory.fit(data, generator)), data
        model = self._factory.build(data, self.model)
        return model.warm_start(self.model, scale=self._scale / data.scale), data

    def _request(
        self,
        model: PathwiseGP,
        paths: SamplePaths,
        known: Known,
        left: Tensor | None,
        generator: torch.Generator,
        callback: Callable[[str], None] | None,
    ) -> Request:
        """Return what the strategy is asked, on the unit cube.

        Args:
            left: (c, d) the points of a small finite space that are not taken.
        """
        like = model.train_inputs[0]
        to_cube = self._space.normalize
        box = torch.tensor([[0.0], [1.0]]).to(like).repeat(1, self._space.encoded_dim)
        pending = known.unusable if len(known.unusable) and left is None else None
        return Request(
            model,
            paths.num_samples,
            box,
            generator,
            paths=paths,
            X_pending=None if pending is None else to_cube(pending).to(like),
            choices=None if left is None else to_cube(left).to(like),
            constraints=self._space.acquisition_options(like),
            batches=known.batches,
            callback=callback and (lambda progress: callback(describe_search(progress))),
        )

    def _completed(self, batch: Tensor, num_more: int, known: Known) -> tuple[Tensor, int]:
        """Return the points of a batch on the unit cube in the user's units, and before them
        ``num_more`` of the design, which also gives those for points that are taken, occur twice
        or break a constraint; and how many it has drawn then.
        """
        X = self._space.unnormalize(batch.detach().to("cpu", torch.float64).clamp(0, 1))
        usable = self._space.feasible(X)
        taken = set(known.taken)
        for row, key in enumerate(keys(X)):
            usable[row] &= key not in taken
            if usable[row]:
                taken.add(key)
        num_unusable = int((~usable).sum())
        if not num_unusable + num_more:
            return X, known.num_drawn
        drawn, num_drawn = self._design.draw(num_more + num_unusable, known.num_drawn, taken)
        X[~usable] = drawn[num_more:]
        return torch.cat([drawn[:num_more], X]), num_drawn

    def _restore(self, known: Known) -> None:
        """Bring back the surrogate after the last ask: from its checkpoint or,
        from where there is none, by solving again.
        """
        asks = [ask for ask in known.asks if ask.refitted is not None]
        if self.model is not None or not asks:
            return
        first = max(ask.number for ask in asks if ask.refitted)
        checkpoint = None
        if self._checkpoints is not None:
            checkpoint = load_checkpoint(self._checkpoints, asks[-1].number)
        if checkpoint is not None:
            ask = known.asks[checkpoint.ask - 1]
            restored = self._factory.restore(known.data(ask.num_observed), checkpoint)
            if restored is not None:
                self.model, data = restored
                self._scale = data.scale
                self._of_few = self._is_for_few(ask.num_points, ask.num_observed)
                first = checkpoint.ask + 1
        for ask in asks:
            if ask.number >= first:
                generator = self._generator(ask.number)
                data = known.data(ask.num_observed)
                few = self._is_for_few(ask.num_points, ask.num_observed)
                model, data = self._make_model(data, bool(ask.refitted), few, generator)
                model.paths(ask.num_points, generator=generator)
                self._keep(model, data, few)

    def _generator(self, number: int) -> torch.Generator:
        """Return the randomness of an ask."""
        state = np.random.SeedSequence((self._seed, number)).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(state[0]))


def predicted_bytes(n: int, q: int, dtype: torch.dtype, free: int) -> int:
    """Return about how much memory an ask for q points among n rows takes with the default solver,
    beyond the study's own.

    Right-hand sides and solutions, tiles and candidates; the kernel matrix, where it is kept, with
    its factor or its copy in float32, in which solves begin; and a preconditioner of n/20 columns,
    if ``free`` bytes hold it beside the rest: the solver can do without.
    """
    size = torch.finfo(dtype).bits // 8
    needed = _columns_bytes(n, q, dtype) + WORKSPACE
    if n <= DIRECT_SOLVE_UP_TO:
        return needed + SQUARES_OF_A_FACTOR * n * n * size
    if n * n * size <= memory.DEFAULT_CPU_BUDGET:
        needed += n * n * (size if dtype == torch.float32 else size + 4)
    preconditioner = COLUMNS_OF_A_PRECONDITIONER * n * (n // 20) * 4
    return needed + preconditioner if needed + preconditioner <= free else needed


def _columns_bytes(n: int, q: int, dtype: torch.dtype) -> int:
    """Return the part of it that no solver can do without."""
    return COLUMNS_HELD * n * (q + 1) * (torch.finfo(dtype).bits // 8)
