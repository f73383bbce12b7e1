"""Scripts of benchmarks compute on the device that they are told."""

import re
from pathlib import Path

import pytest
import torch

from benchmarks import compare
from benchmarks.fits import grid
from benchmarks.fits.grid import GridCell

SCRIPTS = ("ceilings", "gpu_day", "compare")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_takes_a_device(name: str) -> None:
    source = Path(compare.__file__).with_name(f"{name}.py").read_text()
    assert re.search(r'add_argument\(\s*"--device"', source)
    assert re.search(r"(arguments|options)\.device", source)


def test_a_fit_is_judged_there(device: torch.device) -> None:
    found = []
    for there in ("cpu", str(device)):
        cell = GridCell(
            data="sine", n=40, d=2, ratio=10.0, kernel="matern12", method="fit", device=there
        )
        data = grid.draw(cell)
        assert data.test_f.device == torch.device(there)
        model = grid.model_of(cell, data.X, data.y)
        assert model.train_inputs[0].device == torch.device(there)
        found.append(grid.judged(cell, data, model))
    assert found[0] == pytest.approx(found[1], rel=1e-3)


def test_compared_workloads_are_told_the_device(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os\n"
        "print(json.dumps({'seconds': 1.0 + (os.environ['WORKLOADS_DEVICE'] == 'cuda')}))\n"
    )
    for there, seconds in (("cpu", 1.0), ("cuda", 2.0)):
        assert compare.run_once(script, "any", tmp_path, 1, there) == {"seconds": seconds}
