"""A node of Ax's generation strategies that draws a batch at once and serves it point by point."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from copy import copy
from typing import Any

from scalable_bo._packages import require
from surrogates import checks

require("ax", extra="ax", user="`scalable_bo.integrations.ax`")

from ax.core.data import Data
from ax.core.experiment import Experiment
from ax.core.experiment_status import ExperimentStatus
from ax.core.generator_run import GeneratorRun
from ax.core.observation import ObservationFeatures
from ax.core.trial_status import TrialStatus
from ax.generation_strategy.generation_node import GenerationNode
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.storage.json_store.decoder import object_from_json
from ax.utils.common.constants import Keys


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
