"""The variance of a gradient for samples from one row, with the noise among the targets and in the
regulariser, as a descent goes on.

    python benchmarks/gradient_variance.py --data elevators \\
        --out benchmarks/results/gradients/gradient_variance.json

Weights a of a sample with prior values f and noise ε minimise either loss,

    Loss 1:  Σ_i (f_i + ε_i − k_iᵀ a)² / σ² + aᵀ K a
    Loss 2:  Σ_i (f_i − k_iᵀ a)² / σ² + (a − ε/σ²)ᵀ K (a − ε/σ²).

One row, drawn uniformly, estimates half the gradient of a sum by n k_i r_i / σ², where r = K a − f
− ε or r = K a − f. The variance of k_i r_i, the trace of its covariance, is computed from all rows.

References:
    Lin et al. (2023), "Sampling from Gaussian Process Posteriors using Stochastic Gradient
    Descent", Section 3.2 and Figure 2, left.
    Differs: the iterates are those of one descent, on Loss 2, for both.
"""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.scripts import script_parser, write_benchmark
from scalable_bo.experiments.models import matern_kernel
from scalable_bo.experiments.regression.data import load_hyperparameters, load_regression_data
from surrogates import SGD, Auto, KernelSystem, PriorPaths, kernel_operator
from surrogates.systems.system import Targets


def variances(system: KernelSystem, targets: Targets, A: Tensor) -> tuple[float, float]:
    """Return the variance of k_i r_i over the rows i, by Loss 1 and by Loss 2, the mean over the
    columns of the weights A (n, s).
    """
    parts = torch.arange(system.n).split(1000)
    squares = torch.cat([system.kernel_rows(part).square().sum(1) for part in parts])
    misfit = system.kernel_matmul(A) - targets.values
    gaps = misfit - targets.noise_draw, misfit
    means = [system.kernel_matmul(gap).div_(system.n) for gap in gaps]
    first, second = (
        (squares @ gap.square() / system.n - mean.square().sum(0)).mean().item()
        for gap, mean in zip(gaps, means, strict=True)
    )
    return first, second


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--data", default="elevators", help="data set")
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets")
    parser.add_argument("--epochs", default="1,4,16,64", help="of the descent, before each look")
    parser.add_argument("--samples", type=int, default=8)
    arguments = parser.parse_args()
    where = (arguments.data, 0, arguments.data_dir)
    X = load_regression_data(*where).train_X.float()
    learned = load_hyperparameters(*where)
    kernel = matern_kernel(torch.tensor(learned.lengthscale), learned.outputscale).float()
    generator = torch.Generator().manual_seed(0)
    draw = PriorPaths.draw(
        kernel, X.shape[1], arguments.samples, num_features=2000, generator=generator, like=X
    )
    noise = learned.noise**0.5 * torch.randn(len(X), arguments.samples, generator=generator)
    targets = Targets(draw(X).mT.contiguous(), noise)
    system = KernelSystem(kernel_operator(kernel, X), learned.noise)
    sgd = SGD.paper(tolerance=1e-7, keep_descent=True)
    budgets = [float(epochs) for epochs in arguments.epochs.split(",")]
    weights = {"0": torch.zeros_like(noise)}
    weights |= {
        f"{epochs:g}": replace(sgd, max_epochs=epochs + 1.0).solve(system, targets).value
        for epochs in budgets
    }
    weights["solution"] = Auto(tolerance=1e-3).solve(system, system.rhs(targets)).value
    rows = []
    print("epochs  Loss 1     Loss 2     ratio")
    for epochs, A in weights.items():
        first, second = variances(system, targets, A)
        rows.append({"epochs": epochs, "loss 1": first, "loss 2": second})
        print(f"{epochs:8}{first:.3e}  {second:.3e}  {first / second:.2f}")
    write_benchmark(
        arguments.out, "gradient_variance", data=arguments.data, num_train=len(X), rows=rows
    )


if __name__ == "__main__":
    main()
