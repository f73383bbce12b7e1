"""Arguments that are refused by their names. What a check demands has its own tests, in
``surrogates/test_checks.py``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest


def assert_refused(
    error: type[Exception], call: Callable[..., Any], **wrong: Sequence[Any]
) -> None:
    """Require that ``call`` refuses each value of each argument by an error that says what the
    argument must be.
    """
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(error, match=f"`{name}` must"):
                call(**{name: value})
