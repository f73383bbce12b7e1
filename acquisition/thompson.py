"""Parallel Thompson sampling: q posterior paths, and the maximiser of each."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import islice
from numbers import Real
from typing import Any

import torch
from botorch.models.model_list_gp_regression import ModelListGP
from torch import Tensor

from acquisition.candidates import (
    Search,
    all_inputs,
    baseline,
    check_bounds,
    check_outcomes,
    finest_proposal_std,
    model_list,
    original_inputs,
    sampling_weights,
)
from acquisition.constraints import FeasibleSet, LinearConstraint, TooFewPoints
from acquisition.multistart import (
    FEWEST_STARTS,
    LAST_RATE,
    OWN_STEPS,
    Functions,
    SharedFunctions,
    ascend,
    condensed,
    screen,
)
from acquisition.outcomes import (
    Demands,
    Outcome,
    OutcomePaths,
    Paths,
    Scalarisations,
    Success,
    only_output,
)
from acquisition.pools import Chosen, best_choices, choose, read_parts
from acquisition.selection import KnownPoints, Moves, best_first, distinct_best, grid_neighbours
from acquisition.trust_region import TrustRegion
from surrogates import PathwiseGP, SamplePaths, checks
from surrogates.functions.paths import BatchPaths
from surrogates.systems.processes import require_same, shares
from surrogates.systems.shared_rows import SharedRows
from surrogates.systems.system import Rows


@dataclass(frozen=True)
class AcquisitionProgress:
    """A moment of a running ``generate``: the stage (``"screening"``, ``"ascent"`` or, in rows,
    ``"pool"``) and how much of it is done; ``total`` is ``None`` where nobody knows.
    """

    stage: str
    done: int
    total: int | None


@dataclass(eq=False, repr=False)
class ParallelThompsonSampling:
    """A batch of q points, each the maximiser of a path of its own.

    For every path: (1) ``num_rounds`` rounds of candidates, shared by all paths, partly uniform and
    partly near good data; each path keeps its best of every round; (2) ``num_steps`` Adam steps on
    that path from its ``num_starts`` best, most of which are left behind after the first steps (see
    :func:`ascend`); (3) the best point found. So the batch has the law of the posterior's
    maximisers. Memory is bounded by tiles whatever q and n.

    Points are distinct: one within 1e-6 of the box's sides of a point in the batch, a pending one,
    or one of the training data, moves to the nearest that is not, where its path loses least. Where
    that would be rounded back, and among ``choices``, the path takes its next best instead.

    The model is read when a batch is generated, and may change in between.
    :class:`PathwiseThompsonSampling` puts the same paths into ``optimize_acqf``, as one function of
    q · d variables, :class:`PathwiseMaxPosteriorSampling` into a choice among candidates.

    Args:
        model: draws the paths; several models (a list, or a ``ModelListGP``), of one output or more
            each, draw jointly.
        bounds: (2, d), in the units of the model's inputs, of its dtype and device.
        objective: what is maximised: maps the outputs' values (..., m) to (...). The value itself
            if ``None``, for one output.
        outcome_constraints: map the outputs' values (..., m) to (...), feasible where ≤ 0. A path's
            best point is its best feasible one or, if it has none, that with the least total
            violation.
        success: maps points (..., q, d) to the probabilities (..., q) that evaluations there
            succeed; each path then demands between half of the probability that data points have
            and all of it, as a constraint. ``None`` where all succeed.
        inequality_constraints: BoTorch's triples (indices, coefficients, rhs): Σ X[indices] ·
            coefficients ≥ rhs.
        equality_constraints: the same, with =.
        nonlinear_inequality_constraints: torch functions (d,) -> scalar, ≥ 0 where feasible.
        fixed_features: values by index of the inputs that are not chosen.
        rounding: moves points (..., d) to where they would be evaluated, such as integers; paths
            are evaluated, and points compared and returned, after it. ``choices`` stay as they are.
        accepts: tells which of the points (n, d) may be evaluated, (n,): a constraint without a
            formula, met by rejection.
        trust_region: the part of the box to search, around the best data point; all if ``None``.
        num_candidates: a round.
        num_rounds: at least ``num_starts``.
        num_starts: ascents a path.
        uniform_fraction: share of uniform candidates.
        proposal_std: standard deviation around data points, a number or (d,); half the kernel's
            lengthscale, as it is then, if ``None``.
        candidate_weights: maps values (n,), larger is better, to the probabilities of the data
            points that candidates lie around.
        num_steps: of Adam.
        learning_rate: of Adam, in units of the box's sides; half the default ``proposal_std``, at
            most 0.15, if ``None``. The published 1e-3 ends a sixth of the ascent short (lengthscale
            0.5, d = 8).
        prune: leave starts behind and let the learning rate fall; among 4000 data or more, ascend
            most of the way on functions of a thousand terms where these agree with the paths, see
            :func:`acquisition.multistart.condensed`. ``False`` takes all steps from all starts at
            one rate, as published.
        maximize: ``False`` to take minimisers.
        shared: make the batch in all processes of ``torch.distributed`` together: each draws its
            share of the paths, as ``PathwiseGP.paths(q, shared=True)`` has it, and maximises them
            alone. All have the same model, arguments and calls, and get the same batch. Any number
            of them draws the same paths, but for rounding, which long ascents amplify.
        repeats: take maximisers as they are, also where they repeat a point of the batch, a pending
            or an evaluated one. For outcomes so noisy that evaluating a point again tells as much
            as evaluating one beside it.
        seed: of paths and candidates; the same seed gives the same batch. The first model's if
            ``None``.
        callback: called with :class:`AcquisitionProgress`.

    Raises:
        TypeError, ValueError: for arguments out of their range.
    References:
        Lin et al. (2023), App. A.3. Differs: (1) data points drawn by ``y − min(y)``; (2) the best
        point visited, not the last; (3) duplicates are moved apart; (4) 120 starts from rounds of
        250 candidates, not 30 from 50 000, of which few go on to the last step, at a rate that
        falls: as high values, or higher, as from 30 rounds of 5000 and 100 fixed steps, at 0.4 of
        the cost (d = 8 and 20, lengthscales 0.2 and 0.5); (5) most steps of many on approximations.
    """

    model: PathwiseGP | Sequence[PathwiseGP] | ModelListGP
    bounds: Tensor
    _: KW_ONLY
    objective: Outcome | None = None
    outcome_constraints: Sequence[Outcome] | None = None
    success: Success | None = None
    inequality_constraints: Sequence[LinearConstraint] | None = None
    equality_constraints: Sequence[LinearConstraint] | None = None
    nonlinear_inequality_constraints: Sequence[Any] | None = None
    fixed_features: Mapping[int, float] | None = None
    rounding: Callable[[Tensor], Tensor] | None = None
    accepts: Callable[[Tensor], Tensor] | None = None
    trust_region: TrustRegion | None = None
    num_candidates: int = 250
    num_rounds: int = 120
    num_starts: int = 120
    uniform_fraction: float = 0.1
    proposal_std: float | Tensor | None = None
    candidate_weights: Callable[[Tensor], Tensor] = sampling_weights
    num_steps: int = 80
    learning_rate: float | None = None
    prune: bool = True
    maximize: bool = True
    repeats: bool = False
    shared: bool = False
    seed: int | None = None
    callback: Callable[[AcquisitionProgress], None] | None = None

    def __post_init__(self) -> None:
        self.models = model_list(self.model)
        check_bounds(self.bounds, self.models)
        outcomes = check_outcomes(self.models, self.objective, self.outcome_constraints)
        self.objective, self.outcome_constraints = outcomes
        self.feasible_set = FeasibleSet.of(
            self.bounds,
            inequality_constraints=self.inequality_constraints,
            equality_constraints=self.equality_constraints,
            nonlinear_inequality_constraints=self.nonlinear_inequality_constraints,
            fixed_features=self.fixed_features,
            rounding=self.rounding,
            accepts=self.accepts,
        )
        counts = ["num_candidates", "num_rounds", "num_starts"]
        checks.fields(self, counts, checks.positive_int)
        if self.num_starts > self.num_rounds:
            raise ValueError(
                f"`num_starts` must be at most `num_rounds` = {self.num_rounds}, got"
                f" {self.num_starts}. Each round gives one start."
            )
        checks.fields(self, ["uniform_fraction"], checks.fraction)
        self._expand_proposal_std()
        checks.fields(self, ["num_steps", "seed"], checks.integer, 0)
        checks.fields(self, ["learning_rate"], checks.positive_float)
        self._check_trust_region()

    def __repr__(self) -> str:
        sizes = [model.train_targets.shape[-1] for model in self.models]
        return f"ParallelThompsonSampling(models of {sizes} points, {self.bounds.shape[1]} inputs)"

    @torch.inference_mode(False)  # ascents need gradients, whatever the caller has switched off
    def generate(
        self,
        q: int,
        *,
        paths: Paths | Sequence[Paths] | None = None,
        X_pending: Tensor | None = None,
        choices: Tensor | Iterable[Any] | None = None,
    ) -> Tensor:
        """Return the batch (q, d).

        Args:
            q: points, and paths.
            paths: q paths to maximise, of each model if there are several; this process's share of
                them if they are ``shared``; drawn from the model if ``None``.
            X_pending: (p, d), points under evaluation.
            choices: (c, d), the only points to choose from, in place of candidates and ascent;
                those that are infeasible, outside the bounds or the trust region and, without
                ``repeats``, pending or in the training data are passed over. Or a pool of them,
                as in :meth:`choose`.

        Raises:
            TypeError: if the model's dtype is no longer that of the bounds.
            ValueError: if there is no feasible point, fewer than q points to choose from, fewer
                shared paths than processes, or ``shared`` arguments differ between these.
            ConnectionError: of shared paths, if another process ended, or was not heard of in time.
        """
        if self.shared:
            require_same(self._shared_arguments(q, paths, X_pending, choices))
        if choices is not None and not isinstance(choices, Tensor):
            return self.choose(q, choices, paths=paths, X_pending=X_pending).points
        q = checks.positive_int("q", q)
        rows = Rows(q)
        if self.shared:
            own = shares("q", q)
            rows = SharedRows(own.stop - own.start, self.bounds.device)
        check_bounds(self.bounds, self.models)
        known = self._known_points(X_pending)
        if choices is not None:
            choices = checks.points("choices", choices, self.bounds)
            choices = self._usable(q, choices, self.feasible_set, known)
        elif self.feasible_set.constrained:  # found to have points before the paths are drawn
            next(self._search(None).rounds(self._generator()))
        generator = self._generator()
        part, sign = self._functions(rows, paths, generator)
        functions = SharedFunctions(part, rows) if self.shared else part
        search = self._search(part)
        if choices is not None:
            usable = self._usable(q, choices, search.feasible, known)
            return rows.of(0, best_choices(functions, usable, sign=sign, repeats=self.repeats))
        rounds = search.rounds(generator)
        ranked = rows.gather(self._maximised(part, sign, search, rounds, rows))
        if self.repeats:
            return ranked[:, 0]
        batch, found = distinct_best(
            ranked, self.bounds, known, Moves(functions, search.feasible, sign)
        )
        if not found.all():
            usable = batch[:0]
            if search.feasible.rounding is not None:
                visited = ranked[:, :FEWEST_STARTS].flatten(0, 1)
                neighbours = grid_neighbours(batch[~found], search.feasible)
                usable = torch.cat([visited, neighbours])
            batch[~found] = self._others(functions, sign, usable, rounds, known, batch, found)
        return rows.of(0, batch)

    @torch.inference_mode(False)
    def choose(
        self,
        q: int,
        pool: Iterable[Any],
        *,
        paths: Paths | Sequence[Paths] | None = None,
        X_pending: Tensor | None = None,
    ) -> Chosen:
        """Return, for one path after the other, its best candidate of a pool that no earlier path
        has taken, from one pass over the pool, of which a part is held at a time.

        The points are those of ``generate`` with the whole pool as ``choices``.

        Args:
            q, paths, X_pending: as in ``generate``.
            pool: an iterable of parts: points (c, d), a tensor or an array, of booleans or integers
                as well, or a pair of them and c labels, an array. Points in one tensor or array
                are one part. If the pool has the attribute ``num_rows``, the ``callback`` is told
                how many rows there are.

        Raises:
            TypeError: if a part is none.
            ValueError: if a part has another shape, a point is not finite, there are fewer than q
                points to choose from, or the paths are ``shared``.
        """
        q = checks.positive_int("q", q)
        if self.shared:
            raise ValueError(
                "`shared` must be False for a pool, got True. Choose from it in one process."
            )
        check_bounds(self.bounds, self.models)
        known = self._known_points(X_pending)
        parts = read_parts(pool, self.bounds)
        generator = self._generator()
        functions, sign = self._functions(Rows(q), paths, generator)
        total = getattr(pool, "num_rows", None)

        def report(done: int) -> None:
            if self.callback is not None:
                self.callback(AcquisitionProgress("pool", done, total))

        return choose(
            functions,
            parts,
            self._search(functions).feasible,
            None if self.repeats else known,
            sign=sign,
            repeats=self.repeats,
            after_part=report,
        )

    def _generator(self) -> torch.Generator:
        seed = self.models[0].seed if self.seed is None else self.seed
        return torch.Generator().manual_seed(seed)

    def _functions(
        self, rows: Rows, paths: Paths | Sequence[Paths] | None, generator: torch.Generator
    ) -> tuple[Functions, float]:
        """Return what this process is to optimise, and 1 to maximise it or −1 to minimise it."""
        if paths is None:
            paths = [
                model.paths(rows.n, generator=generator, shared=self.shared)
                for model in self.models
            ]
        parts = (paths,) if isinstance(paths, SamplePaths | BatchPaths) else tuple(paths)
        if len(parts) != len(self.models):
            raise ValueError(
                f"`paths` must hold the paths of each of the {len(self.models)} models, got"
                f" {len(parts)}."
            )
        for part in parts:
            if part.num_samples != rows.num_held:
                share = f", {rows.num_held} of them in this process" if self.shared else ""
                raise ValueError(
                    f"`paths` must hold q = {rows.n} paths{share}, got {part.num_samples}."
                )
        sign = 1.0 if self.maximize else -1.0
        success = self.success
        if self.objective is None and not self.outcome_constraints and success is None:
            return parts[0], sign
        objective = self.objective or only_output
        if isinstance(objective, Scalarisations):
            objective = objective.part(rows.own)
        demands = None
        if success is not None:
            demands = Demands.draw(success, rows.n, all_inputs(self.models), generator)
            demands = replace(demands, least=demands.least[rows.own])
        constraints = tuple(self.outcome_constraints or ())
        return OutcomePaths(parts, objective, constraints, sign, demands), 1.0

    def _search(self, functions: Functions | None) -> Search:
        """Return where candidates come from: the data that may be proposed, as ``functions`` rank
        them or, before there are any, the first model's targets.
        """
        if isinstance(functions, OutcomePaths):
            # By the objective of all paths, of which a process has a part
            whole = replace(functions, objective=self.objective or only_output)
            X, y = whole.standing(baseline(all_inputs(self.models), self.feasible_set)[0])
        else:
            X = original_inputs(self.models[0])
            targets = self.models[0].train_targets.reshape(-1, len(X))[0]
            X, rows = baseline(X, self.feasible_set)
            y = (1.0 if self.maximize else -1.0) * targets[rows]
        finest = finest_proposal_std(self.models, self.bounds[1] - self.bounds[0])
        given = finest if self.proposal_std is None else self.proposal_std
        std = torch.as_tensor(given, dtype=finest.dtype, device=finest.device).expand_as(finest)
        search = Search(
            X,
            y,
            self.feasible_set,
            std,
            self.num_candidates,
            self.uniform_fraction,
            self.candidate_weights,
        )
        if self.trust_region is None or functions is None:
            return search
        return search.within(self.trust_region, self.bounds, finest)

    def _rate(self, bounds: Tensor) -> Tensor:
        """Return a learning rate (d,) in units of the sides of ``bounds``: a quarter of the
        lengthscale, measured best for lengthscales 0.2 and 0.5.
        """
        width = bounds[1] - bounds[0]
        finest = finest_proposal_std(self.models, self.bounds[1] - self.bounds[0])
        return (0.5 * finest / torch.where(width > 0, width, 1.0)).clamp_max(0.15)

    def _usable(self, q: int, choices: Tensor, feasible: FeasibleSet, known: KnownPoints) -> Tensor:
        allowed = feasible.contains(choices)
        if self.repeats:
            q = 1
        else:
            allowed &= ~known.near(choices)
        usable = torch.unique(choices[allowed], dim=0)
        if len(usable) < q:
            raise TooFewPoints(
                f"`choices` must hold q = {q} distinct points that are feasible, neither pending"
                f" nor in the training data, got {len(usable)} of {len(choices)}. Add choices, or"
                " lower `q`."
            )
        return usable

    def _maximised(
        self,
        functions: Functions,
        sign: float,
        search: Search,
        rounds: Iterator[Tensor],
        rows: Rows,
    ) -> Tensor:
        """Return the best points that this process's paths led to, the best first: (s, k, d)."""
        starts = screen(
            functions,
            islice(rounds, self.num_rounds),
            sign=sign,
            after_round=self._report("screening", self.num_rounds, rows),
        )
        if self.num_starts < self.num_rounds:
            order = (sign * functions.each(starts)).topk(self.num_starts, dim=1).indices
            starts = starts.take_along_dim(order.unsqueeze(-1), dim=1)
        bounds = search.feasible.bounds
        rate = torch.as_tensor(
            self._rate(bounds) if self.learning_rate is None else self.learning_rate,
            dtype=bounds.dtype,
            device=bounds.device,
        )
        # Whether shared paths allow it would depend on how processes divide them
        may_be_condensed = self.prune and not self.shared and self.num_steps > OWN_STEPS
        reach = rate * (bounds[1] - bounds[0])
        of_few_terms = condensed(functions, starts, reach) if may_be_condensed else None
        num_steps = self.num_steps if of_few_terms is None else OWN_STEPS
        steps = num_steps if of_few_terms is None else self.num_steps + num_steps
        climb = partial(
            ascend,
            bounds=bounds,
            prune=self.prune,
            sign=sign,
            feasible_set=search.feasible,
            unit_gradients=isinstance(functions, OutcomePaths) and functions.is_constrained,
            after_step=self._report("ascent", steps, rows),
        )
        if of_few_terms is not None:
            points, values = climb(
                of_few_terms, starts, num_steps=self.num_steps, learning_rate=rate
            )
            starts = best_first(points, sign * values)[:, :FEWEST_STARTS]
            rate = LAST_RATE * rate
        points, values = climb(functions, starts, num_steps=num_steps, learning_rate=rate)
        return best_first(points, sign * values)

    def _others(
        self,
        functions: Functions,
        sign: float,
        usable: Tensor,
        rounds: Iterator[Tensor],
        known: KnownPoints,
        batch: Tensor,
        found: Tensor,
    ) -> Tensor:
        """Return points for the paths whose every point was taken: each one's best, of those
        ``usable`` (c, d) and of more candidates, that is neither known nor in the batch.
        """
        taken = KnownPoints(batch[found], self.bounds)
        rows = (~found).nonzero().squeeze(1)
        for candidates in islice(rounds, self.num_rounds):
            usable = torch.unique(torch.cat([usable, candidates]), dim=0)
            usable = usable[~(known.near(usable) | taken.near(usable))]
            if len(usable) >= len(rows):
                return best_choices(functions, usable, rows=rows, sign=sign)
        raise TooFewPoints(
            f"`q` must be at most the number of distinct feasible points, got {len(found)}, of"
            f" which {int(found.sum()) + len(usable)} were found. Lower `q`, or raise"
            " `num_candidates`."
        )

    def _shared_arguments(
        self, q: int, paths: object, X_pending: Tensor | None, choices: object
    ) -> dict[str, Any]:
        """Return, by name, what is to be the same in all processes that share a batch; of points
        the shapes, since their values may have been computed, with rounding of their own.
        """
        std = self.proposal_std
        numbers = {name: of for name, of in vars(self).items() if isinstance(of, int | float)}
        return {
            "q": q,
            **numbers,
            "seed": self._generator().initial_seed(),
            "proposal_std": std.tolist() if isinstance(std, Tensor) else std,
            "bounds": self.bounds.tolist(),
            "paths": "none" if paths is None else "given",
            "X_pending": _shape(X_pending),
            "choices": _shape(choices),
            "train_Y.shape": [tuple(model.train_targets.shape) for model in self.models],
        }

    def _known_points(self, X_pending: Tensor | None) -> KnownPoints:
        points = [all_inputs(self.models)]
        if X_pending is not None:
            points.append(checks.points("X_pending", X_pending, self.bounds))
        return KnownPoints(torch.cat(points), self.bounds)

    def _check_trust_region(self) -> None:
        given = self.trust_region
        if not isinstance(given, TrustRegion | None):
            raise TypeError(f"`trust_region` must be a TrustRegion, got {type(given).__name__}.")
        if given and (given.dim, given.maximize) != (self.bounds.shape[1], self.maximize):
            required = f"dim = {self.bounds.shape[1]} and maximize = {self.maximize}"
            raise ValueError(
                f"`trust_region` must have {required}, got {given.dim} and {given.maximize}."
            )

    def _expand_proposal_std(self) -> None:
        given = self.proposal_std
        if given is None:
            return
        if not isinstance(given, Real | Tensor):
            raise TypeError(
                f"`proposal_std` must be a number or a tensor, got {type(given).__name__}"
                f" {given!r}."
            )
        width = self.bounds[1] - self.bounds[0]
        std = torch.as_tensor(given, dtype=width.dtype, device=width.device)
        if std.shape not in ((), width.shape) or not bool((torch.isfinite(std) & (std > 0)).all()):
            raise ValueError(
                f"`proposal_std` must be a number or ({len(width)},) numbers above 0, got"
                f" {given!r}."
            )
        self.proposal_std = std.expand_as(width)

    def _report(self, stage: str, total: int, rows: Rows) -> Callable[[], None] | None:
        if self.callback is None and not rows.is_shared:
            return None
        done = 0

        def report() -> None:
            nonlocal done
            done += 1
            if rows.is_shared:
                rows.least(0)  # paths need no messages, but a lost process is to end all
            if self.callback is not None:
                self.callback(AcquisitionProgress(stage, done, total))

        return report


def _shape(points: object) -> str:
    if points is None:
        return "none"
    return f"shape {tuple(points.shape)}" if isinstance(points, Tensor) else "a pool"
