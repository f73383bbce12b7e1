"""How an ask among many values keeps to a time: by all of them where that is affordable; otherwise
in regions around good points, each searched by a model of the values that are nearest.

Notation: n values, m of them in a model, U (n, e) on the unit cube, q points. A product is the
kernel between one datum and one point, times the weights of q functions and their mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from acquisition.candidates import baseline
from acquisition.constraints import FeasibleSet
from acquisition.outcomes import Success
from acquisition.strategies import NUM_CANDIDATES, num_terms
from acquisition.strategy import ForFewValues, Strategy
from scalable_bo.modelling.factory import SurrogateFactory
from scalable_bo.modelling.fitting import FIRST_FIT_POINTS, fit_surrogate, fit_warped, is_for_few
from scalable_bo.modelling.training import TrainingData
from scalable_bo.study.choices import Part
from surrogates import memory
from surrogates.fitting.search import FitWatch
from surrogates.operators.differentiable import KernelBasis, combine, combine_rowwise
from surrogates.operators.linalg import DIRECT_SOLVE_UP_TO
from surrogates.solvers.auto import EPOCHS_AROUND

SHARE = 0.75  # of the time, for what is predicted; the fit ends when the rest of it is over


@dataclass(frozen=True)
class Rates:
    """How fast this machine is at an ask for q points.

    Attributes:
        product: seconds of a product.
        gradient: seconds of one function's value and gradient by one datum at one point.
        factor: seconds of a multiplication in a direct solve, which takes m³/6 of them.
    """

    product: float
    gradient: float
    factor: float


def measure_rates(
    kernel: Kernel,
    U: Tensor,
    q: int,
    *,
    num_rows: int = 256,
    num_points: int = 4,
    factor_size: int = 1024,
) -> Rates:
    """Return the rates of a few products and gradients with data U (n, e).

    Args:
        num_rows: of the products.
        num_points: of each function's gradients.
        factor_size: rows of a matrix that is factorised.
    """
    X = U[:DIRECT_SOLVE_UP_TO]
    basis = KernelBasis(kernel, X)
    weights = X.new_ones(len(X), q + 1)
    points = X[:num_points].expand(q, -1, -1).clone().requires_grad_()

    def ascend() -> None:
        combine_rowwise(basis, points, weights[:, :q]).sum().backward()

    rows = X[:num_rows]
    with torch.no_grad():
        product = memory.seconds(lambda: combine(basis, rows, weights), X.device)
    gradient = memory.seconds(ascend, X.device)
    matrix = torch.eye(factor_size, device="cpu").to(X)
    factor = memory.seconds(lambda: torch.linalg.cholesky(matrix), X.device)
    return Rates(
        product / (len(rows) * len(X)),
        gradient / (q * points.shape[1] * len(X)),
        factor / (factor_size**3 / 6),
    )


def predicted_seconds(m: int, q: int, rates: Rates, strategy: Strategy | None = None) -> float:
    """Return what a solve, by m² products each if iterative, and a search for q points take."""
    direct = m <= DIRECT_SOLVE_UP_TO
    products = m * ((EPOCHS_AROUND if direct else 8.0) * m + NUM_CANDIDATES)
    gradients = q * num_terms(q, m)
    multiplications = m**3 / 6 if direct else 0.0
    if isinstance(strategy, ForFewValues) and (improving := strategy.num_by_log_ei(q, m)):
        multiplications += 4.0 * m**3 + improving * 1600.0 * m**2  # factors once; evaluations
    return rates.product * products + rates.gradient * gradients + rates.factor * multiplications


@dataclass(frozen=True)
class Plan:
    """What an ask is by: models of ``num_rows`` m in regions or, where that is ``None``, one of all
    values.
    """

    num_rows: int | None
    num_regions: int
    reason: str


def plan_ask(
    n: int,
    q: int,
    seconds: float,
    rates: Rates,
    strategy: Strategy | None = None,
    *,
    points_a_region: int = 50,
    most_regions: int = 4,
) -> Plan:
    """Return what an ask for q points among n values is to be by, to take so many seconds: where
    that is not all values, a region for every so many points, and so many at most.
    """
    limit = SHARE * seconds
    whole = predicted_seconds(n, q, rates, strategy)
    if whole <= limit or n <= FIRST_FIT_POINTS:
        return Plan(None, 0, f"all {n} values, predicted to take {whole:.2g} of {seconds:g} s")
    regions = min(most_regions, math.ceil(q / points_a_region))
    share = math.ceil(q / regions)
    m = FIRST_FIT_POINTS
    while 2 * m <= n and regions * predicted_seconds(2 * m, share, rates, strategy) <= limit:
        m *= 2
    local = regions * predicted_seconds(m, share, rates, strategy)
    return Plan(
        m,
        regions,
        f"the {m} values around each of up to {regions} of the best points, predicted to take"
        f" {local:.2g} of {seconds:g} s, all {n} values {whole:.2g} s",
    )


def plan_here(
    factory: SurrogateFactory, strategy: Strategy, U: Tensor, n: int, q: int, seconds: float
) -> Plan:
    """Return the plan of an ask for q points among n values by a factory's models, by the rates of
    this machine as busy as it is; U (k, e) is where the values were observed,
    ``DIRECT_SOLVE_UP_TO`` of them or all.
    """
    X = U[:DIRECT_SOLVE_UP_TO].to(factory.device, factory.dtype)
    return plan_ask(n, q, seconds, measure_rates(deepcopy(factory.kernel).to(X), X, q), strategy)


def end_of_fit(start: float, seconds: float) -> float:
    """Return when the fit of an ask is to end that began then and is to take so many seconds."""
    return start + (1.0 - SHARE) * seconds


@dataclass(frozen=True, eq=False)
class Region:
    """A part of the unit cube.

    Attributes:
        centre: (e,).
        num_rows: m.
        side: half of its sides, in which half of the model's data lie.
    """

    centre: Tensor
    num_rows: int
    side: float

    @property
    def box(self) -> Tensor:
        """Its corners (2, e), cut off at the cube."""
        return torch.stack([self.centre - self.side, self.centre + self.side]).clamp(0.0, 1.0)

    def nearest(self, U: Tensor) -> Tensor:
        """Return the numbers (m,) of those of the points U (n, e) that its model knows."""
        return _nearest(U, self.centre, self.num_rows).indices


def find_regions(
    U: Tensor,
    values: Tensor,
    feasible: FeasibleSet,
    m: int,
    number: int,
    *,
    num_leaders: int = 64,
    num_neighbours: int = 8,
) -> list[Region]:
    """Return at most so many regions around good points, each with the m data nearest to its
    centre, by the largest coordinate.

    Centres are the best by the median of the values nearest to them, none in the box of another.

    Args:
        values: (n,) of which the largest is best.
        feasible: where centres are to lie, if any of the data do or can be moved there.
        num_leaders: best values, at which regions may have their centres.
        num_neighbours: whose values tell whether a leader was lucky.
    """
    places, rows = baseline(U, feasible)
    leaders = places[values[rows].topk(min(num_leaders, len(places))).indices]
    around = [_nearest(U, leader, num_neighbours).indices for leader in leaders]
    scores = torch.stack([values[near].median() for near in around])
    regions: list[Region] = []
    for centre in leaders[scores.argsort(descending=True)]:
        if len(regions) == number:
            break
        if any(float((centre - region.centre).abs().max()) <= region.side for region in regions):
            continue
        distances = _nearest(U, centre, m).values
        half = float(distances[m // 2])
        # Where half of them are one point, as far as they reach, and anywhere if all are
        regions.append(Region(centre, m, half or float(distances[-1]) or 1.0))
    return regions


def local_parts(
    factory: SurrogateFactory,
    strategy: Strategy,
    plan: Plan,
    told: TrainingData,
    feasible: FeasibleSet,
    q: int,
    generator: torch.Generator,
    watch: FitWatch,
    success: Callable[[Region], Success | None] = lambda region: None,
) -> list[Part]:
    """Return a part of a batch of q points for each region of ``plan``, by models for a strategy
    with the same hyperparameters; the batch is to be ``feasible``, and ``success`` tells of a
    region what :class:`Part` has.
    """
    assert plan.num_rows is not None
    regions = find_regions(told.U, told.signed, feasible, plan.num_rows, plan.num_regions)
    sizes = [len(part) for part in torch.arange(q, device="cpu").tensor_split(len(regions))]
    near = torch.cat([region.nearest(told.U) for region in regions]).unique()
    hyperparameters, data = fit_warped(
        factory,
        told.part(near),
        generator,
        few=is_for_few(strategy, max(sizes), plan.num_rows),
        watch=watch,
    )
    parts = []
    for place, (region, size) in enumerate(zip(regions, sizes, strict=True), 1):
        known = data.in_units(region.nearest(data.U))
        model = factory.build(known, hyperparameters)
        label = f"region {place}/{len(regions)}: "
        parts.append(Part([model], [known], size, region.box, success(region), label))
    return parts


def learn_success(
    factory: SurrogateFactory,
    data: TrainingData | None,
    generator: torch.Generator,
    deadline: float | None = None,
    region: Region | None = None,
) -> Success | None:
    """Return the probability that evaluations succeed, by those nearest to a region if there is
    one; ``None`` where none of them has failed.

    Args:
        data: where they succeeded and failed; ``None`` where too few failed.
        generator: of the ask, from which nothing is drawn: failures change nothing else that is
            random.
    """
    if data is not None and region is not None:
        data = data.part(region.nearest(data.U))
    if data is None or bool(data.signed.all()):
        return None
    own = torch.Generator().manual_seed(generator.initial_seed())
    fitted = fit_surrogate(factory, data, own, few=True, watch=FitWatch(deadline=deadline))
    paths = factory.build(data, fitted).paths(1, generator=own)
    return lambda U: data.values_of(paths.mean(U))


def _nearest(U: Tensor, centre: Tensor, number: int) -> torch.return_types.topk:
    """Return the distances and numbers of the points that are nearest, in this order."""
    distances = (U - centre).abs().amax(1)
    return distances.topk(min(number, len(U)), largest=False)
