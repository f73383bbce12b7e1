"""Where to evaluate next: points of the design, then maximisers of paths.

Notation: n values known to an ask, q points; ``X`` in the user's units, ``U`` on the unit cube.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acquisition.strategy import ChoosingStrategy, Request, SharingStrategy, Strategy
from scalable_bo.progress import search_lines, solve_lines
from scalable_bo.space.goal import Goal
from scalable_bo.space.space import Space
from scalable_bo.storage.pools import Pool
from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.rows import keys
from scalable_bo.storage.storage import Ask
from scalable_bo.storage.surrogate import INPUTS_APART, SurrogateFactory
from scalable_bo.storage.training import SCALES, TrainingData
from scalable_bo.study.choices import BestOfPool, draw_from_pool, knowing_all
from scalable_bo.study.design import Design, NotEnoughLeftError, remaining
from scalable_bo.study.known import Known
from scalable_bo.study.local import LocalChooser
from scalable_bo.study.outcomes import OutcomeModels, acquisition_goal
from scalable_bo.study.pace import PROBED_COLUMNS, Plan, end_of_fit, plan_here
from scalable_bo.study.surrogate import FEWEST_VALUES, KeptSurrogate, is_for_few
from scalable_bo.study.team import Team, make_job, read_job
from surrogates import PathwiseGP, SamplePaths, Solution, memory
from surrogates.rules.solved import COLUMNS_HELD, default_solver


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
        self._team = team
        self._ask_seconds = ask_seconds
        self._design = Design(space, seed)
        self.surrogate = KeptSurrogate(factory, self._generator, self._is_for_few, checkpoints)
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
            pool: the candidates, which notes what was taken of it; ``None`` for the space.
        Raises:
            NotEnoughLeftError: if fewer than q points are left.
            MemoryError: if the solve cannot fit in free memory.
        """
        left = self._left(q, known) if pool is None else None
        number = len(known.asks) + 1
        num_of_design = self._num_of_design(q, known)
        if num_of_design == q:
            if pool is not None and q:
                X = self._of_pool(pool, q, known)
                num_drawn = known.num_drawn
            else:
                X, num_drawn = self._design.draw(q, known.num_drawn, known.taken)
            return X, Ask(number, q, known.num_observed, num_drawn, None), AskReport()
        start = time.perf_counter()
        plan = None
        deadline = None
        if self._ask_seconds is not None and left is None and pool is None:
            U = known.data(min(known.num_observed, PROBED_COLUMNS)).U
            plan = plan_here(self._factory, U, known.num_observed, q, self._ask_seconds)
            deadline = end_of_fit(start, self._ask_seconds)
        if plan is not None and plan.num_rows is not None:
            return self._propose_locally(plan, q, num_of_design, known, callback)
        team = self._team if pool is None and self._is_shared(q, known) else None
        if team is not None:
            team.require_waiting()
        self._require_memory(q, known, 1 if team is None else team.size)
        if known.goal is not None:
            return self._propose_for(known.goal, q, num_of_design, known, left, callback, pool)
        kept = self.surrogate
        kept.restore(known.asks, known.data)
        few = self._is_for_few(q, known.num_observed)
        refit = kept.is_to_be_fitted(known.asks, known.num_observed, few)
        generator = self._generator(number)
        told = known.data(known.num_observed)
        model, data = kept.make(told, refit, few, generator, callback, deadline)
        fitted = time.perf_counter()
        request = self._request(model, q, known, left, generator, callback)
        if pool is not None:
            request = knowing_all(request, told, data)
        lines = callback and solve_lines(callback)
        with nullcontext() if team is None else team.working(make_job(request, data)):
            paths = model.paths(q, generator=generator, shared=team is not None, callback=lines)
            solved = time.perf_counter()
            request = replace(request, paths=paths, shared=team is not None)
            batch = (self._strategy if pool is None else BestOfPool(pool)).generate(request)
        assert isinstance(paths, SamplePaths)  # of one data set
        X, num_drawn = self._completed(batch, num_of_design, known, pool)
        kept.save(number, model, paths.mean_weights, few, data.scale_name)
        kept.keep(model, data, few)
        assert model.solution is not None  # paths() has just made it
        choice = (
            self._reason(request, data, plan, model) if pool is None else "thompson: among a pool"
        )
        report = self._report((start, fitted, solved), known, [model.solution], choice)
        return X, Ask(number, q, known.num_observed, num_drawn, refit), report

    def _of_pool(self, pool: Pool, q: int, known: Known) -> Tensor:
        """Return random points of a pool, in place of those of the design."""
        taken = self._space.normalize(known.unusable)
        if known.num_observed:
            taken = torch.cat([known.data(known.num_observed).U, taken])
        return draw_from_pool(pool, q, taken, self._generator(len(known.asks) + 1))

    def _require_memory(self, q: int, known: Known, num_processes: int) -> None:
        memory.require(
            columns_bytes(known.num_observed, q, self._factory.dtype) // num_processes,
            self._factory.device,
            f"An ask for {q} points among {known.num_observed} rows",
            "Ask for fewer at a time, or use `dtype=torch.float32`.",
        )

    def _propose_locally(
        self,
        plan: Plan,
        q: int,
        num_of_design: int,
        known: Known,
        callback: Callable[[str], None] | None,
    ) -> tuple[Tensor, Ask, AskReport]:
        """Return what ``propose`` does, by a model of each of several regions."""
        assert self._ask_seconds is not None and plan.num_rows is not None
        start = time.perf_counter()
        number = len(known.asks) + 1
        generator = self._generator(number)
        chooser = LocalChooser(
            self._factory, self._strategy, self._strategy.generate, self._ask_seconds, callback
        )
        told = known.data(known.num_observed)
        local = chooser.generate(
            plan,
            told,
            q,
            generator,
            lambda model, size: self._request(model, size, known, None, generator, None),
        )
        X, num_drawn = self._completed(local.points, num_of_design, known, None)
        fitted = start + local.seconds_fit
        times = (start, fitted, fitted + local.seconds_solve)
        choice = self._reason(local.request, local.data, plan, local.hyperparameters)
        report = self._report(times, known, local.solutions, choice)
        report = replace(report, solver=repr(self._factory.solver or default_solver(plan.num_rows)))
        return X, Ask(number, q, known.num_observed, num_drawn, None), report

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

    def _report(
        self,
        times: tuple[float, float, float],
        known: Known,
        solutions: Sequence[Solution],
        choice: str,
    ) -> AskReport:
        """Return what an ask cost that began, had a surrogate and had its paths at these times."""
        start, fitted, solved = times
        errors = [solution.error for solution in solutions if solution.error is not None]
        return AskReport(
            seconds_fit=fitted - start,
            seconds_solve=solved - fitted,
            seconds_acquisition=time.perf_counter() - solved,
            residual=max(float(solution.residual.max()) for solution in solutions),
            converged=all(bool(solution.converged.all()) for solution in solutions),
            solver=repr(self._factory.solver or default_solver(known.num_observed)),
            choice=choice,
            error=max((float(error.max()) for error in errors), default=None),
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
            model.paths(q, generator=generator, callback=callback and solve_lines(callback))
            for model in models
        ]
        solved = time.perf_counter()
        request = self._request(models[0], q, known, left, generator, callback)
        wanted = acquisition_goal(goal, data, q, generator, models[0].train_inputs[0])
        strategy = self._strategy if pool is None else BestOfPool(pool)
        batch = strategy.generate(replace(request, model=models, paths=paths, goal=wanted))
        X, num_drawn = self._completed(batch, num_of_design, known, pool)
        self.surrogate.model = models[0]
        solutions = [model.solution for model in models if model.solution is not None]
        choice = f"a model of each of {len(models)} outcomes"
        report = self._report((start, fitted, solved), known, solutions, choice)
        return X, Ask(number, q, known.num_observed, num_drawn, refit), report

    def assist(self, job: dict[str, Tensor]) -> None:
        """Make a batch with the first process, which has sent the job."""
        model, q, generator, given = read_job(job, self._factory)
        request = self._on_cube(model, q, generator, shared=True, **given)
        paths = model.paths(q, generator=generator, shared=True)
        self._strategy.generate(replace(request, paths=paths))

    def _is_shared(self, q: int, known: Known) -> bool:
        """Whether all processes make a batch: by paths, of which each has one, and by values, of
        which each has one.
        """
        return (
            self._team is not None
            and self._team.size <= min(q, known.num_observed)
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

    def _is_for_few(self, q: int, num_observed: int) -> bool:
        """Whether the surrogate of an ask is the one for few points and values."""
        return is_for_few(self._strategy, q, num_observed)

    def _reason(
        self, request: Request, data: TrainingData, plan: Plan | None, model: PathwiseGP
    ) -> str:
        """Return how points are chosen and why; nothing where the user has said how and given no
        time.
        """
        by = "" if plan is None else plan.reason
        if not isinstance(self._strategy, ChoosingStrategy):
            return by
        reason = self._strategy.reason(request)
        inputs = INPUTS_APART if self._factory.is_apart(model) else ""
        return "; ".join(filter(None, [reason, by, SCALES[data.scale_name], inputs]))

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
        return replace(request, callback=callback and search_lines(callback))

    def _on_cube(
        self, model: PathwiseGP, q: int, generator: torch.Generator, **options: Any
    ) -> Request:
        like = model.train_inputs[0]
        box = torch.tensor([[0.0], [1.0]], device="cpu").to(like).repeat(1, self._space.encoded_dim)
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

    def _generator(self, number: int) -> torch.Generator:
        """Return the randomness of an ask."""
        state = np.random.SeedSequence((self._seed, number)).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(state[0]))


def columns_bytes(n: int, q: int, dtype: torch.dtype) -> int:
    """Return the memory of right-hand sides and solutions for q points among n rows, which no
    solver can do without.
    """
    return COLUMNS_HELD * n * (q + 1) * (torch.finfo(dtype).bits // 8)
