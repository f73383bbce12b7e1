"""Ax with a scalable surrogate and the strategies of a study: a generation strategy, and the parts
that it is made of.

Importing this module registers them with Ax's JSON storage: do it before a saved experiment with
them in it is loaded.

Notation: q points a batch, m outcomes with values Y (..., m), d inputs.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from acquisition import ParallelThompsonSampling, Request
from acquisition.constraints import FeasibleSet
from acquisition.outcomes import Outcome, only_output
from acquisition.selection import KnownPoints
from acquisition.strategies import STRATEGIES, make_strategy
from acquisition.strategy import Strategy
from scalable_bo._packages import require
from scalable_bo.integrations.chooser import choose_batch, fitted_model, split_batches
from scalable_bo.modelling.factory import SurrogateFactory
from scalable_bo.modelling.training import TrainingData
from scalable_bo.study.choices import checked_batch
from scalable_bo.study.design import ENUMERATED_UP_TO
from scalable_bo.study.pace import learn_success
from surrogates import PathwiseGP, checks
from surrogates.solvers.registry import SOLVERS
from surrogates.systems.preconditioners import Exact, Identity, Nystrom, PivotedCholesky

require("ax", extra="ax", user="`scalable_bo.integrations.ax`")


from ax.adapter.registry import Generators
from ax.adapter.transforms.one_hot import OH_PARAM_INFIX
from ax.core.data import Data
from ax.core.experiment import Experiment
from ax.core.experiment_status import ExperimentStatus
from ax.core.generator_run import GeneratorRun
from ax.core.observation import ObservationFeatures
from ax.core.search_space import SearchSpaceDigest
from ax.core.trial_status import TrialStatus
from ax.exceptions.core import SearchSpaceExhausted, UnsupportedError
from ax.generation_strategy.generation_node import GenerationNode
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generation_strategy.transition_criterion import MinTrials
from ax.generators.torch.botorch_modular.acquisition import Acquisition
from ax.generators.torch.botorch_modular.surrogate import Surrogate, SurrogateSpec
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.generators.torch_base import TorchOptConfig
from ax.storage.botorch_modular_registry import register_acquisition, register_model
from ax.storage.json_store.decoder import object_from_json
from ax.storage.json_store.registry import CORE_DECODER_REGISTRY, CORE_ENCODER_REGISTRY
from ax.utils.common.constants import Keys
from botorch.acquisition.monte_carlo import qSimpleRegret
from botorch.generation.sampling import SamplingStrategy
from botorch.models.model_list_gp_regression import ModelListGP
from botorch.utils.constraints import get_outcome_constraint_transforms
from botorch.utils.datasets import SupervisedDataset

# Each the inputs i, their coefficients c and r in Σ cᵢ xᵢ ≥ r or = r
LinearConstraints = list[tuple[Tensor, Tensor, float]]


@dataclass(frozen=True, eq=False)
class Box:
    """A box between ``lower`` and ``upper`` (d,), with its ``sides`` (d,): 1 for an input with one
    value, which is 0 on the cube.
    """

    lower: Tensor
    upper: Tensor
    sides: Tensor

    @classmethod
    def of(cls, bounds: Tensor) -> Box:
        """Return the box within bounds (2, d)."""
        sides = bounds[1] - bounds[0]
        return cls(bounds[0], bounds[1], torch.where(sides > 0, sides, 1.0))

    def to_cube(self, X: Tensor) -> Tensor:
        """Return points X (..., d) on the unit cube."""
        return (X - self.lower) / self.sides

    def from_cube(self, U: Tensor) -> Tensor:
        """Return the points U (..., d) of the unit cube in the box."""
        return torch.clamp(self.lower + self.sides * U, self.lower, self.upper)

    def constraints_on_cube(self, constraints: Mapping[str, Any]) -> dict[str, Any]:
        """Return linear constraints, fixed features and a rounding, if any, on the unit cube."""

        def moved(given: LinearConstraints | None) -> LinearConstraints | None:
            return given and [
                (i, c * self.sides[i], r - float(c @ self.lower[i])) for i, c, r in given
            ]

        fixed = constraints["fixed_features"]
        rounding = constraints.get("rounding")
        return {
            "rounding": rounding and (lambda U: self.to_cube(rounding(self.from_cube(U)))),
            "inequality_constraints": moved(constraints["inequality_constraints"]),
            "equality_constraints": moved(constraints["equality_constraints"]),
            "fixed_features": {
                i: float((value - self.lower[i]) / self.sides[i]) for i, value in fixed.items()
            },
        }


def pathwise_generation_strategy(
    *,
    batch_size: int = 1,
    num_initial: int | None = None,
    seed: int = 0,
    strategy: str = "auto",
    model_options: Mapping[str, Any] | None = None,
    sampler_options: Mapping[str, Any] | None = None,
    ask_seconds: float | None = None,
) -> GenerationStrategy:
    """Return a strategy for ``Client.set_generation_strategy``: Sobol points, then batches by the
    strategies of a study on its surrogate. Ax' predictions are those of a ``PathwiseGP``.

    Objectives to be maximised or minimised, scalarised ones, outcome and parameter constraints,
    fixed, integer, ordered and categorical parameters are honoured; several objectives are refused.

    Args:
        batch_size: trials that are drawn at once, see :class:`ThompsonNode`; what
            ``get_next_trials`` is to be called with.
        num_initial: Sobol trials to make; at least half of them must be complete before the model
            takes over. ``None`` for the fewest whole batches of at least 10.
        seed: of the Sobol points, the paths and the candidates.
        strategy: how batches are chosen, by its name as in ``Study``.
        model_options: arguments of a ``PathwiseGP`` such as ``solver`` or ``covar_module_class``,
            by which batches are chosen as Ax fits it; ``None`` for the surrogate of a study.
        sampler_options: arguments of ``ParallelThompsonSampling`` such as ``num_candidates``, in
            place of those of a study.
        ask_seconds: that the choice of a batch is to take, as in ``Study``, without outcome
            constraints and ``model_options``: by models of the values around the best trials where
            all values would take longer. A generator run's ``gen_metadata["models_used"]`` says
            which it was. The fit of Ax's own model, and its predictions, are not in it. ``None``
            for as long as all values take.

    Raises:
        TypeError, ValueError: for arguments out of their range.
    """
    if ask_seconds is not None:
        ask_seconds = checks.positive_float("ask_seconds", ask_seconds)
        if model_options:
            raise ValueError(
                f"`ask_seconds` must be None with `model_options`, got {ask_seconds}. Leave out one"
                " of them."
            )
    batch_size = checks.positive_int("batch_size", batch_size)
    if num_initial is None:
        num_initial = batch_size * math.ceil(10 / batch_size)
    num_initial = checks.positive_int("num_initial", num_initial)
    seed = checks.integer("seed", seed, 0)
    config = ModelConfig(
        botorch_model_class=PathwiseGP, model_options=dict(model_options or {}), name="PathwiseGP"
    )
    thompson = GeneratorSpec(
        generator_enum=Generators.BOTORCH_MODULAR,
        generator_kwargs={
            "surrogate_spec": SurrogateSpec(model_configs=[config], allow_batched_models=False),
            "acquisition_class": ThompsonAcquisition,
            "acquisition_options": {
                "strategy": checks.one_of("strategy", strategy, STRATEGIES),
                "seed": seed,
                "sampler_options": dict(sampler_options or {}),
                "surrogate": "ax" if model_options else "study",
                "ask_seconds": ask_seconds,
            },
            "botorch_acqf_class": qSimpleRegret,
        },
    )
    sobol = _sobol_node(num_initial, seed)
    return GenerationStrategy(
        name="Sobol+Thompson", nodes=[sobol, ThompsonNode("Thompson", [thompson], batch_size)]
    )


def _sobol_node(num_initial: int, seed: int) -> GenerationNode:
    """Return a node of Sobol points until so many are made, and half of them complete."""
    return GenerationNode(
        name="Sobol",
        generator_specs=[
            GeneratorSpec(generator_enum=Generators.SOBOL, generator_kwargs={"seed": seed})
        ],
        transition_criteria=[
            MinTrials(
                threshold=num_initial,
                transition_to="Thompson",
                not_in_statuses=[TrialStatus.FAILED, TrialStatus.ABANDONED],
                use_all_trials_in_exp=True,
            ),
            MinTrials(
                threshold=(num_initial + 1) // 2,
                transition_to="Thompson",
                only_in_statuses=[TrialStatus.COMPLETED],
                use_all_trials_in_exp=True,
                count_only_trials_with_data=True,
            ),
        ],
        should_deduplicate=True,
        suggested_experiment_status=ExperimentStatus.INITIALIZATION,
    )


class ThompsonAcquisition(Acquisition):
    """An Ax acquisition whose ``optimize(n)`` is one Thompson batch: n points, each the maximiser
    of a posterior path of its own.

    For Ax's modular BoTorch generator, with a ``SurrogateSpec`` of ``PathwiseGP`` and
    ``allow_batched_models=False``. Discrete parameters take their values while paths are maximised.

    ``acquisition_options`` of the generator are

    * ``sampler_options``: arguments of :class:`ParallelThompsonSampling`;
    * ``strategy``: its name, as in ``Study``;
    * ``surrogate``: what points are chosen by: ``"ax"`` for the model that Ax has fitted, the
      default, ``"study"`` for the surrogate of a study, fitted to the same data on the unit cube;
    * ``ask_seconds``: of a single outcome's batch by the surrogate of a study, as in ``Study``;
    * ``num_failed``: how many of the pending points, the last ones, have failed, as
      :class:`ThompsonNode` says; from the second on, it is learned where trials fail;
    * ``seed``: of paths and candidates. The same seed, data and pending points give the same batch.
    """

    def __init__(
        self,
        surrogate: Surrogate,
        search_space_digest: SearchSpaceDigest,
        torch_opt_config: TorchOptConfig,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(surrogate, search_space_digest, torch_opt_config, *args, **kwargs)
        pending = (torch_opt_config.pending_observations or [self.surrogate.Xs[0][:0]])[0]
        self._failed = pending[len(pending) - self.options.get("num_failed", 0) :]

    def optimize(
        self,
        n: int,
        search_space_digest: SearchSpaceDigest,
        inequality_constraints: LinearConstraints | None = None,
        equality_constraints: LinearConstraints | None = None,
        fixed_features: dict[int, float] | None = None,
        rounding_func: Callable[[Tensor], Tensor] | None = None,
        optimizer_options: dict[str, Any] | None = None,
        candidate_set: Tensor | None = None,
        sampling_strategy: SamplingStrategy | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return n points (n, d), the means of the objective there (n,) and equal weights (n,);
        fewer where no others are left.

        ``optimizer_options`` are those of ``optimize_acqf``, which is not called, and must be
        empty.

        Raises:
            SearchSpaceExhausted: if all points of a discrete space are known.
        """
        if candidate_set is not None or sampling_strategy is not None:
            return super().optimize(
                n,
                search_space_digest,
                candidate_set=candidate_set,
                sampling_strategy=sampling_strategy,
            )
        if optimizer_options:
            raise UnsupportedError(
                f"`optimizer_options` must be empty, got {sorted(optimizer_options)}. Set"
                " `sampler_options` in `acquisition_options`."
            )
        X = self.surrogate.Xs[0]
        bounds = torch.tensor(search_space_digest.bounds, dtype=X.dtype, device=X.device).T
        num_known = len(X) + (0 if self.X_pending is None else len(self.X_pending))
        fixed = {i: float(value) for i, value in (fixed_features or {}).items()}
        goal = self._goal()
        request = Request(
            cast(PathwiseGP | ModelListGP, self._model),  # which it checks
            n,
            bounds,
            # Or Ax's next call with the same data would draw the same paths
            torch.Generator().manual_seed(self.options.get("seed", 0) + num_known),
            X_pending=self.X_pending,
            constraints={
                "inequality_constraints": inequality_constraints,
                "equality_constraints": equality_constraints,
                "fixed_features": fixed,
            },
            goal=goal,
            batches=self._batches(goal.get("objective", only_output), n),
        )
        grid = _Grid(search_space_digest, fixed, bounds)
        left = grid.left(request.feasible_set, X, self.X_pending)
        if left is not None and not len(left):
            raise SearchSpaceExhausted(
                "All feasible points of the discrete search space are evaluated or pending."
            )
        if left is not None:
            request = replace(request, q=min(n, len(left)), choices=left)
        points = self._chosen(request, grid)
        points = points if rounding_func is None else rounding_func(points)
        with torch.no_grad():
            means = cast(PathwiseGP | ModelListGP, self._model).posterior(points).mean
        values = (means @ self._objective_weights.T).squeeze(1)
        return points, values, torch.ones(len(points), dtype=X.dtype, device="cpu")

    def _instantiate_acquisition(self) -> None:
        """Make the mean of the objective, Ax's measure of points; ``optimize`` draws paths."""
        if len(self._objective_weights) > 1:
            raise UnsupportedError(
                f"`objective` must be a single one, got {len(self._objective_weights)}. Weight them"
                " in one sum, or constrain all but one."
            )
        if self.options.get("ask_seconds") is not None and self._outcome_constraints is not None:
            raise UnsupportedError(
                "`ask_seconds` must be None with outcome constraints, got"
                f" {self.options['ask_seconds']}. Leave it out, and draw fewer trials at a time."
            )
        self.acqf = self._construct_botorch_acquisition(qSimpleRegret, {}, self._model)
        self.models_used = [self.surrogate.model_name_by_metric]
        self.acq_function_sequence = None

    def _goal(self) -> dict[str, Any]:
        """Return what the paths are maximised for; Ax's weights are negative to minimise."""
        (weights,) = self._objective_weights
        if isinstance(self._model, PathwiseGP) and self._outcome_constraints is None:
            return {"maximize": bool(weights > 0)}
        objective: Outcome = lambda Y: Y @ weights.to(Y)  # noqa: E731
        return {
            "objective": objective,
            "outcome_constraints": get_outcome_constraint_transforms(self._outcome_constraints),
        }

    def _chosen(self, request: Request, grid: _Grid) -> Tensor:
        options = self.options.get("sampler_options")
        sampler = partial(ParallelThompsonSampling, **options) if options else None
        strategy = make_strategy(self.options.get("strategy", "thompson"), sampler)
        if grid.is_discrete:
            request = replace(request, constraints={**request.constraints, "rounding": grid.round})
        box = Box.of(request.bounds)
        factory = SurrogateFactory.default(
            len(box.sides), request.bounds.dtype, request.bounds.device
        )
        told, failed = (box.to_cube(X).double() for X in (self.surrogate.Xs[0], self._failed))
        failures = TrainingData.of_failures(told, failed)
        if self.options.get("surrogate", "ax") == "ax":
            learned = learn_success(factory, failures, request.generator)
            if learned is not None:
                request = replace(request, success=lambda X: learned(box.to_cube(X)))
            return checked_batch(strategy.generate(request), request, strategy)
        on_cube = _on_cube(request, box)
        if "objective" in request.goal:
            success = learn_success(factory, failures, request.generator)
            on_cube = self._by_several(replace(on_cube, success=success), factory, strategy, box)
            chosen = checked_batch(strategy.generate(on_cube), on_cube, strategy)
        else:
            seconds = self.options.get("ask_seconds") if request.choices is None else None
            (dataset,) = self._datasets()
            data = _training_data(dataset, box, request.goal["maximize"])
            chosen, choice = choose_batch(
                factory,
                strategy,
                data,
                on_cube.feasible_set,
                request.q,
                request.generator,
                lambda model, size: replace(on_cube, model=model, q=size),
                seconds,
                failures,
            )
            if choice:
                self.models_used = [dict.fromkeys(dataset.outcome_names, choice)]
        return grid.round(box.from_cube(chosen))  # values of the grid, which products may miss

    def _by_several(
        self, request: Request, factory: SurrogateFactory, strategy: Strategy, box: Box
    ) -> Request:
        """Return a request on the unit cube by the surrogate of a study of each outcome."""
        outcomes = [_training_data(dataset, box) for dataset in self._datasets()]
        models = [
            fitted_model(factory, strategy, data, request.q, request.generator, has_limit=True)[0]
            for data in outcomes
        ]
        scales = request.bounds.new_tensor([data.scale for data in outcomes])
        offsets = request.bounds.new_tensor([data.offset for data in outcomes])

        def in_units(outcome: Outcome) -> Outcome:
            return lambda Y: outcome(offsets.to(Y) + scales.to(Y) * Y)

        limits = request.goal["outcome_constraints"] or ()
        goal = {
            "objective": in_units(request.goal["objective"]),
            "outcome_constraints": [in_units(limit) for limit in limits] or None,
        }
        return replace(request, model=models, goal=goal)

    def _datasets(self) -> list[SupervisedDataset]:
        """Return the data of each outcome that the objective or a constraint is about."""
        given = self.surrogate.training_data
        return given if self._subset_idcs is None else [given[i] for i in self._subset_idcs]

    def _batches(self, objective: Outcome, q: int) -> list[Tensor]:
        """Return the objective's values so far, q at a time; none where trials lack outcomes."""
        outcomes = [dataset.Y for dataset in self._datasets()]
        if len({len(Y) for Y in outcomes}) > 1:
            return []
        return split_batches(objective(torch.cat(outcomes, dim=-1)), q, q)


def _training_data(dataset: SupervisedDataset, box: Box, maximize: bool = True) -> TrainingData:
    noise = None if dataset.Yvar is None else dataset.Yvar.squeeze(-1)
    return TrainingData.of(box.to_cube(dataset.X), dataset.Y.squeeze(-1), noise, maximize)


def _on_cube(request: Request, box: Box) -> Request:
    """Return the same request on the unit cube, of one output the largest value."""
    goal = dict(request.goal)
    maximize = goal.pop("maximize", True)
    return replace(
        request,
        bounds=box.to_cube(request.bounds),
        X_pending=None if request.X_pending is None else box.to_cube(request.X_pending),
        choices=None if request.choices is None else box.to_cube(request.choices),
        constraints=box.constraints_on_cube(request.constraints),
        goal=goal,
        batches=request.batches if maximize else [-values for values in request.batches],
    )


class _Grid:
    """What the discrete and the fixed parameters may be in Ax's transformed search space, where a
    categorical one is a group of one-hot columns.
    """

    def __init__(
        self, digest: SearchSpaceDigest, fixed: Mapping[int, float], bounds: Tensor
    ) -> None:
        groups: dict[str, list[int]] = {}
        for i, name in enumerate(digest.feature_names):
            if OH_PARAM_INFIX in name and i not in fixed:
                groups.setdefault(name.partition(OH_PARAM_INFIX)[0], []).append(i)
        single = {i: sorted(of) for i, of in digest.discrete_choices.items() if i not in fixed}
        self.is_discrete = bool(groups or single)
        single |= {i: [value] for i, value in fixed.items()}
        # By their columns, the rows of which they hold one
        self._rows = [([i], bounds.new_tensor(values)[:, None]) for i, values in single.items()]
        for columns in groups.values():
            corners = torch.eye(len(columns), device="cpu").to(bounds)
            self._rows += [(columns, corners if len(columns) > 1 else bounds[:, columns])]

    def round(self, X: Tensor) -> Tensor:
        """Return the nearest grid points to X (..., d), of one-hot columns the largest one set."""
        X = X.clone()
        for columns, rows in self._rows:
            distances = (X[..., None, columns] - rows).square().sum(-1)
            X[..., columns] = rows[distances.argmin(-1)]
        return X

    def left(self, feasible: FeasibleSet, *known: Tensor | None) -> Tensor | None:
        """Return the feasible points (c, d) of a small finite grid that are not among the ``known``
        (n, d); ``None`` of another.
        """
        order = torch.tensor([i for columns, _ in self._rows for i in columns], device="cpu")
        counts = [len(rows) for _, rows in self._rows]
        if len(order) < feasible.bounds.shape[1] or math.prod(counts) > ENUMERATED_UP_TO:
            return None
        numbers = torch.cartesian_prod(*(torch.arange(count, device="cpu") for count in counts))
        chosen = zip(self._rows, numbers.reshape(-1, len(counts)).T, strict=True)
        X = torch.cat([rows[number] for (_, rows), number in chosen], dim=1)[:, order.argsort()]
        taken = KnownPoints(torch.cat([X for X in known if X is not None]), feasible.bounds)
        return X[feasible.contains(X) & ~taken.near(X)]


class ThompsonNode(GenerationNode):
    """A generation node that draws ``batch_size`` points at once and serves them one a trial.

    Ax asks for trials one by one, each at the price of a call of the whole generator. Here the
    model is fitted and the paths are drawn when the last batch has been served, whatever has been
    observed in between. A call for several arms, or with other fixed parameters or another
    experiment, draws anew. Waiting points are not saved; those of failed trials are not repeated.

    Args:
        batch_size: points; 1 to draw for every trial.
    """

    def __init__(self, name: str, generator_specs: list[GeneratorSpec], batch_size: int) -> None:
        super().__init__(
            name=name,
            generator_specs=generator_specs,
            suggested_experiment_status=ExperimentStatus.OPTIMIZATION,
        )
        self.batch_size = checks.positive_int("batch_size", batch_size)
        self._waiting: list[GeneratorRun] = []
        self._request: tuple[Experiment, ObservationFeatures | None] | None = None

    def gen(
        self,
        *,
        experiment: Experiment,
        pending_observations: dict[str, list[ObservationFeatures]] | None,
        skip_fit: bool = False,
        data: Data | None = None,
        n: int | None = None,
        fixed_features: ObservationFeatures | None = None,
        **kwargs: Any,
    ) -> GeneratorRun | None:
        """Return a generator run of one arm from the batch, or of n arms."""
        failed = [
            ObservationFeatures.from_arm(arm, trial_index=trial.index)
            for trial in experiment.trials_by_status[TrialStatus.FAILED]
            for arm in trial.arms
            if experiment.search_space.check_membership(arm.parameters)
        ]
        pending = pending_observations
        if failed:
            known = pending or {}
            # Ax transforms the observations of each metric in place
            pending = {
                name: [*known.get(name, []), *(features.clone() for features in failed)]
                for name in experiment.metrics
            }
        options: dict[str, Any] = {
            "experiment": experiment,
            "pending_observations": pending,
            "skip_fit": skip_fit,
            "data": data,
            "fixed_features": fixed_features,
            # By which the acquisition tells them from the pending points before them
            "model_gen_options": {Keys.AX_ACQUISITION_KWARGS: {"num_failed": len(failed)}},
        }
        options |= kwargs
        if n not in (None, 1) or self.batch_size == 1:
            return super().gen(n=n, **options)
        if not skip_fit:  # the first trial of a call: others may have been attached since the last
            taken = experiment.arms_by_signature_for_deduplication
            self._waiting = [run for run in self._waiting if run.arms[0].signature not in taken]
        if not self._waiting or self._request != (experiment, fixed_features):
            run = super().gen(n=self.batch_size, **options)
            self._waiting = [] if run is None else _one_arm_each(run)
            self._request = (experiment, fixed_features)
        return self._waiting.pop(0) if self._waiting else None

    @classmethod
    def deserialize_init_args(
        cls,
        args: dict[str, Any],
        decoder_registry: Mapping[str, Any] | None = None,
        class_decoder_registry: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the constructor's arguments from Ax's JSON."""
        registries: dict[str, Any] = {
            "decoder_registry": decoder_registry,
            "class_decoder_registry": class_decoder_registry,
        }
        return {name: object_from_json(value, **registries) for name, value in args.items()}


def node_to_dict(node: ThompsonNode) -> dict[str, Any]:
    """Return what Ax saves of a node as JSON."""
    return {
        "__type": "ThompsonNode",
        "name": node.name,
        "generator_specs": node.generator_specs,
        "batch_size": node.batch_size,
    }


def _one_arm_each(run: GeneratorRun) -> list[GeneratorRun]:
    """Return a run for each arm of ``run``, with its part; settings and space are shared."""
    parts = []
    for i, arm in enumerate(run.arms):
        part = copy(run)
        part._arm_weight_table = OrderedDict()
        part.add_arm(arm)
        if run.model_predictions is not None:
            # Ax's nested dictionaries of lists then have the predictions of this arm alone
            means, covariances = run.model_predictions
            part._model_predictions = (
                {metric: [values[i]] for metric, values in means.items()},
                covariances
                and {
                    metric: {other: [values[i]] for other, values in row.items()}
                    for metric, row in covariances.items()
                },
            )
        part._gen_metadata = dict(run.gen_metadata or {})
        if values := part._gen_metadata.get(Keys.EXPECTED_ACQF_VAL):
            part._gen_metadata[Keys.EXPECTED_ACQF_VAL] = [values[i]]
        metadata = run.candidate_metadata_by_arm_signature
        part._candidate_metadata_by_arm_signature = metadata and {
            arm.signature: metadata.get(arm.signature)
        }
        parts.append(part)
    return parts


register_model(PathwiseGP)
register_acquisition(ThompsonAcquisition)
CORE_ENCODER_REGISTRY[ThompsonNode] = node_to_dict
CORE_DECODER_REGISTRY["ThompsonNode"] = ThompsonNode
solvers: set[type] = {type(make()) for make in SOLVERS.values()}
for setting in (*solvers, Exact, Identity, Nystrom, PivotedCholesky):
    # Dataclasses, which Ax saves by itself
    CORE_DECODER_REGISTRY.setdefault(setting.__name__, setting)
