"""Expected improvement of a batch, chosen point by point: the strongest choice where values and
points are few.

Notation: n values, d inputs, X (..., d) points, k starts, q points of a batch.
"""

import math
import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from botorch.acquisition.analytic import _log_ei_helper as log_improvement
from botorch.acquisition.logei import TAU_RELU
from botorch.exceptions.warnings import BotorchWarning
from botorch.models.transforms.outcome import Standardize
from botorch.utils.multi_objective.box_decompositions.non_dominated import (
    FastNondominatedPartitioning,
)
from botorch.utils.objective import compute_smoothed_feasibility_indicator
from botorch.utils.safe_math import log1mexp, log_fatplus
from botorch.utils.sampling import draw_sobol_normal_samples
from gpytorch.likelihoods import GaussianLikelihood
from linear_operator.utils.warnings import NumericalWarning
from scipy.spatial import cKDTree
from torch import Tensor

from acquisition.candidates import (
    all_inputs,
    baseline,
    check_outcomes,
    may_be_proposed,
    model_list,
)
from acquisition.climbing import climb
from acquisition.constraints import FeasibleSet
from acquisition.multistart import FunctionOfPoints
from acquisition.outcomes import Demands, Outcome, OutcomePaths, Scalarisations, only_output
from acquisition.selection import DUPLICATE_DISTANCE, KnownPoints, Moves, distinct_best
from acquisition.strategy import ForFewValues, Request, Sampler
from acquisition.thompson import AcquisitionProgress, ParallelThompsonSampling
from surrogates import PathwiseGP, checks, memory
from surrogates.models.data import data_sets
from surrogates.operators.linalg import jittered_cholesky
from surrogates.operators.tiles import CrossCovariance, KernelTiles
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
    """The largest expected improvement over the best data point that may be proposed, by the mean
    or, where values have noise, by joint draws of the function at the data: of the first point,
    then jointly with those chosen already and with pending ones. Where evaluations may fail, it is
    over those data points that are as likely to succeed as the new one has to be; over all of them
    if none is.

    In a box its logarithm is maximised by L-BFGS-B from several starts; between constraints, on
    grids, among choices and where evaluations may fail by the search that paths are maximised by.
    An ask takes time ∝ n³ once, and ∝ (n + p)² for each point, p points being pending: for few
    points among up to some thousand values.

    Of one output, the improvement given values at pending points has a closed form; it is averaged
    over draws of these. Of two or three objectives the hypervolume's growth has one, too, given
    means at pending points. Of other objectives, and with constraints on outcomes, all is drawn,
    and of several objectives what the hypervolume improves by, see :class:`Scalarisations`. In
    draws where no point keeps the constraints, the improvement is the decrease of the least
    violation.

    Where the model has learned noise that may as well be ripples, because no two points are near
    each other, one point lies beside that of the best value, in the inputs that are not rounded:
    both values are then almost the same, or there is noise. Not where all are rounded, nor where
    variances are known.

    Args:
        sampler: makes the search in a set that is more than a box, of a model, bounds, ``seed`` and
            constraints, as in :class:`ThompsonStrategy`; ``None`` for a light one.
        num_samples: joint draws of several outcomes.
        num_draws: of one output's values at pending points.
        most_pending: how many pending points, the latest ones, have values drawn with a new one's;
            those before have the values that the means are.
        num_leaders: how many of the best data points the improvement of one objective is sought
            around.

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
        counts = ["num_samples", "num_draws", "most_pending", "num_leaders"]
        checks.fields(self, counts, checks.positive_int)

    def generate(self, request: Request) -> Tensor:
        """Return the batch; as :class:`Strategy` has it."""
        improvement = _Improvement.of(request, self)
        pending = request.bounds[:0] if request.X_pending is None else request.X_pending
        repeated = beside_the_best(request)
        pending = torch.cat([pending, repeated])
        for done in range(1 + len(repeated), request.q + 1):
            generator = request.generator
            seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
            with warnings.catch_warnings():
                # Rows may nearly repeat, and line searches end early
                warnings.simplefilter("ignore", NumericalWarning)
                warnings.simplefilter("ignore", BotorchWarning)
                point = self._best_point(improvement, request, pending, seed)
            pending = torch.cat([pending, point])
            if request.callback is not None:
                request.callback(AcquisitionProgress("improvement", done, request.q))
        return pending[-request.q :]

    def num_by_log_ei(self, q: int, num_values: int) -> int:
        """Return q, whatever the number of values."""
        return q

    def reason(self, request: Request) -> str:
        """Return in a line how points are chosen, as :class:`ChoosingStrategy` has it."""
        return with_repeat(super().reason(request), request)

    @torch.inference_mode(False)
    def _best_point(
        self, improvement: "_Improvement", request: Request, pending: Tensor, seed: int
    ) -> Tensor:
        """Return the free point (1, d) that improves most, jointly with pending ones."""
        models = model_list(request.model)
        feasible = request.feasible_set
        X = all_inputs(models)
        demands = None
        if request.success is not None:
            demands = Demands.draw(request.success, 1, X, torch.Generator().manual_seed(seed))
        objective = improvement.beside(pending, seed, demands)
        taken = torch.cat([X, pending])
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
            first, request.bounds, seed=seed, **request.constraints
        )
        options = {} if request.choices is None else {"choices": request.choices}
        function: Any = objective  # it maximises any function as it does a path
        if demands is not None:
            function = OutcomePaths((function,), only_output, demands=demands)
        return sampler.generate(1, paths=(function,), X_pending=taken, **options)


@dataclass(frozen=True, eq=False)
class _Posterior:
    """One output given s vectors of values at the same points: s means, one covariance."""

    data: DataSet  # whose kernel and mean function are those of the output
    X: Tensor  # (n, d), the points
    Y: Tensor  # (n, s), the values
    tiles: KernelTiles  # of the covariance with the points
    inverse_root: Tensor  # L⁻¹ (n, n), of the values' covariance L Lᵀ

    @classmethod
    def of(cls, data: DataSet, X: Tensor, Y: Tensor, noise: Tensor) -> "_Posterior":
        """Return the output given the values Y (n, s) at X, with variances (n,) of their noise."""
        covariance = data.kernel(X).to_dense() + torch.diag(noise)
        root, _ = jittered_cholesky(covariance, overwrite=True)
        identity = torch.eye(len(X), device=root.device).to(root)
        inverse_root = torch.linalg.solve_triangular(root, identity, upper=False)
        return cls(data, X, Y, KernelTiles.of(data.kernel, X, X), inverse_root)

    @cached_property
    def variance(self) -> Tensor | None:  # before there are values, if the same everywhere
        return self.tiles.variance

    @cached_property
    def weights(self) -> Tensor:  # (n, s), of the means
        residuals = self.Y - self.data.mean_module(self.X).unsqueeze(1)
        return self.inverse_root.mT @ (self.inverse_root @ residuals)

    def means(self, X: Tensor) -> Tensor:
        """Return the means (k, s) at X (k, d)."""
        covariance = CrossCovariance.apply(X, self.tiles)
        return self.data.mean_module(X).unsqueeze(1) + covariance @ self.weights

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means (k, s) and variances (k,) at X (k, d)."""
        covariance = CrossCovariance.apply(X, self.tiles)
        means = self.data.mean_module(X).unsqueeze(1) + covariance @ self.weights
        explained = (covariance @ self.inverse_root.mT).square().sum(1)
        prior = self.data.kernel(X, diag=True) if self.variance is None else self.variance
        rounding = len(self.X) * torch.finfo(X.dtype).eps  # which is left of no variance
        return means, torch.maximum(prior - explained, rounding * prior)

    def root(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return K(X, ·) L⁻ᵀ (k, n), and the root (k, k) of the output's covariance at X (k, d)."""
        known = CrossCovariance.apply(X, self.tiles) @ self.inverse_root.mT
        prior = self.data.kernel(X).to_dense()
        covariance = prior - known @ known.mT
        covariance.diagonal().clamp_(min=len(self.X) * torch.finfo(X.dtype).eps * prior.diagonal())
        return known, jittered_cholesky(covariance, overwrite=True)[0]

    def beside(self, X: Tensor, steps: Tensor | None) -> "_Posterior":
        """Return the output given its draws, too, at X (k, d) by normal ``steps``, or its means."""
        known, root = self.root(X)
        Y = self.means(X) if steps is None else self.means(X) + root @ steps
        n, identity = len(self.X), torch.eye(len(X), device=X.device).to(X)
        corner = torch.linalg.solve_triangular(root, identity, upper=False)
        inverse = torch.block_diag(self.inverse_root, corner)
        inverse[n:, :n] = -corner @ (known @ self.inverse_root)
        X, Y = torch.cat([self.X, X]), torch.cat([self.Y.expand(-1, Y.shape[1]), Y])
        return _Posterior(self.data, X, Y, KernelTiles.of(self.data.kernel, X, X), inverse)


@dataclass(frozen=True, eq=False)
class _Improvement:
    """A goal of models, and the data whose best point a batch is to improve on."""

    models: tuple[PathwiseGP, ...]  # in float64: differences of almost equal values decide
    objective: Outcome  # maps outputs (..., m) to (...); of several, their scalarisations
    sign: float  # 1 if a larger objective is better, −1 if a smaller one is
    constraints: tuple[Outcome, ...]  # map outputs to (...), feasible where ≤ 0
    X: Tensor  # (n, d) the data points of all models
    feasible: FeasibleSet  # where those lie that are improved on
    strategy: LogEIStrategy  # says how many draws, pending points and leaders there are

    @classmethod
    def of(cls, request: Request, strategy: LogEIStrategy) -> "_Improvement":
        models = tuple(deepcopy(model).double().eval() for model in model_list(request.model))
        goal = request.goal
        feasible = request.feasible_set
        objective, constraints = check_outcomes(
            models, goal.get("objective"), goal.get("outcome_constraints")
        )
        sign = 1.0 if goal.get("maximize", True) else -1.0
        X = all_inputs(models).double()
        return cls(models, objective or only_output, sign, constraints, X, feasible, strategy)

    @cached_property
    @torch.no_grad()
    def leaders(self) -> Tensor:
        """The best data points (b, d) by the means; of several objectives, the best in each way."""
        X, _ = baseline(self.X, self.feasible)
        means = [part.means(model.transform_inputs(X)) for model, part, _ in self._posteriors]
        values = self._drawn_goal(0).merit(self._outputs(X, means), X)
        if isinstance(self.objective, Scalarisations):
            return X[values.argmax(1).unique()]
        return X[values[0].argsort(descending=True)[: self.strategy.num_leaders]]

    @torch.no_grad()
    def beside(
        self, pending: Tensor, seed: int, demands: Demands | None = None
    ) -> FunctionOfPoints:
        """Return the logarithm of the expected improvement of a point jointly with pending ones,
        over what the points that meet the demands have or, if none does, all points.
        """
        pending = pending.double()
        seed %= 2**31
        has_form = not self.constraints and all(map(_is_gaussian, self.models))
        of = self.objective
        if has_form and isinstance(of, Scalarisations) and len(of.best) == len(self.models) <= 3:
            (one,) = of.some(1, torch.Generator().manual_seed(seed))
            # With more than three objectives there are too many boxes
            return self._beside_a_front(of.reference[one], pending, seed, demands)
        has_form &= self.objective is only_output and len(self.models) == 1
        num_draws = self.strategy.num_draws if has_form else self.strategy.num_samples
        given, improved_on = self._given(pending, num_draws, seed, demands)
        if has_form:
            ((model, part, values),) = given
            highest = (self.sign * values).amax(0)

            def improvement(X: Tensor) -> Tensor:
                means, variances = part.moments(model.transform_inputs(X))
                deviations = variances.sqrt().unsqueeze(1)
                excesses = LogImprovement.apply((self.sign * means - highest) / deviations)
                gains = excesses + deviations.log()
                return torch.logsumexp(gains, dim=1) - math.log(gains.shape[1])

            return FunctionOfPoints(improvement)
        Y = self._outputs(improved_on, [values for *_, values in given])
        goal = self._drawn_goal(seed)
        best = goal.merit(Y, improved_on).amax(1, keepdim=True)
        # Where no point is feasible, the least violation is improved on
        least = goal.violation(Y).amin(1, keepdim=True)
        none = least > 0
        steps = draw_sobol_normal_samples(len(given), num_draws, seed=seed + len(given)).to(best)

        def logarithm(X: Tensor) -> Tensor:
            draws = []
            for (model, part, _), step in zip(given, steps.T, strict=True):
                means, variances = part.moments(model.transform_inputs(X))
                draws.append(means + variances.sqrt().unsqueeze(1) * step)
            Y = self._outputs(X, draws)
            gains = self.sign * goal.objective(Y) - best
            gains = torch.where(none, least - goal.violation(Y), gains)
            values = log_fatplus(gains, tau=TAU_RELU)
            if self.constraints:
                kept = compute_smoothed_feasibility_indicator(
                    list(self.constraints), Y, eta=1e-3, log=True, fat=True
                )
                values = values + kept.masked_fill(none, 0.0)
            return torch.logsumexp(values, dim=0) - math.log(num_draws)

        return FunctionOfPoints(logarithm)

    def _beside_a_front(
        self,
        reference: Tensor,
        pending: Tensor,
        seed: int,
        demands: Demands | None,
        num_draws: int = 8,
    ) -> FunctionOfPoints:
        """Return the logarithm of the expected growth of the hypervolume by a point, given means
        for the values of pending ones; of an output with noise these are drawn, as are those at the
        data.
        """
        given, improved_on = self._given(pending, num_draws, seed, demands, believe=True)
        Y = self._outputs(improved_on, [values for *_, values in given])
        corner = reference.to(Y)
        boxes = [FastNondominatedPartitioning(corner, drawn).hypercell_bounds for drawn in Y]

        def logarithm(X: Tensor) -> Tensor:
            moments = [part.moments(model.transform_inputs(X)) for model, part, _ in given]
            means = self._outputs(X, [mean for mean, _ in moments])
            above = self._outputs(X, [mean + var.sqrt().unsqueeze(1) for mean, var in moments])
            deviations = (above - means)[0]
            growth = [_log_growth(*pair, deviations) for pair in zip(boxes, means, strict=True)]
            return torch.stack(growth).logsumexp(0) - math.log(len(growth))

        return FunctionOfPoints(logarithm)

    def _given(
        self,
        pending: Tensor,
        num_draws: int,
        seed: int,
        demands: Demands | None,
        *,
        believe: bool = False,
    ) -> tuple[list[tuple[PathwiseGP, _Posterior, Tensor]], Tensor]:
        """Return each output's model, the output given its values at pending points, and at the
        data, too, if they have noise, by draws of these or, to ``believe``, by means at pending
        points; and its values (b, s) at those of all these that are to be improved on, by the means
        where not drawn; and these points (b, d).
        """
        taken = torch.cat([self.X, pending])
        improved_on, rows = baseline(taken, self.feasible)
        is_moved = not torch.equal(improved_on, taken[rows])
        if demands is not None and (met := demands.shortfall(improved_on, 2)[0] == 0).any():
            improved_on = improved_on[met]
            rows[rows.clone()] = met
        given = []
        num_older = max(0, len(pending) - self.strategy.most_pending)
        for own, (model, part, root) in enumerate(self._posteriors, seed):
            points = model.transform_inputs(pending)
            n = 0 if root is None else len(root)
            num_drawn = n + len(points) - num_older
            steps = draw_sobol_normal_samples(num_drawn or 1, num_draws, seed=own).to(self.X)
            values = part.means(model.transform_inputs(self.X))
            if root is not None:
                values = values + root @ steps[:, :n].mT
                part = replace(part, Y=values)
            if num_older:
                part = part.beside(points[:num_older], None)
            if len(points):
                is_drawn = root is not None or not believe
                part = part.beside(points[num_older:], steps[:, n:].mT if is_drawn else None)
                values = torch.cat([values.expand(-1, part.Y.shape[1]), part.Y[-len(points) :]])
            if is_moved:
                values = part.means(model.transform_inputs(improved_on))
            given.append((model, part, values if is_moved else values[rows]))
        return given, improved_on

    def _drawn_goal(self, seed: int) -> OutcomePaths:
        """Return the order of each joint draw's points: of several objectives by the volume in a
        direction of the draw's own, the mean of which improves as the hypervolume does.
        """
        objective = self.objective
        if isinstance(objective, Scalarisations):
            generator = torch.Generator().manual_seed(seed)
            objective = objective.redrawn(self.strategy.num_samples, generator).volume
        return OutcomePaths((), objective, self.constraints, self.sign)

    def _outputs(self, X: Tensor, draws: Sequence[Tensor]) -> Tensor:
        """Return outputs (s, k, m) at X (k, d) for draws (k, s) of each in standardised units."""
        sizes = [model.num_outputs for model in self.models]
        Y = torch.stack(torch.broadcast_tensors(*draws), dim=-1).transpose(0, 1)
        parts = []
        for model, part in zip(self.models, Y.split(sizes, dim=-1), strict=True):
            units = getattr(model, "outcome_transform", None)
            parts.append(part if units is None else units.untransform(part, X=X)[0])
        return torch.cat(parts, dim=-1)

    @cached_property
    @torch.no_grad()
    def _posteriors(self) -> list[tuple[PathwiseGP, _Posterior, Tensor | None]]:
        """Each output's model, and the output given the values, with no pending points; where these
        have noise, given its means at the data points, and the root of its covariance there.
        """
        sets = [(model, data) for model in self.models for data in data_sets(model)]
        size = memory.squares_bytes(len(self.X) ** 2, num_held=6 + 2 * len(sets))
        what = f"The expected improvement on {len(self.X)} values"
        memory.require(size, self.X.device, what, "Use `strategy='thompson'` or `ask_seconds`.")
        found: list[tuple[PathwiseGP, _Posterior, Tensor | None]] = []
        for model, data in sets:
            noise = data.noise.expand_as(data.y)
            part, root = _Posterior.of(data, data.X, data.y.unsqueeze(1), noise), None
            if _is_noisy(data):
                X = model.transform_inputs(self.X)
                _, root = part.root(X)
                part = _Posterior.of(data, X, part.means(X), torch.zeros_like(X[:, 0]))
            found.append((model, part, root))
        return found


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
    models = model_list(request.model)
    is_output = not (goal.get("objective") or goal.get("outcome_constraints"))
    is_learned = isinstance(models[0].likelihood, GaussianLikelihood)
    if (
        not (is_output and is_learned and len(models) == 1 and _is_gaussian(models[0]))
        or request.choices is not None
    ):
        return none
    sign = 1.0 if goal.get("maximize", True) else -1.0
    (data,) = data_sets(models[0])
    if len(data.y) < fewest or not _is_noisy(data):
        return none
    lower, upper = request.bounds.double()
    width = upper - lower
    X = all_inputs(models).double()
    pending = X[:0] if request.X_pending is None else request.X_pending.double()
    scaled = (torch.cat([X, pending]) / torch.where(width > 0, width, 1.0)).cpu().numpy()
    if cKDTree(scaled).query(scaled, [2], p=math.inf, distance_upper_bound=NEAR)[0].min() < NEAR:
        return none
    allowed = may_be_proposed(X, feasible)
    best = X[torch.where(allowed, sign * data.y, -math.inf).argmax()]
    inwards = torch.where(best > 0.5 * (lower + upper), -1.0, 1.0) * (feasible.scale > 0)
    point = feasible.rounded((best + BESIDE * width * inwards).to(request.bounds).unsqueeze(0))
    # A grid leads it back to the best point, which is not asked for twice
    is_new = ~KnownPoints(best.unsqueeze(0), request.bounds).near(point)
    return point[feasible.contains(point) & is_new & allowed.any()]


def with_repeat(reason: str, request: Request) -> str:
    """Return how points are chosen, with what :func:`beside_the_best` says if one is."""
    return reason + (REPEATED if len(beside_the_best(request)) else "")


def _is_noisy(data: DataSet) -> bool:
    return len(data.y) > 1 and bool(data.noise.max() > NEGLIGIBLE_NOISE * data.y.var())


def _is_gaussian(model: PathwiseGP) -> bool:
    """Whether a model has one output, the posterior of which is Gaussian."""
    transform = getattr(model, "outcome_transform", None)
    return model.num_outputs == 1 and isinstance(transform, Standardize | None)


def _log_growth(boxes: Tensor, means: Tensor, deviations: Tensor) -> Tensor:
    """Return the logarithm of the expected volume (b,) that a point gains in boxes (2, c, k), by
    the means and deviations (b, k) of independent objectives: a product of expected gains in each.

    References:
        Yang et al. (2019), "Efficient Computation of Expected Hypervolume Improvement Using Box
        Decomposition Algorithms".
    """
    low, high = boxes
    at, scale = means.unsqueeze(1), deviations.unsqueeze(1)
    unbounded = high.isinf()
    above = log_improvement((at - low) / scale)
    beyond = log_improvement((at - high.masked_fill(unbounded, 0.0)) / scale)
    rest = (above - beyond).clamp_min(torch.finfo(low.dtype).eps)
    gains = above + log1mexp(-rest.masked_fill(unbounded, math.inf)) + scale.log()
    return gains.sum(-1).logsumexp(-1)


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
