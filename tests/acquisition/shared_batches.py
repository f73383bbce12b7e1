"""Programs that several processes run together to make a Thompson batch."""

import os
import signal
import warnings
from collections.abc import Callable
from typing import Any

import torch
from gpytorch.kernels import ScaleKernel
from torch import Tensor

from acquisition import AcquisitionProgress, ParallelThompsonSampling
from acquisition.outcomes import Scalarisations
from surrogates import (
    CG,
    Cholesky,
    PathwiseGP,
    SketchAndProject,
    Solver,
    UnsolvedWarning,
    gaussian_likelihood,
)
from surrogates.models.inducing_gp import InducingPathwiseGP
from tests import problems
from tests.surrogates.shared_rows import Results, as_bytes

D = 2
N = 120
Q = 7  # no multiple of the processes
BOUNDS = torch.tensor([[0.0] * D, [1.0] * D]).double()
TIGHT: dict[str, Any] = {
    "num_candidates": 40,
    "num_rounds": 3,
    "num_starts": 2,
    "num_steps": 6,  # few, which leave rounding as small as it is
    "learning_rate": 0.005,  # long steps amplify rounding
}
ACCURATE = CG(None, tolerance=1e-9)


def model(solver: Solver | None = ACCURATE, *, outputs: int = 1, seed: int = 0) -> PathwiseGP:
    X = problems.uniform(N, D)
    Y = torch.stack([torch.sin(5.0 * X).sum(1) + output * X[:, 0] for output in range(outputs)], 1)
    kernel = ScaleKernel(problems.matern(1.5, 0.4)).double()
    return PathwiseGP(
        X,
        Y,
        likelihood=gaussian_likelihood(0.05).double(),
        covar_module=kernel,
        solver=solver,
        num_features=64,
        seed=seed,
    ).requires_grad_(False)


def draw(part: slice) -> Results:
    """Draw the paths of a model by several solvers, and evaluate those of this process."""
    points = problems.uniform(5, D, seed=3)
    found: Results = {}
    for name, given in (
        ("cg", model()),
        ("asap", model(SketchAndProject.asap(block_size=30, tolerance=1e-8))),
        ("direct", model(Cholesky())),
        ("two", model(outputs=2)),
        ("warm", model().start_from(torch.full((70, 1), 0.3).double())),
    ):
        paths = given.paths(Q, shared=True)
        found |= {f"{name}.values": paths(points), f"{name}.mean": paths.mean(points)}
        found[f"{name}.residual"] = given.solution.residual
    single = model(CG(None, tolerance=1e-4)).float()
    found["single.values"] = single.paths(Q, shared=True)(points.float())
    return found


def batches() -> dict[str, Callable[[], Tensor]]:
    """Return what makes a batch of each kind."""
    grid = torch.cartesian_prod(*[torch.linspace(0.0, 1.0, 8)] * D).double()
    ends = torch.tensor([[-1.0, -1.0], [1.0, 1.0]]).double()
    directions = Scalarisations.draw(Q, *ends, problems.seeded(1))

    def sampler(given: PathwiseGP | None = None, **options: Any) -> ParallelThompsonSampling:
        return ParallelThompsonSampling(
            model() if given is None else given, BOUNDS, shared=True, **TIGHT | options
        )

    return {
        "box": lambda: sampler().generate(Q),
        "minimum": lambda: sampler(maximize=False).generate(Q),
        "inducing": lambda: sampler(
            InducingPathwiseGP(
                problems.uniform(N, D),
                problems.uniform(N, 1, seed=2),
                inducing_points=20,
                num_features=64,
            )
        ).generate(Q),
        "pending": lambda: sampler().generate(Q, X_pending=sampler().generate(Q)),
        # Many paths have their best at one corner of the grid, and move to others
        "rounded": lambda: sampler(rounding=lambda X: (4.0 * X).round() / 4.0).generate(Q),
        "choices": lambda: sampler().generate(Q, choices=grid),
        "repeats": lambda: sampler(repeats=True).generate(Q),
        "outcomes": lambda: sampler(
            model(outputs=2), objective=directions, outcome_constraints=[lambda Y: Y[..., 0] - 1.5]
        ).generate(Q),
    }


def make_batches(part: slice) -> Results:
    return {name: make() for name, make in batches().items()}


def make_quickly(part: slice) -> Results:
    """Make a batch by a solver that samples blocks."""
    given = model(SketchAndProject.asap(block_size=40, tolerance=1e-9))
    return {"batch": ParallelThompsonSampling(given, BOUNDS, shared=True, **TIGHT).generate(Q)}


def make_by_two_precisions(part: slice) -> Results:
    """Make a batch by float32 paths that ask for sums in float64."""
    single = model(SketchAndProject.asap(block_size=40, tolerance=1e-4)).float()
    paths = single.paths(Q, shared=True).summed_in(torch.float64)
    sampler = ParallelThompsonSampling(single, BOUNDS.float(), shared=True, **TIGHT)
    return {"batch": sampler.generate(Q, paths=paths)}


def ascend_far(part: slice) -> Results:
    """Make a batch in float32 by an unfinished solve and long steps, which amplify rounding."""
    X = problems.uniform(230, 4)
    solver = SketchAndProject.asap(block_size=50, max_epochs=4.0, tolerance=1e-6)
    given = PathwiseGP(
        X,
        torch.sin(9.0 * X).sum(1, keepdim=True),
        likelihood=gaussian_likelihood(0.01).double(),
        covar_module=ScaleKernel(problems.matern(1.5, 0.4)).double(),
        solver=solver,
        num_features=64,
    )
    single = given.requires_grad_(False).float()
    bounds = torch.tensor([[0.0] * 4, [1.0] * 4])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsolvedWarning)
        paths = single.paths(64, shared=True)
    sampler = ParallelThompsonSampling(single, bounds, shared=True, num_rounds=20, num_starts=20)
    return {"weights": paths.weights, "batch": sampler.generate(64, paths=paths)}


def lose_a_process(part: slice) -> Results:
    """Make a batch, and kill the last process in the ascent; the others return what they are told
    and how many steps later.
    """
    steps = []

    def fail(progress: AcquisitionProgress) -> None:
        if progress.stage == "ascent":
            steps.append(progress.done)
            if part.start > 0 and len(steps) == 3:
                os.kill(os.getpid(), signal.SIGKILL)

    sampler = ParallelThompsonSampling(
        model(), BOUNDS, shared=True, callback=fail, **TIGHT | {"num_steps": 500}
    )
    try:
        sampler.generate(Q)
    except ConnectionError as error:
        return {"message": as_bytes(str(error)), "steps": torch.tensor(len(steps))}
    return {}


def ask_for_too_few(part: slice) -> Results:
    """Return, as text, what is said to fewer paths than processes."""
    messages = []
    for mistake in (
        lambda: ParallelThompsonSampling(model(), BOUNDS, shared=True).generate(1),
        lambda: model().paths(1, shared=True),
        lambda: ParallelThompsonSampling(model(), BOUNDS, shared=True).generate(
            Q, paths=model().paths(Q)
        ),
    ):
        try:
            mistake()
        except ValueError as error:
            messages.append(str(error))
    return {"messages": as_bytes("\n".join(messages))}


def different_calls(rank: int) -> dict[str, Callable[[], object]]:
    """Return calls whose arguments differ between the processes, by the argument's name."""
    grid = problems.uniform(30, D)

    def sampler(**options: Any) -> ParallelThompsonSampling:
        return ParallelThompsonSampling(model(), BOUNDS, shared=True, **TIGHT | options)

    return {
        "q": lambda: sampler().generate(4 + rank),
        "seed": lambda: sampler(seed=rank).generate(4),
        "num_rounds": lambda: sampler(num_rounds=6 + rank).generate(4),
        "learning_rate": lambda: sampler(learning_rate=0.1 * (1 + rank)).generate(4),
        "bounds": lambda: ParallelThompsonSampling(
            model(), BOUNDS * (1 + rank), shared=True
        ).generate(4),
        "X_pending": lambda: sampler().generate(4, X_pending=grid[: 2 + rank]),
        "choices": lambda: sampler().generate(4, choices=grid if rank else [grid]),
        "num_samples": lambda: model().paths(4 + rank, shared=True),
    }


def call_differently(part: slice) -> Results:
    """Return, as text, what is said to calls that differ between the processes."""
    found: Results = {}
    for name, call in different_calls(int(part.start > 0)).items():
        try:
            call()
        except ValueError as error:
            found[name] = as_bytes(str(error))
    return found
