"""Ax's storage knows our parts once the integration is imported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

LOAD = """
import json, sys, warnings
warnings.simplefilter("ignore")
import {first}
import {second}
from ax.api.client import Client
client = Client._from_json_snapshot(json.load(open(sys.argv[1])))
print(type(client._generation_strategy.nodes_by_name["Thompson"]).__name__)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "order",
    [
        ("scalable_bo.integrations.ax", "ax.api.client"),
        ("ax.api.client", "scalable_bo.integrations.ax"),
    ],
)
def test_a_saved_client_loads_where_the_integration_is_imported(
    order: tuple[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("ax")
    from ax.api.client import Client
    from ax.api.configs import RangeParameterConfig

    from scalable_bo.integrations.ax import pathwise_generation_strategy

    client = Client()
    client.configure_experiment(
        [RangeParameterConfig(name="x", parameter_type="float", bounds=(0.0, 1.0))]
    )
    client.set_generation_strategy(pathwise_generation_strategy(batch_size=3))
    file = tmp_path / "client.json"
    file.write_text(json.dumps(client._to_json_snapshot()))
    code = LOAD.format(first=order[0], second=order[1])
    run = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True)
    assert run.stdout.strip() == "ThompsonNode", run.stderr
