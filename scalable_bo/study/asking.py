"""Where to evaluate next: points of the design, then maximisers of paths; and how a study finds
back to where it was.

Notation: n values known to an ask, q points; ``X`` in the user's units, ``U`` on the unit cube.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acquisition.constraints import FeasibleSet, TooFewPoints
from acquisition.pools import Lots, choose, read_parts
from acquisition.selection import KnownPoints
from acquisition.strategies import ThompsonStrategy
from acquisition.strategy import ChoosingStrategy, Request, SharingStrategy, Strategy
from acquisition.thompson import ParallelThompsonSampling
from scalable_bo.progress import describe_fit, describe_search, describe_solve
from scalable_bo.space.goal import Goal
from scalable_bo.space.space import Space
from scalable_bo.storage.checkpoints import (
    Checkpoint,
    load_checkpoint,
    remove_checkpoints,
    save_checkpoint,
)
from scalable_bo.storage.pools import Pool
from scalable_bo.storage.record import StudyRecord
from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.rows import Rows, keys
from scalable_bo.storage.storage import Ask
from scalable_bo.storage.surrogate import (
    FITTED_ALWAYS_UP_TO,
    REFIT_GROWTH,
    REFIT_GROWTH_OF_FEW,
    SCALES,
    SurrogateFactory,
    TrainingData,
    posterior_mean,
)
from scalable_bo.study.design import Design, NotEnoughLeftError, remaining
from scalable_bo.study.local import find_regions
from scalable_bo.study.outcomes import OutcomeModels, acquisition_goal
from scalable_bo.study.pace import PROBED_COLUMNS, SHARE, Plan, measure_rates, plan_ask
from scalable_bo.study.team import Team
from surrogates import PathwiseGP, Progress, SamplePaths, Solution, memory
from surrogates.rules.solved import COLUMNS_HELD, DIRECT_SOLVE_UP_TO, default_solver

FEWEST_VALUES = 2  # for a model, unless the design is smaller
SQUARES_OF_A_FACTOR = 4  # (n, n) matrices that a direct solve holds at once
COLUMNS_OF_A_PRECONDITIONER = 3  # copies of its (n, n/20) factor held at once
WORKSPACE = 2**28  # bytes
STATE = "state."  # before the names of a model's state, in what other processes are sent


@dataclass(frozen=True, eq=False)
class Known:
    """What an ask is based on; values that arrive while it runs wait for the one after.

    Attributes:
        asks: those before.
        num_observed: n.
        num_pending: points asked and not told.
        unusable: (p, d) points without a value: pending ones, failed ones and those of the queue.
        queued: (k, d) points of the queue that the ask gives out.
        taken: ``keys`` of the points that are not to be asked: the unusable ones, in a finite space
            all.
        batches: values of the batches so far, of which the largest is best, NaN where failed: first
            all from before the first model, then those of an ask each, with what was added after
            it.
        data: returns the first n values as training data.
        goal: what is wanted of several outcomes; ``None`` for one objective alone.
        outcome_data: returns the first n values of each outcome.
    """

    asks: Sequence[Ask]
    num_observed: int
    num_pending: int
    unusable: Tensor
    queued: Tensor
    taken: set[bytes]
    batches: tuple[Tensor, ...]
    data: Callable[[int], TrainingData]
    goal: Goal | None
    outcome_data: Callable[[int], list[TrainingData]]

    @classmethod
    def of(cls, space: Space, record: StudyRecord, maximize: bool, q: int = 0) -> Known:
        """Return what a study knows as it stands, for an ask of q points."""

        goal = record.goal

        def data(num_observed: int) -> TrainingData:
            with record.lock:
                return TrainingData.first(num_observed, record.rows, space, maximize)

        def outcome_data(num_observed: int) -> list[TrainingData]:
            assert goal is not None
            with record.lock:
                ids = record.rows.observed[:num_observed]
                U = space.normalize(record.rows.X[ids])
                columns = record.rows.outcomes(len(goal.names))[ids].T
            signs = zip(columns, goal.signs, strict=True)
            return [TrainingData.of(U, values, None, sign > 0) for values, sign in signs]

        with record.lock:
            rows = record.rows
            queue = record.queue
            unusable = torch.cat([rows.X[rows.values.isnan()], queue])
            # A point of a finite space comes up by chance again; a Float makes that as good as
            # impossible.
            taken = torch.cat([rows.X, queue]) if math.isfinite(space.num_points) else unusable
            return cls(
                asks=tuple(record.asks),
                num_observed=len(rows.observed),
                num_pending=len(rows) - rows.num_told + len(queue),
                unusable=unusable,
                queued=queue[:q],
                taken=set(keys(taken)),
                batches=_batches(rows, record.asks, maximize, goal),
                data=data,
                goal=goal,
                outcome_data=outcome_data,
            )

    @property
    def num_drawn(self) -> int:
        """How many points of the design have been drawn."""
        return self.asks[-1].num_drawn if self.asks else 0


def _batches(
    rows: Rows, asks: Sequence[Ask], maximize: bool, goal: Goal | None
) -> tuple[Tensor, ...]:
    """Return ``Known.batches``; points that break a limit count as failed."""
    first = next((ask.number for ask in asks if ask.refitted is not None), len(asks) + 1)
    numbers = rows.asks[rows.told].clamp_min(first - 1).numpy()
    values = rows.values * (1.0 if maximize else -1.0)
    if goal is not None:
        values = torch.where(goal.feasible(rows.outcomes(len(goal.names))), values, math.nan)
    _, sizes = np.unique(np.maximum.accumulate(numbers), return_counts=True)
    return values[rows.told].split(sizes.tolist())


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
        team: the processes that make batches together; ``None`` for this one alone.
        ask_seconds: that an ask is to take in an infinite space, by one objective and without a
            pool; ``None`` for as long as all values take.
    """

    def __init__(
        self,
        space: Space,
        seed: int,
        num_initial: int,
        factory: SurrogateFactory,
        strategy: Strategy,
        checkpoints: Path | None,
        team: Team | None = None,
        ask_seconds: float | None = None,
    ) -> None:
        self._space = space
        self._seed = seed
        self._num_initial = num_initial
        self._factory = factory
        self._strategy = strategy
        self._checkpoints = checkpoints
        self._team = team
        self._ask_seconds = ask_seconds
        self._design = Design(space, seed)
        self.model: PathwiseGP | None = None
        self._of_few = False  # whether it is the one for few points and values
        self.fitted: tuple[PathwiseGP, TrainingData] | None = None  # it and its data
        self.checkpoint: Checkpoint | None = None
        self._outcome_models: OutcomeModels | None = None

    def propose(
        self,
        q: int,
        known: Known,
        callback: Callable[[str], None] | None = None,
        pool: Pool | None = None,
    ) -> tuple[Tensor, Ask, AskReport]:
        """Return points (q, d) in the user's units, beside those of the queue, how the ask is to be
        recorded, and what it cost.

        Args:
            callback: receives a line of text whenever the fit, the solve or the search has got on.
            pool: the candidates, which ``pool.chosen`` tells apart then; ``None`` for the space.
        Raises:
            NotEnoughLeftError: if fewer than q points are left.
            MemoryError: if the solve cannot fit in free memory.
        """
        left = self._left(q, known) if pool is None else None
        number = len(known.asks) + 1
        num_of_design = self._num_of_design(q, known)
        if num_of_design == q:
            if pool is not None and q:
                X = self._drawn_from(pool, q, number, known)
                num_drawn = known.num_drawn
            else:
                X, num_drawn = self._design.draw(q, known.num_drawn, known.taken)
            return X, Ask(number, q, known.num_observed, num_drawn, None), AskReport()
        start = time.perf_counter()
        plan = self._plan(q, known) if left is None and pool is None else None
        if plan is not None and plan.num_rows is not None:
            return self._propose_locally(plan, q, num_of_design, known, callback)
        team = self._team if pool is None and self._is_shared(q, known) else None
        self._require_memory(q, known, 1 if team is None else team.size)
        if known.goal is not None:
            return self._propose_for(known.goal, q, num_of_design, known, left, callback, pool)
        self.restore(known)
        few = self._is_for_few(q, known.num_observed)
        refit = self._is_to_be_fitted(known, few)
        generator = self._generator(number)
        told = known.data(known.num_observed)
        deadline = self._deadline(start)
        model, data = self._make_model(told, refit, few, generator, callback, deadline)
        fitted = time.perf_counter()
        request = self._request(model, q, known, left, generator, callback)
        if pool is not None:
            request = _without(request, told, data)
        with nullcontext() if team is None else team.working(_job(request, data)):
            paths = model.paths(
                q,
                generator=generator,
                shared=team is not None,
                callback=_solve_lines(callback),
            )
            solved = time.perf_counter()
            strategy = self._strategy if pool is None else _Choice(pool)
            batch = strategy.generate(replace(request, paths=paths, shared=team is not None))
        assert isinstance(paths, SamplePaths)  # of one data set
        X, num_drawn = self._completed(batch, num_of_design, known, pool)
        self.checkpoint = self._factory.checkpoint(
            number, model, paths.mean_weights, few=few, scale_name=data.scale_name
        )
        if self._checkpoints is not None:
            save_checkpoint(self._checkpoints, self.checkpoint)
        self._keep(model, data, few)
        assert model.solution is not None  # paths() has just made it
        choice = self._reason(q, data, plan) if pool is None else "thompson: among a pool"
        report = self._report((start, fitted, solved), known, [model.solution], choice)
        return X, Ask(number, q, known.num_observed, num_drawn, refit), report

    def _require_memory(self, q: int, known: Known, num_processes: int) -> None:
        memory.require(
            _columns_bytes(known.num_observed, q, self._factory.dtype) // num_processes,
            self._factory.device,
            f"An ask for {q} points among {known.num_observed} rows",
            "Ask for fewer at a time, or use `dtype=torch.float32`.",
        )

    def _plan(self, q: int, known: Known) -> Plan | None:
        """Return what an ask is to be by, to keep to its time; ``None`` where it has none."""
        if self._ask_seconds is None:
            return None
        factory = self._factory
        U = known.data(min(known.num_observed, PROBED_COLUMNS)).U.to(factory.device, factory.dtype)
        rates = measure_rates(deepcopy(factory.kernel).to(U), U, q)
        return plan_ask(known.num_observed, q, self._ask_seconds, rates)

    def _deadline(self, start: float) -> float | None:
        """Return when the fit of an ask that began then is to end."""
        return None if self._ask_seconds is None else start + (1.0 - SHARE) * self._ask_seconds

    def _propose_locally(
        self,
        plan: Plan,
        q: int,
        num_of_design: int,
        known: Known,
        callback: Callable[[str], None] | None,
    ) -> tuple[Tensor, Ask, AskReport]:
        """Return what ``propose`` does, by a model of each of several regions, of which nothing is
        kept.
        """
        start = time.perf_counter()
        number = len(known.asks) + 1
        generator = self._generator(number)
        told = known.data(known.num_observed)
        assert plan.num_rows is not None
        regions = find_regions(told.U, told.signed, plan.num_rows, plan.num_regions)
        sizes = [len(part) for part in torch.arange(q).tensor_split(len(regions))]
        near = torch.cat([region.nearest(told.U) for region in regions]).unique()
        hyperparameters, data = self._factory.fit_warped(
            told.part(near),
            generator,
            few=self._is_for_few(max(sizes), plan.num_rows),
            callback=_fit_lines(callback),
            deadline=self._deadline(start),
        )
        fitted = time.perf_counter()
        seconds_solve = 0.0
        solutions: list[Solution] = []
        batch = told.U[:0].to(self._factory.device, self._factory.dtype)
        for place, (region, size) in enumerate(zip(regions, sizes, strict=True), 1):
            lines = callback and partial(_prefixed, callback, f"region {place}/{len(regions)}: ")
            model = self._factory.build(data.in_units(region.nearest(data.U)), hyperparameters)
            solving = time.perf_counter()
            paths = model.paths(size, generator=generator, callback=_solve_lines(lines))
            seconds_solve += time.perf_counter() - solving
            assert model.solution is not None  # paths() has just made it
            solutions.append(model.solution)
            request = self._request(model, size, known, None, generator, lines)
            pending = request.X_pending
            taken = batch if pending is None else torch.cat([pending, batch])
            request = replace(request, paths=paths, X_pending=taken)
            batch = torch.cat([batch, self._found_in(region.box.to(batch), request)])
        X, num_drawn = self._completed(batch, num_of_design, known, None)
        times = (start, fitted, fitted + seconds_solve)
        report = self._report(times, known, solutions, self._reason(max(sizes), data, plan))
        report = replace(report, solver=repr(self._factory.solver or default_solver(plan.num_rows)))
        return X, Ask(number, q, known.num_observed, num_drawn, None), report

    def _found_in(self, box: Tensor, request: Request) -> Tensor:
        """Return the batch in a box or, where that has too few points, anywhere."""
        try:
            return self._strategy.generate(replace(request, bounds=box))
        except TooFewPoints:
            return self._strategy.generate(request)

    def _left(self, q: int, known: Known) -> Tensor | None:
        """Return the points of a small finite space that are not taken, at least q of them."""
        points = self._design.points
        left = None if points is None else remaining(points, known.taken)
        if left is not None and len(left) < q:
            raise NotEnoughLeftError(
                "`q` must be at most the number of points that have not been asked for or added,"
                f" {len(left)} in this finite space, got {q}. "
                + ("Ask for fewer." if len(left) else "It is exhausted: see `result`."),
                len(left) + len(known.queued),
            )
        return left

    def _drawn_from(self, pool: Pool, q: int, number: int, known: Known) -> Tensor:
        """Return points of a pool drawn uniformly, none of them known."""
        box = torch.tensor([[0.0], [1.0]], dtype=torch.float64).repeat(1, self._space.encoded_dim)
        taken = self._space.normalize(known.unusable)
        if known.num_observed:
            taken = torch.cat([known.data(known.num_observed).U, taken])
        lots = Lots(q, self._generator(number))
        best = choose(lots, read_parts(pool, box), FeasibleSet.of(box), KnownPoints(taken, box))
        return pool.take(best.labels)

    def _report(
        self,
        times: tuple[float, float, float],
        known: Known,
        solutions: Sequence[Solution],
        choice: str,
    ) -> AskReport:
        """Return what an ask cost that began, had a surrogate and had its paths at these times."""
        start, fitted, solved = times
        return AskReport(
            seconds_fit=fitted - start,
            seconds_solve=solved - fitted,
            seconds_acquisition=time.perf_counter() - solved,
            residual=max(float(solution.residual.max()) for solution in solutions),
            converged=all(bool(solution.converged.all()) for solution in solutions),
            solver=repr(self._factory.solver or default_solver(known.num_observed)),
            choice=choice,
        )

    def _propose_for(
        self,
        goal: Goal,
        q: int,
        num_of_design: int,
        known: Known,
        left: Tensor | None,
        callback: Callable[[str], None] | None,
        pool: Pool | None,
    ) -> tuple[Tensor, Ask, AskReport]:
        """Return what ``propose`` does, by models of several outcomes."""
        start = time.perf_counter()
        number = len(known.asks) + 1
        if self._outcome_models is None:
            self._outcome_models = self.new_outcome_models()
        models, data, refit = self._outcome_models.of(
            number, known.num_observed, known.asks, known.outcome_data
        )
        generator = self._generator(number)
        fitted = time.perf_counter()
        paths = [
            model.paths(
                q,
                generator=generator,
                callback=_solve_lines(callback),
            )
            for model in models
        ]
        solved = time.perf_counter()
        request = self._request(models[0], q, known, left, generator, callback)
        wanted = acquisition_goal(goal, data, q, generator, models[0].train_inputs[0])
        strategy = self._strategy if pool is None else _Choice(pool)
        batch = strategy.generate(replace(request, model=models, paths=paths, goal=wanted))
        X, num_drawn = self._completed(batch, num_of_design, known, pool)
        self.model = models[0]
        solutions = [model.solution for model in models if model.solution is not None]
        choice = f"a model of each of {len(models)} outcomes"
        report = self._report((start, fitted, solved), known, solutions, choice)
        return X, Ask(number, q, known.num_observed, num_drawn, refit), report

    def assist(self, job: dict[str, Tensor]) -> None:
        """Make a batch with the first process, which has sent the job."""
        U, y = job["U"], job["y"]
        data = TrainingData(U, y, job.get("noise"), 1.0, 0.0, y[:, 0])
        state = {
            name.removeprefix(STATE): part for name, part in job.items() if name.startswith(STATE)
        }
        model = self._factory.load(data, state, job.get("start"))
        generator = torch.Generator()
        generator.set_state(job["generator"])
        q = int(job["q"])
        like = model.train_inputs[0]
        given = {name: job[name].to(like) for name in ("X_pending", "choices") if name in job}
        batches = job["batches"].split(job["sizes"].tolist())
        request = self._on_cube(model, q, generator, shared=True, batches=batches, **given)
        paths = model.paths(q, generator=generator, shared=True)
        self._strategy.generate(replace(request, paths=paths))

    def _is_shared(self, q: int, known: Known) -> bool:
        """Whether all processes make a batch: by paths, of which each has one."""
        return (
            self._team is not None
            and self._team.size <= q
            and known.goal is None
            and isinstance(self._strategy, SharingStrategy)
            and self._strategy.shares
            and not self._is_for_few(q, known.num_observed)
        )

    def _num_of_design(self, q: int, known: Known) -> int:
        """Return how many of q points are of the design: what it lacks of its values, those that
        are pending counted in; all, while there are too few values for a model.
        """
        enough = min(self._num_initial, max(FEWEST_VALUES, math.ceil(self._num_initial / 2)))
        if known.num_observed < enough:
            return q
        return min(q, max(0, self._num_initial - known.num_observed - known.num_pending))

    def new_outcome_models(self) -> OutcomeModels:
        """Return models of several outcomes that have not been fitted."""
        return OutcomeModels(self._factory, self._generator)

    def surrogate_of(
        self, data: TrainingData, fitted: tuple[PathwiseGP, TrainingData] | None
    ) -> tuple[PathwiseGP, TrainingData]:
        """Return a surrogate of data and these as it has them: by the hyperparameters of one that
        was ``fitted``, or by a fit.
        """
        if fitted is None:
            few = self._is_for_few(1, len(data.U))
            return self._make_model(data, True, few, self._generator(0))
        model, before = fitted
        data = data.on(before.scale_name)
        return self._factory.build(data, model), data

    def mean_of_last_ask(self, known: Known) -> Callable[[Tensor], Tensor] | None:
        """Return the mean behind the last ask, from the unit cube (k, e) to values (k,) of which
        the largest is best, without a solve; ``None`` without a checkpoint.
        """
        checkpoint = self._last_checkpoint(known)
        if checkpoint is None or checkpoint.ask > len(known.asks):
            return None
        data = known.data(known.asks[checkpoint.ask - 1].num_observed)
        return posterior_mean(self._factory, data, checkpoint)

    def _last_checkpoint(self, known: Known) -> Checkpoint | None:
        if self.checkpoint is not None or self._checkpoints is None or not known.asks:
            return self.checkpoint
        return load_checkpoint(self._checkpoints, known.asks[-1].number)

    def _keep(self, model: PathwiseGP, data: TrainingData, few: bool) -> None:
        """Keep the surrogate of an ask for the next one."""
        self.model = model
        self.fitted = model, data
        self._of_few = few

    def _is_to_be_fitted(self, known: Known, few: bool) -> bool:
        """Whether hyperparameters are to be fitted again: to many more values, by another kernel,
        or where that is cheap.
        """
        fits = [ask.num_observed for ask in known.asks if ask.refitted]
        if self.model is None or self._of_few != few:
            return True
        cheap = few and known.num_observed <= FITTED_ALWAYS_UP_TO
        growth = REFIT_GROWTH_OF_FEW if few else REFIT_GROWTH
        return cheap or known.num_observed >= growth * fits[-1]

    def _is_for_few(self, q: int, num_observed: int) -> bool:
        """Whether the surrogate of an ask is the one for few points and values."""
        strategy = self._strategy
        return isinstance(strategy, ChoosingStrategy) and strategy.is_for_few(q, num_observed)

    def _reason(self, q: int, data: TrainingData, plan: Plan | None) -> str:
        """Return how points are chosen and why; nothing where the user has said how and given no
        time.
        """
        by = "" if plan is None else plan.reason
        if not isinstance(self._strategy, ChoosingStrategy):
            return by
        reason = self._strategy.reason(q, len(data.U))
        return "; ".join(filter(None, [reason, by, SCALES[data.scale_name]]))

    def _make_model(
        self,
        data: TrainingData,
        refit: bool,
        few: bool,
        generator: torch.Generator,
        callback: Callable[[str], None] | None = None,
        deadline: float | None = None,
    ) -> tuple[PathwiseGP, TrainingData]:
        """Return the surrogate of an ask and its data as it has them: refitted, or with the last
        hyperparameters and weights to start from.
        """
        if refit or self.fitted is None:
            small, data = self._factory.fit_warped(
                data, generator, few=few, callback=_fit_lines(callback), deadline=deadline
            )
            return self._factory.build(data, small), data
        last, before = self.fitted
        model, data = self.surrogate_of(data, self.fitted)
        if not torch.equal(before.U, data.U[: len(before.U)]):  # others are left out
            return model, data
        return model.warm_start(last, scale=before.scale / data.scale), data

    def _request(
        self,
        model: PathwiseGP,
        q: int,
        known: Known,
        left: Tensor | None,
        generator: torch.Generator,
        callback: Callable[[str], None] | None,
    ) -> Request:
        """Return what the strategy is asked, on the unit cube, but for the paths.

        Args:
            left: (c, d) the points of a small finite space that are not taken.
        """
        like = model.train_inputs[0]
        to_cube = self._space.normalize
        pending = known.unusable if len(known.unusable) and left is None else None
        request = self._on_cube(
            model,
            q,
            generator,
            X_pending=None if pending is None else to_cube(pending).to(like),
            choices=None if left is None else to_cube(left).to(like),
            batches=known.batches,
        )
        return replace(
            request,
            callback=callback and (lambda progress: callback(describe_search(progress))),
        )

    def _on_cube(
        self, model: PathwiseGP, q: int, generator: torch.Generator, **options: Any
    ) -> Request:
        like = model.train_inputs[0]
        box = torch.tensor([[0.0], [1.0]]).to(like).repeat(1, self._space.encoded_dim)
        constraints = self._space.acquisition_options(like)
        return Request(model, q, box, generator, constraints=constraints, **options)

    def _completed(
        self, batch: Tensor, num_more: int, known: Known, pool: Pool | None
    ) -> tuple[Tensor, int]:
        """Return the points of a batch on the unit cube in the user's units, and in place of its
        last ``num_more``, before them, points of the design, which also gives those for points that
        are taken, occur twice or break a constraint; and how many it has drawn then. Those of a
        pool are as they stand there.
        """
        if pool is not None:
            return pool.points, known.num_drawn
        batch = batch[: len(batch) - num_more]
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

    def restore(self, known: Known, *, solves: bool = True) -> None:
        """Bring back the surrogate after the last ask: from its checkpoint or, from where there is
        none, by solving again; without ``solves``, only where a checkpoint is all that it takes.
        """
        asks = [
            ask  # with values, of which some may have been withdrawn
            for ask in known.asks
            if ask.refitted is not None and ask.num_observed >= FEWEST_VALUES
        ]
        if self.model is not None or not asks:
            return
        first = max((ask.number for ask in asks if ask.refitted), default=asks[0].number)
        checkpoint = self._last_checkpoint(known)
        if not solves and (checkpoint is None or checkpoint.ask < asks[-1].number):
            return
        if checkpoint is not None:
            ask = known.asks[checkpoint.ask - 1]
            restored = self._factory.restore(known.data(ask.num_observed), checkpoint)
            if restored is not None:
                self._keep(*restored, self._is_for_few(ask.num_points, ask.num_observed))
                first = checkpoint.ask + 1
        for ask in asks:
            if ask.number >= first:
                generator = self._generator(ask.number)
                data = known.data(ask.num_observed)
                few = self._is_for_few(ask.num_points, ask.num_observed)
                model, data = self._make_model(data, bool(ask.refitted), few, generator)
                model.paths(ask.num_points, generator=generator)
                self._keep(model, data, few)

    def forget(self) -> None:
        """Leave the surrogate of the last ask, and its checkpoints: its values have changed, and it
        is made again from those that are left.
        """
        self.model = None
        self.fitted = None
        self.checkpoint = None
        if self._checkpoints is not None:
            remove_checkpoints(self._checkpoints)

    def _generator(self, number: int) -> torch.Generator:
        """Return the randomness of an ask."""
        state = np.random.SeedSequence((self._seed, number)).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(state[0]))


def _fit_lines(callback: Callable[[str], None] | None) -> Callable[[int], None] | None:
    """Return what says of a fit how far it has got."""
    return callback and (lambda number: callback(describe_fit(number)))


def _solve_lines(callback: Callable[[str], None] | None) -> Callable[[Progress], None] | None:
    """Return what says of a solve how far it has got."""
    return callback and (lambda progress: callback(describe_solve(progress)))


def _prefixed(callback: Callable[[str], None], prefix: str, line: str) -> None:
    callback(prefix + line)


def _without(request: Request, told: TrainingData, data: TrainingData) -> Request:
    """Return a request that also knows the points whose values a surrogate's data leave out."""
    if data.kept is None:
        return request
    aside = told.U[~data.kept].to(request.bounds)
    known = aside if request.X_pending is None else torch.cat([request.X_pending, aside])
    return replace(request, X_pending=known)


def _job(request: Request, data: TrainingData) -> dict[str, Tensor]:
    """Return what ``Proposer.assist`` makes the batch of: tensors by name."""
    model = request.model
    assert isinstance(model, PathwiseGP)  # of one objective
    found = {
        "q": torch.tensor(request.q),
        "U": data.U,
        "y": data.y,
        "noise": data.noise,
        "start": model.mean_start,
        "generator": request.generator.get_state(),
        "X_pending": request.X_pending,
        "choices": request.choices,
        "batches": torch.cat([torch.empty(0, dtype=torch.float64), *request.batches]),
        "sizes": torch.tensor([len(part) for part in request.batches], dtype=torch.long),
    }
    state = {STATE + name: part for name, part in model.state_dict().items()}
    return {name: part for name, part in found.items() if part is not None} | state


@dataclass(frozen=True)
class _Choice:
    """The strategy that takes the best of a pool."""

    pool: Pool

    def generate(self, request: Request) -> Tensor:
        """Return the batch, which the pool is told of."""
        best = ThompsonStrategy(ParallelThompsonSampling).choose(request, self.pool)
        self.pool.take(best.labels)
        return best.points


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
