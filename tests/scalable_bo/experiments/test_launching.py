"""A script that starts itself again in several processes."""

from pathlib import Path

import pytest

from scalable_bo.experiments.launching import launch

ADDS = """
import sys
import torch.distributed as dist
from scalable_bo.experiments.launching import run_job

def work(job, device):
    return {"sum": job["number"] + dist.get_world_size(), "device": str(device)}

run_job(sys.argv[sys.argv.index("--job") + 1], work)
"""


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


@pytest.mark.distributed
def test_what_the_first_of_the_processes_found_is_returned(tmp_path: Path) -> None:
    job = {"number": 40, "device": "cpu"}
    assert launch(script(tmp_path, ADDS), job, 2, 300.0) == {"sum": 42, "device": "cpu"}


@pytest.mark.distributed
def test_a_failure_shows_what_the_processes_wrote(tmp_path: Path) -> None:
    failing = script(tmp_path, "raise ValueError('no such data')")
    with pytest.raises(RuntimeError, match=r"1 processes of .* failed:(.|\n)*no such data"):
        launch(failing, {"device": "cpu"}, 1, 300.0)
