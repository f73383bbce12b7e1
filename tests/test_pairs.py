"""Cases in which all pairs of values meet."""

from itertools import combinations, product

import pytest

from tests.pairs import covering


@pytest.mark.parametrize("sizes", [[3, 2], [7, 5, 2], [2, 2, 2, 2], [12, 1, 3, 4]], ids=str)
def test_any_two_values_meet_in_few_cases(sizes: list[int]) -> None:
    places = covering(sizes)
    for i, j in combinations(range(len(sizes)), 2):
        met = {(place[i], place[j]) for place in places}
        assert met == set(product(range(sizes[i]), range(sizes[j])))
    longest = sorted(sizes)[-2:]
    assert len(places) <= 1.5 * longest[0] * longest[-1]
