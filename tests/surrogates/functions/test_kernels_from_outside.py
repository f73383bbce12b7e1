"""A kernel that this project does not know has all that others have, from one call."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import (
    ConstantKernel,
    Kernel,
    LinearKernel,
    PolynomialKernel,
    RBFKernel,
    RFFKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from torch import Tensor

from surrogates import CG, Cholesky, PathwiseGP, RandomFeatures, register_kernel
from surrogates.functions.spectra import NoFeaturesError
from surrogates.operators.forms import FORMS

F64 = {"dtype": torch.float64}
NUM_FEATURES = 40_000
X = torch.rand(40, 2, generator=torch.Generator().manual_seed(0), **F64)
Y = torch.sin(6.0 * X[:, :1]) + X[:, 1:]


class Sinc(Kernel):
    """k(x, z) = Π sinc(width (x − z) / π), of all frequencies up to a width."""

    is_stationary = True

    def __init__(self, power: int = 1, **options: object) -> None:
        super().__init__(**options)
        self.power = power
        self.register_parameter("raw_width", torch.nn.Parameter(torch.zeros(*self.batch_shape, 1)))
        self.register_constraint("raw_width", Positive())

    @property
    def width(self) -> Tensor:
        return self.raw_width_constraint.transform(self.raw_width)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object) -> Tensor:
        gaps = x1 - x2 if diag else x1.unsqueeze(-2) - x2.unsqueeze(-3)
        return torch.sinc(self.width * gaps / math.pi).prod(-1) ** self.power


def spectrum(
    kernel: Sinc, dim: int, count: int, generator: torch.Generator
) -> tuple[Tensor, float]:
    uniform = torch.rand(kernel.power, dim, count, generator=generator, **F64)
    return kernel.width * (2.0 * uniform - 1.0).sum(0), 1.0


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register_kernel(Sinc, spectrum=spectrum, settings=("power",))
    yield
    del FORMS[Sinc]


def mixture(*columns: int) -> Kernel:
    options = {"active_dims": columns} if columns else {}
    d = len(columns) or 2
    kernel = SpectralMixtureKernel(num_mixtures=3, ard_num_dims=d, **options).double()
    generator = torch.Generator().manual_seed(1)
    kernel.mixture_means = torch.rand(3, 1, d, generator=generator, **F64)
    kernel.mixture_scales = 0.3 * torch.rand(3, 1, d, generator=generator, **F64)
    kernel.mixture_weights = torch.tensor([0.2, 0.5, 0.4], **F64)
    return kernel


def wide(power: int = 1) -> Sinc:
    kernel = Sinc(power).double()
    kernel.raw_width.data.fill_(4.0)
    return kernel


KERNELS = {
    "alone": wide,
    "with a setting": lambda: wide(2),
    "scaled": lambda: ScaleKernel(wide()).double(),
    "in a sum": lambda: wide() + RBFKernel().double(),
    "in a product": lambda: wide() * RBFKernel().double(),
    "mixture": mixture,
    "with a constant": lambda: RBFKernel().double() + ScaleKernel(ConstantKernel()).double(),
    "times a constant": lambda: ConstantKernel().double() * RBFKernel().double(),
    "polynomial": lambda: PolynomialKernel(2).double(),
    "Fourier": lambda: ScaleKernel(RFFKernel(64, 2)).double(),
    "mixture of a column": lambda: mixture(1) * RBFKernel(active_dims=(0,)).double(),
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_features_have_the_covariance(kernel: str) -> None:
    made = KERNELS[kernel]()
    exact = made(X).to_dense().detach()
    # Five standard errors of a mean over NUM_FEATURES / 2 waves
    bound = 5.0 * exact.max() * (2.0 / NUM_FEATURES) ** 0.5
    for weighted in (False, True):
        features = RandomFeatures.draw(
            made, 2, NUM_FEATURES, weighted=weighted, generator=torch.Generator().manual_seed(0)
        )(X)
        assert (features @ features.T - exact).abs().max() < bound


@pytest.mark.parametrize("kernel", ["with a setting", "in a product"])
def test_paths_are_of_the_posterior(kernel: str) -> None:
    made = KERNELS[kernel]()
    exact = PathwiseGP(X, Y, covar_module=made, solver=Cholesky())
    model = PathwiseGP(X, Y, covar_module=made, solver=CG(), num_features=8192)
    points = torch.rand(20, 2, generator=torch.Generator().manual_seed(2), **F64)
    with torch.no_grad():
        expected = exact.posterior(points)
        deviation = expected.variance[:, 0].sqrt()
        drawn = model.paths(1000)(points)
        noise = exact.noise.sqrt() * exact.outcome_transform.stdvs.squeeze()
    assert ((drawn.mean(0) - expected.mean[:, 0]).abs() < 0.2 * deviation + 1e-3 * noise).all()
    assert ((drawn.std(0) / deviation - 1.0).abs() < 0.15).all()


@pytest.mark.parametrize("kernel", [*sorted(KERNELS.keys() - {"Fourier"}), "linear"])
def test_models_are_stored(kernel: str, tmp_path: Path) -> None:
    made = (KERNELS | {"linear": lambda: LinearKernel(ard_num_dims=2).double()})[kernel]()
    model = PathwiseGP(X, Y, covar_module=made)
    model.save(tmp_path / "model.safetensors")
    again = PathwiseGP.load(tmp_path / "model.safetensors")
    with torch.no_grad():
        assert torch.equal(again.posterior(X).mean, model.posterior(X).mean)
        assert torch.equal(again.posterior(X).variance, model.posterior(X).variance)


def test_what_was_not_told_of_is_refused_by_name(tmp_path: Path) -> None:
    register_kernel(Sinc)
    model = PathwiseGP(X, Y, covar_module=wide())
    with pytest.raises(NoFeaturesError, match="got Sinc.*register_kernel"):
        model.paths(2)
    with pytest.raises(TypeError, match=r"got Sinc"):
        model.save(tmp_path / "model.safetensors")
    with pytest.raises(TypeError, match="`kind` must be a class of GPyTorch kernels, got 'Sinc'"):
        register_kernel("Sinc")  # type: ignore[arg-type]


def test_frequencies_of_another_shape_are_refused() -> None:
    register_kernel(Sinc, spectrum=lambda kernel, d, count, _: (torch.rand(count, d, **F64), 1.0))
    with pytest.raises(
        ValueError, match=r"`spectrum` must return frequencies \(2, 4\), got \(4, 2\)"
    ):
        RandomFeatures.draw(wide(), 2, 8, generator=torch.Generator().manual_seed(0))
