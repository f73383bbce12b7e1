"""Preconditioners: the inverse applied is that of the matrix they state."""

import pytest
import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from surrogates import KernelSystem, Nystrom, PivotedCholesky
from surrogates.systems import preconditioners
from tests import problems

N = 60
RANK = 12
NOISE = [0.05, problems.vector_noise(N)]
LOW_RANK = [Nystrom, PivotedCholesky]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def nystrom_part(system: KernelSystem) -> Tensor:
    K = system.kernel.to_dense()
    C = torch.randperm(N, generator=generator())[:RANK]
    return K[:, C] @ torch.linalg.solve(K[C][:, C], K[C])


def pivoted_part(system: KernelSystem) -> Tensor:
    """The Nyström approximation on greedily chosen pivots, by repeated Schur complements."""
    K = system.kernel.to_dense()
    remainder = K.clone()
    for _ in range(RANK):
        p = remainder.diagonal().argmax()
        remainder = remainder - torch.outer(remainder[:, p], remainder[p]) / remainder[p, p]
    return K - remainder


@pytest.mark.parametrize("noise", NOISE, ids=["scalar", "vector"])
@pytest.mark.parametrize(
    ("make", "low_rank"),
    [(Nystrom, nystrom_part), (PivotedCholesky, pivoted_part)],
    ids=["nystrom", "pivoted"],
)
def test_the_inverse_is_that_of_the_stated_matrix(
    make: type, low_rank: object, noise: float | Tensor
) -> None:
    system = problems.system(N, noise)
    part = low_rank(system)  # type: ignore[operator]
    missed = (system.kernel.diagonal() - part.diagonal()).mean()
    P = part + (system.noise + missed).expand(N).diag()
    R = problems.normal(N, 4)
    torch.testing.assert_close(
        make(RANK)(system, generator())(R), torch.linalg.solve(P, R), rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize("noise", NOISE, ids=["scalar", "vector"])
@pytest.mark.parametrize("make", LOW_RANK)
def test_at_full_rank_it_is_the_inverse(make: type, noise: float | Tensor) -> None:
    system = problems.system(N, noise)
    H = system.to_dense()
    torch.testing.assert_close(
        make(N)(system, generator())(H), torch.eye(N, dtype=H.dtype), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("make", LOW_RANK)
def test_duplicate_points_and_float32_stay_finite(make: type) -> None:
    X = problems.uniform(20, 2, dtype=torch.float32).repeat(3, 1)
    R = problems.normal(N, 2, dtype=torch.float32)
    apply = make(50)(problems.system(X=X, noise=1e-4), generator())
    assert apply(R).isfinite().all()
    assert ((R * apply(R)).sum(0) > 0).all()


@pytest.mark.parametrize("make", LOW_RANK)
def test_a_rank_above_n_is_n_and_one_that_is_no_number_is_refused(make: type) -> None:
    system, R = problems.system(N), problems.normal(N, 2)
    larger, all_of_them = (make(rank)(system, generator())(R) for rank in (2 * N, N))
    assert torch.equal(larger, all_of_them)
    for bad, error in ((0, ValueError), (2.0, TypeError), (True, TypeError)):
        with pytest.raises(error, match="`rank` must be"):
            make(bad)


def test_the_default_rank_is_a_fifth_of_n_within_its_limits() -> None:
    for make in LOW_RANK:
        for n, rank in ((20, 20), (800, 500), (4000, 800), (20_000, 2000)):
            assert make().rank_for(n) == rank
        system = problems.system(600)
        make()(system, generator())
        assert system.entries == 500 * 600


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=["float64", "float32"]
)
def test_the_approximation_of_a_smooth_kernel_has_orthonormal_vectors(
    dtype: torch.dtype, error: float
) -> None:
    kernel = RBFKernel()
    kernel.lengthscale = 2.0
    with torch.no_grad():
        matrix = kernel(problems.uniform(300, 2)).to_dense().to(dtype)
    test = torch.linalg.qr(problems.normal(300, 100)).Q.to(dtype)
    U, _ = preconditioners.nystrom_approximation(matrix @ test, test)
    torch.testing.assert_close(U.T @ U, torch.eye(100, dtype=dtype), rtol=0, atol=error)
