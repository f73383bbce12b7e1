"""Spaces: what goes to the unit cube comes back, and what does not belong is refused."""

import json
import math
import re
import tomllib
from enum import StrEnum
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acquisition.constraints import FeasibleSet
from scalable_bo.space.space import Categorical, Float, Int, LinearConstraint, Space
from tests import problems
from tests.refusals import assert_refused
from tests.scalable_bo.strategies import choices, points_of, spaces

finite = st.floats(-1e6, 1e6)
SPACE = Space(lr=Float(1e-5, 1.0, log=True), momentum=Float(-1.0, 3.0))
FAR = Float(1e6, 1e6 + 1.0)
MIXED = Space(
    lr=Float(1e-3, 1.0, log=True),
    width=Int(1, 64, log=True),
    kind=Categorical(["a", "b", True]),
    epochs=10,
)


def test_log_spreads_the_cube_evenly_over_orders_of_magnitude() -> None:
    U = torch.tensor([[0.0, 0.0], [0.4, 0.5], [1.0, 1.0]], dtype=torch.float64)
    expected = [[1e-5, -1.0], [1e-3, 1.0], [1.0, 3.0]]
    for values, row in zip(SPACE.decode(U), expected, strict=True):
        assert [values["lr"], values["momentum"]] == pytest.approx(row)


def test_dicts_come_back_whatever_the_order_of_their_keys() -> None:
    params = [{"momentum": 0.5, "lr": 0.02}, {"lr": 1.0, "momentum": -1.0}]
    U = SPACE.encode(params)
    assert U.shape == (2, 2)
    for back, given_values in zip(SPACE.decode(U), params, strict=True):
        assert back == pytest.approx(given_values)


def test_bounds_name_the_parameters_and_are_kept() -> None:
    bounds = torch.tensor([[-5.0, 0.0], [10.0, 15.0]], dtype=torch.float64)
    space = Space.from_bounds(bounds)
    assert space.names == ("x0", "x1")
    torch.testing.assert_close(space.bounds, bounds)
    X = torch.tensor([[-5.0, 15.0], [2.5, 3.0]], dtype=torch.float64)
    torch.testing.assert_close(
        space.normalize(X), torch.tensor([[0.0, 1.0], [0.5, 0.2]], dtype=torch.float64)
    )
    torch.testing.assert_close(space.unnormalize(space.normalize(X)), X)


def test_impossible_bounds_are_refused() -> None:
    reversed_and_infinite = [[[0.0, 2.0], [1.0, 1.0]], [[0.0], [math.inf]]]
    wrong = [[[0.0, 1.0]], [0.0, 1.0], *reversed_and_infinite, torch.zeros(2, 0)]
    assert_refused(ValueError, Space.from_bounds, bounds=wrong)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([[0.1, 0.0, 0.0]], r"shape \(n, 2\).*got \(1, 3\)"),
        ([[0.1, 4.0]], "`momentum` must be between -1.0 and 3.0, got 4.0 in row 0"),
        ([[0.1, 0.0], [math.nan, 0.0]], "`lr` must be between.*got nan in row 1"),
    ],
)
def test_points_outside_are_named_with_their_row(X: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SPACE.normalize(X)


def test_dicts_with_other_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="exactly the parameters lr, momentum, got lr in row 1"):
        SPACE.encode([{"lr": 0.1, "momentum": 0.0}, {"lr": 0.1}])


def test_points_outside_the_cube_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`U` must lie in \[0, 1\]"):
        SPACE.decode(torch.tensor([[0.5, 1.1]]))


@given(st.data())
def test_points_of_any_space_come_back_from_dicts_frames_and_the_unit_cube(
    data: st.DataObject,
) -> None:
    space = data.draw(spaces)
    U = data.draw(points_of(space))
    X = space.unnormalize(U)
    assert torch.equal(X, X.clamp(*space.bounds))
    assert torch.equal(space.from_dicts(space.to_dicts(X)), X)
    assert torch.equal(space.from_frame(space.to_frame(X)), X)
    back = space.unnormalize(space.normalize(X))
    discrete = [not isinstance(param, Float) for param in space.params.values()]
    assert torch.equal(back[:, discrete], X[:, discrete])
    torch.testing.assert_close(
        back, X, rtol=1e-9, atol=1e-9 * float((space.bounds[1] - space.bounds[0]).max())
    )


@given(space=spaces, data=st.data())
def test_any_space_comes_back_from_its_tables_and_from_json(
    space: Space, data: st.DataObject
) -> None:
    fixed = data.draw(st.dictionaries(st.text(max_size=3), choices, max_size=3))
    numbers = [name for name, param in space.params.items() if not isinstance(param, Categorical)]

    def met_by_the_lowest(
        coefficients: dict[str, float], below: float | None, above: float
    ) -> LinearConstraint:
        total = sum(c * space.params[name].low for name, c in coefficients.items())
        size = max(1.0, abs(total))
        at_least = None if below is None else total + below * size
        return LinearConstraint(coefficients, at_least, total + above * size)

    linear = st.builds(
        met_by_the_lowest,
        st.dictionaries(st.sampled_from(numbers or [""]), st.floats(0.1, 9.0), min_size=1),
        st.none() | st.floats(-9, 0),
        st.floats(0.5, 9),
    )
    constraints = data.draw(st.lists(linear, max_size=2 if numbers else 0))
    whole = Space(bool, *constraints, **(fixed | space.params))
    tables = json.loads(json.dumps(whole.to_dict()))
    back = Space.from_dict(tables, lambda place, reference: {"builtins:bool": bool}[reference])
    assert back.params == space.params
    assert list(back.params) == list(space.params)
    assert back.fixed == whole.fixed
    assert back.constraints == (bool, *constraints)
    assert back.to_dict() == whole.to_dict()
    for param in space.params.values():
        assert type(param).from_dict(param.to_dict()) == param


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


def test_tables_hold_plain_values_alone() -> None:
    space = Space(
        low=Float(np.float32(0), 10**20, np.bool_(True) ^ np.bool_(True)),
        n=Int(np.int64(1), np.uint8(3)),
        kind=Categorical([Colour.RED, np.float64(0.5), True]),
        fixed=np.int64(3),
    )
    table = json.dumps(space.to_dict()["parameters"])
    assert table == (
        '{"low": {"type": "float", "low": 0.0, "high": 1e+20, "log": false},'
        ' "n": {"type": "int", "low": 1, "high": 3, "log": false},'
        ' "kind": {"type": "categorical", "choices": ["red", 0.5, true]}, "fixed": 3}'
    )
    assert type(space.params["n"].high) is int


def test_tables_of_no_space_are_refused() -> None:
    for tables, message in (
        ({"parameters": {}}, "`space.version` must be given"),
        ({"version": 2, "parameters": {}}, "must have the `version` 1, got 2. Install"),
        ({"version": 1, "params": {}}, "`space.params` is not known. Did you mean `parameters`"),
        ({"version": 1, "parameters": []}, "`parameters` must be a table and `constraints` a list"),
        (
            {"version": 1, "parameters": {"x": {"type": "flaot"}}},
            r"`parameters.x.type` must be float, int, categorical, got 'flaot'. Did you mean",
        ),
        (
            {"version": 1, "parameters": {"x": {"type": "int", "low": 1, "hihg": 2}}},
            "`parameters.x.high` must be given.\n`parameters.x.hihg` is not known. Did you",
        ),
        (
            {"version": 1, "parameters": {"x": {"type": "int", "low": 1, "high": 0}}},
            "`parameters.x`: `low` must be below `high`",
        ),
        (
            {"version": 1, "parameters": {}, "constraints": [{"function": "os:remove"}]},
            "`constraints.0.function` is 'os:remove', and nothing is imported here",
        ),
        (
            {"version": 1, "parameters": {}, "constraints": ["x < 1"]},
            "`constraints.0`: a constraint must have either `coefficients`",
        ),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            Space.from_dict(tables)


@given(st.data())
def test_rounded_points_stay_where_they_are_evaluated(data: st.DataObject) -> None:
    space = data.draw(spaces)
    U = data.draw(points_of(space))
    rounded = space.round(U)
    assert rounded.shape == U.shape
    torch.testing.assert_close(rounded, space.normalize(space.unnormalize(U)), rtol=0.0, atol=1e-7)
    torch.testing.assert_close(space.round(rounded), rounded, rtol=0.0, atol=1e-12)
    torch.testing.assert_close(
        space.round(U.expand(2, 3, *U.shape))[1, 2], rounded, rtol=0.0, atol=0.0
    )


def test_every_integer_and_choice_has_the_same_share_of_the_cube() -> None:
    space = Space(n=Int(3, 7), kind=Categorical(["a", "b", "c"]))
    U = torch.quasirandom.SobolEngine(4, scramble=True, seed=0).draw(4096, dtype=torch.float64)
    X = space.unnormalize(U)
    for column, count in ((0, 5), (1, 3)):
        shares = X[:, column].unique(return_counts=True)[1] / len(X)
        torch.testing.assert_close(shares, torch.full((count,), 1 / count), atol=0.01, rtol=0.0)


def test_a_choice_is_one_column_each_and_fixed_values_are_none() -> None:
    params = [
        {"lr": 1.0, "width": 1, "kind": True, "epochs": 10},
        {"lr": 1e-3, "width": 64, "kind": "a", "epochs": 10},
    ]
    U = MIXED.encode(params)
    assert U[:, 2:].tolist() == [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    assert U.shape == (2, MIXED.encoded_dim) == (2, 5)
    assert MIXED.decode(U) == params
    assert [type(value) for value in MIXED.decode(U)[0].values()] == [float, int, bool, int]
    assert MIXED.to_frame(MIXED.unnormalize(U))["epochs"].tolist() == [10, 10]


def test_all_points_of_a_finite_space_are_listed() -> None:
    space = Space(
        LinearConstraint({"n": 2, "m": 1}, at_most=4),
        lambda p: p["k"] != "b",
        n=Int(0, 3),
        m=Int(1, 2),
        k=Categorical(["a", "b"]),
    )
    assert space.num_points == 16
    assert space.to_dicts(space.enumerate()) == [
        {"n": n, "m": m, "k": "a"} for n in range(4) for m in (1, 2) if 2 * n + m <= 4
    ]
    assert MIXED.num_points == math.inf


def test_constraints_mean_what_they_say() -> None:
    for constraint, params, met in (
        (LinearConstraint({"a": 1.0, "n": -2.0}, at_least=0.0), {"a": 4.0, "n": 2}, True),
        (LinearConstraint({"a": 1.0, "n": -2.0}, at_least=0.0), {"a": 3.9, "n": 2}, False),
        (LinearConstraint({"a": 0.1, "b": 0.2}, at_most=0.3), {"a": 1.0, "b": 1.0}, True),
        (
            LinearConstraint({"a": 1.0, "b": 1.0}, at_least=2.0, at_most=2.0),
            {"a": 1.5, "b": 0.5},
            True,
        ),
        (
            LinearConstraint({"a": 1.0, "b": 1.0}, at_least=2.0, at_most=2.0),
            {"a": 1.5, "b": 0.6},
            False,
        ),
        (lambda p: p["a"] - p["n"], {"a": 3.0, "n": 3}, True),
        (lambda p: p["a"] - p["n"], {"a": 2.0, "n": 3}, False),
        (lambda p: np.bool_(p["fixed"] == "yes"), {}, True),
    ):
        space = Space(constraint, a=Float(0.0, 5.0), b=Float(0.0, 5.0), n=Int(1, 9), fixed="yes")
        X = space.from_dicts([{"a": 1.0, "b": 1.0, "n": 1} | params])
        assert space.feasible(X).tolist() == [met]


@pytest.mark.parametrize(
    ("limits", "shown"),
    [
        ({"at_most": -1.0}, "2 · x + -1 · n ≤ -1"),
        ({"at_least": 2.5}, "2.5 ≤ 2 · x + -1 · n"),
        ({"at_least": 3.0, "at_most": 3.0}, "2 · x + -1 · n = 3"),
    ],
)
def test_a_linear_constraint_that_the_ranges_cannot_meet_is_refused(
    limits: dict[str, float], shown: str
) -> None:
    params = {"x": Float(0.5, 1.0), "n": Float(0.0, 1.0)}
    message = f"must leave a point of the space, got {shown}, where the sum is 0 to 2. Relax it"
    with pytest.raises(ValueError, match=re.escape(message)):
        Space(LinearConstraint({"x": 2, "n": -1}, **limits), **params)
    if len(limits) == 1:  # at the very end of the range there is a point
        end = dict.fromkeys(limits, 0.0 if "at_most" in limits else 2.0)
        assert Space(LinearConstraint({"x": 2, "n": -1}, **end), **params).dim == 2


def test_a_constraint_on_a_wide_range_holds_to_the_last_integer() -> None:
    space = Space(
        LinearConstraint({"a": 1, "b": -1}, at_most=0), a=Int(0, 4_000_000), b=Int(0, 4_000_000)
    )
    X = torch.tensor([[7.0, 7.0], [3_999_999.0, 4_000_000.0], [8.0, 7.0], [4e6, 3_999_999.0]])
    assert space.feasible(X.double()).tolist() == [True, True, False, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_neither_loses_points_that_keep_a_constraint_nor_finds_others(
    dtype: torch.dtype,
) -> None:
    def searched(space: Space) -> FeasibleSet:
        cube = space.cube.to(dtype)
        return FeasibleSet.of(cube, **space.acquisition_options(cube))

    sum_of = {"n": 1, "m": 1, "idle": 0}
    whole = Space(LinearConstraint(sum_of, at_most=3), n=Int(0, 3), m=Int(0, 3), idle=Float(0, 1))
    X = torch.tensor([[3, 0, 0.5], [2, 1, 0.5], [0, 3, 0.5], [3, 1, 0.5]], dtype=torch.float64)
    met = searched(whole).contains(whole.normalize(X).to(dtype))
    assert met.tolist() == [True, True, True, False]
    for limits in ((None, 1.0), (1.0, 1.0 + 1e-5)):
        real = Space(LinearConstraint({"a": 1, "b": 1}, *limits), a=Float(0, 1), b=Float(0, 1))
        U = 0.5 + 0.5 * torch.rand(100, 2, dtype=dtype)
        moved = searched(real).nearby(U)
        assert real.feasible(real.unnormalize(moved)).any()
        X = real.unnormalize(moved[searched(real).meets(moved)])
        assert real.feasible(X).all() and len(X)


def test_a_limit_at_the_end_of_a_sum_leaves_a_point_for_the_search() -> None:
    constraint = LinearConstraint({"a": 1, "b": 1}, at_most=0.3)
    space = Space(constraint, a=Float(0.1, 1), b=Float(0.2, 1))
    assert 0.1 + 0.2 > 0.3
    searched = FeasibleSet.of(space.cube, **space.acquisition_options(space.cube))
    assert searched.contains(torch.zeros(1, 2, dtype=torch.float64)).all()


@given(st.floats(0.1, 2.9), st.floats(0.1, 10.0), st.booleans())
def test_what_the_search_finds_at_a_limit_keeps_it(
    share: float, width: float, is_least: bool
) -> None:
    limit = share * width
    limits = {"at_least": limit} if is_least else {"at_most": limit}
    names = ("a", "b", "c")
    space = Space(
        LinearConstraint(dict.fromkeys(names, 1.0), **limits),
        **dict.fromkeys(names, Float(0.0, width)),
    )
    searched = FeasibleSet.of(space.cube, **space.acquisition_options(space.cube))
    moved = searched.nearby(torch.rand(50, 3, dtype=torch.float64))
    assert searched.meets(moved).all()
    X = space.unnormalize(moved)
    assert space.feasible(X).all()
    sums = X.sum(1)
    assert (sums >= limit).all() if is_least else (sums <= limit).all()


def test_the_cube_is_the_range_that_linear_constraints_leave() -> None:
    space = Space(
        LinearConstraint({"a": 1, "b": 1}, at_least=0.05, at_most=0.05),
        LinearConstraint({"c": -2, "b": 1, "n": 1}, at_least=0),
        LinearConstraint({"n": 1}, at_most=20.5),
        a=Float(0, 1),
        b=Float(0, 1),
        c=Float(-3, 50),
        n=Int(0, 100),
        rate=Float(1e-3, 1, log=True),
    )
    expected = torch.tensor([[0, 0, -3, 0, 1e-3], [0.05, 0.05, 10.025, 20, 1]])
    torch.testing.assert_close(
        space.unnormalize(space.cube), expected.double(), rtol=1e-6, atol=1e-4
    )
    beyond = torch.tensor([[1.0, 0.025, 50.0, 100.0, 1.0]], dtype=torch.float64)
    expected = torch.tensor([[20, 0.5, 53 / 13.025, 100.5 / 21, 1]]).double()
    torch.testing.assert_close(space.normalize(beyond), expected, rtol=1e-3, atol=0)


def test_a_range_of_which_constraints_leave_a_point_stays_as_it_is() -> None:
    for limits in ({"at_most": 0.0}, {"at_least": 2.0}, {"at_least": 1e-6, "at_most": 1e-6}):
        space = Space(LinearConstraint({"a": 1, "b": 1}, **limits), a=Float(0, 1), b=Float(0, 1))
        assert torch.equal(space.unnormalize(space.cube), space.cube)
        assert not space.encoding


@given(
    st.lists(st.floats(-3, 3).filter(lambda c: abs(c) > 1e-3), min_size=3, max_size=3),
    st.floats(0, 1),
    st.integers(0, 100),
)
def test_every_feasible_point_lies_in_the_narrowed_cube(
    coefficients: list[float], share: float, seed: int
) -> None:
    ends = [sorted((2 * c, 5 * c)) for c in coefficients]
    lowest, highest = (sum(pair) for pair in zip(*ends, strict=True))
    first = dict(zip(("a", "b", "n"), coefficients, strict=True))
    space = Space(
        LinearConstraint(first, at_most=lowest + share * (highest - lowest)),
        LinearConstraint({"a": 1, "n": 1}, at_least=6.5),
        a=Float(2, 5),
        b=Float(2, 5),
        n=Int(2, 5),
    )
    X = 2 + 3 * torch.rand(500, 3, dtype=torch.float64, generator=problems.seeded(seed))
    X[:, 2].round_()
    U = space.normalize(X[space.feasible(X)])
    assert ((U >= 0) & (U <= 1)).all()
    torch.testing.assert_close(space.unnormalize(U), X[space.feasible(X)])


def test_a_constraint_on_values_far_from_zero_is_one() -> None:
    space = Space(LinearConstraint({"a": 1, "b": -1}, at_most=0), a=FAR, b=FAR)
    U = torch.rand(1000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(space.feasible(space.unnormalize(U)), U[:, 0] <= U[:, 1])


def test_impossible_spaces_are_refused() -> None:
    for make, error, message in (
        (lambda: Int(1, 1), ValueError, "`low` must be below `high`, got low = 1 and high = 1"),
        (lambda: Float(1.0, 0.0), ValueError, "below `high`, got low = 1.0 and high = 0.0"),
        (lambda: Float(1.0, 1.0), ValueError, "`low` must be below `high`"),
        (lambda: Float(0.0, 1.0, log=True), ValueError, "`low` must be positive.*got 0.0"),
        (lambda: Float(0.0, math.inf), ValueError, "`high` must be finite, got inf"),
        (lambda: Float(math.nan, 1.0), ValueError, "`low` must be finite, got nan"),
        (lambda: Float("0", 1.0), TypeError, "`low` must be a number, got '0'"),
        (lambda: Float(-1e308, 1e308), ValueError, "`high` must be less than 1.8e.308 above `low`"),
        (lambda: Space(), ValueError, "at least one parameter"),
        (lambda: Space(width=(0, 1)), TypeError, "`width` must be a `Float`"),
        (
            lambda: Space.from_bounds({"width": Float(0, 1)}),
            TypeError,
            r"got a dict\. Use `Space\(width=\.\.\.\)`",
        ),
        (
            lambda: Int(0, 3, log=True),
            ValueError,
            "`low` must be at least 1 with `log=True`, got 0",
        ),
        (lambda: Float(0, 10**400), ValueError, "`high` must be finite, got a huge integer"),
        (lambda: Float(0, 1, log=1), TypeError, "`log` must be True or False, got 1"),
        (lambda: Int(0, 10**9999), ValueError, r"within ±2\*\*40, got a huge integer. Use"),
        (lambda: Int(0, 2.5), TypeError, "`high` must be an int, got 2.5. Use `Float`"),
        (lambda: Int(0, 2**41), ValueError, r"`high` must lie within ±2\*\*40"),
        (lambda: Categorical("abc"), TypeError, r"list of values, got 'abc'\. Use `Categorical"),
        (
            lambda: Categorical(["a"]),
            ValueError,
            r"`choices` must be at least two, got \['a'\]. Give the space a fixed value",
        ),
        (lambda: Categorical([1, True]), ValueError, "must be different, .* True for 1, .* names"),
        (
            lambda: Categorical([1, b"x"]),
            TypeError,
            "`choices` must be strings, booleans, numbers or None, got b'x'",
        ),
        (
            lambda: Float(0.0, 1.0, step=0.3),
            ValueError,
            "`high` must be a whole number of steps above `low`, got 1.0, 0.3 and 0.0. Try"
            " `high=0.9`",
        ),
        (lambda: Float(5e5, 500001.0, step=0.3), ValueError, "Try `high=500000.9`"),
        (lambda: Int(0, 9, step=2), ValueError, "`high` must be a whole number of steps above"),
        (lambda: Int(0, 9, step=-3), ValueError, "`step` must be positive, got -3"),
        (lambda: Int(0, 8, step=2.0), TypeError, "`step` must be an int, got 2.0"),
        (lambda: Float(1, 2, log=True, step=0.1), ValueError, "`step` must not be given with `log"),
        (lambda: Float(0, 1, active_if="a"), TypeError, "`active_if` must be a dict of values by"),
        (
            lambda: Space(a=Float(0, 1, active_if={"b": 1}), b=Int(0, 1)),
            ValueError,
            "`active_if` of `a` must name parameters before it .*, got `b`",
        ),
        (
            lambda: Space(a=Float(0, 1), b=Float(0, 1, active_if={"a": 1})),
            ValueError,
            "that have choices, integers or steps, got `a`",
        ),
        (
            lambda: Space(a=Categorical(["p", "q"]), b=Float(0, 1, active_if={"a": "r"})),
            ValueError,
            "`active_if` of `b` must ask for what is one of 'p', 'q', got 'r'",
        ),
        (
            lambda: Space(
                LinearConstraint({"b": 1}, at_most=1),
                a=Int(0, 1),
                b=Float(0, 1, active_if={"a": 1}),
            ),
            ValueError,
            "`LinearConstraint` must be on parameters that are always active, got `b`",
        ),
        (lambda: Categorical([1, math.nan]), ValueError, "`choices` must be finite, got nan"),
        (
            lambda: Space(epochs=3),
            ValueError,
            "at least one parameter that varies, got fixed epochs",
        ),
        (
            lambda: Space("a < b", a=Float(0, 1)),
            TypeError,
            "`LinearConstraint` or a function of a dict, got 'a < b'",
        ),
        (
            lambda: Space(LinearConstraint({"b": 1}, at_most=0), a=Float(0, 1)),
            ValueError,
            "parameters that vary, a, got `b`",
        ),
        (
            lambda: Space(LinearConstraint({"k": 1}, at_most=0), k=Categorical([1, 2])),
            TypeError,
            "must be on numbers, got the categorical `k`",
        ),
        (
            lambda: Space(LinearConstraint({"n": 1}, 1, 1), n=Int(0, 2)),
            ValueError,
            "An equality must be on `Float`s without `log`, got `n`",
        ),
        (lambda: LinearConstraint({"a": 0.0}, at_most=1), ValueError, "one that is not 0"),
        (lambda: LinearConstraint({"a": 1.0}), ValueError, "`at_least` or `at_most` must be given"),
        (
            lambda: LinearConstraint({"a": 1.0}, 2, 1),
            ValueError,
            "`at_least` must not exceed `at_most`, got 2 and 1",
        ),
        (
            lambda: LinearConstraint({"a": math.inf}, 2),
            ValueError,
            r"`coefficients\['a'\]` must be finite",
        ),
        (
            lambda: LinearConstraint({"a": "1"}, 2),
            TypeError,
            r"`coefficients\['a'\]` must be a number, got '1'",
        ),
    ):
        with pytest.raises(error, match=message):
            make()


def test_values_that_are_none_of_their_parameter_are_named() -> None:
    for changed, message in (
        ({"width": 65}, "`width` must be an integer between 1 and 64, got 65.0 in row 1"),
        ({"width": 2.5}, "`width` must be an integer between 1 and 64, got 2.5 in row 1"),
        ({"kind": "c"}, "`kind` must be one of 'a', 'b', True, got 'c' in row 1"),
        ({"kind": 1}, "`kind` must be one of 'a', 'b', True, got 1 in row 1"),
        ({"lr": "0.1"}, "`lr` must be between 0.001 and 1.0, got '0.1' in row 1"),
        ({"lr": True}, "`lr` must be between 0.001 and 1.0, got True in row 1"),
        ({"epochs": 11}, "`epochs` is fixed to 10, got 11 in row 1"),
    ):
        good = {"lr": 0.1, "width": 2, "kind": "a", "epochs": 10}
        with pytest.raises(ValueError, match=message):
            MIXED.encode([good, good | changed])


def test_cells_that_are_none_of_their_parameter_are_named() -> None:
    for changed, message in (
        ({"width": 65}, "`width` must be an integer between 1 and 64, got .*65.* in row 8"),
        ({"width": None}, "`width` must be an integer between 1 and 64, got .*nan.* in row 8"),
        ({"kind": "c"}, "`kind` must be one of 'a', 'b', True, got 'c' in row 8"),
        ({"kind": None}, "`kind` must be one of 'a', 'b', True, got .* in row 8"),
        ({"epochs": 11}, "`epochs` is fixed to 10, got .*11.* in row 8"),
    ):
        good = {"lr": 0.1, "width": 2, "kind": "a", "epochs": 10}
        with pytest.raises(ValueError, match=message):
            MIXED.from_frame(pd.DataFrame([good, good | changed]), first_row=7)
        with pytest.raises(
            ValueError, match="The data must have the columns lr, width, kind, got none for kind"
        ):
            MIXED.from_frame(pd.DataFrame([good]).drop(columns="kind"))


def test_a_column_that_is_there_twice_is_named() -> None:
    frame = MIXED.to_frame(MIXED.unnormalize(torch.full((2, MIXED.encoded_dim), 0.5)))
    for name in ("kind", "epochs"):
        twice = pd.concat([frame, frame[[name]]], axis=1)
        with pytest.raises(ValueError, match=f"each column once, got several of {name}. Rename"):
            MIXED.from_frame(twice)
    other = frame.assign(note=1)
    assert len(MIXED.from_frame(pd.concat([other, other[["note"]]], axis=1))) == 2


TREE = Space(
    model=Categorical(["tree", "net", None]),
    depth=Int(2, 10, step=4, active_if={"model": "tree"}),
    solver=Categorical(["adam", "sgd"], active_if={"model": ["net", None]}),
    momentum=Float(0.0, 0.9, step=0.3, active_if={"model": "net", "solver": "sgd"}),
    size=Categorical(["s", "m", "l"], ordered=True),
    epochs=10,
)


def test_steps_are_the_values_that_a_user_would_write() -> None:
    param = Float(0.1, 0.7, step=0.1)
    assert param.values().tolist() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    units = torch.linspace(0, 1, 701, dtype=torch.float64)
    values, counts = param.unnormalize(units).unique(return_counts=True)
    assert values.tolist() == param.values().tolist()
    assert counts.min() >= 99  # an equal share each
    assert param.valid(torch.tensor([0.1 + 0.2, 0.35, math.nan])).tolist() == [True, False, False]
    assert Int(8, 512, step=8).values()[:3].tolist() == [8, 16, 24]
    space = Space(x=param)
    assert space.from_dicts([{"x": 0.1 + 0.2}]).item() == 0.3
    with pytest.raises(ValueError, match="`x` must be between 0.1 and 0.7 in steps of 0.1, got"):
        space.from_dicts([{"x": 0.35}])


def test_ordered_choices_share_one_column_in_their_order() -> None:
    space = Space(size=Categorical(["s", "m", "l"], ordered=True))
    assert space.encoded_dim == 1
    U = space.encode([{"size": size} for size in ("s", "m", "l")])
    assert U.flatten().tolist() == pytest.approx([1 / 6, 1 / 2, 5 / 6])
    assert space.decode(torch.tensor([[0.0], [0.34], [1.0]])) == [
        {"size": "s"},
        {"size": "m"},
        {"size": "l"},
    ]


def test_parameters_that_are_not_active_are_left_out() -> None:
    U = torch.rand(200, TREE.encoded_dim, generator=torch.Generator().manual_seed(0))
    X = TREE.unnormalize(U)
    for row, params in zip(X, TREE.to_dicts(X), strict=True):
        expected = {"model", "size", "epochs"} | {
            "tree": {"depth"},
            "net": {"solver"},
            None: {"solver"},
        }[params["model"]]
        if params["model"] == "net" and params["solver"] == "sgd":
            expected.add("momentum")
        assert set(params) == expected
        assert row.isnan().sum() == 6 - len(expected)
    assert X.equal(TREE.check(X)) is False  # NaN is not equal to itself
    torch.testing.assert_close(TREE.from_dicts(TREE.to_dicts(X)), X, equal_nan=True)
    torch.testing.assert_close(TREE.unnormalize(TREE.normalize(X)), X, equal_nan=True)
    torch.testing.assert_close(TREE.from_frame(TREE.to_frame(X)), X, equal_nan=True)


def test_what_is_not_active_does_not_tell_points_apart() -> None:
    points = torch.tensor([[1.0, 2.0, 0.0, 0.3, 0.0], [1.0, 10.0, 0.0, 0.9, 0.0]]).double()
    first, second = TREE.check(points)
    torch.testing.assert_close(first, second, equal_nan=True)
    assert torch.equal(*TREE.normalize(points).unbind())
    rounded = TREE.round(torch.rand(3, 5, TREE.encoded_dim, dtype=torch.float64))
    torch.testing.assert_close(TREE.round(rounded), rounded)
    torch.testing.assert_close(
        TREE.normalize(TREE.unnormalize(rounded.flatten(0, 1))), rounded.flatten(0, 1)
    )
    # 3 sizes; depths 2, 6, 10; adam, or sgd with 4 momenta; two solvers
    assert len(TREE.enumerate()) == 3 * (3 + (1 + 4) + 2)


def test_dicts_must_leave_out_what_is_not_active_and_have_what_is() -> None:
    with pytest.raises(ValueError, match="`depth` must be left out where it is not active, got 2"):
        TREE.from_dicts([{"model": "net", "solver": "adam", "depth": 2, "size": "s"}])
    with pytest.raises(ValueError, match="`depth` must be an integer .*, got nan in row 0"):
        TREE.from_dicts([{"model": "tree", "size": "s"}])


@pytest.mark.parametrize("observed", [True, False])
def test_a_value_that_rounding_moved_off_the_grid_keeps_what_depends_on_it(observed: bool) -> None:
    space = Space(x=Float(0, 1, step=0.1), y=Float(0, 1, active_if={"x": 0.3}))
    assert space.check([[0.1 + 0.2, 0.5]], observed=observed).tolist() == [[0.3, 0.5]]
    with pytest.raises(ValueError, match="`y` must be between 0.0 and 1.0, got nan"):
        space.from_dicts([{"x": 0.1 + 0.2}], observed=observed)


def test_points_are_completed_after_a_change_of_what_parameters_depend_on() -> None:
    X = TREE.from_dicts([{"model": "tree", "depth": 2, "size": "l"}])
    X[0, 0] = 1.0
    assert TREE.to_dicts(TREE.completed(X)) == [
        {"model": "net", "solver": "adam", "size": "l", "epochs": 10}
    ]


def test_conditions_steps_order_and_none_come_back_from_tables(tmp_path: Path) -> None:
    tables = json.loads(json.dumps(TREE.to_dict()))
    again = Space.from_dict(tables)
    assert again.params == TREE.params
    assert repr(again) == repr(TREE)
    toml = """
    model = { type = "categorical", choices = ["tree", "net", { none = true }] }
    depth = { type = "int", low = 2, high = 10, step = 4, active_if = { model = "tree" } }
    solver.type = "categorical"
    solver.choices = ["adam", "sgd"]
    solver.active_if = { model = ["net", { none = true }] }
    momentum.type = "float"
    momentum.low = 0.0
    momentum.high = 0.9
    momentum.step = 0.3
    momentum.active_if = { model = "net", solver = "sgd" }
    size = { type = "categorical", choices = ["s", "m", "l"], ordered = true }
    epochs = 10
    """
    read = Space.from_dict({"version": 1, "parameters": tomllib.loads(toml)})
    assert read.to_dict() == TREE.to_dict()


def test_choices_may_be_of_numpy_and_torch() -> None:
    assert Categorical(np.array(["a", "b"])) == Categorical(["a", "b"])
    assert Categorical([np.int64(0), np.float64(0.5), np.bool_(True)]).choices == (0, 0.5, True)
    assert Categorical(torch.tensor([1, 2])).to_dict()["choices"] == [1, 2]  # type: ignore[arg-type]
