"""Expected improvement of a batch, chosen point by point: the strongest choice where values and
points are few.

Notation: n values, d inputs, X (..., d) points, k starts, q points of a batch.
"""

import math
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, cast

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import _log_ei_helper as log_improvement
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.acquisition.objective import GenericMCObjective
from botorch.exceptions.warnings import BotorchWarning
from botorch.models.model_list_gp_regression import ModelListGP
from botorch.models.transforms.outcome import Standardize
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.sampling import draw_sobol_normal_samples
from gpytorch.likelihoods import GaussianLikelihood
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from acquisition.candidates import all_inputs, model_list
from acquisition.climbing import climb
from acquisition.multistart import FunctionOfPoints
from acquisition.outcomes import Outcome, only_output
from acquisition.selection import DUPLICATE_DISTANCE, KnownPoints, Moves, distinct_best
from acquisition.strategy import ForFewValues, Request, Sampler
from acquisition.thompson import AcquisitionProgress, ParallelThompsonSampling
from surrogates import PathwiseGP, checks
from surrogates.models.data import data_sets
from surrogates.operators.differentiable import CrossCovariance
from surrogates.operators.linalg import jittered_cholesky
from surrogates.operators.tiles import KernelTiles
from surrogates.rules.data_set import DataSet

# Searches a set that is more than a box
LIGHT_SAMPLER = partial(
    ParallelThompsonSampling,
    num_candidates=250,
    num_rounds=8,
    num_starts=8,
    num_steps=40,
    uniform_fraction=0.5,
)
# A surrogate of a function without noise may take that much of the values' variance for
# noise. More is noise, or ripples that the kernel is too smooth for.
NEGLIGIBLE_NOISE = 1e-2
# In units of the box's sides: of a repeated point, which is a new one all the same, and where two
# values differ by noise alone
BESIDE = 10.0 * DUPLICATE_DISTANCE
NEAR = 10.0 * BESIDE
REPEATED = "; the first beside the best value, to tell noise from ripples"


@dataclass(frozen=True)
class LogEIStrategy(ForFewValues):
    """The largest expected improvement over the best data point, by the mean or, where values have
    noise, by joint draws of the function at the data: of the first point, then jointly with those
    chosen already and with pending ones.

    In a box its logarithm is maximised by L-BFGS-B from several starts; between constraints, on
    grids, among choices and where evaluations may fail by the search that paths are maximised by.
    An ask takes time ∝ q (n + p)², p points being pending: for few points among up to some hundred
    values.

    Of one output, the improvement given values at pending points has a closed form; it is averaged
    over draws of these. Of objectives and constraints on outcomes all is drawn.

    Where the model has learned noise that may as well be ripples, because no two points are near
    each other, one point lies beside that of the best value, in the inputs that are not rounded:
    both values are then almost the same, or there is noise. Not where all are rounded, nor where
    variances are known.

    Args:
        sampler: makes the search in a set that is more than a box, of a model, bounds, ``seed`` and
            constraints, as in :class:`ThompsonStrategy`; ``None`` for a light one.
        num_samples: joint draws of several outcomes.
        num_draws: of one output's values at pending points.
        most_pending: how many pending points, the latest ones, have values drawn with a new one's.
        num_leaders: how many of the best data points the improvement is sought around.

    Raises:
        TypeError, ValueError: if a number is not a positive whole one.

    References:
        Ament et al. (2023), "Unexpected Improvements to Expected Improvement for Bayesian
        Optimization", of which BoTorch's functions are the authors' code. Differs: only values at
        pending points and noisy data are drawn, where an output is improved itself.
        Letham et al. (2019), "Constrained Bayesian Optimization with Noisy Experiments".
    """

    name: ClassVar[str] = "log-ei"
    sampler: Sampler | None = None
    num_samples: int = 128
    num_draws: int = 64
    most_pending: int = 32
    num_leaders: int = 4

    def __post_init__(self) -> None:
        for name in ("num_samples", "num_draws", "most_pending", "num_leaders"):
            checks.positive_int(name, getattr(self, name))

    def generate(self, request: Request) -> Tensor:
        """Return the batch; as :class:`Strategy` has it."""
        models = model_list(request.model)
        bounds = request.bounds
        improvement = _Improvement.of(models, request, self)
        pending = bounds[:0] if request.X_pending is None else request.X_pending
        repeated = beside_the_best(request)
        pending = torch.cat([pending, repeated])
        for done in range(1 + len(repeated), request.q + 1):
            generator = request.generator
            seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
            with warnings.catch_warnings():
                # Rows may nearly repeat, and line searches end early: what was reached is a point
                # all the same
                warnings.simplefilter("ignore", NumericalWarning)
                warnings.simplefilter("ignore", BotorchWarning)
                point = self._best_point(improvement, models, request, pending, seed)
            pending = torch.cat([pending, point])
            if request.callback is not None:
                request.callback(AcquisitionProgress("improvement", done, request.q))
        return pending[-request.q :]

    def reason(self, request: Request) -> str:
        """Return in a line how points are chosen, as :class:`ChoosingStrategy` has it."""
        return with_repeat(super().reason(request), request)

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
        taken = torch.cat([all_inputs(models), pending])
        in_box = feasible.rounding is None and not feasible.constrained
        if request.choices is None and request.success is None and in_box:
            generator = torch.Generator().manual_seed(seed)
            ranked = climb(objective, improvement.leaders, feasible, generator)
            known = KnownPoints(taken, request.bounds)
            point, found = distinct_best(ranked, request.bounds, known, Moves(objective, feasible))
            if found.all():
                return point
        first = models[0] if models[0].num_outputs == 1 else models[0].subset_output([0])
        sampler = (self.sampler or LIGHT_SAMPLER)(
            first, request.bounds, seed=seed, success=request.success, **request.constraints
        )
        options = {} if request.choices is None else {"choices": request.choices}
        functions = cast(Any, (objective,))  # it maximises any function as it does a path
        return sampler.generate(1, paths=functions, X_pending=taken, **options)


@dataclass(frozen=True, eq=False)
class _Posterior:
    """One output given s vectors of values at the same points: s means, one covariance.

    Attributes:
        data: whose kernel and mean function are those of the output.
        tiles: of the covariance with the n points.
        inverse_root: L⁻¹ (n, n), of the values' covariance L Lᵀ.
        weights: (n, s), of the means.
        variance: of the output before there are values, if it is the same everywhere.
    """

    data: DataSet
    tiles: KernelTiles
    inverse_root: Tensor
    weights: Tensor
    variance: Tensor | None

    @classmethod
    def of(cls, data: DataSet, X: Tensor, Y: Tensor, noise: Tensor) -> "_Posterior":
        """Return the output given the values Y (n, s) at X, with variances (n,) of their noise."""
        covariance = data.kernel(X).to_dense() + torch.diag(noise)
        root, _ = jittered_cholesky(covariance, overwrite=True)
        identity = torch.eye(len(X), device=root.device).to(root)
        inverse_root = torch.linalg.solve_triangular(root, identity, upper=False)
        residuals = Y - data.mean_module(X).unsqueeze(1)
        weights = inverse_root.mT @ (inverse_root @ residuals)
        tiles = KernelTiles.of(data.kernel, X, X)
        return cls(data, tiles, inverse_root, weights, tiles.variance)

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means (k, s) and variances (k,) at X (k, d)."""
        covariance = CrossCovariance.apply(X, self.tiles)
        means = self.data.mean_module(X).unsqueeze(1) + covariance @ self.weights
        explained = (covariance @ self.inverse_root.mT).square().sum(1)
        prior = self.data.kernel(X, diag=True) if self.variance is None else self.variance
        rounding = len(self.weights) * torch.finfo(X.dtype).eps  # which is left of no variance
        return means, torch.maximum(prior - explained, rounding * prior)

    def draw(self, X: Tensor, num_draws: int, seed: int) -> Tensor:
        """Return draws (k, ``num_draws``) of the output at X (k, d), without noise."""
        projected = CrossCovariance.apply(X, self.tiles) @ self.inverse_root.mT
        known = projected @ projected.mT
        root, _ = jittered_cholesky(self.data.kernel(X).to_dense() - known, overwrite=True)
        means, _ = self.moments(X)
        return means + root @ draw_sobol_normal_samples(len(X), num_draws, seed=seed).to(root).mT


@dataclass(frozen=True, eq=False)
class _Improvement:
    """What is to be improved, and over what.

    Attributes:
        model: in float64: differences of values that are almost equal decide.
        objective: maps outputs (..., m) to (...), larger is better.
        constraints: map outputs to (...), feasible where ≤ 0.
        best: the best objective by the means at the data, of feasible points if there are any.
        leaders: (b, d) the data points with the largest of these.
        sign: of the model's one output if that is the objective; ``None`` for another.
        strategy: how many draws and pending points there are.
    """

    model: PathwiseGP | ModelListGP
    objective: Outcome
    constraints: tuple[Outcome, ...]
    best: Tensor
    leaders: Tensor
    sign: float | None
    strategy: LogEIStrategy

    @classmethod
    @torch.no_grad()
    def of(
        cls, models: tuple[PathwiseGP, ...], request: Request, strategy: LogEIStrategy
    ) -> "_Improvement":
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
        whole = given is only_output and not constraints and _is_gaussian(model)
        leaders = X[ranking[torch.arange(strategy.num_leaders, device="cpu") % len(X)]]

        def objective(Y: Tensor) -> Tensor:
            return sign * given(Y)

        own_sign = sign if whole else None
        return cls(model, objective, constraints, best, leaders, own_sign, strategy)

    def beside(self, pending: Tensor, seed: int) -> FunctionOfPoints:
        """Return the logarithm of the expected improvement of a point jointly with pending ones."""
        pending = pending[-self.strategy.most_pending :].double()
        if self.sign is not None:
            assert isinstance(self.model, PathwiseGP)
            num_draws = self.strategy.num_draws
            return FunctionOfPoints(
                _of_one_output(
                    self.model, self._given_values, self.sign, pending, num_draws, seed % 2**31
                )
            )
        joint: AcquisitionFunction = qLogExpectedImprovement(
            self.model,
            self.best,
            sampler=SobolQMCNormalSampler(
                torch.Size([self.strategy.num_samples]), seed=seed % 2**31
            ),
            objective=GenericMCObjective(_without_inputs(self.objective)),
            X_pending=pending if len(pending) else None,
            constraints=list(self.constraints) or None,
        )
        return FunctionOfPoints(lambda X: joint(X.unsqueeze(-2)))

    @cached_property
    @torch.no_grad()
    def _given_values(self) -> _Posterior:
        """The one output given the values, with no pending points."""
        assert isinstance(self.model, PathwiseGP)
        (data,) = data_sets(self.model)
        return _Posterior.of(data, data.X, data.y.unsqueeze(1), data.noise.expand_as(data.y))


@torch.no_grad()
def beside_the_best(request: Request, fewest: int = 30) -> Tensor:
    """Return a point (1, d) beside that of the best value, if two values there are to tell noise
    from ripples; none (0, d) if they are told apart already, or cannot be: of several outcomes,
    where variances are known, among given choices; or if there are not the ``fewest`` values from
    which a fit says much of noise.
    """
    feasible = request.feasible_set
    none = request.bounds[:0]
    goal = request.goal
    model, *others = model_list(request.model)
    if others or goal.get("objective") or goal.get("outcome_constraints"):
        return none
    is_learned = isinstance(model.likelihood, GaussianLikelihood)
    if request.choices is not None or not _is_gaussian(model) or not is_learned:
        return none
    sign = 1.0 if goal.get("maximize", True) else -1.0
    (data,) = data_sets(model)
    if len(data.y) < fewest or not _is_noisy(data):
        return none
    lower, upper = request.bounds.double()
    width = upper - lower
    X = all_inputs((model,)).double()
    pending = X[:0] if request.X_pending is None else request.X_pending.double()
    scaled = torch.cat([X, pending]) / torch.where(width > 0, width, 1.0)
    if torch.pdist(scaled, p=math.inf).min() < NEAR:
        return none
    best = X[(sign * data.y).argmax()]
    inwards = torch.where(best > 0.5 * (lower + upper), -1.0, 1.0) * (feasible.scale > 0)
    point = feasible.rounded((best + BESIDE * width * inwards).to(request.bounds).unsqueeze(0))
    # A grid leads it back to the best point, which is not asked for twice
    is_new = ~KnownPoints(best.unsqueeze(0), request.bounds).near(point)
    return point[feasible.contains(point) & is_new]


def with_repeat(reason: str, request: Request) -> str:
    """Return how the points of a request are chosen, with what is said of :func:`beside_the_best`
    if one is.
    """
    return reason + (REPEATED if len(beside_the_best(request)) else "")


def _is_noisy(data: DataSet) -> bool:
    return bool(data.noise.max() > NEGLIGIBLE_NOISE * data.y.var())


def _is_gaussian(model: PathwiseGP | ModelListGP) -> bool:
    """Whether a model has one output, the posterior of which is Gaussian."""
    transform = getattr(model, "outcome_transform", None)
    return model.num_outputs == 1 and isinstance(transform, Standardize | None)


@torch.no_grad()
def _of_one_output(
    model: PathwiseGP,
    posterior: _Posterior,
    sign: float,
    pending: Tensor,
    num_draws: int,
    seed: int,
) -> Callable[[Tensor], Tensor]:
    """Return the logarithm of the expected improvement of a model's one output, with this posterior
    given its values, beside pending points, as a function from points (k, d) to (k,).
    """
    data = posterior.data
    X = torch.cat([data.X, model.transform_inputs(pending)]) if len(pending) else data.X
    kept = 0 if _is_noisy(data) else len(data.X)  # of the values; the others are drawn
    best = (sign * posterior.moments(data.X)[0]).amax(0)
    if kept < len(X):
        drawn = posterior.draw(X[kept:], num_draws, seed)
        Y = torch.cat([data.y[:kept].unsqueeze(1).expand(-1, num_draws), drawn])
        noise = torch.cat([data.noise.expand_as(data.y)[:kept], torch.zeros_like(drawn[:, 0])])
        posterior = _Posterior.of(data, X, Y, noise)
        best = (sign * drawn).amax(0).maximum(best if kept else best.new_tensor(-math.inf))

    def logarithm(X: Tensor) -> Tensor:
        means, variances = posterior.moments(model.transform_inputs(X))
        deviations = variances.sqrt().unsqueeze(1)
        excesses: Tensor = LogImprovement.apply((sign * means - best) / deviations)
        values = excesses + deviations.log()
        return torch.logsumexp(values, dim=1) - math.log(values.shape[1])

    return logarithm


class LogImprovement(torch.autograd.Function):
    """h(u) = log(φ(u) + u Φ(u)), of the standard normal density and distribution function, and its
    slope Φ(u) / (φ(u) + u Φ(u)), which far below is −u − 2 / u to rounding; differentiable once.
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        value: Tensor = log_improvement(u)
        ctx.save_for_backward(u, value)
        return value

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        if torch.is_grad_enabled():  # by `create_graph`
            raise NotImplementedError(
                "The logarithm of an improvement has first derivatives only. Leave out"
                " `create_graph`."
            )
        u, value = ctx.saved_tensors
        slope = torch.exp(torch.special.log_ndtr(u) - value)
        far_below = -(torch.finfo(u.dtype).eps ** -0.25)  # the next term is of the order of u⁻³
        return cotangent * torch.where(u < far_below, -u - 2.0 / u, slope)


def _without_inputs(objective: Outcome) -> Callable[[Tensor, Tensor | None], Tensor]:
    """Return an objective as BoTorch calls it: with the points, too."""

    def of_outputs(Y: Tensor, X: Tensor | None = None) -> Tensor:
        return objective(Y)

    return of_outputs
