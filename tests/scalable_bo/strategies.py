"""Hypothesis strategies: search spaces, and points of their unit cube."""

import string

import torch
from hypothesis import strategies as st
from torch import Tensor

from scalable_bo.space.space import Categorical, Float, Int, Space

names = st.text(string.ascii_letters + "_ é\"'<%", min_size=1, max_size=8)
floats = st.builds(
    lambda low, width: Float(low, low + width), st.floats(-1e6, 1e6), st.floats(1e-3, 1e6)
)
log_floats = st.builds(
    lambda low, factor: Float(low, low * factor, log=True),
    st.floats(1e-8, 1e3),
    st.floats(1.01, 1e9),
)
ints = st.builds(
    lambda low, width: Int(low, low + width), st.integers(-(2**39), 2**39), st.integers(1, 2**39)
)
small_ints = st.builds(
    lambda low, width, log: Int(low, low + width, log),
    st.integers(1, 5),
    st.integers(1, 9),
    st.booleans(),
)
float_steps = st.builds(
    lambda low, step, count: Float(low / 8, (low + count * step) / 8, step=step / 8),
    st.integers(-100, 100),
    st.integers(1, 9),
    st.integers(1, 9),
)
int_steps = st.builds(
    lambda low, step, count: Int(low, low + count * step, step=step),
    st.integers(-100, 100),
    st.integers(1, 9),
    st.integers(1, 9),
)
choices = st.one_of(st.text(max_size=5), st.integers(-5, 5), st.floats(-1e3, 1e3))
categoricals = st.builds(
    Categorical, st.lists(st.none() | choices, min_size=2, max_size=5, unique=True), st.booleans()
)
kinds = st.one_of(floats, log_floats, ints, small_ints, float_steps, int_steps, categoricals)
spaces = st.dictionaries(names, kinds, min_size=1, max_size=5).map(lambda params: Space(**params))


def points_of(space: Space, n: int = 4) -> st.SearchStrategy[Tensor]:
    """Return points of the unit cube, its corners among them."""
    units = st.floats(0, 1)
    return st.lists(
        st.lists(units, min_size=space.encoded_dim, max_size=space.encoded_dim),
        min_size=1,
        max_size=n,
    ).map(lambda rows: torch.tensor(rows, dtype=torch.float64))
