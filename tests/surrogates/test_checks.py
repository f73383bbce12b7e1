"""Validation: what passes comes back with its value, what does not is named with its value."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from surrogates import checks, memory


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(3, 2)[::-1, ::-1],
        np.arange(6, dtype=">i4").reshape(3, 2)[::2],
        np.array([[1.5, 2.5]], dtype=">f2"),
        np.broadcast_to(np.float32(2.0), (2, 3)),
        np.array([[True], [False]])[::-1],
        np.zeros(2, dtype=[("odd", "i1"), ("x", ">f8")])["x"],
        pd.DataFrame({"x": [1.0, 2.0]})[::-1],
        [[1, 2], [3, 4]],
    ],
)
def test_a_tensor_has_the_numbers_of_an_array_however_it_is_laid_out(array: Any) -> None:
    tensor = checks.of_array(array)
    np.testing.assert_array_equal(tensor.numpy(), np.asarray(array))
    tensor.zero_()  # and none of its memory
    if isinstance(array, np.ndarray):
        assert tensor.data_ptr() != array.__array_interface__["data"][0]


@pytest.mark.parametrize("kind", [np.int8, np.uint16, np.int64, np.float32, np.float64, int])
def test_numbers_of_numpy_come_back_as_plain_ones(kind: type) -> None:
    assert type(checks.positive_float("noise", kind(3))) is float
    assert type(checks.fraction("share", kind(1))) is float
    if not issubclass(kind, np.floating):
        assert type(checks.integer("q", kind(3), 0)) is int
        with pytest.raises(ValueError, match="`q` must be at least 4, got 3"):
            checks.integer("q", kind(3), 4)


def test_fields_are_kept_as_plain_numbers() -> None:
    @dataclass(frozen=True)
    class Settings:
        q: Any
        share: Any = None
        step: Any = 1

    settings = Settings(np.int64(3))
    checks.fields(settings, ["q", "share", "step"], checks.positive_int)
    assert settings == Settings(3) and type(settings.q) is int
    for name in ("q", "step"):
        with pytest.raises(TypeError, match=f"`{name}` must be an int, got NoneType None"):
            checks.fields(Settings(**{"q": 1, name: None}), [name], checks.positive_int)


@given(st.integers(-(2**64), 2**64))
def test_positive_int(value: int) -> None:
    if 1 <= value < 2**63:
        assert checks.positive_int("q", value) == value
    else:
        limit = "least 1" if value < 1 else "most 2⁶³ - 1"
        with pytest.raises(ValueError, match=f"`q` must be at {limit}, got {value}. Ask for one."):
            checks.positive_int("q", value, "Ask for one.")


def test_a_long_int_is_refused_and_shown_in_short() -> None:
    with pytest.raises(ValueError, match=r"`q` must be at most 2⁶³ - 1, got 10+\.\.\.0+\.$"):
        checks.positive_int("q", 10**400)


@pytest.mark.parametrize("value", [1.0, "1", None, True, np.True_, np.float32(1), torch.tensor(1)])
def test_positive_int_refuses_other_kinds(value: Any) -> None:
    with pytest.raises(TypeError, match="`q` must be an int, got"):
        checks.positive_int("q", value)


@given(st.floats() | st.integers(-10, 10))
def test_positive_float(value: float) -> None:
    if value > 0 and math.isfinite(value):
        assert checks.positive_float("noise", value) == value
    else:
        with pytest.raises(ValueError, match="`noise` must be finite and above 0, got"):
            checks.positive_float("noise", value)


@pytest.mark.parametrize("value", ["1", None, False, np.True_, 1j, [1.0]])
def test_positive_float_refuses_other_kinds(value: Any) -> None:
    with pytest.raises(TypeError, match="`noise` must be a number, got"):
        checks.positive_float("noise", value)


@given(
    rows=st.integers(1, 6),
    columns=st.integers(1, 6),
    bad=st.sampled_from([math.nan, math.inf, -math.inf]),
    data=st.data(),
)
def test_a_number_that_is_not_finite_is_named_with_its_index(
    rows: int, columns: int, bad: float, data: st.DataObject
) -> None:
    X = torch.zeros(rows, columns)
    assert checks.floating_tensor("X", X) is X
    i = data.draw(st.integers(0, rows - 1))
    j = data.draw(st.integers(0, columns - 1))
    X[i, j] = bad
    with pytest.raises(
        ValueError,
        match=(
            rf"`X` must be finite, got {bad} at index \({i}, {j}\) \(1 such values\). Remove those"
            r" rows."
        ),
    ):
        checks.floating_tensor("X", X)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.complex64]
)
def test_other_dtypes_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=f"`X` must have dtype float32 or float64, got {dtype}"):
        checks.floating_tensor("X", torch.zeros(2, dtype=dtype))


@given(lower=st.floats(-5, 5, width=32), upper=st.floats(-5, 5, width=32))
def test_bounds_must_not_be_reversed_nor_empty(lower: float, upper: float) -> None:
    bounds = torch.tensor([[0.0, lower], [1.0, upper]])
    if lower < upper:
        assert torch.equal(checks.box(bounds), bounds)
    else:
        with pytest.raises(
            ValueError,
            match="`bounds` must have each lower bound below its upper bound.* in dimension 1",
        ):
            checks.box(bounds)


@pytest.mark.parametrize("shape", [(2,), (3, 2), (2, 0), (2, 2, 1)])
def test_bounds_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"`bounds` must have shape \(2, d\), lower bounds first, got"
    ):
        checks.box(torch.zeros(shape))


def test_memory_that_is_not_there_is_refused_with_its_number() -> None:
    device = torch.device("cpu")
    assert memory.available(device) > 0
    memory.require(1, device, "This", "Less.")
    with pytest.raises(
        MemoryError, match=r"This needs 1048576.0 GiB and .* GiB are free on cpu. Less."
    ):
        memory.require(2**50, device, "This", "Less.")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "uniforn",
            r"`kind` must be one of uniform, nearest, got 'uniforn'. Did you mean 'uniform'\?",
        ),
        ("best", "`kind` must be one of uniform, nearest, got 'best'.$"),
        (3, "`kind` must be one of uniform, nearest, got 3.$"),
        (["uniform"], r"`kind` must be one of uniform, nearest, got \['uniform'\].$"),
    ],
)
def test_what_is_none_of_the_choices_is_named_with_them(value: object, message: str) -> None:
    assert checks.one_of("kind", "nearest", ("uniform", "nearest")) == "nearest"
    with pytest.raises(ValueError, match=message):
        checks.one_of("kind", value, ("uniform", "nearest"))
