"""Optimise two objectives: a PathwiseGP with two outputs and qLogNEHVI for a few points,
a ModelListGP with Thompson batches for many.
"""

# %% DTLZ2: two functions of six inputs, both to be minimised (here negated), with a history of
# random points
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from botorch.acquisition.multi_objective import qLogNoisyExpectedHypervolumeImprovement
from botorch.models import ModelListGP
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from botorch.test_functions.multi_objective import DTLZ2
from botorch.utils.multi_objective import Hypervolume, is_non_dominated

from scalable_bo import ParallelThompsonSampling, PathwiseGP, fit, fit_exact

NUM_POINTS = 2500
NUM_FITTED = 200
NUM_TRADE_OFFS = 8
POINTS_EACH = 10
problem = DTLZ2(dim=6, num_objectives=2, negate=True)
bounds = problem.bounds.double()
reference = problem.ref_point.double()
X = torch.rand(NUM_POINTS, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = problem(X)


def hypervolume(Y: torch.Tensor) -> float:
    return Hypervolume(reference).compute(Y[is_non_dominated(Y)])


print(f"hypervolume of {len(Y)} random points {hypervolume(Y):.4f}, at most {problem.max_hv:.4f}")

# %% One model of two outputs, as SingleTaskGP takes them, with hyperparameters from a part of the
# data: means (q, 2), paths (s, q, 2)
part = fit_exact(PathwiseGP(X[:NUM_FITTED], Y[:NUM_FITTED]))
model = PathwiseGP(
    X, Y, covar_module=part.covar_module, mean_module=part.mean_module, likelihood=part.likelihood
)
paths = model.paths(100)
X_new = torch.rand(1000, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
error = (model.posterior(X_new).mean - problem(X_new)).square().mean(0).sqrt()
print(
    f"{paths.num_samples} paths at {len(X_new)} points {tuple(paths(X_new).shape)}, error of the"
    f" mean {error[0]:.4f} and {error[1]:.4f}"
)

# %% Choose four points by expected hypervolume improvement
torch.manual_seed(0)  # BoTorch's own starting points come from the global generator
front = X[is_non_dominated(Y)]
improvement = qLogNoisyExpectedHypervolumeImprovement(
    model, reference, front, sampler=SobolQMCNormalSampler(torch.Size([64]), seed=0)
)
improved, _ = optimize_acqf(
    improvement,
    bounds,
    q=4,
    num_restarts=2,
    raw_samples=64,
    options={"maxiter": 30},
    sequential=True,
)
print(
    f"qLogNEHVI: {len(X)} + {len(improved)} points, hypervolume"
    f" {hypervolume(torch.cat([Y, problem(improved)])):.4f}"
)

# %% Give each objective its own hyperparameters in a list of models. Choose Thompson batches for
# several trade-offs: each maximises the worse of two weighted outputs
models = ModelListGP(
    *(
        fit(PathwiseGP(X, Y[:, [i]]), "subsets", num_subsets=3, num_steps=30, progress=False)
        for i in range(2)
    )
)
batch = X[:0]
for number, share in enumerate(torch.linspace(0.1, 0.9, NUM_TRADE_OFFS).tolist()):
    weights = torch.tensor([share, 1.0 - share], dtype=torch.float64)
    sampler = ParallelThompsonSampling(
        models,
        bounds,
        objective=lambda values, weights=weights: (weights * (values - reference)).amin(-1),
        num_candidates=2000,
        num_rounds=5,
        num_starts=3,
        num_steps=50,
        seed=number,
    )
    batch = torch.cat([batch, sampler.generate(POINTS_EACH, X_pending=batch)])
print(
    f"Thompson sampling: {len(X)} + {len(batch)} points, hypervolume"
    f" {hypervolume(torch.cat([Y, problem(batch)])):.4f}"
)

# %% Plot the objectives of all points; smaller is better for both
figure, axes = plt.subplots(figsize=(6, 4.5))
for values, color, label in (
    (Y, "#BBBBBB", "history"),
    (problem(batch), "#D55E00", "Thompson batch"),
    (problem(improved), "#0072B2", "qLogNEHVI"),
):
    axes.plot(*-values.T, "o", color=color, markersize=4, label=label)
axes.set(xlabel="first objective", ylabel="second objective", xlim=(0, 2), ylim=(0, 2))
axes.legend(loc="upper right")
Path("results").mkdir(exist_ok=True)
figure.savefig("results/multi_output.png")
print("wrote results/multi_output.png")
