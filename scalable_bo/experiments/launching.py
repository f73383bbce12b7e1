"""What a script measures in several processes of this machine: it starts itself again by torchrun,
and the first process answers in a file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from surrogates.systems.processes import DEFAULT_TIMEOUT, processes

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}  # by device


def launch(script: str, job: dict[str, Any], ranks: int, timeout: float) -> dict[str, Any]:
    """Run ``script --job JOB`` in so many single-thread processes; return what the first found.

    Args:
        script: a file that calls ``run_job`` with that text.
        job: plain values, of which ``device`` is ``cpu`` or ``cuda``.
        timeout: seconds after which the processes are ended.
    Raises:
        RuntimeError: if a process failed, with the end of what they wrote.
        subprocess.TimeoutExpired: if they took too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*torchrun, "--nproc-per-node", str(ranks), script]
        run = subprocess.run(
            [*command, "--job", json.dumps(job | {"answer": str(answer)})],
            env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if run.returncode:
            raise RuntimeError(f"{ranks} processes of {job} failed:\n{run.stderr[-4000:]}")
        found: dict[str, Any] = json.loads(answer.read_text())
        return found


def run_job(
    text: str,
    work: Callable[[dict[str, Any], torch.device], dict[str, Any]],
    *,
    timeout_seconds: float = DEFAULT_TIMEOUT,
) -> None:
    """Do the ``work`` of a job in this process and the others that were launched with it.

    Args:
        text: what follows ``--job``.
        timeout_seconds: a process that is not heard of for so long ends the others.
    """
    job = json.loads(text)
    with processes(timeout_seconds, backend=BACKENDS[job["device"]]) as device:
        found = work(job, device)
        if not dist.is_initialized() or dist.get_rank() == 0:
            Path(job["answer"]).write_text(json.dumps(found))
