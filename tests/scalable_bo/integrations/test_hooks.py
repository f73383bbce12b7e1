"""What is done when another package is imported: then, once, and whichever comes first."""

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from scalable_bo.integrations.hooks import when_imported

LOAD = """
import json, sys, warnings
warnings.simplefilter("ignore")
import {first}
import {second}
from ax.api.client import Client
client = Client._from_json_snapshot(json.load(open(sys.argv[1])))
print(type(client._generation_strategy.nodes_by_name["Thompson"]).__name__)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that can be imported, and has not been."""
    (tmp_path / "a_watched_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    yield "a_watched_module"
    sys.modules.pop("a_watched_module", None)
    sys.meta_path[:] = finders


def test_it_is_done_after_the_import_and_once(module: str) -> None:
    seen: list[int] = []
    when_imported(module, lambda: seen.append(sys.modules[module].value))
    assert not seen
    import_module(module)
    assert seen == [1]
    sys.modules.pop(module)
    assert import_module(module).value == 1
    assert seen == [1]


def test_it_is_done_at_once_where_the_module_is_there(module: str) -> None:
    import_module(module)
    seen: list[int] = []
    when_imported(module, lambda: seen.append(1))
    assert seen == [1]


def test_the_import_of_scalable_bo_imports_no_framework() -> None:
    code = "import sys, scalable_bo; assert not {'ax', 'torch', 'optuna'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "order", [("scalable_bo", "ax.api.client"), ("ax.api.client", "scalable_bo")]
)
def test_a_saved_client_loads_where_the_integration_is_not_imported(
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
