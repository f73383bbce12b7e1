"""Programs that several processes run together, each on its own rows, and how to start them."""

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from acquisition import ascend, screen
from surrogates import (
    CG,
    SDD,
    SGD,
    Auto,
    Checkpoint,
    Cholesky,
    DistributedKernelSystem,
    Nystrom,
    PivotedCholesky,
    SketchAndProject,
    Solver,
    memory,
    shared_paths,
)
from surrogates.solvers.accuracy import PosteriorError
from surrogates.solvers.run import Start
from surrogates.systems.processes import own_rows
from surrogates.systems.shared_rows import SharedRows
from surrogates.systems.system import Targets
from tests import problems
from tests.card import CARD
from tests.forked import CONTEXT
from tests.surrogates.exact_posteriors import PROBLEMS

Results = dict[str, Tensor]
N = 90
S = 3
D = 2
B = 30
TIMEOUT = 120.0
SHARES = {1: [0, N], 2: [0, 55, N], 3: [0, 20, 65, N], 4: [0, 20, 45, 65, N]}
KERNEL = problems.scaled(problems.matern(1.5, 0.4), 1.5).double()
ACCURATE: dict[str, Solver] = {
    "cg": CG(None, tolerance=1e-4),
    "cg-nystrom": CG(Nystrom(20), tolerance=1e-4),
    "sap": SketchAndProject(block_size=B, tolerance=1e-4),
    "asap": SketchAndProject.asap(block_size=B, tolerance=1e-4),
    "auto": Auto(tolerance=1e-4),
    "auto-single-first": Auto(tolerance=1e-2),
}
STOCHASTIC: dict[str, Solver] = {
    "adasap": SketchAndProject.adasap(
        preconditioner=Nystrom(10, sketch="gaussian"), block_size=B, tolerance=1e-9, max_epochs=10.0
    ),
    "sdd": SDD(batch_size=B, tolerance=1e-9, max_epochs=10.0),
    "sgd": SGD(batch_size=B, tolerance=1e-9, max_epochs=10.0),
    "tail": SketchAndProject(block_size=B, tail_average=True, tolerance=1e-9, max_epochs=6.0),
}
SOLVERS = ACCURATE | STOCHASTIC


def start(
    program: Callable[..., Results],
    size: int,
    folder: Path,
    *arguments: Any,
    timeout: float = TIMEOUT,
) -> list[BaseProcess]:
    """Start ``program(part, *arguments)`` in so many processes, ``part`` the rows of each, that
    wait ``timeout`` seconds for each other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    started = [
        CONTEXT.Process(target=_work, args=(program, rank, size, folder, arguments, timeout))
        for rank in range(size)
    ]
    for process in started:
        process.start()
    return started


def results(
    program: Callable[..., Results], size: int, folder: Path, *arguments: Any
) -> list[Results]:
    """Return what every process returned."""
    for process in start(program, size, folder, *arguments):
        process.join(120)
        assert process.exitcode == 0
    return [load_file(folder / f"{rank}.safetensors") for rank in range(size)]


def _work(
    program: Callable[..., Results],
    rank: int,
    size: int,
    folder: Path,
    arguments: tuple[Any, ...],
    timeout: float,
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    rendezvous = f"file://{folder / 'rendezvous'}"
    dist.init_process_group(
        "gloo",
        init_method=rendezvous,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
    )
    found = program(slice(*SHARES[size][rank : rank + 2]), *arguments)
    save_file(
        {name: value.contiguous() for name, value in found.items()}, folder / f"{rank}.safetensors"
    )
    dist.destroy_process_group()


def data() -> tuple[Tensor, Tensor, Tensor]:
    """Return X, noise variances and B, of all rows."""
    return problems.uniform(N, D), problems.vector_noise(N), problems.normal(N, S)


def system(part: slice, *, vector: bool = True) -> DistributedKernelSystem:
    X, noise, _ = data()
    return DistributedKernelSystem(KERNEL, X[part], noise[part] if vector else 0.1)


def solve_by_every_method(part: slice) -> Results:
    """Solve by every method, and by one again; keys are ``method.attribute``."""
    found: Results = {}
    for name, solver in (SOLVERS | {"again": SOLVERS["asap"]}).items():
        shared = system(part)
        solution = solver.solve(shared, data()[2][part])
        found |= {
            f"{name}.{field}": getattr(solution, field) for field in ("value", "residual", "steps")
        }
        found |= {
            f"{name}.epochs": torch.tensor(solution.epochs),
            f"{name}.entries": torch.tensor(shared.entries),
        }
    return found


def solve_by_the_card(part: slice) -> Results:
    """Return the residuals of every solver that has a name after a few epochs, or, as text, why it
    refuses to share rows.
    """
    found: Results = {}
    for name, solver in CARD.items():
        try:
            limited = replace(solver, max_epochs=6.0) if hasattr(solver, "max_epochs") else solver
            found[name] = limited.solve(system(part), data()[2][part]).residual
        except TypeError as refused:
            found[name] = as_bytes(str(refused))
    return found


def use_the_system(part: slice) -> Results:
    """Compute products, columns, blocks, and random rows; measure what steps move."""
    rhs = data()[2][part]
    shared = system(part)
    index = torch.tensor([70, 3, 21, 64, 0])
    W = problems.normal(N, S, seed=5)[part]
    found = {
        "product": shared @ W,
        "rows": shared.rows_matmul(index, W),
        "gap": shared.rows_matmul(index, W, minus=rhs),
        "block": shared.block(index),
        "columns": shared.columns(index),
        "small": shared.small_blocks(index[:4].view(2, 2)),
        "taken": shared.rows.take(W, index),
        "added": shared.rows.add(W.clone(), index, torch.ones(5, S, dtype=W.dtype), alpha=2.0),
        "norm": shared.rows.norm(W),
        "dot": shared.rows.dot(W, rhs),
        "all": shared.rows.all(torch.arange(N)[part, None] != torch.tensor([3, 70, N])),
        "normal": shared.rows.normal(2, problems.seeded(4), like=W),
        "extremes": torch.stack([shared.largest_entry, shared.smallest_noise, shared.mean_noise]),
        "single": shared.to(torch.float32) @ W.float(),
        "gathered": shared.rows.gather(W.unsqueeze(1)),
    }
    before = shared.bytes_moved
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "part_size", lambda *_: 7)
        found["turned"] = shared.rows.to_columns(W[:, :2])
    found["turned bytes"] = torch.tensor(shared.bytes_moved - before)
    for name in ("asap", "sdd", "sgd", "adasap"):
        found[f"moved.{name}"] = _bytes_of_steps(SOLVERS[name], system(part, vector=False), rhs)
    return found


def sum_up(part: slice) -> Results:
    """Sum numbers whose sum in float32 depends on the order of the processes."""
    rows = SharedRows(part.stop - part.start, torch.device("cpu"))
    own = problems.normal(998, 1, seed=part.start).float().squeeze(1).view(2, 499)
    before = rows.bytes_moved
    found = {"own": own, "sum": rows.sum(own.clone())}
    moved = torch.tensor(rows.bytes_moved - before)
    return found | {"bytes": moved, "number": rows.sum(torch.tensor(1))}


def _bytes_of_steps(solver: Solver, shared: DistributedKernelSystem, rhs: Tensor) -> Tensor:
    """Return the bytes that a step moves, the mean of six, two epochs of three blocks."""
    generator = problems.seeded()
    prepared = solver.prepare(shared, generator)
    state = solver.init(shared, Start(rhs, torch.zeros_like(rhs), rhs, prepared=prepared))
    moved = []
    for _ in range(6):
        before = shared.bytes_moved
        state = solver.step(shared, rhs, state, generator)
        solver.residual_norm(shared, state)
        moved.append(shared.bytes_moved - before)
    return torch.tensor(sum(moved) / len(moved))


def draw_paths(part: slice) -> Results:
    """Draw paths and evaluate them, and their gradients,
    at points of their own and at points of all.
    """
    X = data()[0][part]
    y = data()[2][part, 0]
    shared = DistributedKernelSystem(KERNEL, X, 0.1)
    paths, solution = shared_paths(
        shared, y, 8, mean=lambda X: X[..., 0], solver=CG(None, tolerance=1e-10), num_features=64
    )
    points = problems.uniform(8, 5, D, seed=3).requires_grad_()
    found = {
        "each": paths.each(points),
        "all": paths(points),
        "mean": paths.mean(points),
        "weights": paths.weights,
    }
    starts = screen(paths, [problems.uniform(40, D, seed=9)])
    bounds = torch.tensor([[0.0] * D, [1.0] * D]).double()
    found["maximisers"], found["maxima"] = ascend(
        paths, starts, bounds, num_steps=5, learning_rate=1e-2
    )
    for name in ("each", "all"):
        (found[f"{name}.gradient"],) = torch.autograd.grad(found[name].square().sum(), points)
    return {name: value.detach() for name, value in found.items()} | {"residual": solution.residual}


def solve_for_a_posterior(part: slice) -> Results:
    """Solve for the mean and paths of a posterior in float32, cut short and to the end."""
    del part  # of other data
    problem = PROBLEMS["smooth-clusters"]
    rows = own_rows(len(problem.targets.values))
    X = problem.points[: len(problem.targets.values)][rows].float()
    targets = Targets(*(part[rows] for part in problem.targets)).to(torch.float32)
    shared = DistributedKernelSystem(problem.kernel.float(), X, problem.noise)
    found = {}
    for name, max_epochs in (("cut", 3.0), ("whole", 100.0)):
        solution = SketchAndProject.asap(block_size=150, max_epochs=max_epochs).solve(
            shared, shared.rhs(targets), posterior=PosteriorError.for_targets(shared, targets)
        )
        assert solution.error is not None
        found |= {f"{name}.value": solution.value, f"{name}.error": solution.error}
    return found


def make_mistakes(part: slice) -> Results:
    """Return, as text, what is said to what a shared system cannot do."""
    shared = system(part)
    rhs = data()[2][part]
    own_seed = problems.seeded(part.start)
    mistakes: dict[str, Callable[[], object]] = {
        "cholesky": lambda: Cholesky().solve(shared, rhs),
        "pivoted": lambda: CG(PivotedCholesky(5)).solve(shared, rhs),
        "gaussian": lambda: CG(Nystrom(5, sketch="gaussian")).solve(shared, rhs),
        "leverage": lambda: SketchAndProject(block_size=B, blocks="leverage").solve(shared, rhs),
        "all rows": lambda: CG(None).solve(shared, data()[2]),
        "seed": lambda: SketchAndProject(block_size=B).solve(shared, rhs, generator=own_seed),
        "targets": lambda: shared_paths(shared, rhs, 4),
        "kinds": lambda: DistributedKernelSystem(
            KERNEL, torch.ones(4, 2 + (part.start > 0)).double(), 0.1
        ),
        "few": lambda: DistributedKernelSystem(KERNEL, data()[0][:1][own_rows(1)], 0.1),
    }
    return {name: as_bytes(_message(mistake)) for name, mistake in mistakes.items()}


def _message(mistake: Callable[[], object]) -> str:
    try:
        mistake()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def solve_by_clocks_that_differ(part: slice) -> Results:
    """Solve for as long as the first process says; the others would go on for ever."""
    seconds = 0.2 if part.start == 0 else 1e9
    solution = SketchAndProject(
        block_size=B, tolerance=1e-15, max_epochs=1e9, max_seconds=seconds
    ).solve(system(part), data()[2][part])
    return {"steps": solution.steps}


def lose_a_process(part: slice, hangs: bool) -> Results:
    """Solve, and kill the second process in the middle, or have it stand still;
    the others return what they are told and when.
    """
    group = dist.new_group(timeout=timedelta(seconds=2.0)) if hangs else None
    began = time.perf_counter()
    steps = []

    def fail(_: object) -> None:
        steps.append(1)
        if part.start == SHARES[3][1] == SHARES[4][1] and len(steps) == 3:
            if not hangs:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(6.0)

    X, noise, rhs = data()
    shared = DistributedKernelSystem(KERNEL, X[part], noise[part], group=group)
    try:
        SketchAndProject(block_size=B, tolerance=1e-12).solve(shared, rhs[part], callback=fail)
    except ConnectionError as error:
        return {
            "message": as_bytes(str(error)),
            "seconds": torch.tensor(time.perf_counter() - began),
        }
    return {}


def solve_and_save(part: slice, folder: Path, name: str, die_after: int | None) -> Results:
    """Solve with checkpoints every two steps; with ``die_after``,
    kill the last process after so many steps of its own.
    """
    solver = SOLVERS[name]
    taken = [0]

    class Dying(type(solver)):  # type: ignore[misc]
        def step(self, *arguments: Any) -> Any:
            if taken[0] == die_after and part.stop == N:
                os.kill(os.getpid(), signal.SIGKILL)
            taken[0] += 1
            return super().step(*arguments)

    settings = vars(solver) | {"checkpoint": Checkpoint(folder, every_seconds=None, every_steps=2)}
    generator = problems.seeded(7)
    solution = Dying(**settings).solve(system(part), data()[2][part], generator=generator)
    return {
        "value": solution.value,
        "steps": solution.steps,
        "epochs": torch.tensor(solution.epochs),
        "generator": generator.get_state(),
        "taken": torch.tensor(taken[0]),
    }


def as_bytes(text: str) -> Tensor:
    return torch.tensor(list(json.dumps(text).encode()), dtype=torch.uint8)


def as_text(tensor: Tensor) -> str:
    return str(json.loads(bytes(tensor.tolist())))
