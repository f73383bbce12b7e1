"""Every kernel of GPyTorch and BoTorch: its posterior and its paths, or how it is refused; and the
table of them in the documentation.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import botorch.models.kernels
import gpytorch.kernels as gk
import pytest
import torch
from botorch.models.kernels.categorical import CategoricalKernel
from botorch.models.kernels.contextual_lcea import LCEAKernel
from botorch.models.kernels.contextual_sac import SACKernel
from botorch.models.kernels.downsampling import DownsamplingKernel
from botorch.models.kernels.exponential_decay import ExponentialDecayKernel
from botorch.models.kernels.heterogeneous_multitask import (
    CombinatorialCovarModule,
    DeltaKernel,
    MultiTaskConditionalKernel,
)
from botorch.models.kernels.infinite_width_bnn import InfiniteWidthBNNKernel
from botorch.models.kernels.linear_truncated_fidelity import LinearTruncatedFidelityKernel
from botorch.models.kernels.orthogonal_additive_kernel import OrthogonalAdditiveKernel
from botorch.models.kernels.positive_index import PositiveIndexKernel
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel, RBFKernel
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from surrogates import CG, Cholesky, PathwiseGP, TanimotoKernel
from surrogates.operators.main_effects import MainEffectsKernel
from tests import problems

PAGE = Path(__file__).parents[3] / "docs/how-to/kernels.md"
# GPyTorch's own, of kernels that it will drop, and of torch about GPyTorch
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
]
NUM_PATHS = 1024
NUM_FEATURES = 2048
FIVE_ERRORS = 5.0 * (2.0 / NUM_PATHS) ** 0.5  # of a variance
NO_SPECTRUM = "its spectrum is not written here"


def uniform(n: int, d: int) -> Tensor:
    return problems.uniform(n, d)


def codes(n: int, d: int) -> Tensor:
    return (4.0 * problems.uniform(n, d)).floor()


def tasks(n: int, d: int) -> Tensor:
    return torch.cat([problems.uniform(n, d), codes(n, 1)], 1)


def one_hot(n: int, d: int) -> Tensor:
    return torch.nn.functional.one_hot(codes(n, d).long(), 4).double().flatten(1)


class Entry(NamedTuple):
    """A kernel, of d inputs and at points of a kind.

    Attributes:
        without_paths: the reason; empty where there are paths.
        refused: the reason, where there is no model.
        dims: the numbers of inputs that it is for.
    """

    make: Callable[[int], Kernel]
    points: Callable[[int, int], Tensor] = uniform
    without_paths: str = ""
    refused: str = ""
    dims: tuple[int, ...] = (1, 3, 10)


def spectral_mixture(d: int) -> Kernel:
    kernel = gk.SpectralMixtureKernel(num_mixtures=3, ard_num_dims=d).double()
    kernel.mixture_means = problems.uniform(3, 1, d)
    kernel.mixture_scales = 0.3 * problems.uniform(3, 1, d, seed=1) + 0.05
    return kernel


def anisotropic(d: int) -> Kernel:
    bounds = Interval(torch.full((d,), 0.1), torch.full((d,), 2.0))
    kernel = RBFKernel(ard_num_dims=d, lengthscale_constraint=bounds)
    kernel.lengthscale = torch.linspace(0.4, 0.8, d)
    return kernel


def multi_output(kernel: Kernel) -> Entry:
    return Entry(lambda d: kernel, refused="it has several values for two points")


TABLE: dict[type[Kernel], Entry] = {
    gk.RBFKernel: Entry(lambda d: gk.RBFKernel(ard_num_dims=d)),
    gk.MaternKernel: Entry(lambda d: gk.MaternKernel(1.5, ard_num_dims=d)),
    gk.RQKernel: Entry(lambda d: gk.RQKernel()),
    gk.PeriodicKernel: Entry(lambda d: gk.PeriodicKernel(ard_num_dims=d)),
    gk.CosineKernel: Entry(lambda d: gk.CosineKernel(active_dims=(d - 1,))),
    gk.LinearKernel: Entry(lambda d: gk.LinearKernel()),
    gk.PolynomialKernel: Entry(lambda d: gk.PolynomialKernel(2)),
    gk.ConstantKernel: Entry(lambda d: gk.ConstantKernel() + RBFKernel()),
    gk.RFFKernel: Entry(lambda d: gk.RFFKernel(50, d)),
    gk.SpectralMixtureKernel: Entry(spectral_mixture),
    gk.SpectralDeltaKernel: Entry(lambda d: gk.SpectralDeltaKernel(num_dims=d, num_deltas=32)),
    gk.ArcKernel: Entry(lambda d: gk.ScaleKernel(gk.ArcKernel(gk.MaternKernel(), ard_num_dims=d))),
    gk.GridKernel: Entry(
        lambda d: gk.GridKernel(RBFKernel(), [torch.linspace(0, 1, 9)] * d), dims=(1, 3)
    ),
    gk.ScaleKernel: Entry(lambda d: gk.ScaleKernel(RBFKernel())),
    gk.AdditiveKernel: Entry(
        lambda d: RBFKernel(active_dims=(0,)) + gk.MaternKernel(2.5, active_dims=(d - 1,))
    ),
    gk.ProductKernel: Entry(
        lambda d: gk.PeriodicKernel(active_dims=(0,)) * gk.MaternKernel(2.5, active_dims=(d - 1,))
    ),
    gk.IndexKernel: Entry(
        lambda d: gk.IndexKernel(4, active_dims=(d,)) * RBFKernel(active_dims=tuple(range(d))),
        tasks,
    ),
    PositiveIndexKernel: Entry(
        lambda d: PositiveIndexKernel(4, 1, active_dims=(d,)) * RBFKernel(active_dims=(0,)), tasks
    ),
    CategoricalKernel: Entry(lambda d: CategoricalKernel(), codes),
    CombinatorialCovarModule: Entry(lambda d: CombinatorialCovarModule()),
    TanimotoKernel: Entry(lambda d: TanimotoKernel(), one_hot),
    MainEffectsKernel: Entry(lambda d: MainEffectsKernel(ard_num_dims=d)),
    gk.PiecewisePolynomialKernel: Entry(lambda d: gk.PiecewisePolynomialKernel()),
    gk.CylindricalKernel: Entry(
        lambda d: gk.CylindricalKernel(3, gk.MaternKernel()),
        lambda n, d: problems.uniform(n, d) / d**0.5,  # within the ball
        without_paths=NO_SPECTRUM,
    ),
    gk.HammingIMQKernel: Entry(lambda d: gk.HammingIMQKernel(4), one_hot),
    gk.AdditiveStructureKernel: Entry(lambda d: gk.AdditiveStructureKernel(anisotropic(d), d)),
    gk.ProductStructureKernel: Entry(lambda d: gk.ProductStructureKernel(RBFKernel(), d)),
    gk.NewtonGirardAdditiveKernel: Entry(
        lambda d: gk.NewtonGirardAdditiveKernel(RBFKernel(ard_num_dims=d), d, 1),
        without_paths="write the sum of products of kernels with `active_dims`",
    ),
    gk.GridInterpolationKernel: Entry(
        lambda d: gk.GridInterpolationKernel(RBFKernel(), 20, d, grid_bounds=[(-0.1, 1.1)] * d),
        without_paths="use the kernel inside it",
        dims=(1, 2),
    ),
    gk.DistributionalInputKernel: Entry(
        lambda d: gk.DistributionalInputKernel(torch.cdist),
        without_paths="its distance is a function of the user's",
    ),
    gk.GaussianSymmetrizedKLKernel: Entry(
        lambda d: gk.GaussianSymmetrizedKLKernel(), without_paths=NO_SPECTRUM, dims=(2, 10)
    ),
    InfiniteWidthBNNKernel: Entry(lambda d: InfiniteWidthBNNKernel(), without_paths=NO_SPECTRUM),
    OrthogonalAdditiveKernel: Entry(
        lambda d: OrthogonalAdditiveKernel(d, dtype=torch.float64), without_paths=NO_SPECTRUM
    ),
    LinearTruncatedFidelityKernel: Entry(
        lambda d: LinearTruncatedFidelityKernel([0], dimension=d),
        without_paths=NO_SPECTRUM,
        dims=(3, 10),
    ),
    SACKernel: Entry(
        lambda d: SACKernel({str(i): [i] for i in range(d)}, torch.Size([])),
        without_paths="write the sum of kernels with `active_dims`",
    ),
    LCEAKernel: Entry(
        lambda d: LCEAKernel({str(i): [i] for i in range(d)}, torch.Size([])),
        without_paths=NO_SPECTRUM,
        dims=(3, 10),
    ),
    DownsamplingKernel: Entry(lambda d: DownsamplingKernel(), without_paths=NO_SPECTRUM, dims=(1,)),
    ExponentialDecayKernel: Entry(
        lambda d: ExponentialDecayKernel(), without_paths=NO_SPECTRUM, dims=(1,)
    ),
    gk.MultiDeviceKernel: Entry(
        lambda d: gk.MultiDeviceKernel(RBFKernel(), [torch.device("cpu")], torch.device("cpu")),
        refused="give the kernel inside it, and the data on one device",
    ),
    gk.InducingPointKernel: Entry(
        lambda d: gk.InducingPointKernel(RBFKernel(), uniform(5, d), GaussianLikelihood()),
        refused="use an `InducingPathwiseGP` with the kernel inside it",
    ),
    gk.LCMKernel: multi_output(gk.LCMKernel([RBFKernel()], num_tasks=2)),
    gk.MultitaskKernel: multi_output(gk.MultitaskKernel(RBFKernel(), 2)),
    gk.RBFKernelGrad: multi_output(gk.RBFKernelGrad()),
    gk.RBFKernelGradGrad: multi_output(gk.RBFKernelGradGrad()),
    gk.Matern52KernelGrad: multi_output(gk.Matern52KernelGrad()),
    gk.PolynomialKernelGrad: multi_output(gk.PolynomialKernelGrad(2)),
}
# Parts of BoTorch's HeterogeneousMTGP, which makes them for itself
OF_OTHER_MODELS = {DeltaKernel, MultiTaskConditionalKernel}
BY_NAME = {kind.__name__: entry for kind, entry in TABLE.items()}
MODELS = [name for name, entry in BY_NAME.items() if not entry.refused]
PATHS = [name for name in MODELS if not BY_NAME[name].without_paths]
# Constant in their inputs, which are no numbers
DISCRETE = {"CategoricalKernel", "TanimotoKernel", "HammingIMQKernel"}


def model(name: str, d: int, n: int = 60, dtype: torch.dtype = torch.float64) -> PathwiseGP:
    entry = BY_NAME[name]
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(torch.Generator().manual_seed(0).get_state())
        kernel = entry.make(d).to(dtype)
    X = entry.points(n, d).to(dtype)
    Y = torch.sin(3.0 * X.sum(1, keepdim=True)) + 0.1 * problems.normal(n, 1).to(dtype)
    return PathwiseGP(X, Y, covar_module=kernel, num_features=NUM_FEATURES, num_paths=NUM_PATHS)


def new_points(name: str, d: int) -> Tensor:
    """Return points beside the data, or some of them where points are no numbers."""
    X = BY_NAME[name].points(10, d)
    return X if BY_NAME[name].points in (codes, one_hot, tasks) else 0.9 * X + 0.01


def exact(gp: PathwiseGP, Z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the posterior mean and covariance at Z by a Cholesky factorisation in float64."""
    gp = gp.eval().double()
    X = gp.train_inputs[0]
    with torch.no_grad():
        k, mean = gp.covar_module, gp.mean_module
        root = torch.linalg.cholesky(k(X).to_dense() + gp.noise * torch.eye(len(X)).double())
        cross = torch.linalg.solve_triangular(root, k(X, Z).to_dense(), upper=False)
        misfit = (gp.train_targets - mean(X)).unsqueeze(1)
        expected = (
            mean(Z) + (cross.T @ torch.linalg.solve_triangular(root, misfit, upper=False))[:, 0]
        )
        # One column more: GPyTorch evaluates some kernels differently if both arguments are equal
        return expected, k(Z, torch.cat([Z, Z[:1]])).to_dense()[:, : len(Z)] - cross.T @ cross


def cases(names: list[str]) -> list[tuple[str, int]]:
    return [(name, d) for name in names for d in BY_NAME[name].dims]


def in_standard_units(gp: PathwiseGP, values: Tensor) -> Tensor:
    transform = gp.outcome_transform
    return (
        values.double() - transform.means.double().squeeze()
    ) / transform.stdvs.double().squeeze()


def test_every_kernel_of_gpytorch_and_botorch_is_in_the_table() -> None:
    there = {getattr(gk, name) for name in gk.__all__}
    for module in pkgutil.iter_modules(botorch.models.kernels.__path__):
        found = importlib.import_module(f"{botorch.models.kernels.__name__}.{module.name}")
        there |= {part for part in vars(found).values() if part.__class__ is type(Kernel)}
    kinds = {part for part in there if isinstance(part, type) and issubclass(part, Kernel)}
    assert kinds - {Kernel} <= set(TABLE) | OF_OTHER_MODELS


@pytest.mark.parametrize("name", MODELS)
def test_the_posterior_is_exact(name: str) -> None:
    for d, dtype in zip(BY_NAME[name].dims, cycle((torch.float32, torch.float64)), strict=False):
        gp = model(name, d, dtype=dtype)
        Z = new_points(name, d).to(dtype)
        with torch.no_grad():
            posterior = gp.posterior(Z)
        scale = gp.outcome_transform.stdvs.double().squeeze()
        values = in_standard_units(gp, posterior.mean.squeeze(1))
        mean, covariance = exact(gp, Z.double())
        tolerance = 1e3 * torch.finfo(dtype).eps
        if dtype == torch.float64:
            tolerance = 1e-6  # of jitter where a matrix is singular
        torch.testing.assert_close(values, mean, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(
            posterior.variance.squeeze(1).double() / scale.square(),
            covariance.diagonal(),
            rtol=1e2 * tolerance,
            atol=tolerance,
        )


@pytest.mark.parametrize(
    ("name", "d"),
    [
        pytest.param(name, d, marks=[] if d == BY_NAME[name].dims[:2][-1] else pytest.mark.slow)
        for name, d in cases(PATHS)
    ],
)
def test_paths_have_the_law_of_the_posterior(name: str, d: int) -> None:
    gp = model(name, d)
    gp.solver = CG(tolerance=1e-8)
    Z = new_points(name, d)
    law = gp.posterior(Z)
    drawn = gp._posterior_paths()(Z.to(torch.float64)).detach()
    mean, covariance = exact(gp, Z)
    deviation = covariance.diagonal().sqrt()
    error = (in_standard_units(gp, law.mean.detach().squeeze(1)) - mean) / deviation
    assert error.abs().max() < 1e-3
    correlations = covariance / torch.outer(deviation, deviation)
    deviations = (drawn - mean) / deviation
    assert (deviations.T @ deviations / NUM_PATHS - correlations).abs().max() < FIVE_ERRORS


@pytest.mark.parametrize("name", [name for name in PATHS if name not in DISCRETE])
def test_gradients_of_paths_are_their_slopes(name: str) -> None:
    gp = model(name, 3)
    gp.solver = CG(tolerance=1e-8)
    gp.num_features = 64
    Z = new_points(name, 3)[:4].requires_grad_()
    paths = gp.paths(3)
    (gradient,) = torch.autograd.grad(paths(Z).sum(), Z)
    (own,) = torch.autograd.grad(paths.each(Z.expand(3, *Z.shape)).sum(), Z)
    torch.testing.assert_close(own, gradient)
    step = 1e-5
    assert not gradient[:, 3:].any()  # of a task
    for column in range(3):
        shift = step * torch.eye(Z.shape[1]).double()[column]
        with torch.no_grad():
            slope = (paths(Z + shift).sum(0) - paths(Z - shift).sum(0)) / (2.0 * step)
        bound = 1e-4 * gradient.abs().max().item()
        torch.testing.assert_close(gradient[:, column], slope, rtol=1e-4, atol=bound)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", [name for name in PATHS if name not in DISCRETE])
def test_many_data_have_posteriors_of_paths(name: str, dtype: torch.dtype) -> None:
    gp = model(name, 3, n=2500, dtype=dtype)
    Z = new_points(name, 3)
    law = gp.posterior(Z.to(dtype))
    values = in_standard_units(gp, law.mean.detach().squeeze(1))
    variance = law.variance.detach().squeeze(1).double()
    mean, covariance = exact(gp, Z)
    deviation = covariance.diagonal().sqrt()
    assert ((values - mean) / deviation).abs().max() < 0.3
    scale = gp.outcome_transform.stdvs.double().squeeze().square()
    ratio = variance / scale / covariance.diagonal()
    assert (ratio - 1.0).abs().max() < FIVE_ERRORS


def test_kernels_without_features_are_refused_where_paths_are_asked_for() -> None:
    for name in [name for name in MODELS if BY_NAME[name].without_paths]:
        d = BY_NAME[name].dims[-1]
        gp = model(name, d)
        with pytest.raises(ValueError, match=f"to have random features, got {name}"):
            gp.paths(2)
        X, Y = gp.train_inputs[0], gp.train_targets.unsqueeze(1)
        with pytest.raises(ValueError, match=rf"got {name}.*use solver=Cholesky\(\)"):
            PathwiseGP(X, Y, covar_module=gp.covar_module, solver=CG())
        PathwiseGP(X, Y, covar_module=gp.covar_module, solver=Cholesky()).posterior(X[:2])


@pytest.mark.parametrize("name", [name for name, entry in BY_NAME.items() if entry.refused])
def test_kernels_that_are_none_of_points_are_refused(name: str) -> None:
    if name == "MultiDeviceKernel" and not torch.cuda.is_available():
        pytest.skip("GPyTorch makes it for GPUs alone")
    kernel = BY_NAME[name].make(3)
    with pytest.raises(TypeError, match=f"must have one value for every two points.*{name}"):
        PathwiseGP(uniform(9, 3), uniform(9, 1), covar_module=kernel.double())


def test_kernels_of_one_input_are_refused_for_several() -> None:
    for kernel in (gk.CosineKernel(), RBFKernel() + gk.IndexKernel(2)):
        with pytest.raises(ValueError, match="must look at one input where it is .*Kernel, got 3"):
            PathwiseGP(uniform(9, 3), uniform(9, 1), covar_module=kernel.double())


def rows() -> Iterator[str]:
    yield "| kernel | exact posterior | paths, and posteriors by iterative solvers |"
    yield "|---|---|---|"
    for name, entry in sorted(BY_NAME.items()):
        if entry.refused:
            yield f"| `{name}` | refused: {entry.refused} | no |"
        elif entry.without_paths:
            yield f"| `{name}` | yes | refused: {entry.without_paths} |"
        else:
            yield f"| `{name}` | yes | yes |"


def test_the_page_has_the_table() -> None:
    assert "\n".join(rows()) in PAGE.read_text(encoding="utf-8")
