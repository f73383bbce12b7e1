"""Thompson sampling behind BoTorch's interfaces: an acquisition function,
and a strategy that chooses among candidates.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from botorch.acquisition import thompson_sampling
from botorch.acquisition.objective import LinearMCObjective, ScalarizedPosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.generation import MaxPosteriorSampling
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.optim import optimize_acqf
from torch import Tensor

from acquisition import PathwiseMaxPosteriorSampling, PathwiseThompsonSampling
from surrogates import CG, PathwiseGP
from tests import problems
from tests.scalable_bo.peaks import apart, of_acquisition

pytestmark = pytest.mark.usefixtures("botorch_seed")

UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
X = problems.uniform(40, 2)
Y = 20.0 + 5.0 * torch.sin(6.0 * X).sum(1, keepdim=True)
SETTINGS: dict[str, Any] = {"num_features": 256, "solver": CG(tolerance=1e-6, preconditioner=None)}


def model(Y: Tensor = Y, **settings: Any) -> PathwiseGP:
    return PathwiseGP(X, Y, **{**SETTINGS, "input_transform": Normalize(2), **settings})


def test_point_i_is_on_path_i_and_values_are_added() -> None:
    acquisition = PathwiseThompsonSampling(model(), seed=3)
    assert isinstance(acquisition, thompson_sampling.PathwiseThompsonSampling)
    points = problems.uniform(5, 3, 2).requires_grad_()
    paths = model().paths(3, generator=problems.seeded(3))
    values = acquisition(points)
    expected = paths.each(points.transpose(0, 1)).sum(0)
    torch.testing.assert_close(values, expected)
    torch.testing.assert_close(
        *(torch.autograd.grad(each.sum(), points) for each in (values, expected))
    )
    assert torch.equal(acquisition(points), values)
    torch.testing.assert_close(acquisition(points[0]), values[:1])


def test_a_seed_gives_the_same_function_and_redrawing_another() -> None:
    points = problems.uniform(5, 3, 2)
    state = torch.get_rng_state()
    first, again, own = (
        PathwiseThompsonSampling(model(seed=7), seed=seed) for seed in (1, 1, None)
    )
    value = first(points)
    assert torch.equal(value, again(points))
    assert torch.equal(own(points), PathwiseThompsonSampling(model(), seed=7)(points))
    first.redraw()
    assert not torch.equal(first(points), value)
    first.redraw(batch_size=2)
    assert first(points[:, :2]).shape == (5,)
    assert torch.equal(deepcopy(first)(points[:, :2]), first(points[:, :2]))
    assert torch.equal(torch.get_rng_state(), state)


def test_another_number_of_points_than_of_paths_is_refused() -> None:
    acquisition = PathwiseThompsonSampling(model())
    acquisition(problems.uniform(5, 3, 2))
    with pytest.raises(
        ValueError,
        match=r"`X` must hold q = 3 points, one a path, got 2. Call `redraw\(batch_size\)` first.",
    ):
        acquisition(problems.uniform(5, 2, 2))
    with pytest.raises(ValueError, match="`batch_size` must be at least 1, got 0"):
        acquisition.redraw(0)


def test_the_optimum_is_a_maximiser_of_every_path() -> None:
    acquisition = PathwiseThompsonSampling(model())
    grid = problems.uniform(2000, 2)
    batch, _ = optimize_acqf(acquisition, UNIT, q=3, num_restarts=8, raw_samples=64)
    reached = acquisition.paths.each(batch.unsqueeze(1)).squeeze(1)
    assert (reached > acquisition.paths(grid).quantile(0.9, dim=1)).all()


def test_points_chosen_one_after_the_other_maximise_paths_of_their_own() -> None:
    acquisition = PathwiseThompsonSampling(model(num_paths=8))
    batch, _ = optimize_acqf(
        acquisition, UNIT, q=3, num_restarts=4, raw_samples=64, sequential=True
    )
    for i, point in enumerate(batch):
        path = model().paths(1, generator=problems.seeded(i))
        assert path(point.unsqueeze(0)) > path(problems.uniform(2000, 2)).quantile(0.9)
    assert torch.pdist(batch).min() > 1e-4


OUTPUTS: dict[str, Callable[[], PathwiseGP | ModelListGP]] = {
    "outputs": lambda: model(torch.cat([Y, -Y + X[:, :1]], dim=1)),
    "models": lambda: ModelListGP(model(), model(-Y + X[:, :1])),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_several_outputs_are_scalarised(kind: str) -> None:
    weights = torch.tensor([1.0, 0.5]).double()
    points = problems.uniform(4, 3, 2)
    with pytest.raises(UnsupportedError, match="objective"):
        PathwiseThompsonSampling(OUTPUTS[kind]())
    by_objective = PathwiseThompsonSampling(OUTPUTS[kind](), objective=LinearMCObjective(weights))
    by_transform = PathwiseThompsonSampling(
        OUTPUTS[kind](), posterior_transform=ScalarizedPosteriorTransform(weights)
    )
    torch.testing.assert_close(by_objective(points), by_transform(points))
    draws = problems.seeded()
    models = [OUTPUTS[kind]()] if kind == "outputs" else list(OUTPUTS[kind]().models)
    values = [each.paths(3, generator=draws).each(points.transpose(0, 1)) for each in models]
    values = values[0] if kind == "outputs" else torch.stack(values, dim=-1)
    torch.testing.assert_close(by_objective(points), (values @ weights).sum(0))


@pytest.mark.parametrize("face", [PathwiseThompsonSampling, PathwiseMaxPosteriorSampling])
def test_other_models_are_refused(face: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="`model` must be a PathwiseGP, got SingleTaskGP"):
        face(SingleTaskGP(X, Y))
    with pytest.raises(
        ValueError, match=r"`model` must hold one data set, got a batch of shape \(2,\)"
    ):
        face(PathwiseGP(X.expand(2, 40, 2), Y.expand(2, 40, 1)))
    with pytest.raises(ValueError, match="`seed` must be at least 0, got -1"):
        face(model(), seed=-1)


@pytest.mark.parametrize("replacement", [True, False])
def test_candidates_are_chosen_by_the_paths(replacement: bool) -> None:
    candidates = problems.uniform(2, 30, 2, seed=5)
    sampling = PathwiseMaxPosteriorSampling(model(), replacement=replacement, seed=4)
    assert isinstance(sampling, MaxPosteriorSampling)
    chosen = sampling(candidates, num_samples=20)
    values = model().paths(20, generator=problems.seeded(4))(candidates)  # (20, 2, 30)
    for b in range(2):
        taken: list[int] = []
        for i in range(20):
            value = values[i, b].clone()
            value[[] if replacement else taken] = -torch.inf
            taken.append(int(value.argmax()))
        assert torch.equal(chosen[b], candidates[b, taken])
    assert chosen.requires_grad is False
    # Other paths at every call
    assert not torch.equal(sampling(candidates, num_samples=20), chosen)


def test_the_strategy_takes_an_objective() -> None:
    candidates = problems.uniform(30, 2, seed=5)
    lowest = PathwiseMaxPosteriorSampling(
        model(), objective=LinearMCObjective(torch.tensor([-1.0]).double())
    )(candidates, num_samples=4)
    values = model().paths(4)(candidates)
    assert torch.equal(lowest, candidates[values.argmin(1)])


def test_bad_requests_to_the_strategy_are_named() -> None:
    sampling = PathwiseMaxPosteriorSampling(model(), replacement=False)
    with pytest.raises(
        ValueError,
        match="`num_samples` must be at most the 5 candidates without replacement, got 6",
    ):
        sampling(problems.uniform(5, 2), num_samples=6)
    with pytest.raises(ValueError, match="`observation_noise` must be False, got True"):
        sampling(problems.uniform(5, 2), observation_noise=True)


# Copies of the data for every path and start, as in BoTorch's own paths, would take 13 MB × 4 and
# 2.6 GB × 4 for one array alone.
@pytest.mark.parametrize(
    ("n", "q", "d", "limit"),
    [(2000, 40, 5, 2**27), pytest.param(20_000, 200, 20, 2**30, marks=pytest.mark.slow)],
    ids=["small", "large"],
)
def test_drawing_forward_and_backward_are_bounded_in_memory(
    n: int, q: int, d: int, limit: int
) -> None:
    assert apart(of_acquisition, n, q, d) < limit
