"""A model of three tasks at 20 000 rows: its fit and predictions beside those of an exact fit of
3000 rows, whose hyperparameters the same model of all rows takes.

    python benchmarks/several_tasks.py --out benchmarks/results/several_tasks.json

Every task is a mixture of two draws of a Matérn-5/2 process in four inputs, and each row is of one
task, with noise. Errors are those of 3000 further noisy rows, and of the functions there.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from gpytorch.kernels import MaternKernel
from torch import Tensor

from benchmarks.scripts import script_parser, write_benchmark
from surrogates import PathwiseGP, RandomFeatures, fit, multi_task_kernel

DIM = 4
MIXING = ((1.0, 0.0), (0.8, 0.6), (-0.5, 0.7))
NOISE = 0.2
NUM_NEW = 3000


class Tasks:
    """``size`` rows of every task's function, those of the tasks at random, and new ones."""

    def __init__(self, size: int, seed: int):
        generator = torch.Generator().manual_seed(seed)
        double: Any = {"generator": generator, "dtype": torch.float64}
        kernel = MaternKernel(2.5).double()
        kernel.lengthscale = 0.4
        features = RandomFeatures.draw(kernel, DIM, 2000, generator=generator)
        X = torch.rand(size + NUM_NEW, DIM, **double)
        task = torch.randint(len(MIXING), (len(X),), generator=generator)
        mixing = torch.tensor(MIXING, dtype=torch.float64)[task]
        values = ((features(X) @ torch.randn(2000, 2, **double)) * mixing).sum(1)
        observed = values + NOISE * torch.randn(len(X), **double)
        self.X, self.X_new = torch.cat([X, task.unsqueeze(1)], 1).split([size, NUM_NEW])
        self.Y, self.Y_new = observed.split([size, NUM_NEW])
        self.values_new = values[size:]

    def model(self, size: int) -> PathwiseGP:
        kernel = multi_task_kernel(DIM + 1, len(MIXING)).double()
        return PathwiseGP(self.X[:size], self.Y[:size, None], covar_module=kernel)

    def account(self, model: PathwiseGP) -> dict[str, float]:
        """Return the errors of a model's predictions, and the processor seconds they took."""
        seconds, posterior = counted(lambda: model.posterior(self.X_new))
        mean, variance = posterior.mean[:, 0], posterior.variance[:, 0]
        variance = variance + model.noise * self.Y[: len(model.train_targets)].var()
        error = self.Y_new - mean
        nll = 0.5 * (error.square() / variance + variance.log() + math.log(2.0 * math.pi))
        return {
            "rmse": root_mean_square(error),
            "rmse_of_functions": root_mean_square(self.values_new - mean),
            "nll": nll.mean().item(),
            "seconds_of_predictions": seconds,
        }


def counted(call: Callable[[], Any]) -> tuple[float, Any]:
    started = time.process_time()
    with torch.no_grad():
        result = call()
    return time.process_time() - started, result


def root_mean_square(errors: Tensor) -> float:
    return errors.square().mean().sqrt().item()


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--size", type=int, default=20_000, help="rows")
    parser.add_argument("--exact", type=int, default=3000, help="rows of the exact fit")
    parser.add_argument("--seed", type=int, default=0, help="of the data")
    arguments = parser.parse_args()
    tasks = Tasks(arguments.size, arguments.seed)
    model = tasks.model(arguments.size)
    seconds, _ = counted(lambda: fit(model))
    runs = {"fit": {"rows": arguments.size, "seconds": seconds, **tasks.account(model)}}
    print(runs, flush=True)
    small = tasks.model(arguments.exact)
    seconds, _ = counted(lambda: fit(small, "exact"))
    whole = tasks.model(arguments.size)
    own = dict(small.named_parameters())
    whole.load_state_dict({**whole.state_dict(), **own})
    runs["exact"] = {"rows": arguments.exact, "seconds": seconds, **tasks.account(whole)}
    print(runs["exact"], flush=True)
    settings = {"size": arguments.size, "num_tasks": len(MIXING), "seed": arguments.seed}
    write_benchmark(arguments.out, "several_tasks", settings=settings, runs=runs)


if __name__ == "__main__":
    main()
