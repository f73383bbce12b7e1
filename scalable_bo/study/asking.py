"""Where to evaluate next: points of the design, then maximisers of paths.

Notation: n values known to an ask, q points; ``X`` in the user's units, ``U`` on the unit cube.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from acquisition.outcomes import Success
from acquisition.strategy import ChoosingStrategy, Request, SharingStrategy, Strategy
from scalable_bo.evaluation.progress import describe_fit, status_lines
from scalable_bo.modelling.factory import SurrogateFactory
from scalable_bo.modelling.fitting import is_for_few, randomness
from scalable_bo.modelling.training import FEWEST_VALUES, SCALES
from scalable_bo.space.space import Space
from scalable_bo.storage.pools import Pool
from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.rows import keys
from scalable_bo.storage.storage import Ask, Checkpoints
from scalable_bo.study.ask_inputs import AskInputs
from scalable_bo.study.choices import BestOfPool, Choice, Part, choose_parts, draw_from_pool
from scalable_bo.study.design import Design, NotEnoughLeftError, remaining
from scalable_bo.study.goals import acquisition_goal
from scalable_bo.study.pace import Plan, Region, end_of_fit, learn_success, local_parts, plan_here
from scalable_bo.study.surrogate import KeptSurrogate, OutcomeModels
from scalable_bo.study.team import Team, make_job, read_job
from surrogates import PathwiseGP, memory
from surrogates.fitting.search import FitWatch
from surrogates.operators.linalg import DIRECT_SOLVE_UP_TO
from surrogates.rules.solved import COLUMNS_HELD, default_solver


class Proposer:
    """Proposes the points of one ask after the other. All randomness of the k-th ask comes from the
    seed and k.

    Args:
        seed: of the design and of every ask.
        num_initial: values that the design is to give; half of them are enough for a surrogate.
        checkpoints: where they are kept; ``None`` to keep none.
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
        checkpoints: Checkpoints | None,
        team: Team | None = None,
        ask_seconds: float | None = None,
    ) -> None:
        self._space = space
        self._generator = partial(randomness, seed)  # of an ask, by its number
        self._is_for_few = partial(is_for_few, strategy)  # of so many points and values
        self._num_initial = num_initial
        self._factory = factory
        self._strategy = strategy
        self._team = team
        self._ask_seconds = ask_seconds
        self._design = Design(space, seed)
        self.surrogate = KeptSurrogate(factory, self._generator, self._is_for_few, checkpoints)
        self._outcome_models = self.new_outcome_models()

    def propose(
        self,
        q: int,
        known: AskInputs,
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
        num_out = known.num_observed + known.num_pending
        num_first = num_of_design(q, self._num_initial, known.num_modelled, num_out)
        if num_first == q:
            if pool is not None and q:
                taken = self._space.normalize(known.unusable)
                if known.num_observed:
                    taken = torch.cat([known.data(known.num_observed).U, taken])
                X = draw_from_pool(pool, q, taken, self._generator(known.number))
                num_drawn = known.num_drawn
            else:
                X, num_drawn = self._design.draw(q, known.num_drawn, known.taken)
            return X, Ask(known.number, q, known.num_observed, num_drawn, None), AskReport()
        asked = self._asked(q, known, callback, pool, left)
        if asked.is_local:
            models = self._local_models(asked)
        elif known.goal is not None:
            models = self._models_of_outcomes(asked)
        else:
            kept = self.surrogate
            kept.restore(known)
            few = self._is_for_few(q, known.num_observed)
            refit = kept.is_to_be_fitted(known, few)
            told = known.data(known.num_observed)
            model, data = kept.make(told, refit, few, asked.generator, asked.watch)
            keep = partial(kept.keep, asked.known.number, model, data, few)
            models = _Models([Part([model], [data], q, success=self._success(asked))], refit, keep)
        fitted = time.perf_counter()
        with self._together(asked, models):
            choice = choose_parts(
                models.parts,
                partial(self._request, asked),
                self._strategy if pool is None else BestOfPool(pool),
                asked.generator,
                shared=asked.team is not None,
                callback=callback,
            )
        X, num_drawn = self._completed(choice.points, num_first, known, pool)
        models.keep(choice)
        ask = Ask(asked.known.number, q, known.num_observed, num_drawn, models.refitted)
        return X, ask, self._report(asked, fitted, models.parts[0], choice)

    def _local_models(self, asked: _Asked) -> _Models:
        assert asked.plan is not None  # to be local
        parts = local_parts(
            self._factory,
            self._strategy,
            asked.plan,
            asked.known.data(asked.known.num_observed),
            self._design.feasible,
            asked.q,
            asked.generator,
            asked.watch,
            partial(self._success, asked),
        )
        return _Models(parts, None, lambda choice: None)

    def _success(self, asked: _Asked, region: Region | None = None) -> Success | None:
        if (data := asked.known.success()) is None:
            return None
        return learn_success(self._factory, data, asked.generator, asked.watch.deadline, region)

    def _models_of_outcomes(self, asked: _Asked) -> _Models:
        models, data, refit = self._outcome_models.of(asked.known)

        def keep(choice: Choice) -> None:
            self.surrogate.model = models[0]

        part = Part(models, data, asked.q, success=self._success(asked))
        return _Models([part], refit, keep)

    def _together(self, asked: _Asked, models: _Models) -> AbstractContextManager[None]:
        if asked.team is None:
            return nullcontext()
        (part,) = models.parts
        return asked.team.working(make_job(self._request(asked, part), part))

    def _asked(
        self,
        q: int,
        known: AskInputs,
        callback: Callable[[str], None] | None,
        pool: Pool | None,
        left: Tensor | None,
    ) -> _Asked:
        start = time.perf_counter()
        plan = None
        watch = FitWatch(callback and status_lines(describe_fit, callback))
        if self._ask_seconds is not None and left is None and pool is None:
            U = known.data(min(known.num_observed, DIRECT_SOLVE_UP_TO)).U
            n, seconds = known.num_observed, self._ask_seconds
            plan = plan_here(self._factory, self._strategy, U, n, q, seconds)
            watch.deadline = end_of_fit(start, seconds)
        shared = pool is None and self._is_shared(q, known)
        asked = _Asked(
            q,
            known,
            self._generator(known.number),
            start,
            watch,
            pool,
            left,
            plan,
            self._team if shared and (plan is None or plan.num_rows is None) else None,
        )
        if asked.team is not None:
            asked.team.require_waiting()
        if not asked.is_local:
            num_bytes = columns_bytes(known.num_observed, q, self._factory.dtype)
            memory.require(
                num_bytes // (1 if asked.team is None else asked.team.size),
                self._factory.device,
                f"An ask for {q} points among {known.num_observed} rows",
                "Ask for fewer at a time, or use `dtype=torch.float32`.",
            )
        return asked

    def _left(self, q: int, known: AskInputs) -> Tensor | None:
        """Return the points of a small finite space that are not taken, at least q of them."""
        points = self._design.points
        if points is not None and not len(points):
            raise self._space.without_a_point()
        left = None if points is None else remaining(points, known.taken)
        if left is not None and len(left) < q:
            raise NotEnoughLeftError(
                "`q` must be at most the number of points that have not been asked for or added,"
                f" {len(left)} in this finite space, got {q}. "
                + ("Ask for fewer." if len(left) else "It is exhausted: see `result`."),
                len(left) + len(known.queued),
            )
        return left

    def _report(self, asked: _Asked, fitted: float, part: Part, choice: Choice) -> AskReport:
        solutions = choice.solutions
        errors = [solution.error for solution in solutions if solution.error is not None]
        return AskReport(
            seconds_fit=fitted - asked.start,
            seconds_solve=choice.seconds_solve,
            seconds_acquisition=time.perf_counter() - fitted - choice.seconds_solve,
            residual=max(float(solution.residual.max()) for solution in solutions),
            converged=all(bool(solution.converged.all()) for solution in solutions),
            solver=repr(self._factory.solver or default_solver(len(part.data[0].U))),
            choice=self._reason(asked, choice.request, part),
            error=max((float(error.max()) for error in errors), default=None),
        )

    def assist(self, job: dict[str, Tensor]) -> None:
        """Make a batch with the first process, which has sent the job."""
        model, q, generator, given = read_job(job, self._factory)
        request = self._on_cube(model, q, generator, shared=True, **given)
        paths = model.paths(q, generator=generator, shared=True)
        self._strategy.generate(replace(request, paths=paths))

    def _is_shared(self, q: int, known: AskInputs) -> bool:
        """Whether all processes make a batch: there is a path, and a value, for each of them."""
        return (
            self._team is not None
            and self._team.size <= min(q, known.num_observed)
            and known.goal is None
            and known.success() is None
            and isinstance(self._strategy, SharingStrategy)
            and self._strategy.shares
            and not self._is_for_few(q, known.num_observed)
        )

    def new_outcome_models(self) -> OutcomeModels:
        """Return models of several outcomes that have not been fitted."""
        return OutcomeModels(self._factory, self._generator)

    def _reason(self, asked: _Asked, request: Request, part: Part) -> str:
        """Return how points are chosen and why; where the user has said how and given no time, only
        whether it is learned where evaluations fail.
        """
        failures = "where evaluations fail is learned" * (part.success is not None)
        reasons = ["" if asked.plan is None else asked.plan.reason]
        if asked.pool is not None:
            reasons = ["thompson: among a pool"]
        elif isinstance(self._strategy, ChoosingStrategy):
            reasons.insert(0, self._strategy.reason(request))
        if asked.known.goal is not None:
            reasons.append(f"a model of each of {len(part.models)} outcomes")
        elif asked.pool is None and isinstance(self._strategy, ChoosingStrategy):
            scale = SCALES[part.data[0].scale_name]
            reasons += [scale, self._factory.further_of(part.models[0]) or ""]
        return "; ".join(filter(None, [*reasons, failures]))

    def _request(self, asked: _Asked, part: Part) -> Request:
        """Return what the strategy is asked for a part, on the unit cube, but for the paths."""
        known = asked.known
        like = part.models[0].train_inputs[0]
        to_cube = self._space.normalize
        pending = known.unusable if len(known.unusable) and asked.left is None else None
        request = self._on_cube(
            part.models[0],
            part.q,
            asked.generator,
            X_pending=None if pending is None else to_cube(pending).to(like),
            choices=None if asked.left is None else to_cube(asked.left).to(like),
            batches=known.batches,
            success=part.success,
        )
        kept = part.data[0].kept
        if asked.pool is not None and kept is not None:  # values are left out, not their points
            request = request.beside(known.data(known.num_observed).U[~kept].to(like))
        if known.goal is None:
            return request
        table = known.outcome_table(known.num_observed)
        goal = acquisition_goal(known.goal, part.models, part.data, table, request)
        return replace(request, model=part.models, goal=goal)

    def _on_cube(
        self, model: PathwiseGP, q: int, generator: torch.Generator, **options: Any
    ) -> Request:
        like = model.train_inputs[0]
        cube = self._space.cube.to(like)
        constraints = self._space.acquisition_options(like)
        return Request(model, q, cube, generator, constraints=constraints, **options)

    def _completed(
        self, batch: Tensor, num_more: int, known: AskInputs, pool: Pool | None
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


@dataclass(frozen=True, eq=False)
class _Asked:
    """An ask of the models, which began at ``start``: ``left`` (c, d) are the points of a small
    finite space that are not taken, by its ``plan`` it keeps to its time, and its ``team`` makes
    the batch, each ``None`` where there is none; for the rest see ``Proposer``.
    """

    q: int
    known: AskInputs
    generator: torch.Generator
    start: float
    watch: FitWatch
    pool: Pool | None
    left: Tensor | None
    plan: Plan | None
    team: Team | None

    @property
    def is_local(self) -> bool:
        """Whether it is by models of some values each, of which nothing is kept."""
        return self.plan is not None and self.plan.num_rows is not None


@dataclass(frozen=True, eq=False)
class _Models:
    """The parts of a batch; whether hyperparameters were ``refitted``, ``None`` of models that are
    not kept; and what keeps the models, given the choice by them.
    """

    parts: Sequence[Part]
    refitted: bool | None
    keep: Callable[[Choice], None]


def num_of_design(q: int, num_initial: int, num_known: int, num_out: int) -> int:
    """Return how many of q points are of the design: what it lacks of its ``num_initial`` values,
    where ``num_out`` are known or being evaluated; all, while fewer than half of them, or than two,
    are known for a surrogate.
    """
    if num_known < min(num_initial, max(FEWEST_VALUES, math.ceil(num_initial / 2))):
        return q
    return min(q, max(0, num_initial - num_out))


def columns_bytes(n: int, q: int, dtype: torch.dtype) -> int:
    """Return the memory of right-hand sides and solutions that q points among n rows need."""
    return COLUMNS_HELD * n * (q + 1) * (torch.finfo(dtype).bits // 8)
