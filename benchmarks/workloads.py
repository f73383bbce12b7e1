"""Small workloads whose speed is watched from commit to commit; `benchmarks/compare.py` runs them.

    python benchmarks/workloads.py             # the names, as JSON
    python benchmarks/workloads.py product-64  # {"seconds": 0.31}
    WORKLOADS_DEVICE=cuda python benchmarks/workloads.py product-64

The answer is {"absent": "..."} where the code has no such thing.

A workload prepares its data and returns the call that is timed; it imports from the packages'
public faces alone, so that it runs on older commits, too. Inputs are 8-dimensional, the kernel is
Matérn-3/2. One call warms up, and the median of those that follow within two seconds is printed.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

DEVICE = os.environ.get("WORKLOADS_DEVICE", "cpu")  # of the data, but for those that are stored
Call = Callable[[], Any]


def points(n: int, dtype: str = "float32", dim: int = 8) -> Any:
    import torch

    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, dim, generator=generator, dtype=getattr(torch, dtype)).to(DEVICE)


def columns(n: int, s: int) -> Any:
    import torch

    return torch.randn(n, s, generator=torch.Generator().manual_seed(1)).to(DEVICE)


def values(X: Any) -> Any:
    return (3.0 * X).sin().sum(1, keepdim=True)


def matern(X: Any, lengthscale: float = 0.5) -> Any:
    from gpytorch.kernels import MaternKernel, ScaleKernel

    kernel = ScaleKernel(MaternKernel(nu=1.5)).to(X).requires_grad_(False)
    kernel.base_kernel.lengthscale = lengthscale
    kernel.outputscale = 1.0
    return kernel


def product(n: int, s: int) -> Call:
    """Time K W, the tiles evaluated and discarded, their elementwise part compiled."""
    from surrogates import kernel_operator

    os.environ["SCALABLE_BO_COMPILE"] = "always"
    X = points(n)
    W = columns(n, s)
    operator = kernel_operator(matern(X), X, memory_budget=0)
    return lambda: operator @ W


def solve(make: Callable[[Any], Any], n: int = 3000, s: int = 16, noise: float = 1e-3) -> Call:
    """Time a solve by fixed work: its tolerance is out of reach within its budget."""
    import surrogates
    from surrogates import KernelSystem, kernel_operator

    X = points(n)
    B = columns(n, s)
    system = KernelSystem(kernel_operator(matern(X), X, memory_budget=0), noise)
    solver = make(surrogates)
    return lambda: solver.solve(system, B)


def model(n: int) -> Any:
    from surrogates import CG, PathwiseGP

    X = points(n, "float64")
    return PathwiseGP(X, values(X), solver=CG(None, tolerance=1e-2))


def path_evaluation() -> Call:
    paths = model(2000).paths(64)
    X = points(2000, "float64")
    return lambda: paths(X)


def acquisition() -> Call:
    """Time screening and ascent of given paths as by default, but with fewer points and starts."""
    from acquisition import ParallelThompsonSampling

    surrogate = model(1000)
    paths = surrogate.paths(10)
    bounds = points(2, "float64")
    bounds[0] = 0.0
    bounds[1] = 1.0
    sampler = ParallelThompsonSampling(
        surrogate, bounds, num_candidates=1000, num_rounds=5, num_starts=5
    )
    return lambda: sampler.generate(10, paths=paths)


def minibatch_fit() -> Call:
    from surrogates import fit_minibatch

    return lambda: fit_minibatch(model(2000), max_epochs=2, num_batches=4, tolerance=0.0)


def study(n: int, use: Callable[[Any], object], on_disk: bool = False) -> Call:
    """Time what a new study does once it has been told n values, these included."""
    from scalable_bo import Float, Space, Study

    X = points(n, "float64").cpu()
    y = values(X).squeeze(1)
    space = Space(**{f"x{i}": Float(0.0, 1.0) for i in range(X.shape[1])})

    def call() -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "s" if on_disk else None
            with Study(space, maximize=True, seed=0, path=path) as made:
                made.add_data(X, y, name="history")
                use(made)

    return call


WORKLOADS: dict[str, Callable[[], Call]] = {
    "product-1": lambda: product(8000, 1),
    "product-64": lambda: product(6000, 64),
    "product-1000": lambda: product(3000, 1000),
    "cg": lambda: solve(lambda of: of.CG(None, tolerance=1e-12, max_epochs=12)),
    "sap": lambda: solve(lambda of: of.SketchAndProject.sap(block_size=300, max_epochs=8)),
    "sdd": lambda: solve(lambda of: of.SDD(1.0, 100, max_epochs=8)),
    "path-evaluation": path_evaluation,
    "acquisition": acquisition,
    "minibatch-fit": minibatch_fit,
    "add-data": lambda: study(50_000, id, on_disk=True),
    **{
        f"ask-{q}-of-{n}": partial(study, n, methodcaller("ask", q))
        for n in (20, 200, 2000)
        for q in (1, 20, 200)
    },
}


def measure(
    prepare: Callable[[], Call], most_seconds: float = 2.0, most_calls: int = 7
) -> dict[str, Any]:
    try:
        call = prepare()
        call()
        wait()
    # What an older commit says of a name, an argument or a value that it does not know
    except Exception as error:
        return {"absent": f"{type(error).__name__}: {error}"}
    seconds: list[float] = []
    while len(seconds) < most_calls and sum(seconds) < most_seconds:
        started = time.perf_counter()
        call()
        wait()
        seconds.append(time.perf_counter() - started)
    return {"seconds": statistics.median(seconds)}


def wait() -> None:
    """Wait until the device has done what it was told."""
    if DEVICE.startswith("cuda"):
        import torch

        torch.cuda.synchronize(DEVICE)


def main() -> None:
    if len(sys.argv) == 1:
        print(json.dumps(list(WORKLOADS)))
    else:
        print(json.dumps(measure(WORKLOADS[sys.argv[1]])))


if __name__ == "__main__":
    main()
