"""Problems whose posteriors are known exactly, by a Cholesky factorisation in float64."""

from dataclasses import dataclass
from functools import cached_property

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates import KernelSystem, kernel_operator
from surrogates.systems.system import Targets
from tests.problems import matern, rbf

N = 600
NUM_NEW = 200
NUM_PATHS = 64


@dataclass
class Problem:
    """Data whose posterior is known exactly.

    Attributes:
        share: of the data in clusters of width 0.03.
        uneven: whether each row has a noise of its own, of a hundredfold range.
    """

    dim: int
    kernel: Kernel
    noise: float
    share: float = 0.0
    uneven: bool = False
    num_paths: int = NUM_PATHS

    def system(self, dtype: torch.dtype = torch.float64) -> KernelSystem:
        operator = kernel_operator(self.kernel.to(dtype), self.points[:N].to(dtype))
        return KernelSystem(operator, self.variances.to(dtype))

    @cached_property
    def points(self) -> Tensor:
        """The data, places anywhere, and places beside the clusters, or else beside the data."""
        generator = torch.Generator().manual_seed(1)
        X = torch.rand(N, self.dim, generator=generator, dtype=torch.float64)
        num = int(self.share * N)
        if num:
            centres = torch.rand(5, self.dim, generator=generator, dtype=torch.float64)
            own = centres[torch.randint(5, (num,), generator=generator)]
            X[:num] = own + 0.03 * torch.randn(num, self.dim, generator=generator).double()
        anywhere = torch.rand(NUM_NEW, self.dim, generator=generator, dtype=torch.float64)
        beside = X[torch.randint(num or N, (NUM_NEW,), generator=generator)]
        beside = beside + 0.03 * torch.randn(NUM_NEW, self.dim, generator=generator).double()
        return torch.cat([X, anywhere, beside])

    @cached_property
    def variances(self) -> Tensor:
        if not self.uneven:
            return torch.tensor(self.noise, dtype=torch.float64)
        generator = torch.Generator().manual_seed(2)
        return self.noise * 10.0 ** (2.0 * torch.rand(N, generator=generator).double() - 1.0)

    @cached_property
    def targets(self) -> Targets:
        generator = torch.Generator().manual_seed(3)
        K = self.kernel.double()(self.points).to_dense().detach()
        root = torch.linalg.cholesky(K + 1e-9 * torch.eye(len(K), dtype=torch.float64))
        normal = torch.randn(len(K), 1 + self.num_paths, generator=generator, dtype=torch.float64)
        noise = torch.randn(N, 1 + self.num_paths, generator=generator, dtype=torch.float64)
        noise = self.variances.expand(N).sqrt().unsqueeze(1) * noise
        values = (root @ normal)[:N]
        values[:, 0] += noise[:, 0]
        noise[:, 0] = 0.0
        return Targets(values, noise)

    def errors(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """Return the true error of each column of W in posterior standard deviations, anywhere and
        beside clusters.
        """
        cross, exact, variance = self._exact
        squares = (cross @ (W.double() - exact)).square() / variance.unsqueeze(1)
        return squares[:NUM_NEW].mean(0).sqrt(), squares[NUM_NEW:].mean(0).sqrt()

    @cached_property
    def _exact(self) -> tuple[Tensor, Tensor, Tensor]:
        X, new = self.points[:N], self.points[N:]
        kernel = self.kernel.double()
        H = kernel(X).to_dense().detach() + torch.diag(self.variances.expand(N))
        root = torch.linalg.cholesky(H)
        cross = kernel(new, X).to_dense().detach()
        exact = torch.cholesky_solve(self.targets.values + self.targets.noise_draw, root)
        explained = torch.linalg.solve_triangular(root, cross.T, upper=False).square().sum(0)
        return cross, exact, kernel(new, diag=True).detach() - explained


PROBLEMS = {
    "smooth": Problem(2, matern(1.5, 2.0), 1e-4),
    "noisy": Problem(3, matern(2.5, 1.0), 1e-1),
    "rough": Problem(1, matern(0.5, 0.3), 1e-3),
    "gaussian": Problem(2, rbf(0.4), 1e-3),
    "sparse": Problem(8, matern(1.5, 0.5), 1e-6),
    "clusters": Problem(6, matern(1.5, 0.5), 1e-6, share=0.3),
    "smooth-clusters": Problem(2, matern(1.5, 0.5), 1e-4, share=0.3),
    "uneven": Problem(4, matern(2.5, 1.0), 1e-3, share=0.3, uneven=True),
    "few-paths": Problem(2, matern(1.5, 0.8), 1e-3, num_paths=4),
}


def root_mean_square(values: Tensor) -> float:
    return values.double().square().mean().sqrt().item()
