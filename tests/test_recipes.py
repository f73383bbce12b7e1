"""The recipes for clusters run as they are written, where parts of a cluster can be imitated."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import scalable_bo as sbo
from scalable_bo.study.answers import read_snapshot

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/how-to/recipes.md").read_text(encoding="utf-8")
TRAIN = "def loss(params):\n    return (params['rate'] - 0.1) ** 2\n"
STUDY = """
[study]
path = "runs/tuning"
maximize = false
[space]
rate = { type = "float", low = 1e-5, high = 1.0, log = true }
[objective]
function = "train:loss"
[run]
rounds = 2
batch = 3
"""
# Runs the tasks of an array of two side by side, and waits for them
SBATCH = """#!/bin/bash
grep -q '^#SBATCH --array=' "$1" || exit 1
for task in 1 2; do
    SLURM_ARRAY_TASK_ID=$task SLURM_CPUS_PER_TASK=1 bash "$1" || touch failed &
done
wait
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Path]:
    """A folder with the function and a study, and commands in ``bin``; no server outlives it."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "bin").mkdir()
    command = f'#!/bin/bash\nexec {sys.executable} -m scalable_bo "$@"\n'
    for name, content in (("sbatch", SBATCH), ("scalable-bo", command)):
        (tmp_path / "bin" / name).write_text(content)
        (tmp_path / "bin" / name).chmod(0o755)
    yield tmp_path
    if (tmp_path / "server.pid").exists():
        os.kill(int((tmp_path / "server.pid").read_text()), signal.SIGTERM)


def shell(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    paths = {
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "PYTHONPATH": f"{folder}:{ROOT}",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env=os.environ | paths | variables,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_an_array_of_slurm_works_for_a_server_on_the_login_node(cluster: Path) -> None:
    workers, login, _ = blocks("bash")
    (cluster / "workers.sh").write_text(workers)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ran = shell(login.replace("500", "3"), cluster, HOST="localhost", PORT=port)
    said = ran.stderr + (cluster / "server.log").read_text()
    assert ran.returncode == 0 and not (cluster / "failed").exists(), said
    assert len(read_snapshot(cluster / "runs/tuning").rows.observed) == 3


def test_an_array_of_slurm_shares_a_study_in_a_database(cluster: Path) -> None:
    pytest.importorskip("sqlalchemy")
    *_, array = blocks("bash")
    (study,) = blocks("toml")
    # Before the path is put in, which may hold such numbers
    study = study.replace("20", "1").replace("50", "3")
    study = study.replace("postgresql+psycopg://user@host/database", f"sqlite:///{cluster}/one.db")
    (cluster / "study.toml").write_text(study)
    (cluster / "array.sh").write_text(array)
    ran = shell("sbatch array.sh", cluster)
    assert ran.returncode == 0 and not (cluster / "failed").exists(), ran.stderr
    with sbo.Study.open(f"sqlite:///{cluster}/one.db", name="tuning") as found:
        assert found.num_observations == 3  # the budget is one of both tasks


def test_ray_is_an_executor_of_six_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = ThreadPoolExecutor(2)

    def remote(function: Any) -> SimpleNamespace:
        def call(*arguments: Any) -> SimpleNamespace:
            future: Future[Any] = pool.submit(function, *arguments)
            return SimpleNamespace(future=lambda: future)

        return SimpleNamespace(remote=call)

    ray = ModuleType("ray")
    vars(ray).update(remote=remote, init=lambda: None, cluster_resources=lambda: {"CPU": 2.0})
    monkeypatch.setitem(sys.modules, "ray", ray)
    space = sbo.Space(x=sbo.Float(0, 1))
    study = sbo.Study(space, maximize=False, seed=0)
    names = {"study": study, "loss": lambda params: params["x"] ** 2}
    (code,) = blocks("py")
    code = code.replace("rounds=20, batch=50", "rounds=2, batch=4, progress=False")
    exec(compile(code, "recipes.md", "exec"), names)
    pool.shutdown()
    assert study.num_observations == 8


def test_the_workers_of_kubernetes_have_options_that_there_are() -> None:
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load(blocks("yaml")[0])
    (worker,) = job["spec"]["template"]["spec"]["containers"]
    program, command, *arguments = worker["command"]
    assert (program, command) == ("scalable-bo", "work")
    shown = subprocess.run(
        [sys.executable, "-m", "scalable_bo", "work", "--help"], capture_output=True, text=True
    ).stdout
    assert all(word in shown for word in arguments if word.startswith("--"))
    (volume,) = job["spec"]["template"]["spec"]["volumes"]
    assert worker["volumeMounts"][0]["name"] == volume["name"]
