"""The loop: what is asked, told and kept, and that it finds optima."""

import math
import pickle
import re
from collections.abc import Callable
from copy import deepcopy
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import MaternKernel
from torch import Tensor

from acquisition import ParallelThompsonSampling
from scalable_bo.modelling import fitting
from scalable_bo.space.space import Float, Space
from scalable_bo.storage.rounds import Round
from scalable_bo.study.study import Study
from surrogates import CG, SDD, PathwiseGP
from tests import problems

QUICK = partial(
    ParallelThompsonSampling, num_candidates=200, num_rounds=4, num_starts=4, num_steps=20
)
SPACE = Space(x=Float(-2.0, 2.0), rate=Float(1e-3, 1e3, log=True))


def make_study(**options: Any) -> Study:
    return Study(SPACE, **({"maximize": True, "sampler": QUICK, "num_initial": 4} | options))


def bowl(X: Tensor) -> Tensor:
    """Largest, 0, at x = 1 and rate = 10."""
    return -((X[:, 0] - 1).square()) - (X[:, 1].log10() - 1).square()


def with_data(study: Study, n: int) -> Study:
    X = SPACE.unnormalize(problems.uniform(n, 2))
    study.add_data(X, bowl(X))
    return study


@pytest.mark.parametrize("maximize", [True, False])
def test_the_optimum_is_found_in_either_direction(maximize: bool) -> None:
    sign = 1.0 if maximize else -1.0
    study = make_study(maximize=maximize)
    result = study.optimize(lambda X: sign * bowl(X), rounds=6, batch=6, vectorized=True)
    design = make_study(maximize=maximize, num_initial=1000)
    without_model = design.optimize(lambda X: sign * bowl(X), rounds=6, batch=6, vectorized=True)
    assert sign * result.best_value > -0.01 > sign * without_model.best_value
    assert result.best_params == pytest.approx({"x": 1.0, "rate": 10.0}, rel=0.3)


def test_the_same_seed_gives_the_same_points_and_another_seed_others() -> None:
    def points(seed: int) -> Tensor:
        study = make_study(seed=seed)
        return study.optimize(bowl, rounds=3, batch=4, vectorized=True).X

    assert torch.equal(points(1), points(1))
    assert not torch.equal(points(1), points(2))


def test_the_global_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    make_study().optimize(bowl, rounds=2, batch=4, vectorized=True)
    assert torch.equal(torch.get_rng_state(), before)


def test_units_and_sign_do_not_change_what_is_asked() -> None:
    plain = make_study()
    scaled = make_study(maximize=False)
    for _ in range(2):
        batch = plain.ask(5)
        other = scaled.ask(5)
        torch.testing.assert_close(batch.X, other.X, rtol=1e-4, atol=1e-5)
        plain.tell(batch.ids, bowl(batch.X))
        scaled.tell(other.ids, 100.0 - 1000.0 * bowl(batch.X))


def test_batches_describe_the_same_points_in_two_ways() -> None:
    batch = make_study().ask(3)
    assert batch.ids == [0, 1, 2]
    for row, params in zip(batch.X.tolist(), batch.params, strict=True):
        assert params == {"x": row[0], "rate": row[1]}
        assert -2.0 <= params["x"] <= 2.0
        assert 1e-3 <= params["rate"] <= 1e3


def test_values_are_kept_with_their_ids_in_any_order() -> None:
    study = make_study()
    batch = study.ask(4)
    study.tell([3, 1], [30.0, 10.0])
    study.tell([0], torch.tensor([[5.0]]))
    result = study.result
    torch.testing.assert_close(result.X, batch.X[[3, 1, 0]])
    assert result.values.tolist() == [30.0, 10.0, 5.0]
    assert (result.best_value, result.num_pending, result.num_failed) == (30.0, 1, 0)
    assert result.best_params == batch.params[3]


def test_a_batch_stands_for_all_of_its_ids() -> None:
    study = make_study()
    study.ask(2)
    batch = study.ask(2)
    study.tell(batch, [5.0, 7.0])
    torch.testing.assert_close(study.result.X, batch.X)
    assert study.result.values.tolist() == [5.0, 7.0]


def test_failed_points_are_counted_with_the_reason_and_never_given_to_the_model() -> None:
    failures = {
        math.nan: "the value is nan",
        math.inf: "the value is inf",
        -math.inf: "the value is -inf",
        None: "not a number: NoneType None",
        "much": "not a number: str 'much'",
        1j: "not a number: complex 1j",
    }
    study = with_data(make_study(), 8)
    batch = study.ask(7)
    study.tell(batch.ids, [*failures, 0.0])
    study.ask(1)
    assert study.result.num_failed == 6
    assert study.to_dataframe()["reason"].tolist() == [*[""] * 8, *failures.values(), *[""] * 2]
    assert study.result.values.isfinite().all()
    assert study.model.train_inputs[0].shape == (9, 2)


def test_a_point_is_not_asked_again_while_it_is_out_or_after_it_failed() -> None:
    corner = torch.ones(2, 2, dtype=torch.float64)

    class AlwaysTheCorner:
        def __init__(self, model: object, bounds: Tensor, seed: int) -> None: ...

        def generate(self, q: int, paths: object, X_pending: Tensor | None = None) -> Tensor:
            return corner[:1].repeat(q, 1)

    study = with_data(make_study(sampler=AlwaysTheCorner), 8)
    first = study.ask(2)
    assert first.params[0] == {"x": 2.0, "rate": 1e3}
    assert first.params[1] != first.params[0]
    second = study.ask(1)
    assert second.params[0] not in first.params
    study.tell(first.ids[:1], [math.nan])
    assert study.ask(1).params[0] != first.params[0]


GRAPH = torch.tensor([1.5, 2.5, -3.0], requires_grad=True)


def test_numbers_of_every_kind_of_array_are_values() -> None:
    for values in (
        GRAPH,
        GRAPH * 1,
        GRAPH.bfloat16(),
        GRAPH.half(),
        GRAPH.detach().to_sparse(),
        list(GRAPH),
        list(GRAPH.bfloat16()),
        [value[None] for value in GRAPH],
        [[value] for value in GRAPH],
        [value.detach().to_sparse() for value in GRAPH[:, None]],
        [GRAPH[0], 2.5, np.float32(-3)],
        [np.array(1.5), np.array(2.5), np.array(-3)],
        [np.array([1.5]), np.array([2.5]), np.array([-3])],
        [1.5, Fraction(5, 2), np.int8(-3)],
        np.array([torch.tensor(1.5), Fraction(5, 2), -3], dtype=object),
        pd.Series([1.5, 2.5, -3.0], index=[7, 7, 7]),
        pd.Series([1.5, 2.5, -3.0], dtype="Float64"),
        pd.DataFrame({"y": [1.5, 2.5, -3.0]}),
        [Fraction(3, 2), Decimal("2.50"), -3],
        np.array([Decimal("1.5"), 2.5, -3], dtype=object),
        pd.Series([Decimal("1.5"), Fraction(5, 2), -3]),
        (1.5, 2.5, -3),
    ):
        study = make_study(num_initial=100)
        study.tell(study.ask(3).ids, values)
        assert study.result.values.tolist() == [1.5, 2.5, -3.0]
        together = make_study(num_initial=100)
        together.optimize(lambda X, found=values: found, 1, 3, vectorized=True)
        assert together.result.values.tolist() == [1.5, 2.5, -3.0]


def test_known_variances_may_be_of_every_kind_of_array() -> None:
    study = make_study(num_initial=100)
    decimals = [Decimal("1.5"), Fraction(5, 2), 3]
    for noise in (GRAPH.abs().bfloat16(), list(GRAPH.abs()), GRAPH.abs()[:, None], decimals):
        study.tell(study.ask(3).ids, [0.0, 0.0, 0.0], noise=noise)
    assert study.to_dataframe()["noise"].tolist() == [1.5, 2.5, 3.0] * 4


def test_what_is_no_number_among_numbers_fails_alone() -> None:
    study = make_study(num_initial=100)
    values = [GRAPH[0], None, GRAPH[:0], "1.5", [GRAPH[2]], Decimal("2.5")]
    study.tell(study.ask(6).ids, values)
    frame = study.to_dataframe()
    assert frame["status"].tolist() == ["observed", *["failed"] * 3, "observed", "observed"]
    assert frame["value"].dropna().tolist() == [1.5, -3.0, 2.5]


def test_values_that_a_masked_array_hides_are_failures() -> None:
    study = make_study(num_initial=100)
    values = np.ma.array([1, 2, 3], mask=[False, True, False])
    study.tell(study.ask(3).ids, values)
    study.tell(study.ask(3).ids, list(values))
    for first in (0, 3):
        status = study.to_dataframe()["status"].tolist()[first : first + 3]
        assert status == ["observed", "failed", "observed"]


def test_nothing_is_recorded_on_an_error() -> None:
    study = make_study()
    study.ask(3)
    study.tell([0], [1.0])
    for ids, values, message in (
        ([1, 2], [1.0], "one entry for each of the 2 `ids`, got 1"),
        ([1, 7], [1.0, 2.0], "unknown 7"),
        ([1, -1], [1.0, 2.0], "unknown -1"),
        ([1, 1], [1.0, 2.0], "distinct, got 1 twice"),
        ([1, 0], [1.0, 2.0], "told before with another value, got 0"),
        ([1], [[1.0, 2.0]], r"shape \(n,\)"),
        ([1, 2], torch.ones(2, 2, requires_grad=True), r"shape \(n,\), got \(2, 2\)"),
        ([1, 2], [1.0, (2.0, 0.1)], "value of point 2 must be one number"),
        ([2, 1], [1.0, {"value": 2.0}], "value of point 1 must be one number"),
        ([2, 1], [10**400, 1.0], "value of point 2 must be at most 1.8e"),
    ):
        with pytest.raises(ValueError, match=message):
            study.tell(ids, values)
    with pytest.raises(TypeError, match="`values` must be numbers"):
        study.tell([1], "much")
    with pytest.raises(TypeError, match="`values` must be numbers"):
        study.tell([1], None)
    batch = study.ask(1)
    with pytest.raises(
        TypeError, match="`ids` must be whole numbers, such as `batch.ids`, got \\[{"
    ):
        study.tell(batch.params, [1.0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one entry for each of the 1 `ids`, got 2"):
        study.tell(batch, [1.0, 2.0])
    study.tell(batch.ids, [1.0])
    assert study.result.num_pending == 2
    study.tell([1, 2], [2.0, 3.0])


def test_added_data_take_the_place_of_the_design() -> None:
    study = with_data(make_study(), 4)
    study.ask(2)
    assert study.last_ask.residual is not None
    assert study.result.values.shape == (4,)


def test_bad_data_are_refused_whole() -> None:
    for X, y, message in (
        ([[0.0, 1.0]], [1.0, 2.0], "the same length, got 1 and 2"),
        ([[3.0, 1.0]], [1.0], "`x` must be between"),
        ([[math.nan, 1.0]], [1.0], "`x` must be between"),
        ([[1.0]], [1.0], r"`X` must have shape \(n, 2\)"),
    ):
        study = make_study()
        with pytest.raises(ValueError, match=message):
            study.add_data(X, y)
        assert study.num_observations == 0
        assert study.ask(1).ids == [0]


def test_bad_settings_are_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    for options, error, message in (
        ({"seed": -1}, ValueError, "`seed` must be at least 0, got -1"),
        ({"seed": 1.5}, TypeError, "`seed` must be an int"),
        ({"num_initial": 0}, ValueError, "`num_initial` must be at least 1, got 0"),
        ({"solver": "cg"}, TypeError, "`solver` must be a Solver, got 'cg'"),
        ({"kernel": "matern"}, TypeError, "`kernel` must be a Kernel, got 'matern'"),
        ({"kernel": MaternKernel}, TypeError, "`kernel` must be a Kernel.* Try `gpytorch"),
        ({"sampler": "x"}, TypeError, "`sampler` must be a function .*, got 'x'"),
        ({"sampler": "x", "strategy": "auto"}, TypeError, "`sampler` must be a function"),
        ({"device": "gpu"}, ValueError, "`device` must name a torch device, got 'gpu'. Try cpu"),
        ({"device": 1.5}, ValueError, "`device` must name a torch device, got 1.5"),
    ):
        with pytest.raises(error, match=message):
            make_study(**options, path=tmp_path / "kept")
    assert not list(tmp_path.iterdir())


def test_the_url_of_a_database_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///tuning.db", "postgresql+psycopg://me:secret@host/database"):
        with pytest.raises(ValueError, match="`path` must be a folder.* Give `storage=url") as said:
            make_study(path=url)
        assert "secret" not in str(said.value)
    assert not list(tmp_path.iterdir())


def test_reversed_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="`bounds` must"):
        Study([[1.0], [0.0]], maximize=True)


def test_batches_of_less_than_one_point_are_refused() -> None:
    with pytest.raises(ValueError, match="`q` must be at least 1, got 0"):
        make_study().ask(0)
    with pytest.raises(ValueError, match="`batch` must be at least 1, got 0"):
        make_study().optimize(bowl, 1, 0)
    with pytest.raises(ValueError, match="`rounds` must be at least 0, got -1"):
        make_study().optimize(bowl, -1, 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused_before_the_design() -> None:
    with pytest.raises(ValueError, match="`device` is 'cuda', and torch finds no CUDA device"):
        make_study(device="cuda")


def test_the_bounds_of_scipy_are_read_as_such() -> None:
    for bounds in ([(0, 1), (2, 5)], [(0, 1), (2, 5), (1, 3)]):
        study = Study(bounds, maximize=True)
        assert study.space.bounds.T.tolist() == [list(map(float, pair)) for pair in bounds]
    assert Study([[0, 1], [2, 5]], maximize=True).space.bounds.tolist() == [[0, 1], [2, 5]]


@pytest.mark.parametrize("callbacks", [[3], print])
def test_callbacks_that_cannot_be_called_are_refused_before_any_work(callbacks: Any) -> None:
    asked: list[object] = []
    with pytest.raises(TypeError, match="`callbacks` must be a list of functions, got "):
        make_study().optimize(asked.append, 1, 1, callbacks=callbacks)
    assert not asked


def test_there_is_no_result_before_a_value() -> None:
    with pytest.raises(ValueError, match="no finite value has been told. Tell one"):
        _ = make_study().result
    with pytest.raises(ValueError, match="told, and 3 failed, the last: not a number: str 'x'"):
        make_study().optimize(lambda params: "x", rounds=1, batch=3)
    study = make_study()
    study.tell(study.ask(1), [math.nan], reasons={0: "It rained."})
    with pytest.raises(ValueError, match=r"and 1 failed, the last: It rained\. Tell one"):
        _ = study.result


def test_an_interruption_keeps_what_was_told() -> None:
    study = make_study()
    seen = []

    def objective(params: dict[str, float]) -> float:
        if len(seen) == 6:
            raise KeyboardInterrupt
        seen.append(params)
        return params["x"]

    with pytest.raises(KeyboardInterrupt):
        study.optimize(objective, rounds=5, batch=4)
    assert study.result.values.tolist() == [params["x"] for params in seen]
    assert study.result.num_pending == 2
    # After the two that were out
    study.optimize(lambda params: params["x"], rounds=1, batch=2)
    assert study.num_observations == 10


def test_callbacks_and_lines_tell_the_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    rounds: list[Round] = []
    study = make_study()
    study.optimize(
        bowl,
        rounds=3,
        batch=4,
        vectorized=True,
        callbacks=[lambda study, report: rounds.append(report)],
    )
    assert [report.num_observations for report in rounds] == [4, 8, 12]
    assert rounds[-1].best_value == study.result.best_value
    assert math.isnan(rounds[0].gain)
    assert rounds[2].gain == pytest.approx(rounds[2].best_value - rounds[1].best_value)
    assert rounds[0].ask.residual is None
    assert rounds[1].ask.residual is not None
    assert 0 <= rounds[1].ask.residual < 1e-6
    assert rounds[1].ask.error is not None
    assert 0 <= rounds[1].ask.error < 1e-3
    output = capsys.readouterr()
    assert output.out == ""
    lines = output.err.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("round 1/3: n 4, best ")
    assert "initial design" in lines[0]
    assert re.search(r"solve [\d.]+ s to \S+ posterior standard deviations", lines[2])


def test_hyperparameters_are_fitted_again_when_the_data_have_grown() -> None:
    study = with_data(make_study(), 20)
    kernels = []
    for _ in range(5):  # at n = 20, 24, 28, 32, 36
        batch = study.ask(4)
        study.tell(batch.ids, bowl(batch.X))
        kernels.append(study.model.covar_module)
    kept = [later is earlier for earlier, later in pairwise(kernels)]
    assert kept == [True, True, False, True]
    assert not torch.equal(kernels[3].lengthscale, kernels[0].lengthscale)


def test_many_data_are_fitted_by_a_random_subset_and_solved_by_the_given_solver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fitted = []

    def fit(model: PathwiseGP, **options: Any) -> PathwiseGP:
        fitted.append(model.train_inputs[0])
        return model

    monkeypatch.setattr(fitting, "fit_exact", fit)
    study = with_data(
        make_study(solver=CG(None, tolerance=1e-3), kernel=MaternKernel(nu=1.5, ard_num_dims=2)),
        1100,
    )
    study.ask(3)
    data = study.model.train_inputs[0]
    assert data.shape == (1100, 2)
    assert [X.shape for X in fitted] == [(250, 2), (1000, 2)]
    rows = (fitted[1][:, None] == data).all(-1).nonzero()[:, 1]
    assert len(rows.unique()) == 1000
    assert rows.tolist() != sorted(rows.tolist())
    assert study.model.solution.steps.max() > 1  # not Cholesky's


def test_a_given_kernel_is_not_changed() -> None:
    kernel = MaternKernel(nu=2.5, ard_num_dims=2)
    before = kernel.lengthscale.clone()
    study = with_data(make_study(kernel=kernel), 10)
    study.ask(1)
    assert torch.equal(kernel.lengthscale, before)
    assert not torch.equal(study.model.covar_module.lengthscale, before)


@pytest.mark.filterwarnings("ignore::surrogates.UnsolvedWarning")  # few epochs are given
def test_equal_values_are_no_obstacle() -> None:
    study = make_study(solver=SDD(max_epochs=20.0), dtype=torch.float32)
    study.optimize(lambda params: 1.0, rounds=3, batch=4)
    assert study.result.values.tolist() == [1.0] * 12


@pytest.mark.parametrize("copy", [deepcopy, pickle.dumps])
def test_a_study_is_neither_copied_nor_pickled(copy: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="neither copied nor pickled.*Open it again by its `path`"):
        copy(Study(Space(x=Float(0.0, 1.0)), maximize=True))
