"""Arguments of a kind that nothing is made for are refused by their names, whatever they are."""

import decimal
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch

from scalable_bo.serving.client import RemoteStudy
from scalable_bo.space.parameters import Categorical
from scalable_bo.space.space import Float, Space
from scalable_bo.study.study import Study

SPACE = Space(x=Float(0.0, 1.0))


class Hostile:
    """Raises from all that Python asks of it."""

    __hash__ = None  # type: ignore[assignment]
    __repr__ = __len__ = __iter__ = __eq__ = Mock(side_effect=RuntimeError("hostile"))


nested: list[Any] = []
for _ in range(5000):
    nested = [nested]
endless: list[Any] = [[]]
endless[0].append(endless)
WRONG = {
    "a list of bytes": [b"bytes"],
    "a list of None": [None],
    "a meta tensor": torch.zeros(2, device="meta"),
    "a sparse tensor": torch.zeros(2, 2).to_sparse(),
    "a matrix": torch.zeros(2, 3),
    "a large int": 10**400,
    "a list of a large int": [10**400],
    "a Decimal": decimal.Decimal("sNaN"),
    "a time": np.datetime64("2020-01-01"),
    "an array of text": np.array("x"),
    "a table": pd.DataFrame({"x": [1]}),
    "missing": pd.NA,
    "a surrogate": "a\udcff",
    "a kind": float,
    "nested": nested,
    "lists that hold each other": endless,
    "hostile": Hostile(),
    "a list of hostile": [Hostile()],
}


def made() -> Study:
    study = Study(SPACE, maximize=True, num_initial=100)
    study.tell(study.ask(3).ids[:1], [1.0])
    return study


def several() -> Study:
    study = Study(SPACE, objectives={"a": "maximize", "b": "minimize"}, num_initial=100)
    study.ask(3)
    return study


CALLS: dict[str, Callable[[Any, RemoteStudy], object]] = {
    "`low`": lambda wrong, remote: Float(wrong, 1.0),
    "`log`": lambda wrong, remote: Float(1.0, 2.0, log=wrong),
    "`y`": lambda wrong, remote: Space(y=wrong),
    "`maximize`": lambda wrong, remote: Study(SPACE, maximize=wrong),
    "`outcome_constraints`": lambda wrong, remote: Study(
        SPACE, maximize=True, outcome_constraints=wrong
    ),
    "`outcome_constraints` one": lambda wrong, remote: Study(
        SPACE, maximize=True, outcome_constraints={"w": wrong}
    ),
    "`objectives`": lambda wrong, remote: Study(SPACE, objectives=wrong),
    "`objectives` one": lambda wrong, remote: Study(SPACE, objectives={"a": wrong}),
    "`strategy`": lambda wrong, remote: Study(SPACE, maximize=True, strategy=wrong),
    "`kernel`": lambda wrong, remote: Study(SPACE, maximize=True, kernel=wrong),
    "`sampler`": lambda wrong, remote: Study(SPACE, maximize=True, sampler=wrong),
    "`dtype`": lambda wrong, remote: Study(SPACE, maximize=True, dtype=wrong),
    "`name` of a study": lambda wrong, remote: Study(SPACE, maximize=True, name=wrong),
    "`choices`": lambda wrong, remote: Categorical(wrong),
    "`progress`": lambda wrong, remote: made().optimize(float, rounds=1, batch=1, progress=wrong),
    "`path`": lambda wrong, remote: Study(SPACE, maximize=True, path=wrong),
    "`path` of report": lambda wrong, remote: made().report(wrong),
    "`path` of copy_to": lambda wrong, remote: made().copy_to(wrong),
    "`path` of open": lambda wrong, remote: Study.open(wrong),
    "`x`": lambda wrong, remote: made().enqueue({"x": wrong}),
    "`values` of several": lambda wrong, remote: several().tell([1], wrong),
    "`y` of add_data": lambda wrong, remote: made().add_data([{"x": 0.5}], y=wrong),
    "`storage`": lambda wrong, remote: Study(SPACE, maximize=True, storage=wrong),
    "`objective`": lambda wrong, remote: made().optimize(wrong, rounds=1, batch=1),
    "`q`": lambda wrong, remote: made().ask(wrong),
    "`ids` of tell": lambda wrong, remote: made().tell(wrong, [1.0]),
    "`noise`": lambda wrong, remote: made().tell([1], [1.0], noise=wrong),
    "`reasons`": lambda wrong, remote: made().tell([1], [math.nan], reasons=wrong),
    "`ids` of points": lambda wrong, remote: made().points(wrong),
    "`ids` of reasons": lambda wrong, remote: made().reasons(wrong),
    "`batch`": lambda wrong, remote: made().sheet(wrong),
    "`text`": lambda wrong, remote: made().note(0, wrong),
    "`why`": lambda wrong, remote: made().withdraw([0], why=wrong),
    "`why` of correct": lambda wrong, remote: made().correct(0, 2.0, why=wrong),
    "`name`": lambda wrong, remote: made().add_data([{"x": 0.5}], [1.0], name=wrong),
    "`ids` of a server": lambda wrong, remote: remote.tell(wrong, [1.0]),
    "`values` of a server": lambda wrong, remote: remote.tell([0, 1, 2, 3, 4], wrong),
    "`noise` of a server": lambda wrong, remote: remote.tell([0], [1.0], noise=wrong),
    "`reasons` of a server": lambda wrong, remote: remote.tell([0], [1.0], reasons=wrong),
    "`ids` to renew": lambda wrong, remote: remote.renew(wrong),
    "`ids` to release": lambda wrong, remote: remote.release(wrong),
    "`q` of a server": lambda wrong, remote: remote.ask(wrong),
    "`patience`": lambda wrong, remote: RemoteStudy(
        "http://127.0.0.1:9", token="x", patience=wrong
    ),
}
# Values that an argument accepts after all: a text, a variance that is not known, a long time, an
# unknown point, and a value that marks an evaluation as failed
TAKEN = {
    *((call, "a surrogate") for call in ("`path`", "`path` of report", "`path` of copy_to")),
    *(
        (call, kind)
        for call in ("`values` of several", "`y` of add_data")
        for kind in ("a list of bytes", "a list of None", "nested", "a list of hostile")
    ),
    ("`y` of add_data", "a table"),
    ("`path` of open", "a surrogate"),
    *((call, "a surrogate") for call in ("`text`", "`why`", "`why` of correct", "`name`")),
    *((call, "a kind") for call in ("`objective`", "`sampler`")),
    ("`noise` of a server", "a list of None"),
    ("`patience`", "a large int"),
    ("`ids` of reasons", "a list of a large int"),
    # JSON nests no deeper than Python
    *(
        (call, kind)
        for call in ("`noise` of a server", "`q` of a server")
        for kind in ("nested", "lists that hold each other")
    ),
}


@pytest.fixture(scope="module")
def remote() -> Iterator[RemoteStudy]:
    pytest.importorskip("fastapi")
    from scalable_bo.serving.server import Server

    with (
        Study(SPACE, maximize=True, num_initial=100) as study,
        Server(study) as server,
        RemoteStudy(server.url, token=server.token, patience=5.0) as found,
    ):
        yield found


@pytest.mark.parametrize("call", CALLS)
def test_an_argument_of_a_wrong_kind_is_refused_by_its_name(call: str, remote: RemoteStudy) -> None:
    name = call.split("`")[1].removesuffix("s")
    message = f"`.*{name}|`body`|no .*rows? |point [01]"
    for kind in [kind for kind in WRONG if (call, kind) not in TAKEN]:
        with pytest.raises((TypeError, ValueError), match=message):
            CALLS[call](WRONG[kind], remote)


def test_a_list_that_holds_itself_is_no_value() -> None:
    itself: list[Any] = []
    itself.append(itself)
    for wrong in (itself, endless):
        with pytest.raises(ValueError, match=r"The value of point 1 must be one number, got \[\["):
            made().tell([1], [wrong])


@pytest.mark.parametrize("wrong", ["", "a\0b", "x" * 5000], ids=["empty", "NUL", "long"])
def test_a_path_that_cannot_be_is_refused_by_its_name(wrong: str) -> None:
    makes = partial(Study, SPACE, maximize=True)
    for use in (made().report, made().copy_to, Study.open, makes):
        with pytest.raises(
            (ValueError, OSError), match="`path` must be|could not be|`folder` must"
        ):
            use(path=wrong)


def test_names_of_outcomes_and_parameters_may_be_shown_by_no_code_of_their_own() -> None:
    class Name:
        __repr__ = Mock(side_effect=RuntimeError("no repr"))

    for name in (Name(), pd.NA):
        with pytest.raises(ValueError, match="must be of the outcomes a, b, got <"):
            several().tell([1], [{"a": 1.0, name: 2.0}])
        with pytest.raises(ValueError, match="must have exactly the parameters x, got <"):
            made().enqueue({name: 0.5})
