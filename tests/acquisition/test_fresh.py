"""Batches of a model that changed, or that cannot do what is asked: those of a fresh model,
or a clear error.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, qLogExpectedImprovement
from botorch.models.transforms import Normalize
from gpytorch.kernels import CosineKernel
from torch import Tensor

from acquisition import (
    ParallelThompsonSampling,
    PathwiseMaxPosteriorSampling,
    PathwiseThompsonSampling,
)
from surrogates import CG, Auto, Cholesky, PathwiseGP, Solver, gaussian_likelihood
from tests import problems

UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
X = problems.uniform(40, 2)
Y = 20.0 + 5.0 * torch.sin(6.0 * X).sum(1, keepdim=True)
SMALL: dict[str, Any] = {"num_candidates": 200, "num_rounds": 3, "num_starts": 3, "num_steps": 5}


def model(**settings: Any) -> PathwiseGP:
    return PathwiseGP(
        X, Y, **{"num_features": 256, "solver": CG(tolerance=1e-8, preconditioner=None), **settings}
    )


CHANGES: dict[str, Callable[[PathwiseGP], Any]] = {
    "lengthscale": lambda m: setattr(m.covar_module, "lengthscale", 0.1),
    "more": lambda m: m.set_train_data(
        torch.cat([X, 0.5 * X]), m.train_targets.repeat(2), strict=False
    ),
    "seed": lambda m: setattr(m, "seed", 5),
    "solver": lambda m: setattr(m, "solver", Cholesky()),
    "mode": lambda m: m.train(),
}


KEPT: dict[str, Callable[[PathwiseGP], Callable[[], Tensor]]] = {
    "sampler": lambda m: partial(ParallelThompsonSampling(m, UNIT, **SMALL).generate, 4),
    "acquisition": lambda m: partial(PathwiseThompsonSampling(m), problems.uniform(5, 3, 2)),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("kept", KEPT)
def test_after_a_change_the_points_and_values_are_those_of_a_fresh_model(
    name: str, kept: str
) -> None:
    changed, fresh = (model(input_transform=Normalize(2, bounds=UNIT)) for _ in range(2))
    evaluate = KEPT[kept](changed)
    before = evaluate()
    for each in (changed, fresh):
        CHANGES[name](each)
    after = evaluate()
    rtol, atol = (0.0, 1e-3) if kept == "sampler" else (1e-4, 1e-4)
    torch.testing.assert_close(after, KEPT[kept](fresh)(), rtol=rtol, atol=atol)
    assert ((after - before).abs().max() > 1e-2) == (name not in ("mode", "solver"))
    assert name != "mode" or torch.equal(after, before)


@pytest.mark.filterwarnings("ignore::surrogates.UnsolvedWarning")  # float32 misses the tolerance
def test_a_change_of_dtype_is_named_where_it_no_longer_fits() -> None:
    changed = model()
    sampler = ParallelThompsonSampling(changed, UNIT, **SMALL)
    acquisition = PathwiseThompsonSampling(changed)
    acquisition(X[:2])
    changed.float()
    with pytest.raises(
        TypeError,
        match="`bounds` must have the dtype of `train_X`, torch.float32, got torch.float64",
    ):
        sampler.generate(2)
    assert acquisition(X[:2].float()).dtype == torch.float32


FACES: dict[str, Callable[[PathwiseGP], Tensor]] = {
    "generate": (
        lambda m: ParallelThompsonSampling(m, UNIT.to(m.train_targets), **SMALL).generate(3)
    ),
    "acquisition": lambda m: PathwiseThompsonSampling(m)(X[:3].to(m.train_targets)),
    "strategy": lambda m: PathwiseMaxPosteriorSampling(m)(X.to(m.train_targets), num_samples=3),
    "LogEI": lambda m: LogExpectedImprovement(m, Y.max().to(m.train_targets))(
        X[:3, None].to(m.train_targets)
    ),
    "qLogEI": lambda m: qLogExpectedImprovement(m, Y.max().to(m.train_targets))(
        X[:3].to(m.train_targets)
    ),
}


@pytest.mark.parametrize("face", FACES)
def test_a_kernel_without_paths_is_named(face: str) -> None:
    with pytest.raises((TypeError, ValueError), match="CosineKernel"):
        FACES[face](model(covar_module=CosineKernel()))


def tight(solver: Solver, dtype: torch.dtype = torch.float32) -> PathwiseGP:
    data = X.float().repeat(3, 1).to(dtype), Y.float().repeat(3, 1).to(dtype)  # K is singular
    return PathwiseGP(
        *data, likelihood=gaussian_likelihood(1e-6), num_features=256, num_paths=32, solver=solver
    )


@pytest.mark.filterwarnings("ignore::surrogates.UnsolvedWarning")  # of what float32 cannot reach
@pytest.mark.parametrize("solver", [Auto(), CG()], ids=["auto", "cg"])
@pytest.mark.parametrize("face", FACES)
def test_tight_noise_in_float32_gives_finite_values(face: str, solver: Solver) -> None:
    assert torch.isfinite(FACES[face](tight(solver))).all()


@pytest.mark.parametrize("face", ["LogEI", "qLogEI"])
def test_an_exact_posterior_of_tight_noise_in_float32_is_that_in_float64(face: str) -> None:
    value = FACES[face](tight(Cholesky()))
    expected = FACES[face](tight(Cholesky(), torch.float64))
    torch.testing.assert_close(value.double(), expected, rtol=1e-3, atol=1e-3)
