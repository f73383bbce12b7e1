"""Expected improvement of a batch, chosen point by point: the strongest choice where values and
points are few.

Notation: n values, d inputs, X (..., d) points, k starts, q points of a batch.
"""

import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.acquisition.objective import GenericMCObjective
from botorch.exceptions.warnings import BotorchWarning
from botorch.generation.gen import gen_candidates_scipy
from botorch.models.model_list_gp_regression import ModelListGP
from botorch.sampling.normal import SobolQMCNormalSampler
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from acquisition.candidates import all_inputs, model_list
from acquisition.constraints import FeasibleSet
from acquisition.multistart import screen
from acquisition.outcomes import Outcome, only_output
from acquisition.selection import KnownPoints, Moves, best_first, distinct_best
from acquisition.strategy import Request, Sampler
from acquisition.thompson import AcquisitionProgress, ParallelThompsonSampling
from surrogates import PathwiseGP

# Searches a set that is more than a box
LIGHT_SAMPLER = partial(
    ParallelThompsonSampling,
    num_candidates=250,
    num_rounds=8,
    num_starts=8,
    num_steps=40,
    uniform_fraction=0.5,
)
NUM_SAMPLES = 128  # joint draws behind the improvement of several points
MOST_PENDING = 32  # points whose values are drawn with a new one's
EVALUATED_AT_ONCE = 1024  # points
NUM_UNIFORM = 512  # candidates in the box
NUM_NEAR = 64  # around the best data points, at each of these distances, in units of its sides
DISTANCES = (0.1, 0.01, 0.001)
NUM_BEST = 4
NUM_STARTS = 6
MOST_ITERATIONS = 60


@dataclass(frozen=True)
class LogEIStrategy:
    """The largest expected improvement over the best mean at a data point: of the first point, then
    jointly with those chosen already and with pending ones.

    In a box its logarithm is maximised by L-BFGS-B from several starts, between constraints, on
    grids and among choices by the search that paths are maximised by. An ask takes time
    ∝ q (q + p) n, p points being pending: for few points among up to some hundred values.

    Args:
        sampler: makes the search in a set that is more than a box, of a model, bounds, ``seed`` and
            constraints, as in :class:`ThompsonStrategy`; ``None`` for a light one.

    References:
        Ament et al. (2023), "Unexpected Improvements to Expected Improvement for Bayesian
        Optimization", of which BoTorch's functions are the authors' code. Differs: (1) the value
        to be improved is the best posterior mean, which noise does not lift.
    """

    sampler: Sampler | None = None

    def generate(self, request: Request) -> Tensor:
        """Return the batch; as :class:`Strategy` has it."""
        models = model_list(request.model)
        bounds = request.bounds
        improvement = _Improvement.of(models, request)
        pending = bounds[:0] if request.X_pending is None else request.X_pending
        for done in range(1, request.q + 1):
            seed = int(torch.randint(2**62, (), generator=request.generator))
            with warnings.catch_warnings():
                # Of rows that nearly repeat, and of line searches that end early: what was reached
                # is a point all the same
                warnings.simplefilter("ignore", NumericalWarning)
                warnings.simplefilter("ignore", BotorchWarning)
                point = self._best_point(improvement, models, request, pending, seed)
            pending = torch.cat([pending, point])
            if request.callback is not None:
                request.callback(AcquisitionProgress("improvement", done, request.q))
        return pending[-request.q :]

    @torch.inference_mode(False)
    def _best_point(
        self,
        improvement: "_Improvement",
        models: tuple[PathwiseGP, ...],
        request: Request,
        pending: Tensor,
        seed: int,
    ) -> Tensor:
        """Return the free point (1, d) that improves most, jointly with pending ones."""
        objective = improvement.beside(pending, seed)
        feasible = request.feasible_set
        X = all_inputs(models)
        if request.choices is None and feasible.rounding is None and not feasible.constrained:
            generator = torch.Generator().manual_seed(seed)
            ranked = _climbed(objective, improvement.leaders, feasible, generator)
            known = KnownPoints(torch.cat([X, pending]), request.bounds)
            point, found = distinct_best(ranked, request.bounds, known, Moves(objective, feasible))
            if found.all():
                return point
        first = models[0] if models[0].num_outputs == 1 else models[0].subset_output([0])
        sampler = (self.sampler or LIGHT_SAMPLER)(
            first, request.bounds, seed=seed, **request.constraints
        )
        options = {} if request.choices is None else {"choices": request.choices}
        others = torch.cat([X, pending])
        functions = cast(Any, (objective,))  # it maximises any function as it does a path
        return sampler.generate(1, paths=functions, X_pending=others, **options)


@dataclass(frozen=True, eq=False)
class _Logarithm:
    """The logarithm of an expected improvement, as the one function that is maximised."""

    acquisition: AcquisitionFunction
    num_samples: int = 1

    @torch.no_grad()
    def __call__(self, X: Tensor) -> Tensor:
        """Return its values at X (c, d): (1, c)."""
        parts = X.split(EVALUATED_AT_ONCE)
        return torch.cat([self.each(part.unsqueeze(0)) for part in parts], dim=1)

    def each(self, X: Tensor) -> Tensor:
        """Return its values at X (1, k, d): (1, k)."""
        values: Tensor = self.acquisition(X.double().flatten(0, 1).unsqueeze(-2))
        return values.unsqueeze(0).to(X)


@dataclass(frozen=True, eq=False)
class _Improvement:
    """What is to be improved, and over what.

    Attributes:
        model: in float64: differences of values that are almost equal decide.
        objective: maps outputs (..., m) to (...), larger is better.
        constraints: map outputs to (...), feasible where ≤ 0.
        best: the best objective by the means at the data, of feasible points if there are any.
        leaders: (b, d) the data points with the largest of these.
        simple: whether the objective is the model's one output, which needs no draws.
    """

    model: PathwiseGP | ModelListGP
    objective: Outcome
    constraints: tuple[Outcome, ...]
    best: Tensor
    leaders: Tensor
    simple: bool

    @classmethod
    @torch.no_grad()
    def of(cls, models: tuple[PathwiseGP, ...], request: Request) -> "_Improvement":
        copies = [deepcopy(model).double().eval() for model in models]
        model = copies[0] if len(copies) == 1 else ModelListGP(*copies)
        goal = request.goal
        given = goal.get("objective") or only_output
        sign = 1.0 if goal.get("maximize", True) else -1.0
        constraints = tuple(goal.get("outcome_constraints") or ())
        X = all_inputs(models).double()
        Y = model.posterior(X).mean
        values = sign * given(Y)
        feasible = torch.ones_like(values, dtype=torch.bool)
        for constraint in constraints:
            feasible &= constraint(Y) <= 0
        best = values[feasible].max() if feasible.any() else values.min()
        ranking = torch.where(feasible, values, values.min()).argsort(descending=True)
        simple = sign > 0 and given is only_output and not constraints
        leaders = X[ranking[torch.arange(NUM_BEST) % len(X)]]

        def objective(Y: Tensor) -> Tensor:
            return sign * given(Y)

        return cls(model, objective, constraints, best, leaders, simple)

    def beside(self, pending: Tensor, seed: int) -> _Logarithm:
        """Return the logarithm of the expected improvement of a point jointly with pending ones."""
        if not len(pending) and self.simple:
            return _Logarithm(LogExpectedImprovement(self.model, self.best))
        joint = qLogExpectedImprovement(
            self.model,
            self.best,
            sampler=SobolQMCNormalSampler(torch.Size([NUM_SAMPLES]), seed=seed % 2**31),
            objective=GenericMCObjective(_without_inputs(self.objective)),
            X_pending=pending[-MOST_PENDING:].double() if len(pending) else None,
            constraints=list(self.constraints) or None,
        )
        return _Logarithm(joint)


def _without_inputs(objective: Outcome) -> Callable[[Tensor, Tensor | None], Tensor]:
    """Return an objective as BoTorch calls it: with the points, too."""

    def of_outputs(Y: Tensor, X: Tensor | None = None) -> Tensor:
        return objective(Y)

    return of_outputs


def _climbed(
    objective: _Logarithm, leaders: Tensor, feasible: FeasibleSet, generator: torch.Generator
) -> Tensor:
    """Return local maxima of ``objective`` in a box, the best first: (1, k, d).

    Candidates are uniform, and normal around the best data points at several distances: late in an
    optimisation the improvement is a peak as narrow as what is left to gain. The best of each part
    of them is a start.

    Args:
        leaders: (b, d) the best data points.
    """
    lower = feasible.bounds[0].double()
    width = feasible.scale.double()

    def from_cube(U: Tensor) -> Tensor:
        X = (lower + width * U).to(feasible.bounds)
        return torch.clamp(X, feasible.bounds[0], feasible.bounds[1])

    d = len(lower)
    like: dict[str, Any] = {"dtype": torch.float64, "generator": generator}
    around = ((leaders - lower) / torch.where(width > 0, width, 1.0)).repeat(
        NUM_NEAR // NUM_BEST, 1
    )
    near = [around + spread * torch.randn(around.shape, **like).to(around) for spread in DISTANCES]
    U = torch.cat([torch.rand(NUM_UNIFORM, d, **like).to(around), *near]).clamp(0.0, 1.0)
    U = U[torch.randperm(len(U), generator=generator).to(U.device)]
    starts = screen(objective, from_cube(U).chunk(NUM_STARTS)).squeeze(0)
    U = (starts.double() - lower) / torch.where(width > 0, width, 1.0)
    # BoTorch shows what a line search that ends early says whatever the filters are
    with warnings.catch_warnings(record=True):
        climbed, values = gen_candidates_scipy(
            U.unsqueeze(1),
            lambda U: objective.each((lower + width * U).transpose(0, 1)).squeeze(0),  # type: ignore[arg-type]
            lower_bounds=0.0,
            upper_bounds=1.0,
            options={"maxiter": MOST_ITERATIONS},
        )
    return best_first(from_cube(climbed.transpose(0, 1)), values.unsqueeze(0))
