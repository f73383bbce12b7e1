"""What a solve and an ask take at their peak, each measured in a process of its own,
and whether twice as much is enough.
"""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace
from typing import Any, TypeVar

import psutil
import torch

from acquisition import PathwiseThompsonSampling
from scalable_bo.experiments.records import peak_memory_bytes, reset_peak_memory
from scalable_bo.space.space import Float, Space
from scalable_bo.study import prediction
from scalable_bo.study.study import Study
from surrogates import (
    CG,
    SDD,
    Auto,
    Cholesky,
    Nystrom,
    PathwiseGP,
    SketchAndProject,
    Solver,
    memory,
)
from tests import problems
from tests.forked import CONTEXT

Result = TypeVar("Result")
CPU = torch.device("cpu")
BUDGET: dict[str, Any] = {"tolerance": 1e-12, "max_epochs": 2.0}
SOLVERS: dict[str, Solver] = {
    "asap": SketchAndProject.asap(**BUDGET),
    "sap": SketchAndProject.sap(**BUDGET),
    "adasap": SketchAndProject.adasap(**BUDGET),
    "sdd": SDD(**BUDGET),
    "cg": CG(Nystrom(200), **BUDGET),
    "cholesky": Cholesky(),
    "auto": Auto(),
}
SPACE = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))


def apart(function: Callable[..., Result], *arguments: Any) -> Result:
    """Return what ``function`` returns in a new process, such as the bytes that the program wants
    to be free, and those at its peak.
    """
    with ProcessPoolExecutor(1, mp_context=CONTEXT) as pool:
        return pool.submit(function, *arguments).result(timeout=300)


def of_paths(name: str, n: int, num_paths: int) -> tuple[float, float]:
    """Draw paths of a model, and again with twice the peak free, in the same way;
    what it wants is the most that it requires.
    """
    torch.set_num_threads(1)
    model_of(300, name).paths(2)  # loads what is loaded once
    model = model_of(n, name)
    peak = increase(lambda: model.paths(num_paths))
    note = model.solution.note  # type: ignore[union-attr]
    wanted = [0.0]  # type: ignore[union-attr]
    memory.available = lambda device: 2 * peak
    require = memory.require

    def seen(num_bytes: int, *others: Any) -> None:
        wanted.append(num_bytes)
        require(num_bytes, *others)

    memory.require = seen
    model.paths(num_paths)
    assert model.solution.note == note  # type: ignore[union-attr]
    return max(wanted), peak


def model_of(n: int, name: str) -> PathwiseGP:
    X = problems.uniform(n, 2)
    return PathwiseGP(
        X, (5.0 * X).sin().sum(1, keepdim=True) + 0.1 * problems.normal(n, 1), solver=SOLVERS[name]
    )


def of_ask(n: int, q: int, dtype: torch.dtype) -> tuple[float, float]:
    """Ask a study; what it wants is what ``scalable-bo check`` says of the process."""
    torch.set_num_threads(1)
    study_of(50, dtype).ask(2)
    study = study_of(n, dtype)
    resident = psutil.Process().memory_info().rss
    peak = resident + increase(lambda: study.ask(q))
    prediction._rehearse = lambda space, dtype: (0.0, 0.0, 0.0)
    psutil.virtual_memory = lambda: SimpleNamespace(
        available=2 * peak - psutil.Process().memory_info().rss
    )
    found = prediction.predict(SPACE, n, 1, q, dtype, num_initial=6)
    assert found.fits
    return found.peak_bytes, peak


def of_acquisition(n: int, q: int, d: int) -> int:
    """Return by how many bytes drawing a path for each of four batches, evaluating and
    differentiating it, raises the peak.
    """
    torch.set_num_threads(1)
    X = problems.uniform(n, d)
    Y = torch.sin(3.0 * X).sum(1, keepdim=True)
    solver = CG(tolerance=0.5, preconditioner=None, max_epochs=3)

    def slopes(rows: int, batch: torch.Tensor) -> torch.Tensor:
        model = PathwiseGP(X[:rows], Y[:rows], solver=solver)
        PathwiseThompsonSampling(model)(batch.requires_grad_()).sum().backward()
        assert batch.grad is not None
        return batch.grad

    slopes(200, problems.uniform(1, 2, d))
    batch = problems.uniform(4, q, d)
    peak = increase(lambda: slopes(n, batch))
    assert torch.isfinite(batch.grad).all()  # type: ignore[arg-type]
    return peak


def study_of(n: int, dtype: torch.dtype) -> Study:
    study = Study(SPACE, maximize=True, dtype=dtype)
    X = problems.uniform(n, 2)
    study.add_data(X, (5.0 * X).sin().sum(1) + 0.1 * problems.normal(n, 1).squeeze(1))
    return study


def increase(call: Callable[[], Any]) -> int:
    """Return by how many bytes the peak of ``call`` is above what there was before."""
    memory.available(CPU)  # gives freed memory back
    reset_peak_memory(CPU)
    before = peak_memory_bytes(CPU)
    call()
    return peak_memory_bytes(CPU) - before
