"""Parametrisation by a few cases in which all pairs of values meet, in place of the product of all
values.
"""

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any

import pytest


def each_pair(**axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrise a test so that any two values of two of its arguments meet in some case.

    Most faults lie in one value or in two together, which a product of many axes repeats; of an
    axis, each value is met by all values of every other, in about as many cases as the two longest
    axes have pairs.

    Args:
        axes: the values of each argument.
    """
    values = [tuple(axis) for axis in axes.values()]
    rows = [
        [axis[i] for axis, i in zip(values, place, strict=True)]
        for place in covering([len(axis) for axis in values])
    ]
    names = ["-".join(getattr(value, "__name__", str(value)) for value in row) for row in rows]
    return pytest.mark.parametrize(tuple(axes), rows, ids=names)


def covering(sizes: list[int]) -> list[tuple[int, ...]]:
    """Return places in a grid of these sizes such that any two coordinates of two axes meet.

    The next place is the first one with the most pairs that have not met.
    """
    rows = {
        place: {((i, place[i]), (j, place[j])) for i, j in combinations(range(len(sizes)), 2)}
        for place in product(*map(range, sizes))
    }
    missing = set().union(*rows.values())
    chosen = []
    while missing:
        place = max(rows, key=lambda place: len(rows[place] & missing))
        missing -= rows[place]
        chosen.append(place)
    return chosen
