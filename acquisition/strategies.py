"""The strategies there are: Thompson sampling in the whole box, in a trust region, and in several
at once; expected improvement; and what chooses among them.

A further one is a class with a ``generate`` in a file of its own, and a line in ``STRATEGIES``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from reprlib import repr as brief
from typing import Any, ClassVar

import torch
from torch import Tensor

from acquisition.candidates import all_inputs, model_list
from acquisition.constraints import TooFewPoints
from acquisition.log_ei import LogEIStrategy, beside_the_best, with_repeat
from acquisition.multistart import FEWEST_STARTS, terms_ascended
from acquisition.pools import Chosen
from acquisition.strategy import ForFewValues, Request, Sampler, Strategy
from acquisition.thompson import ParallelThompsonSampling
from acquisition.trust_region import TrustRegion
from surrogates import PathwiseGP, SamplePaths, checks
from surrogates.operators.linalg import CHEAP_FACTOR_UP_TO

# Where many points lie in regions, few ascents do: those of the whole box are to stay near the data
FEW_ASCENTS = partial(
    ParallelThompsonSampling, num_candidates=1500, num_rounds=10, num_starts=10, num_steps=60
)
NUM_CANDIDATES = 30_000  # of all screening rounds
NUM_STEPS = 80  # of an ascent


@dataclass(frozen=True)
class ThompsonStrategy:
    """A maximiser of each of q posterior paths.

    Args:
        sampler: makes the acquisition of a model, bounds, ``seed`` and what else the request holds,
            such as ``partial(ParallelThompsonSampling, num_starts=30)``; ``None`` for
            :func:`default_sampler`.
        tempered: scale the deviations of the first half of the q paths from the mean, the i-th by
            2 i / q, so that the batch leads from the mean's maximiser to those of paths. In many
            dimensions, where the model knows little of most of the box, paths have their maximisers
            there, and few batches learn anything of the optimum. Paths of several outputs, and
            those that several processes share, are not scaled.
    """

    shares: ClassVar[bool] = True
    sampler: Sampler | None = None
    tempered: bool = False

    def generate(self, request: Request) -> Tensor:
        """Return the batch; as :class:`Strategy` has it."""
        if self.tempered and _can_temper(request):
            request = _tempered(request)
        options = {} if request.choices is None else {"choices": request.choices}
        return self._acquisition(request).generate(
            request.q, paths=request.paths, X_pending=request.X_pending, **options
        )

    def choose(self, request: Request, pool: Iterable[Any]) -> Chosen:
        """Return a pool's best candidates, as :meth:`ParallelThompsonSampling.choose` has it."""
        return self._acquisition(request).choose(
            request.q, pool, paths=request.paths, X_pending=request.X_pending
        )

    def _acquisition(self, request: Request) -> ParallelThompsonSampling:
        make_sampler = self.sampler or partial(default_sampler, request.q)
        given = {"shared": request.shared, "success": request.success, "callback": request.callback}
        options = {name: value for name, value in given.items() if value}
        generator = request.generator
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        return make_sampler(
            request.model,
            request.bounds,
            seed=seed,
            **request.constraints,
            **request.goal,
            **options,
        )


@dataclass(frozen=True)
class TrustRegionStrategy(ForFewValues):
    """Thompson sampling in a :class:`TrustRegion` around the best data point, which grows and
    shrinks by the batches so far.

    A region that has become too small starts again at its full length; where it holds fewer than q
    points, such as on a grid, the whole box is searched.

    Args:
        sampler: as in :class:`ThompsonStrategy`, and ``trust_region``.
        least_tolerance: batches without success after which a region is shrunk at the earliest:
            large batches tell much of it, and it is gone after 7 that shrink it.

    Raises:
        TypeError, ValueError: if ``least_tolerance`` is not a positive whole number.
    """

    name: ClassVar[str] = "turbo"
    shares: ClassVar[bool] = True
    sampler: Sampler | None = None
    least_tolerance: int = 3

    def __post_init__(self) -> None:
        checks.fields(self, ["least_tolerance"], checks.positive_int)

    def generate(self, request: Request) -> Tensor:
        """Return the batch; as :class:`Strategy` has it."""
        maximize = request.goal.get("maximize", True)
        start = TrustRegion(request.bounds.shape[1], request.q, maximize=maximize)
        assert start.failure_tolerance is not None  # it has chosen
        tolerance = max(self.least_tolerance, start.failure_tolerance)
        region = start = replace(start, failure_tolerance=tolerance)
        for values in request.batches:
            region = region.update(values)
            if region.restart:
                region = replace(start, best_value=region.best_value)
        return _in_region(self.sampler or partial(default_sampler, request.q), region, request)


@dataclass(frozen=True)
class SeveralRegionsStrategy(ForFewValues):
    """Thompson sampling in the whole box and in regions of several sizes around the best data
    point, an equal share of the batch in each.

    A large batch leaves few rounds in which a trust region could learn its size: so all sizes are
    tried in each round. A region is as long as :class:`TrustRegion` has it, in the ratios of the
    lengthscales; where one holds too few points, such as on a grid, the whole box is searched.

    Args:
        sampler: as in :class:`TrustRegionStrategy`; ``None`` for one with ten ascents a path.
        lengths: of the regions, in units of the box.
    """

    name: ClassVar[str] = "regions"
    sampler: Sampler | None = None
    lengths: tuple[float, ...] = (0.8, 0.4, 0.2)

    def generate(self, request: Request) -> Tensor:
        """Return the batch; as :class:`Strategy` has it."""
        sampler = self.sampler or FEW_ASCENTS
        if request.choices is not None:
            return ThompsonStrategy(sampler).generate(request)
        maximize = request.goal.get("maximize", True)
        dim = request.bounds.shape[1]
        numbers = torch.arange(request.q, device="cpu")
        sizes = [len(part) for part in numbers.tensor_split(1 + len(self.lengths))]
        batch = request.bounds[:0]
        for length, q in zip((None, *self.lengths), sizes, strict=True):
            if not q:
                continue
            region = None
            if length is not None:
                region = TrustRegion(dim, q, length=length, maximize=maximize)
            batch = torch.cat([batch, _in_region(sampler, region, _rest(request, batch, q))])
        return batch


@dataclass(frozen=True)
class AutoStrategy(ForFewValues):
    """Expected improvement for few points, Thompson sampling for many, and for some both.

    Each of few points is worth its search. Of some points, the first are chosen like that, for
    precision, and the others by paths, for diversity: joint improvements take longer than paths.
    Beyond, all are chosen by paths, half of them tempered, but for one beside the best value where
    noise may as well be ripples, as in :class:`LogEIStrategy`; among more than 1000 values, by
    paths.

    Args:
        sampler: as in :class:`ThompsonStrategy`, which it is for.
        few_points: batches of up to this size are chosen by expected improvement alone.
        some_points: those of up to this size partly by expected improvement.
        num_improving: how many points of these are chosen by it; no more than ``few_points``.

    Raises:
        TypeError, ValueError: if a size is no whole number, or out of range.
    """

    name: ClassVar[str] = "auto"
    shares: ClassVar[bool] = True
    sampler: Sampler | None = None
    few_points: int = 8
    some_points: int = 50
    num_improving: int = 4

    def __post_init__(self) -> None:
        checks.fields(self, ["few_points", "some_points", "num_improving"], checks.positive_int)
        if self.num_improving > self.few_points:
            raise ValueError(
                f"`num_improving` must be at most `few_points`, got {self.num_improving} and"
                f" {self.few_points}. Lower it, or raise `few_points`."
            )

    def num_by_log_ei(self, q: int, num_values: int) -> int:
        """Return how many of q points are chosen by expected improvement."""
        if num_values > CHEAP_FACTOR_UP_TO:
            return 0
        return q if q <= self.few_points else self.num_improving * (q <= self.some_points)

    def reason(self, request: Request) -> str:
        """Return in a line how points are chosen, as :class:`ChoosingStrategy` has it."""
        q, num_values = request.q, len(all_inputs(model_list(request.model)))
        first = self.num_by_log_ei(q, num_values)
        among = f"{q} among {num_values}"
        if num_values > CHEAP_FACTOR_UP_TO:
            return f"thompson: {among}, more than {CHEAP_FACTOR_UP_TO} values"
        if not first:
            way = "tempered thompson" if _can_temper(request) else "thompson"
            reason = f"{way}: {among}, more than {self.some_points} points"
            return reason if request.shared else with_repeat(reason, request)
        ways = "log-ei" if first == q else f"{first} by log-ei, {q - first} by thompson"
        most = self.few_points if first == q else self.some_points
        reason = f"{ways}: {among}, at most {most} points and {CHEAP_FACTOR_UP_TO} values"
        return with_repeat(reason, request)

    def generate(self, request: Request) -> Tensor:
        """Return the batch; as :class:`Strategy` has it."""
        num_values = len(all_inputs(model_list(request.model)))
        q = self.num_by_log_ei(request.q, num_values)
        if q == request.q:
            return LogEIStrategy().generate(request)
        others = ThompsonStrategy(self.sampler, tempered=not q)
        if q:
            first = LogEIStrategy().generate(replace(request, q=q, paths=None))
        elif num_values > CHEAP_FACTOR_UP_TO or request.shared:
            return ThompsonStrategy(self.sampler).generate(request)
        else:
            first = beside_the_best(request)
        rest = _rest(request, first, request.q - len(first))
        return torch.cat([first, others.generate(rest)])


STRATEGIES: Mapping[str, Callable[[Sampler | None], Strategy]] = {
    "auto": AutoStrategy,
    "thompson": ThompsonStrategy,
    "turbo": TrustRegionStrategy,
    "regions": SeveralRegionsStrategy,
    "log-ei": LogEIStrategy,
}


def make_strategy(strategy: str | Strategy, sampler: Sampler | None = None) -> Strategy:
    """Return a strategy by its name in ``STRATEGIES`` and its ``sampler``; one that is made
    already, as it is.

    Raises:
        TypeError: if ``strategy`` is neither, or ``sampler`` cannot be called.
        ValueError: if there is none of this name, or ``sampler`` is given with one that is made.
    """
    if sampler is not None and not callable(sampler):
        raise TypeError(
            "`sampler` must be a function that makes the acquisition of a model and bounds, got"
            f" {brief(sampler)}. Try `partial(ParallelThompsonSampling, num_starts=30)`."
        )
    if isinstance(strategy, str):
        return STRATEGIES[checks.one_of("strategy", strategy, STRATEGIES)](sampler)
    if isinstance(strategy, type) or not isinstance(strategy, Strategy):
        raise TypeError(
            "`strategy` must be a name or an object with a method `generate(request)`, got"
            f" {brief(strategy)}. Names are {', '.join(STRATEGIES)}."
        )
    if sampler is not None:
        raise ValueError(
            f"`sampler` must be None with a strategy that is made, got both. Give"
            f" {type(strategy).__name__} its sampler when you make it."
        )
    return strategy


def _in_region(sampler: Sampler, region: TrustRegion | None, request: Request) -> Tensor:
    try:
        return ThompsonStrategy(partial(sampler, trust_region=region)).generate(request)
    except TooFewPoints:
        return ThompsonStrategy(sampler).generate(request)


def _can_temper(request: Request) -> bool:
    models = model_list(request.model)
    return len(models) == 1 and models[0].num_outputs == 1 and not request.shared


def _tempered(request: Request) -> Request:
    paths = request.paths
    if isinstance(paths, Sequence):
        (paths,) = paths
    if paths is None:
        (model,) = model_list(request.model)
        paths = model.paths(request.q, generator=request.generator)
    assert isinstance(paths, SamplePaths)  # of one output
    shares = torch.arange(1, request.q + 1, device="cpu").to(request.bounds) / (0.5 * request.q)
    return replace(request, paths=paths.tempered(shares.clamp(max=1.0)))


def _rest(request: Request, chosen: Tensor, q: int) -> Request:
    """Return the request for the q points after those chosen, (k, d): by the paths from k on."""
    paths = request.paths
    own = slice(len(chosen), len(chosen) + q)
    if isinstance(paths, Sequence):
        paths = [part.part(own) for part in paths]
    elif paths is not None:
        paths = paths.part(own)
    return replace(request, q=q, paths=paths).beside(chosen)


def default_sampler(
    q: int, model: PathwiseGP | Sequence[PathwiseGP], bounds: Tensor, **settings: Any
) -> ParallelThompsonSampling:
    """Return the acquisition of a study without one of its own: 30 000 candidates, 120 starts a
    path.

    Fewer starts from the same candidates, down to 10, where many paths among many rows would make
    them take longer than all the rest.
    """
    num_rows = sum(part.train_targets.shape[-1] for part in model_list(model))
    num_starts = default_num_starts(q, num_rows)
    return ParallelThompsonSampling(
        model,
        bounds,
        num_candidates=NUM_CANDIDATES // num_starts,
        num_rounds=num_starts,
        num_starts=num_starts,
        num_steps=NUM_STEPS,
        **settings,
    )


def default_num_starts(q: int, n: int, most: int = 120, budget: int = 5 * 10**8) -> int:
    """Return from how many starts a study ascends each of q paths among n rows.

    Args:
        budget: of paths × ascents × rows, which take about a minute on one core in float32.
    """
    return max(FEWEST_STARTS, min(most, budget // (q * n)))


def num_terms(q: int, n: int) -> int:
    """Return how many terms a study evaluates of each of q paths among n rows in its ascents."""
    return terms_ascended(n, default_num_starts(q, n), NUM_STEPS)
