"""Studies that are kept: what resuming refuses and accepts, retries, threads, past data,
mixed and finite spaces.
"""

import math
import os
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import MaternKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood

from acquisition import ParallelThompsonSampling, ThompsonStrategy
from scalable_bo.space.parameters import Parameter
from scalable_bo.space.space import Categorical, Float, Int, LinearConstraint, Space
from scalable_bo.study.study import Study
from surrogates import CG
from surrogates.models.fresh import EXACT_UP_TO
from tests import problems

QUICK = partial(
    ParallelThompsonSampling, num_candidates=100, num_rounds=3, num_starts=3, num_steps=10
)
SPACE = Space(
    x=Float(-2.0, 2.0), n=Int(1, 100, log=True), kind=Categorical(["a", "b"]), fixed="yes"
)


def make(path: Path | None = None, space: Space = SPACE, **options: Any) -> Study:
    return Study(
        space,
        **{"maximize": True, "seed": 1, "path": path, "num_initial": 6, "sampler": QUICK} | options,
    )


def score(params: dict[str, Any]) -> float:
    """Largest, 1, at x = 1, n = 10, kind = b."""
    return (params["kind"] == "b") - (params["x"] - 1) ** 2 - math.log10(params["n"] / 10) ** 2


def rows(count: int, seed: int = 0) -> pd.DataFrame:
    U = problems.uniform(count, SPACE.encoded_dim, seed=seed)
    frame = SPACE.to_frame(SPACE.unnormalize(U))
    return frame.assign(score=[score(params) for params in frame.to_dict("records")])


def test_a_mixed_space_is_optimised_where_its_points_can_be_run() -> None:
    study = make()
    seen = []

    def objective(params: dict[str, Any]) -> float:
        seen.append(params)
        return score(params)

    result = study.optimize(objective, rounds=6, batch=6)
    assert result.best_value > 0.9
    assert result.best_params["kind"] == "b"
    assert all(
        type(params["n"]) is int and params["fixed"] == "yes" and params["kind"] in ("a", "b")
        for params in seen
    )
    assert study.to_dataframe()[["x", "n", "kind"]].to_dict("records") == [
        {k: p[k] for k in ("x", "n", "kind")} for p in seen
    ]
    assert result.num_observations == 36


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_constraints_hold_for_every_point_that_is_asked(dtype: torch.dtype) -> None:
    space = Space(
        LinearConstraint({"a": 1.0, "b": 1.0}, at_most=1.0),
        LinearConstraint({"n": 1.0, "a": -4.0}, at_least=1.0, at_most=6.0),
        LinearConstraint({"rate": 1.0, "b": -10.0}, at_least=0.5),
        lambda p: p["kind"] == "u" or p["n"] <= 5,
        a=Float(0.0, 1.0),
        b=Float(0.0, 1.0),
        n=Int(1, 9),
        rate=Float(0.1, 10.0, log=True),
        kind=Categorical(["u", "v", "w"]),
    )
    study = make(space=space, dtype=dtype)
    study.optimize(lambda p: p["a"] + p["b"] + 0.2 * p["n"], rounds=3, batch=6)
    assert space.feasible(study.result.X).all()
    assert study.result.best_value > 2.0
    assert study.last_ask.residual is not None


def test_an_equality_is_met_by_the_design_and_by_the_surrogate() -> None:
    space = Space(
        LinearConstraint({"a": 1.0, "b": 2.0}, 1.0, 1.0), a=Float(0.0, 1.0), b=Float(0.0, 1.0)
    )
    study = make(space=space)
    study.optimize(lambda p: -((p["a"] - 0.6) ** 2), rounds=3, batch=4)
    torch.testing.assert_close(
        study.result.X @ torch.tensor([1.0, 2.0], dtype=torch.float64),
        torch.ones(12, dtype=torch.float64),
        rtol=0,
        atol=2e-6,
    )


@pytest.mark.parametrize("param", [Float(0.0, 1.0), Int(0, 9)], ids=["infinite", "finite"])
def test_a_space_without_a_feasible_point_is_reported_in_its_own_words(param: Parameter) -> None:
    def never(params: dict[str, object]) -> bool:
        return False

    message = (
        "The constraints of the space must leave a point to evaluate, and none was found that"
        " meets 1 · a ≤ 0.5 and never. Relax them, or widen the parameters' ranges."
    )
    space = Space(LinearConstraint({"a": 1}, at_most=0.5), never, a=param)
    study = make(space=space, num_initial=2)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        study.ask(1)
    study.add_data([[0.0], [1.0], [0.0], [1.0]], [1.0, 2.0, 1.5, 2.5])
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):  # by the surrogate
        study.ask(1)


def test_a_finite_space_is_asked_point_by_point_and_then_exhausted() -> None:
    space = Space(lambda p: p["n"] != 4, n=Int(1, 6), kind=Categorical(["a", "b"]))
    study = make(space=space, num_initial=4)
    seen = []
    for q in (4, 3, 2):
        batch = study.ask(q)
        seen += [tuple(params.values()) for params in batch.params]
        study.tell(batch.ids, [float(params["n"]) for params in batch.params])
    with pytest.raises(
        ValueError,
        match="not been asked for or added, 1 in this finite space, got 2. Ask for fewer",
    ):
        study.ask(2)
    seen += [tuple(params.values()) for params in study.ask(1).params]
    assert sorted(seen) == [(n, kind) for n in (1, 2, 3, 5, 6) for kind in ("a", "b")]
    with pytest.raises(
        ValueError, match="0 in this finite space, got 1. It is exhausted: see `result`"
    ):
        study.ask(1)


def test_a_finite_space_ends_with_its_result_and_runs_no_further(
    capsys: pytest.CaptureFixture[str],
) -> None:
    space = Space(n=Int(1, 6), kind=Categorical(["a", "b"]))
    study = make(space=space, num_initial=4)
    result = study.optimize(lambda p: p["n"] + (p["kind"] == "b"), rounds=9, batch=5)
    assert (result.best_value, result.num_observations, result.num_pending) == (7.0, 12, 0)
    assert study.num_asks == 3
    assert "Ended before round 4: all points of the space have been asked for." in (
        capsys.readouterr().err
    )
    assert study.optimize(lambda p: 0.0, rounds=2, batch=5).best_value == 7.0


def test_a_space_that_is_too_large_to_be_listed_ends_when_no_point_is_found() -> None:
    space = Space(LinearConstraint({"n": 1}, at_least=39_991), n=Int(0, 40_000))
    study = make(space=space, num_initial=100)
    result = study.optimize(lambda p: p["n"], rounds=4, batch=10)
    assert result.values.unique().tolist() == list(range(39_991, 40_001))
    assert result.num_pending == 0
    assert study.num_asks < 4


def test_failed_points_are_tried_again(tmp_path: Path) -> None:
    with make(tmp_path) as study:
        batch = study.ask(4)
        study.tell(batch.ids[:3], [math.nan, 1.0, math.nan])
        with pytest.raises(ValueError, match="`ids` must be of points that failed, got 1, 3"):
            study.retry([0, 1, 3])
        assert study.num_failed == 2
        assert study.retry([2]).ids == [2, 3]
        assert study.num_failed == 1
        study.tell([3, 2], [2.0, 3.0])
        assert study.result.values.tolist() == [1.0, 2.0, 3.0]
    with make(tmp_path) as study:
        assert study.result.values.tolist() == [1.0, 2.0, 3.0]  # in the order told
        assert study.reasons([0, 2]) == ["the value is nan", None]
        assert study.retry().ids == [0]
        assert study.retry().ids == [0]
    with make(tmp_path) as study:
        assert study.pending.ids == [0]
        study.tell([0], [math.nan], reasons={0: "again"})
        assert study.reasons([0]) == ["again"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_may_read_and_not_write(tmp_path: Path) -> None:
    study = make(tmp_path)
    batch = study.ask(3)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = [str(len(study.to_dataframe()))]
        for change in (
            lambda: study.tell([0], [1.0]),
            lambda: study.ask(1),
            lambda: study.add_data(rows(1), target="score"),
        ):
            try:
                change()
            except RuntimeError as error:
                said.append(str(error))
        study.close()
        os.write(writer, "\n".join(said).encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reader, 10_000).decode().splitlines()
    assert said[0] == "3"
    assert len(said) == 4
    for line in said[1:]:
        assert f"belongs to process {os.getpid()}, from which this one was forked" in line
    study.tell(batch.ids, [1.0, 2.0, 3.0])
    study.close()
    with make(tmp_path) as study:
        assert study.result.values.tolist() == [1.0, 2.0, 3.0]
    os.close(reader)
    os.close(writer)


def test_a_closed_study_says_so(tmp_path: Path) -> None:
    study = make(tmp_path)
    batch = study.ask(2)
    study.close()
    for change in (
        lambda: study.ask(1),
        lambda: study.tell(batch.ids, [1.0, 2.0]),
        lambda: study.add_data(rows(1), target="score"),
    ):
        with pytest.raises(RuntimeError, match="The study in .* has been closed. Open it again"):
            change()
    assert study.num_asks == 1


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="`path` must be a folder, got the file .*file. Name"):
        make(tmp_path / "file")
    with pytest.raises(OSError, match="study in .*below could not be opened: Not a directory"):
        make(tmp_path / "file" / "below")


def test_another_space_direction_or_seed_is_refused_with_the_difference(tmp_path: Path) -> None:
    x, n, kind = (SPACE.params[name] for name in ("x", "n", "kind"))
    make(tmp_path).close()
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"maximize": False}, "  direction: stored maximize, given minimize\n"),
        ({"seed": 2}, "  seed: stored 1, given 2\n"),
        (
            {"space": Space(x=Float(-2.0, 3.0), n=n, kind=kind, fixed="yes")},
            r"  parameter `x`: stored Float\(.*high=2.0.*\), given Float\(.*high=3.0.*\)\n",
        ),
        (
            {"space": Space(x=x, kind=kind, n=n, fixed="yes")},
            "  columns: stored x, n, kind, given x, kind, n\n",
        ),
        (
            {"space": Space(len, x=x, n=n, kind=kind, fixed="no")},
            "  fixed `fixed`: stored 'yes', given 'no'\n"
            "  constraint 1: stored nothing, given function len\n",
        ),
    )
    for changed, message in changes:
        with pytest.raises(ValueError, match=f"other settings:\n{message}"):
            make(tmp_path, **changed)
    with pytest.raises(
        ValueError, match="stored maximize, given minimize\n  seed: stored 1, given 2"
    ):
        make(tmp_path, maximize=False, seed=2)  # every difference
    make(tmp_path).close()


def test_coefficients_that_look_the_same_in_print_are_told_apart(tmp_path: Path) -> None:
    def space(coefficient: float) -> Space:
        constraint = LinearConstraint({"x": coefficient, "n": 1}, at_most=1)
        return Space(constraint, **SPACE.params, **SPACE.fixed)

    make(tmp_path, space(1 / 3)).close()
    with pytest.raises(ValueError, match="  constraint 1: stored .*0.33333333.*given .*0.33333334"):
        make(tmp_path, space(0.33333334))


def test_other_solvers_kernels_and_sizes_are_accepted(tmp_path: Path) -> None:
    with make(tmp_path) as study:
        study.add_data(rows(20), target="score")
        study.ask(2)
    kernel = MaternKernel(nu=1.5, ard_num_dims=4)
    with make(
        tmp_path, solver=CG(None), kernel=kernel, dtype=torch.float32, num_initial=3
    ) as study:
        assert study.ask(1).ids == [22]
        assert isinstance(study.model.covar_module, MaternKernel)


def test_a_result_of_many_values_solves_for_no_surrogate_of_another_kernel(tmp_path: Path) -> None:
    with make(tmp_path, strategy="thompson") as study:
        study.add_data(rows(EXACT_UP_TO + 1), target="score")
        study.ask(1)
    with make(tmp_path, strategy="thompson", kernel=MaternKernel(nu=1.5)) as study:
        assert math.isnan(study.result.predicted_value)
        assert study._answers.surrogate.fitted is None


def test_the_identical_retry_does_nothing_and_another_value_is_refused(tmp_path: Path) -> None:
    with make(tmp_path) as study:
        batch = study.ask(3)
        study.tell(batch.ids[:2], [1.5, math.nan])
    with make(tmp_path) as study:
        before = study.to_dataframe()
        study.tell(batch.ids[:2], [1.5, math.nan])
        assert study.to_dataframe().equals(before)
        for position, value in ((0, 1.25), (0, math.nan), (1, 0.0), (1, math.inf)):
            with pytest.raises(ValueError, match=f"told before with another value, got {position}"):
                study.tell([position], [value])
        with pytest.raises(ValueError, match="told before with another value, got 0"):
            study.tell([0], [1.5], noise=0.1)
        with pytest.raises(ValueError, match="must have been asked, got unknown 3"):
            study.tell([3], [1.0])
        study.tell(batch.ids, [1.5, math.nan, 2.5])
        assert study.to_dataframe()["status"].tolist() == ["observed", "failed", "observed"]


def test_results_from_sixteen_threads_are_all_kept(tmp_path: Path) -> None:
    n = 200
    with make(tmp_path, num_initial=10_000) as study:
        batch = study.ask(n)
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda number: study.tell([number], [number / 7]), batch.ids))
            more = list(pool.map(lambda number: study.ask(1).ids[0], range(20)))
        values = study.result.values
        assert sorted(more) == list(range(n, n + 20))
    with make(tmp_path, num_initial=10_000) as study:
        frame = study.to_dataframe()
        assert frame["value"][:n].tolist() == [number / 7 for number in range(n)]
        assert torch.equal(study.result.values, values)  # in the order told
        assert frame["ask"].max() == 21


def test_values_told_during_an_ask_wait_for_the_next_one() -> None:
    study = make(num_initial=8)
    study.add_data(rows(10), target="score")
    first = study.ask(2)

    class TellsMeanwhile(ParallelThompsonSampling):
        def generate(self, q: int, **options: Any) -> torch.Tensor:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(study.tell, first.ids[:1], [5.0]).result(timeout=300)
            return super().generate(q, **options)

    sampler = partial(TellsMeanwhile, **QUICK.keywords)
    study._proposer._strategy = ThompsonStrategy(sampler)
    study.ask(2)
    assert len(study.model.train_targets) == 10
    assert study.num_observations == 11


@pytest.mark.parametrize("noise", [0.04, "var"])
def test_known_variances_reach_the_surrogate_in_its_units(tmp_path: Path, noise: Any) -> None:
    frame = rows(12).assign(var=0.04)
    with make(tmp_path) as study:
        study.add_data(frame, target="score", noise=noise)
        batch = study.ask(2)
        study.tell(batch.ids, [0.0, math.nan], noise=[0.09, 0.09])
        with pytest.raises(
            ValueError,
            match=(
                "`noise` must be given for all values or for none; those told before came with it"
            ),
        ):
            study.tell(study.ask(1).ids, [1.0])
    with make(tmp_path) as study:
        study.ask(1)
        assert isinstance(study.model.likelihood, FixedNoiseGaussianLikelihood)
        std = np.std([*frame["score"], 0.0], ddof=1)
        known = study.model.likelihood.noise[-2:]
        assert known[1] / known[0] == pytest.approx(0.09 / 0.04)
        # A value of the larger variance counts a little less for the units
        assert known[0].item() == pytest.approx(0.04 / std**2, rel=0.01)
        assert study.to_dataframe()["noise"].isna().sum() == 3  # one failed, two pending


@pytest.mark.parametrize("noise", [0.0, -1.0, math.nan, [1.0]])
def test_impossible_variances_are_refused(noise: Any) -> None:
    study = make()
    batch = study.ask(2)
    with pytest.raises(ValueError, match="`noise` must be"):
        study.tell(batch.ids, [1.0, 2.0], noise=noise)
    assert study.num_observations == 0


def test_columns_named_like_parameters_stay_apart() -> None:
    study = make(space=Space(value=Float(0, 1), noise=Int(1, 3)))
    batch = study.ask(1)
    study.tell(batch.ids, [7.0])
    columns = "value noise value_ noise_ status reason ask asked told seconds note"
    assert study.to_dataframe().columns.tolist() == columns.split()
    assert study.to_dataframe()["value_"].tolist() == [7.0]
    study = make(space=Space(value=Float(0, 1), value_=Int(1, 3)))
    study.tell(study.ask(1).ids, [7.0])
    frame = study.to_dataframe()
    assert frame.columns.tolist()[:3] == ["value", "value_", "value__"]
    assert frame["value__"].tolist() == [7.0]
    assert frame["value_"][0] in (1, 2, 3)


def test_functions_of_one_name_are_given_in_their_order(tmp_path: Path) -> None:
    functions = [lambda p: p["a"] > 0.2, lambda p: p["b"] > 0.7]
    space = Space(*functions, a=Float(0.0, 1.0), b=Float(0.0, 1.0))
    make(tmp_path, space).close()
    with pytest.raises(ValueError, match=r"the function '.*:<lambda>' .* Give `functions=\["):
        Study.open(tmp_path)
    with Study.open(tmp_path, functions=functions) as study:
        assert study.space.constraints == tuple(functions)
        assert space.feasible(study.ask(20).X).all()


def test_a_folder_without_a_study_is_not_opened_and_not_made(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ValueError, match="must hold a study, got .* without a study.sqlite"):
            Study.open(folder)
    assert list(tmp_path.iterdir()) == []
