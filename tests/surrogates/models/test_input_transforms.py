"""Models with BoTorch's input transforms: posteriors, fits and paths as of ``SingleTaskGP``."""

from collections.abc import Callable

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import (
    AffineInputTransform,
    AppendFeatures,
    ChainedInputTransform,
    FilterFeatures,
    InputPerturbation,
    InputStandardize,
    InputTransform,
    Log10,
    Normalize,
    NumericToCategoricalEncoding,
    Round,
    Warp,
)
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from surrogates import CG, PathwiseGP, fit, gaussian_likelihood
from tests import problems

# BoTorch warns of codes and of points outside the unit cube
pytestmark = pytest.mark.filterwarnings("ignore:Data .input features. is not")
N = 60
X = problems.uniform(N, 3)
X[:, 2] = (4.0 * X[:, 2]).floor()
Y = torch.sin(4.0 * X[:, :1]) + X[:, 1:2] * X[:, 2:] / 4.0 + 0.05 * problems.normal(N, 1)
Z = problems.uniform(12, 3, seed=1)
Z[:, 2] = (4.0 * Z[:, 2]).floor()
NUM_PATHS = 1024
FIVE_ERRORS = 5.0 * (2.0 / NUM_PATHS) ** 0.5  # of a variance


def warp() -> InputTransform:
    transform = Warp(d=3, indices=[0, 1])
    transform.concentration0.data = torch.tensor([0.7, 1.5]).double()
    transform.concentration1.data = torch.tensor([1.3, 0.8]).double()
    return transform.double()


def perturbed() -> InputTransform:
    shifts = 0.02 * problems.normal(3, 3, seed=2) * torch.tensor([1.0, 1.0, 0.0])
    return InputPerturbation(perturbation_set=shifts)


def one_hot() -> InputTransform:
    return NumericToCategoricalEncoding(
        3, {2: 4}, {2: lambda codes: torch.nn.functional.one_hot(codes.long(), 4).to(X)}
    )


TRANSFORMS: dict[str, Callable[[], InputTransform]] = {
    "normalize": lambda: Normalize(3),
    "normalize some": lambda: Normalize(3, indices=[2]),
    "fixed bounds": lambda: Normalize(
        3, bounds=torch.tensor([[0.0] * 3, [1.0, 2.0, 4.0]]).double()
    ),
    "standardize": lambda: InputStandardize(3),
    "affine": lambda: AffineInputTransform(
        3, torch.tensor([2.0, 1.0, 4.0]).double(), torch.tensor([0.1, 0.0, 0.0]).double()
    ),
    "logarithm": lambda: ChainedInputTransform(
        shifted=AffineInputTransform(3, torch.ones(3).double(), -torch.ones(3).double()),
        logarithm=Log10(indices=[0, 1]),
    ),
    "round": lambda: Round(integer_indices=[2], approximate=False),
    "round in steps": lambda: Round(integer_indices=[2], approximate=True),
    "categories": lambda: Round(categorical_features={2: 1}, approximate=False),
    "warp": warp,
    "chain": lambda: ChainedInputTransform(scaled=Normalize(3), warped=warp()),
    "filter": lambda: FilterFeatures(torch.tensor([0, 1])),
    "append": lambda: AppendFeatures(
        f=lambda X: X[..., :1].sin().unsqueeze(-2), transform_on_train=True
    ),
    "one-hot": one_hot,
    "perturbed": perturbed,
}
# One of each kind: columns as they are, rounded, warped, fewer, more, and several points for one
KINDS = ["normalize some", "round", "chain", "filter", "append", "one-hot", "perturbed"]


def settings(name: str) -> dict[str, object]:
    return {"input_transform": TRANSFORMS[name](), "likelihood": gaussian_likelihood(0.02)}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_posterior_is_botorchs(name: str) -> None:
    ours = PathwiseGP(X, Y, **settings(name)).posterior(Z)
    theirs = SingleTaskGP(X, Y, **settings(name)).posterior(Z)
    assert ours.mean.shape == theirs.mean.shape
    torch.testing.assert_close(ours.mean, theirs.mean)
    torch.testing.assert_close(ours.variance, theirs.variance)


@pytest.mark.parametrize("name", KINDS)
def test_paths_have_the_law_of_the_posterior(name: str) -> None:
    exact = SingleTaskGP(X, Y, **settings(name)).posterior(Z)
    model = PathwiseGP(X, Y, solver=CG(tolerance=1e-8), num_paths=NUM_PATHS, **settings(name))
    law = model.posterior(Z)
    deviation = exact.variance.sqrt()
    assert ((law.mean - exact.mean).abs() / deviation).max() < 1e-3
    assert (law.variance / exact.variance - 1.0).abs().max() < FIVE_ERRORS
    values = model.paths(3)(Z)
    assert values.shape == (3, *law.mean.shape[:-1])


@pytest.mark.parametrize("name", [name for name in KINDS if name != "perturbed"])
def test_gradients_of_paths_are_through_the_transform(name: str) -> None:
    paths = PathwiseGP(X, Y, num_features=64, **settings(name)).paths(2)
    points = Z[:3, :2].clone().requires_grad_()  # those of rounded inputs are BoTorch's

    def values(points: Tensor) -> Tensor:
        return paths(torch.cat([points, Z[:3, 2:]], dim=1))

    assert torch.autograd.gradcheck(values, (points,))


def test_learned_transforms_are_fitted_as_botorch_fits_them() -> None:
    ours = fit(PathwiseGP(X, Y, input_transform=TRANSFORMS["chain"]()))
    theirs = SingleTaskGP(X, Y, input_transform=TRANSFORMS["chain"]())
    fit_gpytorch_mll(ExactMarginalLogLikelihood(theirs.likelihood, theirs))
    losses = []
    for model in (ours, theirs):
        model.train()
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        losses.append(mll(model(*model.train_inputs), model.train_targets).item())
        model.eval()
    assert losses[0] > losses[1] - 0.01  # nats a point
    truth = torch.sin(4.0 * Z[:, :1]) + Z[:, 1:2] * Z[:, 2:] / 4.0
    errors = [(model.posterior(Z).mean - truth).square().mean().sqrt() for model in (ours, theirs)]
    assert errors[0] < 1.1 * errors[1] + 0.01
    several = ours.paths(200)(Z)
    assert (several.mean(0) - ours.posterior(Z).mean.squeeze(1)).abs().max() < 0.1


@pytest.mark.parametrize("name", ["round", "filter"])
def test_what_a_transform_leaves_out_changes_no_path(name: str) -> None:
    paths = PathwiseGP(X, Y, solver=CG(), num_features=64, **settings(name)).paths(2)
    moved = Z.clone()
    moved[:, 2] += 0.3  # rounded away, or left out
    torch.testing.assert_close(paths(moved), paths(Z))
