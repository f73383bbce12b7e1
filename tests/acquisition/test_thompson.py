"""A Thompson batch: inside the box, repeatable, without duplicates,
and each point high on its own path.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.models.transforms.input import Normalize
from botorch.models.transforms.outcome import Standardize
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from acquisition import AcquisitionProgress, ParallelThompsonSampling
from acquisition.candidates import default_proposal_std, original_inputs
from acquisition.selection import best_first, distinct_best
from surrogates import PathwiseGP, SamplePaths
from tests import problems
from tests.forked import run_fresh
from tests.pairs import each_pair
from tests.refusals import assert_refused

SMALL = {
    "num_candidates": 200,
    "num_rounds": 4,
    "num_starts": 4,
    "num_steps": 10,
    "learning_rate": 0.01,
}
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
WIDE = torch.tensor([[-5.0, 100.0], [10.0, 100.5]], dtype=torch.float64)


def in_box(X: Tensor, bounds: Tensor) -> bool:
    return torch.equal(X, X.clamp(bounds[0], bounds[1]))


BOXES = {"wide": WIDE, "rounded32": torch.tensor([[-1.1, 0.1], [0.2, 0.7]])}


@each_pair(box=BOXES, normalize=[False, True], standardize=[False, True], maximize=[False, True])
def test_a_batch_improves_on_its_candidates_inside_the_box(
    make_model: Any, box: str, normalize: bool, standardize: bool, maximize: bool
) -> None:
    bounds = BOXES[box]
    transform = {"input_transform": Normalize(2, bounds=bounds)} if normalize else {}
    outcome_transform = Standardize(m=1) if standardize else None
    model = make_model(bounds, outcome_transform=outcome_transform, **transform)
    paths = model.paths(6)
    sign = 1.0 if maximize else -1.0

    screened = ParallelThompsonSampling(
        model, bounds, **SMALL | {"num_steps": 0}, maximize=maximize
    ).generate(6, paths=paths)
    batch = ParallelThompsonSampling(model, bounds, **SMALL, maximize=maximize).generate(
        6, paths=paths
    )

    assert batch.shape == (6, 2)
    assert batch.dtype == bounds.dtype
    assert in_box(batch, bounds)
    assert in_box(screened, bounds)
    gain = sign * (paths.each(batch.unsqueeze(1)) - paths.each(screened.unsqueeze(1)))
    assert (gain > -1e-3).all()  # outcomes have a standard deviation of 5
    assert gain.mean() > 1e-3
    uniform = torch.lerp(*bounds, problems.uniform(2000, 2, seed=5, dtype=bounds.dtype))
    assert (
        sign * paths.each(batch.unsqueeze(1)).squeeze(1)
        > (sign * paths(uniform)).quantile(0.98, dim=1)
    ).all()


def test_without_a_seed_the_models_is_taken(make_model) -> None:
    batch = ParallelThompsonSampling(make_model(UNIT, seed=7), UNIT, **SMALL).generate(3)
    assert torch.equal(
        batch, ParallelThompsonSampling(make_model(UNIT, seed=8), UNIT, **SMALL, seed=7).generate(3)
    )


@pytest.mark.parametrize("normalize", [False, True], ids=["", "normalize"])
@pytest.mark.parametrize(("maximize", "better"), [(True, 1), (False, 0)])
def test_candidates_gather_around_the_better_point(
    normalize: bool, maximize: bool, better: int
) -> None:
    X = torch.tensor([[12.0], [17.0]], dtype=torch.float64)
    bounds = torch.tensor([[10.0], [20.0]], dtype=torch.float64)
    transform = Normalize(1, bounds=bounds) if normalize else None
    Y = torch.tensor([[-3.0], [-1.0]], dtype=torch.float64)
    model = PathwiseGP(X, Y, covar_module=RBFKernel().double(), input_transform=transform)
    settings = {"num_candidates": 20, "num_rounds": 3, "num_starts": 3, "num_steps": 0}
    batch = ParallelThompsonSampling(
        model, bounds, **settings, uniform_fraction=0.0, proposal_std=0.01, maximize=maximize
    ).generate(8)
    assert ((batch - X[better]).abs() < 0.1).all()


@pytest.mark.parametrize("maximize", [True, False])
def test_the_starts_are_the_best_of_the_rounds(maximize: bool, model: PathwiseGP) -> None:
    for seed in range(3):
        settings = SMALL | {"num_steps": 0, "maximize": maximize, "seed": seed}
        one, all_four = (
            ParallelThompsonSampling(model, UNIT, **settings | {"num_starts": k}).generate(1)
            for k in (1, 4)
        )
        assert torch.equal(one, all_four)


def identical(paths: SamplePaths) -> SamplePaths:
    """Return as many copies of the first path."""
    ((features, weights),) = paths.prior.draws
    prior = replace(paths.prior, draws=((features, weights[:, :1].expand_as(weights).clone()),))
    return replace(
        paths, prior=prior, weights=paths.weights[:, :1].expand_as(paths.weights).clone()
    )


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_a_batch_is_the_same_where_gradients_are_switched_off(make_model, off) -> None:
    expected = ParallelThompsonSampling(make_model(UNIT), UNIT, **SMALL).generate(3)
    model = make_model(UNIT)
    with off():
        batch = ParallelThompsonSampling(model, UNIT, **SMALL).generate(3)
    assert torch.equal(batch, expected)
    assert not batch.requires_grad
    assert not batch.is_inference()


def test_maximisers_repeat_where_asked(model: PathwiseGP) -> None:
    sampler = ParallelThompsonSampling(model, UNIT, **SMALL | {"num_steps": 0}, repeats=True)
    paths = identical(model.paths(4))
    batch = sampler.generate(4, paths=paths)
    assert torch.equal(batch, batch[:1].expand(4, -1))
    assert torch.equal(sampler.generate(4, paths=paths, X_pending=batch[:1]), batch)
    choices = torch.cat([original_inputs(model), batch[:1]])
    best = choices[paths(choices)[0].argmax()]
    chosen = sampler.generate(4, paths=paths, choices=choices)
    assert torch.equal(chosen, best.expand(4, -1))
    assert torch.equal(sampler.generate(4, paths=paths, choices=batch[:1]), batch)


@given(data=st.data(), num_functions=st.integers(1, 4), num_sites=st.integers(4, 6))
def test_a_taken_point_is_passed_over_for_the_next_best(
    data: st.DataObject, num_functions: int, num_sites: int
) -> None:
    # Every function ranks the same sites in an order of its own; the batch takes them greedily.
    bounds = torch.tensor([[-10.0], [1000.0]], dtype=torch.float64)
    sites = torch.arange(num_sites, dtype=torch.float64)
    orders = [data.draw(st.permutations(range(num_sites))) for _ in range(num_functions)]
    values = torch.empty(num_functions, num_sites, dtype=torch.float64)
    expected: list[int] = []
    for i, order in enumerate(orders):
        values[i, list(order)] = torch.arange(num_sites, 0, -1, dtype=torch.float64)
        expected.append(next(site for site in order if site not in expected))
    points = sites.expand(num_functions, num_sites).unsqueeze(-1)
    chosen, found = distinct_best(best_first(points, values), bounds)
    assert found.all()
    assert chosen.squeeze(-1).tolist() == expected


@pytest.mark.parametrize(("width", "same"), [(1.0, False), (100.0, True)])
def test_nearness_is_measured_in_sides_of_the_box(width: float, same: bool) -> None:
    bounds = torch.tensor([[0.0], [width]], dtype=torch.float64)
    points = torch.tensor([[[0.5], [0.9]], [[0.5 + 2e-5], [0.1]]], dtype=torch.float64)
    chosen, _ = distinct_best(points, bounds)
    assert chosen[1].item() == (0.1 if same else 0.5 + 2e-5)


def lengthscaled(kernel, lengthscale):
    kernel.lengthscale = torch.tensor(lengthscale)
    return kernel.double()


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (lengthscaled(RBFKernel(), 0.4), [0.2, 0.2]),
        (ScaleKernel(lengthscaled(MaternKernel(ard_num_dims=2), [0.4, 6.0])).double(), [0.2, 3.0]),
        (lengthscaled(RBFKernel(active_dims=[1]), 0.4), [0.1, 0.1]),
        (LinearKernel().double(), [0.1, 0.1]),
        (ScaleKernel(LinearKernel()).double(), [0.1, 0.1]),
        (
            ScaleKernel(lengthscaled(RBFKernel(ard_num_dims=1), [0.4]), active_dims=[1]).double(),
            [0.1, 0.1],
        ),
    ],
    ids=["isotropic", "ard", "active dims", "no lengthscale", "scaled", "scaled active dims"],
)
def test_candidates_spread_by_half_a_lengthscale_or_a_tenth_of_the_box(
    make_model, kernel, expected: list[float]
) -> None:
    model = make_model(UNIT, kernel=kernel)
    std = default_proposal_std(model, UNIT[1] - UNIT[0])
    torch.testing.assert_close(std, torch.tensor(expected, dtype=torch.float64))


def test_with_an_input_transform_candidates_spread_by_a_tenth_of_the_box(make_model) -> None:
    model = make_model(WIDE, input_transform=Normalize(2, bounds=WIDE))
    torch.testing.assert_close(
        default_proposal_std(model, WIDE[1] - WIDE[0]),
        torch.tensor([1.5, 0.05], dtype=torch.float64),
    )


def test_a_given_spread_may_differ_by_dimension(model: PathwiseGP) -> None:
    assert ParallelThompsonSampling(model, UNIT, proposal_std=0.3).proposal_std.tolist() == [
        0.3,
        0.3,
    ]
    assert ParallelThompsonSampling(
        model, UNIT, proposal_std=torch.tensor([0.3, 0.2])
    ).proposal_std.tolist() == pytest.approx([0.3, 0.2])


def test_progress_counts_every_round_and_step(make_model) -> None:
    reports: list[AcquisitionProgress] = []
    ParallelThompsonSampling(make_model(UNIT), UNIT, **SMALL, callback=reports.append).generate(2)
    assert reports == [AcquisitionProgress("screening", i, 4) for i in range(1, 5)] + [
        AcquisitionProgress("ascent", i, 10) for i in range(1, 11)
    ]


def test_bad_settings_are_refused_at_once(make_model) -> None:
    def sampler(**change: Any) -> ParallelThompsonSampling:
        return ParallelThompsonSampling(make_model(UNIT), **{"bounds": UNIT} | SMALL | change)

    assert_refused(
        TypeError,
        sampler,
        bounds=[[[0, 0], [1, 1]], UNIT.float()],
        num_rounds=[2.0],
        num_steps=[1.5],
        uniform_fraction=[None],
        proposal_std=["wide"],
        seed=["a"],
    )
    assert_refused(
        ValueError,
        sampler,
        bounds=[UNIT.flip(0), torch.ones_like(UNIT), UNIT * math.nan, UNIT[:, :1], UNIT[0]],
        num_candidates=[0],
        num_starts=[0, 5],
        num_steps=[-1],
        seed=[-1],
        uniform_fraction=[1.1],
        learning_rate=[0.0],
        proposal_std=[-0.1, torch.ones(3)],
    )


@pytest.mark.parametrize(
    ("q", "error"), [(0, ValueError), (-3, ValueError), (2.5, TypeError), (True, TypeError)]
)
def test_a_batch_needs_points(make_model, q, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"`q` must be .*got .*{q}"):
        ParallelThompsonSampling(make_model(UNIT), UNIT, **SMALL).generate(q)


A_THOUSAND_POINTS = """
import resource
import torch
from gpytorch.kernels import MaternKernel
from acquisition import ParallelThompsonSampling
from surrogates import CG, PathwiseGP, gaussian_likelihood

X = torch.rand(50_000, 8, generator=torch.Generator().manual_seed(0))
kernel = MaternKernel(nu=1.5)
kernel.lengthscale = 0.5
model = PathwiseGP(
    X, torch.sin(3.0 * X).sum(1, keepdim=True),
    likelihood=gaussian_likelihood(1e-3), covar_module=kernel, solver=CG(max_epochs=2.5),
)
sampler = ParallelThompsonSampling(
    model, torch.tensor([[0.0], [1.0]]).expand(2, 8),
    num_candidates=2000, num_rounds=2, num_starts=2, num_steps=2,
)
batch = sampler.generate(1000)
assert batch.shape == (1000, 8) and torch.pdist(batch).min() > 1e-6
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow  # two products of a 50 000 × 50 000 kernel matrix with 1001 columns
def test_a_thousand_paths_of_fifty_thousand_points_fit_in_memory(tmp_path: Path) -> None:
    run = run_fresh(A_THOUSAND_POINTS, tmp_path)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 4 * 2**30
