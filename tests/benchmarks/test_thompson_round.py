"""Rounds by our samplers and by BoTorch's are recorded and summed up alike."""

from dataclasses import replace

import pytest

from benchmarks.thompson_round import run, summarise
from scalable_bo.experiments.presets import THOMPSON_PRESETS


@pytest.mark.parametrize("method", ["auto", "cg", "botorch", "botorch-2"])
def test_a_round_is_made_by_every_method(method: str) -> None:
    preset = replace(THOMPSON_PRESETS["laptop"], num_initial=40, q=3, num_rounds=1)
    record = run(preset, method, seed=0)
    assert record["settings"]["solver"] == method
    assert record["rounds"][-1]["num_points"] == 43
    summary = summarise([record])
    assert summary["best_noiseless_mean"] >= record["initial"]["best_noiseless"]
    assert summary["seconds_acquisition"] > 0.0
