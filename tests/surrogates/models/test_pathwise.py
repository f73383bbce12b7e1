"""PathwiseGP against BoTorch's exact SingleTaskGP, and as a BoTorch model."""

import math
import warnings
from copy import deepcopy
from typing import Any

import pytest
import torch
from botorch.acquisition.cached_cholesky import supports_cache_root
from botorch.exceptions.errors import InputDataError
from botorch.models import MixedSingleTaskGP, SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.kernels import (
    GridInterpolationKernel,
    RBFKernel,
)
from torch import Tensor

from surrogates import (
    CG,
    Cholesky,
    Nystrom,
    PathwiseGP,
    PriorPaths,
    SketchAndProject,
    Solver,
    UnsolvedWarning,
    gaussian_likelihood,
)
from surrogates.rules.solved import AllData
from tests import problems
from tests.refusals import assert_refused
from tests.surrogates.models.toy_model import TIGHT, YVAR, D, N, X, Y, Z, kernel, settings


def pathwise(**changes: Any) -> PathwiseGP:
    return PathwiseGP(
        X, Y, **settings(**{"solver": TIGHT, "num_paths": 64, "num_features": 128, **changes})
    )


def drawn() -> PathwiseGP:
    model = pathwise()
    model.paths(1)
    return model


def means(model: PathwiseGP) -> Tensor:
    with torch.no_grad():
        return model.posterior(Z).mean


def test_keeping_no_matrix_changes_nothing() -> None:
    torch.testing.assert_close(
        means(pathwise(solver=CG(tolerance=1e-8, preconditioner=Nystrom(6)), memory_budget=1)),
        means(pathwise()),
    )


def test_some_paths_of_several_outputs_are_those_of_all() -> None:
    model = PathwiseGP(X, torch.cat([Y, -Y], 1), **settings())
    paths = model.paths(5)
    torch.testing.assert_close(paths.part(slice(1, 4))(Z), paths(Z)[1:4])
    torch.testing.assert_close(paths.part(slice(1, 4)).mean(Z), paths.mean(Z))


def test_an_unchanged_model_is_solved_once(spy: Any) -> None:
    model = pathwise()
    draw = spy(AllData, "draw")
    for _ in range(3):
        model.posterior(Z)
        model.eval()
    assert draw.call_count == 1


def test_a_model_can_opt_out_of_cached_roots() -> None:
    assert not supports_cache_root(pathwise())  # of paths, which have a root
    exact = PathwiseGP(X, Y)
    assert supports_cache_root(exact)
    exact._supports_cache_root = False
    assert not supports_cache_root(exact) and not supports_cache_root(deepcopy(exact))
    exact._supports_cache_root = True
    assert supports_cache_root(exact)


@pytest.mark.parametrize("variance", [1e-4, 1e-6, 1e-10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_small_known_noise_is_kept(variance: float, dtype: torch.dtype) -> None:
    known = PathwiseGP(
        X.to(dtype),
        Y.to(dtype),
        torch.full_like(Y, variance).to(dtype),
        outcome_transform=None,
        covar_module=kernel(),
    )
    torch.testing.assert_close(known.noise, torch.full((N,), variance, dtype=dtype))
    one = PathwiseGP(
        X.to(dtype), Y.to(dtype), likelihood=gaussian_likelihood(variance), covar_module=kernel()
    )
    assert one.noise.item() == pytest.approx(variance, rel=1e-3)
    assert one.noise.dtype == dtype


def test_a_warm_start_needs_fewer_epochs_and_finds_the_same_mean() -> None:
    # where a study goes on: near what it has
    inputs = torch.cat([X, X[:3] + 1e-2])
    targets = torch.cat([Y, Y[:3] + 1e-2])

    def built(n: int) -> PathwiseGP:
        return PathwiseGP(
            inputs[:n],
            targets[:n],
            **settings(solver=CG(tolerance=1e-3, preconditioner=None), num_paths=1),
        )

    previous = built(N)
    previous.paths(1)
    cold = built(N + 3)
    warm = built(N + 3).warm_start(previous)
    cold.paths(1), warm.paths(1)
    assert warm.solution.steps[0] < cold.solution.steps[0]
    torch.testing.assert_close(means(warm), means(cold), rtol=0, atol=0.05)
    again = built(N + 3).warm_start(warm)
    again.paths(1)
    # The same data: the mean is solved
    assert again.solution is not None and again.solution.steps[0] == 0


@pytest.mark.parametrize("solver", [CG(), SketchAndProject.asap()], ids=["cg", "asap"])
def test_a_warm_start_takes_in_a_new_value_that_is_little_beside_all_data(solver: Solver) -> None:
    n = 400
    inputs = problems.uniform(n + 1, D)
    targets = torch.sin(5 * inputs.sum(1, keepdim=True))
    targets[-1] += 0.1

    def built(rows: int, solver: Solver) -> PathwiseGP:
        return PathwiseGP(
            inputs[:rows],
            targets[:rows],
            **settings(solver=solver, likelihood=gaussian_likelihood(1e-3), outcome_transform=None),
        )

    previous = built(n, solver)
    previous.paths(1)
    warm = built(n + 1, solver).warm_start(previous)
    before, mean, exact = (
        model.paths(1).mean(inputs[-1:]).item()
        for model in (previous, warm, built(n + 1, Cholesky()))
    )
    assert abs(mean - exact) < 0.3 * abs(before - exact)


def test_a_warm_start_leaves_a_better_mean_within_a_small_budget() -> None:
    n = 400
    inputs = problems.uniform(n + 10, 4)
    targets = torch.sin(5 * inputs.sum(1, keepdim=True))

    def built(rows: int, max_epochs: float) -> PathwiseGP:
        solver = CG(preconditioner=None, tolerance=1e-3, max_epochs=max_epochs)
        return PathwiseGP(inputs[:rows], targets[:rows], **settings(solver=solver))

    previous = built(n, 1000)
    previous.paths(4)
    cold = built(n + 10, 6)
    warm = built(n + 10, 6).warm_start(previous)
    for model in (cold, warm):
        with pytest.warns(UnsolvedWarning):
            model.paths(4)
    assert warm.solution.epochs <= cold.solution.epochs
    assert warm.solution.residual[0] < 0.3 * cold.solution.residual[0]


def test_a_warm_start_says_what_it_requires_of_the_rows() -> None:
    model = pathwise()
    one = X[:1] + 1.0
    for other, message in {
        torch.cat([X, X[:1]]): f"at most n = {N} of them, got {N + 1}. Build this model with all",
        torch.cat([X[:5], one]): "got 1 other rows of 6, the first of them row 5. Keep the rows",
        X[:5, :1]: r"of shape \(k, 2\) where several outputs .* got \(5, 1\). Give a model",
    }.items():
        previous = PathwiseGP(other, other[:, :1], **settings())
        with pytest.raises(ValueError, match=message):
            model.warm_start(previous)


@pytest.mark.parametrize(
    ("scale", "error", "message"),
    [
        *((scale, ValueError, "be finite and above 0, got") for scale in (math.nan, 0.0, -3.0)),
        (1.5e308, ValueError, "leave the mean's weights finite, got 1.*Gi"),
        *((scale, TypeError, "be a number, got") for scale in ("2", None, True)),
    ],
)
def test_a_scale_of_units_is_a_number_that_leaves_finite_weights(
    scale: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"`scale` must {message}"):
        pathwise().warm_start(drawn(), scale=scale)


@pytest.mark.parametrize("previous", [None, "last", SingleTaskGP(X, Y)], ids=type)
def test_a_warm_start_from_what_is_no_model_of_paths_is_refused(previous: Any) -> None:
    kind = type(previous).__name__
    with pytest.raises(TypeError, match=f"`previous` must be a PathwiseGP.*got {kind}. Leave"):
        pathwise().warm_start(previous)


def test_a_warm_start_from_a_model_that_has_drawn_no_paths_is_refused() -> None:
    for previous in (pathwise(), drawn().double()):
        with pytest.raises(ValueError, match="`previous` must have .* Call `previous.paths"):
            pathwise().warm_start(previous)


@pytest.mark.parametrize("solver", [TIGHT, Cholesky()], ids=["paths", "exact"])
def test_a_model_that_has_drawn_no_paths_is_conditioned_all_the_same(solver: Solver) -> None:
    after = pathwise(solver=solver).condition_on_observations(Z[0], Z[0, :, :1])
    assert after.mean_start is None and after.paths(1).mean(Z[0]).isfinite().all()


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (torch.full((5, 1), math.nan), ValueError, r"be finite, got nan .* Give the `mean_st"),
        (torch.ones(5, 1, dtype=torch.int64), TypeError, "float32 or float64, got torch.int64. Co"),
        ([[1.0]], TypeError, "be a torch.Tensor, got list. Use"),
        (torch.ones(5), ValueError, rf"with 1 ≤ k ≤ n = {N}, .* got \(5,\). Use"),
        (torch.ones(N + 1, 1), ValueError, rf"with 1 ≤ k ≤ n = {N}, .* got \({N + 1}, 1\). Use"),
        (torch.ones(0, 1), ValueError, rf"with 1 ≤ k ≤ n = {N}, .* got \(0, 1\). Use"),
    ],
    ids=["nan", "integers", "list", "vector", "too_many", "none"],
)
def test_weights_that_no_solve_can_start_from_are_refused(
    weights: Any, error: type[Exception], message: str
) -> None:
    model = pathwise()
    with pytest.raises(error, match=f"`mean_weights` must .*{message}"):
        model.start_from(weights)
    assert model.mean_start is None


def test_a_given_prior_is_conditioned() -> None:
    prior = PriorPaths.draw(kernel().double(), D, 3, num_features=64, generator=problems.seeded(9))
    paths = pathwise().paths(3, prior=prior)
    assert paths.prior is prior
    with pytest.raises(ValueError, match="`prior` must hold 4 functions of 2 inputs, got 3 of 2"):
        pathwise().paths(4, prior=prior)


def test_a_single_output_has_any_number() -> None:
    model = pathwise()
    for number in (0, 1):  # BoTorch's lists of models count the outputs of all
        torch.testing.assert_close(model.posterior(Z, output_indices=[number]).mean, means(model))


def spoiled(data: Tensor, value: float) -> Tensor:
    data = data.clone()
    data[7, 0] = value
    return data


def test_bad_input_is_refused_by_name() -> None:
    def model(**changes: Any) -> PathwiseGP:
        return PathwiseGP(**{"train_X": X, "train_Y": Y, **changes})

    assert_refused(
        TypeError,
        model,
        train_X=[X.numpy(), (10 * X).long()],
        train_Y=[Y.float()],
        train_Yvar=[YVAR.float()],
        solver=["cg", CG],
        covar_module=["rbf"],
        outcome_transform=[Normalize(D)],
    )
    assert_refused(
        ValueError,
        model,
        train_X=[spoiled(X, math.nan), X[:, 0]],
        train_Y=[spoiled(Y, math.inf), Y[:, 0]],
        train_Yvar=[torch.full_like(Y, -0.5), YVAR[:5], spoiled(YVAR, math.nan)],
        covar_module=[problems.matern(1.5, batch_shape=torch.Size([2]))],
        num_paths=[0],
        num_features=[0],
    )
    for changes, message in (
        ({"train_X": X.expand(2, N, D)}, r"the same batch shape, got \(2,\) and \(\)"),
        ({"train_X": X[:0], "train_Y": Y[:0]}, r"with n, d ≥ 1, got \(0, 2\)"),
        ({"train_Y": Y[:-1]}, "the same number of rows, got 60 and 59"),
    ):
        with pytest.raises(ValueError, match=message):
            model(**changes)


@pytest.mark.parametrize("solver", [None, CG()], ids=["exact", "paths"])
def test_points_that_are_no_tensor_are_refused_by_name(solver: Solver | None) -> None:
    model = PathwiseGP(X, Y, solver=solver, num_paths=8)
    for call in (model.posterior, model.paths(2), model.paths(2).mean):
        with pytest.raises(TypeError, match="`X` must be a torch.Tensor, got ndarray"):
            call(X.numpy())


def test_a_preconditioner_is_refused_where_it_is_given() -> None:
    with pytest.raises(TypeError, match="`preconditioner` must be a Preconditioner .* got str"):
        CG("nystrom")  # type: ignore[arg-type]


@pytest.mark.parametrize("noise", [0.0, -1.0, math.nan, math.inf])
def test_a_likelihood_needs_a_positive_noise(noise: float) -> None:
    with pytest.raises(
        ValueError,
        match="`noise` must be finite and above 0, got .* Use a small value such as 1e-6",
    ):
        gaussian_likelihood(noise)


@pytest.mark.parametrize(
    ("num_samples", "error"), [(0, ValueError), (-3, ValueError), (2.0, TypeError)]
)
def test_a_number_of_paths_that_makes_no_sense_is_refused(
    num_samples: int, error: type[Exception]
) -> None:
    with pytest.raises(error, match="`num_samples` must be"):
        pathwise().paths(num_samples)


def test_a_solve_that_does_not_fit_is_refused_before_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("surrogates.memory.available", lambda device: 1000)
    with pytest.raises(
        MemoryError, match="Solving for 64 paths at 60 points needs .* Draw fewer paths at a time."
    ):
        pathwise().paths(64)


@pytest.mark.gpu
def test_a_model_on_cuda_has_the_same_posterior() -> None:
    on_cuda = PathwiseGP(
        X.cuda(), Y.cuda(), **settings(solver=TIGHT, num_paths=64, num_features=128)
    ).posterior(Z.cuda())
    on_cpu = pathwise().posterior(Z)
    torch.testing.assert_close(on_cuda.mean.cpu(), on_cpu.mean)
    torch.testing.assert_close(on_cuda.variance.cpu(), on_cpu.variance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exact_data_have_the_posterior_of_single_task_gp(dtype: torch.dtype) -> None:
    values = torch.sin(5 * X.sum(1, keepdim=True)).to(dtype)
    noise = YVAR.to(dtype).clone()
    noise[::2] = 0.0  # some are exact, others not
    given = {"train_X": X.to(dtype), "train_Y": values, "train_Yvar": noise}
    with warnings.catch_warnings():  # of BoTorch, about the zeros and about float32
        warnings.simplefilter("ignore")
        expected = SingleTaskGP(**given, covar_module=kernel()).posterior(Z.to(dtype))
    for solver in (None, CG(tolerance=1e-4)):
        model = PathwiseGP(**given, covar_module=kernel(), solver=solver)
        assert model.likelihood.noise.min() == {torch.float32: 1e-4}.get(dtype, 1e-6)
        torch.testing.assert_close(
            model.posterior(Z.to(dtype)).mean, expected.mean, rtol=0, atol=2e-3
        )


def test_further_exact_data_are_interpolated_by_models_of_exact_data() -> None:
    values = torch.sin(5 * X.sum(1, keepdim=True))
    new = torch.sin(5 * Z[0].sum(1, keepdim=True))
    for solver in (Cholesky(), TIGHT):
        model = PathwiseGP(
            X, values, torch.zeros_like(values), covar_module=kernel(), solver=solver
        )
        more = model.condition_on_observations(Z[0], new, noise=torch.zeros_like(new))
        torch.testing.assert_close(more.posterior(Z[0]).mean, new, rtol=0, atol=1e-3)
        twice = new.expand(2, -1, -1)
        fantasies = model.condition_on_observations(
            Z[0].expand(2, -1, -1), twice, noise=torch.zeros_like(twice)
        )
        torch.testing.assert_close(fantasies.posterior(Z[0]).mean, twice, rtol=0, atol=1e-3)


def test_data_that_are_not_finite_raise_the_error_of_botorch_too() -> None:
    for changes in ({"train_X": spoiled(X, math.nan)}, {"train_Y": spoiled(Y, math.inf)}):
        for error in (ValueError, InputDataError):
            with pytest.raises(error, match="must be finite"):
                PathwiseGP(**{"train_X": X, "train_Y": Y, **changes})


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch, about GPyTorch
def test_a_kernel_that_keeps_matrices_can_be_copied_and_changed_after_a_posterior() -> None:
    bounds = [(-0.1, 1.1)] * D
    grid = GridInterpolationKernel(RBFKernel(), grid_size=20, grid_bounds=bounds)
    model = PathwiseGP(X, Y, likelihood=gaussian_likelihood(0.02), covar_module=grid)
    before = model.posterior(Z).mean
    with pytest.raises(ValueError, match="`kernel` must be .* got GridInterpolationKernel"):
        model.paths(2)
    grid.base_kernel.lengthscale = 0.2
    after = model.posterior(Z).mean
    assert (after - before).abs().max() > 1e-2
    torch.testing.assert_close(after, deepcopy(model.train()).posterior(Z).mean)


def test_categories_that_are_no_integers_are_refused_where_paths_need_them() -> None:
    inputs = torch.cat([X[:, :1], torch.randint(3, (N, 2), generator=problems.seeded(5)) / 2], 1)
    kernel = MixedSingleTaskGP(inputs, Y, cat_dims=[1, 2]).covar_module
    model = PathwiseGP(inputs, Y, covar_module=kernel)
    model.posterior(inputs[:2])  # needs none
    with pytest.raises(ValueError, match="integers, got 0.5 in column 1. Number the categories"):
        model.paths(2)


@pytest.mark.parametrize("solver", [Cholesky(), CG()])
def test_points_of_another_dimension_are_refused(solver: Solver) -> None:
    model = PathwiseGP(X, Y, solver=solver)
    for width in (D - 1, D + 1):
        with pytest.raises(
            ValueError, match=rf"`X` must have shape \(..., q, {D}\).*\(4, {width}\)"
        ):
            model.posterior(torch.zeros(4, width, dtype=X.dtype))


def test_the_paths_of_a_posterior_are_of_many_sets_of_features() -> None:
    # 16 features of one set leave errors of 0.16 to 0.20 in correlations, 512 paths alone 0.04
    X = problems.uniform(8, 2)
    Z = 4.0 + 3.0 * problems.uniform(40, 2, seed=1)
    covariance = [
        PathwiseGP(
            X,
            X.sum(1, keepdim=True),
            solver=solver,
            num_paths=512,
            num_features=16,
            covar_module=problems.rbf(0.7).double(),
        )
        .eval()(Z)
        .covariance_matrix
        for solver in (Cholesky(), CG())
    ]
    assert (covariance[1] - covariance[0]).square().mean().sqrt() < 0.1
